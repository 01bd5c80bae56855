//! Assigns pair windows: windows that a virtual machine shares with one neighbour each (decision
//! 0039). A neighbour may be another machine, where the daemon has had the window plugged in
//! (0042).
//!
//! A neighbour keeps its window for as long as the machine is there, since nothing can be taken out
//! of a guest again: so there are few of them, and one is given only where both ends want a link,
//! or the machine's own process does. A neighbour is a user in a vNIC: a process with a descriptor
//! of the window can see all of it. In: the windows of a machine. Out: whether a link can be in
//! one, and which machines want one in common.

use super::window_table::{Neighbour, SharedWindow, WindowRoom, Windows};
use crate::accounts::Receipt;
use crate::network::Network;
use crate::network::SharedMemory;
use crate::qp_data_path::PathReason;
use crate::queue_pairs::queue_pair_table::QueuePairs;
use crate::row_keys::SessionId;
use crate::vm_pair_windows::window_table::MachineWindows;
use crate::vnics_and_policies::Tenants;
use omniverb_terms::{Errno, Qpn, VnicId};

/// Which ends asked for a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkOrigin {
    /// Each end has named the other: RC, UC and XRC.
    ByBoth,
    /// Of the one that is named first.
    ByFirst,
}

impl MachineWindows {
    /// The memory that processes of these two can share: of two machines that of a window which is
    /// in both.
    pub(crate) fn common(&self, network: &Network, vnics: [VnicId; 2]) -> SharedMemory {
        match network.common(vnics) {
            SharedMemory::Nothing => {
                self.end_of_shared(vnics).map_or(SharedMemory::Nothing, SharedMemory::Window)
            }
            common => common,
        }
    }

    /// A process of the first wants a link with one of the second, which is kept apart from it.
    /// If that is for the want of a window which is in both machines, it is remembered.
    pub(crate) fn note_apart(
        &mut self,
        network: &Network,
        why: PathReason,
        from: VnicId,
        to: VnicId,
    ) {
        let machines = [from, to].iter().all(|vnic| network.is_machine(*vnic));
        if machines && matches!(why, PathReason::PairLater | PathReason::PairsTaken) {
            self.ask(from, to);
        }
    }

    /// Why traffic from a queue pair of one vNIC to one of another, of this host, must pass through
    /// the engine, if it must.
    pub(crate) fn kept_apart(
        &self,
        tenants: &Tenants,
        network: &Network,
        queue_pairs: &QueuePairs,
        from: (VnicId, Qpn),
        to: (VnicId, Qpn),
        asked: LinkOrigin,
    ) -> Option<PathReason> {
        network
            .through_engine(tenants, from.0, to.0)
            .or_else(|| self.without_window(tenants, network, queue_pairs, from, to, asked))
    }

    /// Why they share no memory, if a machine is in the way.
    fn without_window(
        &self,
        tenants: &Tenants,
        network: &Network,
        queue_pairs: &QueuePairs,
        from: (VnicId, Qpn),
        to: (VnicId, Qpn),
        asked: LinkOrigin,
    ) -> Option<PathReason> {
        let own = network.is_machine(from.0);
        let why = if own { PathReason::Machine } else { PathReason::PeerMachine };
        let (machine, other) = match self.common(network, [from.0, to.0]) {
            SharedMemory::Any => return None,
            SharedMemory::Nothing => {
                return Some(match self.between([from.0, to.0]) {
                    SharedWindow::Nothing => why,
                    SharedWindow::Later => PathReason::PairLater,
                    SharedWindow::Taken => PathReason::PairsTaken,
                });
            }
            SharedMemory::Window(0) => (from.0, to),
            SharedMemory::Window(_) => (to.0, from),
        };
        if network.is_machine(other.0) {
            return match self.room_with(machine, other.0) {
                WindowRoom::InHis => None,
                WindowRoom::Full => Some(PathReason::PairFull),
                WindowRoom::InFree | WindowRoom::Taken => Some(PathReason::PairsTaken),
            };
        }
        let proof = tenants.proof(other.0);
        let Some(windows) = self.windows_for(machine, proof) else { return Some(why) };
        let session = queue_pairs.session_of(other.1);
        let user =
            session.and_then(|id| tenants.sessions.get(&id)).map(|session| session.client().uid);
        match windows.room(proof, user) {
            WindowRoom::InHis => None,
            WindowRoom::InFree if asked == LinkOrigin::ByFirst && !own => Some(why),
            WindowRoom::InFree => None,
            WindowRoom::Full => Some(PathReason::PairFull),
            WindowRoom::Taken => Some(PathReason::PairsTaken),
        }
    }

    /// A machine's windows, if a vNIC of this proof can have one: of one that cannot be told from
    /// another that comes later nothing may be left behind.
    fn windows_for(&self, machine: VnicId, proof: [u64; 4]) -> Option<&Windows> {
        self.of(machine).filter(|_| proof[3] != 0)
    }

    /// In the window of a machine that is another one's, too.
    fn room_with(&self, machine: VnicId, other: VnicId) -> WindowRoom {
        let windows = [machine, other].map(|machine| self.of(machine));
        let [Some(ours), Some(theirs)] = windows else { return WindowRoom::Taken };
        theirs.this().map_or(WindowRoom::Taken, |theirs| ours.room_with(theirs))
    }

    /// The neighbour at the other end of a link with a machine's process.
    pub(crate) fn neighbour(
        &self,
        tenants: &Tenants,
        network: &Network,
        session: SessionId,
    ) -> Option<Neighbour> {
        let client = tenants.sessions.get(&session)?.client();
        match network.is_machine(client.vnic) {
            true => self.of(client.vnic)?.this(),
            false => Some(Neighbour { proof: tenants.proof(client.vnic), uid: client.uid }),
        }
    }

    /// A place in a window for a link between these two, if it needs one.
    pub(crate) fn take_place(
        &mut self,
        tenants: &Tenants,
        network: &Network,
        vnics: [VnicId; 2],
        sessions: [SessionId; 2],
    ) -> Result<Option<Receipt>, Errno> {
        let end = match self.common(network, vnics) {
            SharedMemory::Any => return Ok(None),
            SharedMemory::Nothing => return Err(Errno::EOPNOTSUPP),
            SharedMemory::Window(end) => end,
        };
        let neighbour = self.neighbour(tenants, network, sessions[1 - end]).ok_or(Errno::ENOENT)?;
        if neighbour.proof[3] == 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let windows = self.of_mut(vnics[end]).ok_or(Errno::EOPNOTSUPP)?;
        windows.take(neighbour).map(Some)
    }
}
