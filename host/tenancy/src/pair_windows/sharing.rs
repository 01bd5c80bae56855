//! Windows that a virtual machine shares with one neighbour each: pair windows (decision 0039). A
//! neighbour may be another machine, where the daemon has had the window plugged in (0042).
//!
//! Who has one has it for as long as the machine is there, since nothing can be taken out of a
//! guest again: so there are few of them, and one is given only where both ends want a link, or the
//! machine's own process does. A neighbour is a user in a vNIC: who has a descriptor of the window
//! can see all of it. In: what windows a machine has. Out: whether a link can be in one, and which
//! machines want one in common.

use super::table::{Between, Neighbour, PairWindows, Room, Windows};
use crate::accounts::{Kind, Receipt};
use crate::action::Action;
use crate::ids::SessionId;
use crate::network::Common;
use crate::path::Why;
use crate::tenancy::Tenancy;
use omniverb_terms::{Errno, Qpn, VnicId};

/// Whose wish a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Each end has named the other: RC, UC and XRC.
    ByBoth,
    /// Of the one that is named first.
    ByFirst,
}

impl Tenancy {
    /// What pair windows the machine that has a vNIC has now.
    pub fn set_pair_windows(&mut self, machine: VnicId, windows: PairWindows) {
        self.pair_windows.set(machine, windows);
    }

    /// A machine is parted with, and its windows with it: owners take back what lies there.
    #[must_use]
    pub fn forget_pair_windows(&mut self, machine: VnicId) -> Vec<Action> {
        self.pair_windows.forget(machine);
        self.take_back_of(machine);
        self.decided()
    }

    /// Machines whose processes wanted links with each other, both ways, and had no window in
    /// common: those since this was asked last.
    pub fn take_wanted_windows(&mut self) -> impl Iterator<Item = [VnicId; 2]> + use<> {
        self.pair_windows.take_wanted().into_iter()
    }

    /// What memory processes of these two can share: of two machines that of a window which is in
    /// both.
    pub(crate) fn common(&self, vnics: [VnicId; 2]) -> Common {
        match self.network.common(vnics) {
            Common::Nothing => {
                self.pair_windows.end_of_shared(vnics).map_or(Common::Nothing, Common::Window)
            }
            common => common,
        }
    }

    /// A process of the first wants a link with one of the second, which is kept apart from it.
    /// If that is for the want of a window which is in both machines, it is remembered.
    pub(crate) fn note_apart(&mut self, why: Why, from: VnicId, to: VnicId) {
        let machines = [from, to].iter().all(|vnic| self.network.is_machine(*vnic));
        if machines && matches!(why, Why::PairLater | Why::PairsTaken) {
            self.pair_windows.ask(from, to);
        }
    }

    /// Direct links between the machine that has a vNIC and others.
    #[must_use]
    pub fn pair_links(&self, machine: VnicId) -> usize {
        self.vnics.get(&machine).map_or(0, |vnic| vnic.account().count(Kind::PairLink))
    }

    /// Why traffic from a queue pair of one vNIC to one of another, of this host, must pass through
    /// the engine, if it must.
    pub(crate) fn kept_apart(
        &self,
        from: (VnicId, Qpn),
        to: (VnicId, Qpn),
        asked: Asked,
    ) -> Option<Why> {
        self.through_engine(from.0, to.0).or_else(|| self.without_window(from, to, asked))
    }

    /// Why they share no memory, if a machine is in the way.
    fn without_window(&self, from: (VnicId, Qpn), to: (VnicId, Qpn), asked: Asked) -> Option<Why> {
        let own = self.network.is_machine(from.0);
        let why = if own { Why::Machine } else { Why::PeerMachine };
        let (machine, other) = match self.common([from.0, to.0]) {
            Common::Any => return None,
            Common::Nothing => {
                return Some(match self.pair_windows.between([from.0, to.0]) {
                    Between::Nothing => why,
                    Between::Later => Why::PairLater,
                    Between::Taken => Why::PairsTaken,
                });
            }
            Common::Window(0) => (from.0, to),
            Common::Window(_) => (to.0, from),
        };
        if self.network.is_machine(other.0) {
            return match self.room_with(machine, other.0) {
                Room::InHis => None,
                Room::Full => Some(Why::PairFull),
                Room::InFree | Room::Taken => Some(Why::PairsTaken),
            };
        }
        let proof = self.proof(other.0);
        let Some(windows) = self.windows_for(machine, proof) else { return Some(why) };
        let session = self.queue_pairs.session_of(other.1);
        let user =
            session.and_then(|id| self.sessions.get(&id)).map(|session| session.client().uid);
        match windows.room(proof, user) {
            Room::InHis => None,
            Room::InFree if asked == Asked::ByFirst && !own => Some(why),
            Room::InFree => None,
            Room::Full => Some(Why::PairFull),
            Room::Taken => Some(Why::PairsTaken),
        }
    }

    /// A machine's windows, if a vNIC of this proof can have one: of one that cannot be told from
    /// another that comes later nothing may be left behind.
    fn windows_for(&self, machine: VnicId, proof: [u64; 4]) -> Option<&Windows> {
        self.pair_windows.of(machine).filter(|_| proof[3] != 0)
    }

    /// In the window of a machine that is another one's, too.
    fn room_with(&self, machine: VnicId, other: VnicId) -> Room {
        let windows = [machine, other].map(|machine| self.pair_windows.of(machine));
        let [Some(ours), Some(theirs)] = windows else { return Room::Taken };
        theirs.this().map_or(Room::Taken, |theirs| ours.room_with(theirs))
    }

    /// The neighbour at the other end of a link with a machine's process.
    pub(crate) fn neighbour(&self, session: SessionId) -> Option<Neighbour> {
        let client = self.sessions.get(&session)?.client();
        match self.network.is_machine(client.vnic) {
            true => self.pair_windows.of(client.vnic)?.this(),
            false => Some(Neighbour { proof: self.proof(client.vnic), uid: client.uid }),
        }
    }

    /// A place in a window for a link between these two, if it needs one.
    pub(crate) fn take_place(
        &mut self,
        vnics: [VnicId; 2],
        sessions: [SessionId; 2],
    ) -> Result<Option<Receipt>, Errno> {
        let end = match self.common(vnics) {
            Common::Any => return Ok(None),
            Common::Nothing => return Err(Errno::EOPNOTSUPP),
            Common::Window(end) => end,
        };
        let neighbour = self.neighbour(sessions[1 - end]).ok_or(Errno::ENOENT)?;
        if neighbour.proof[3] == 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let windows = self.pair_windows.of_mut(vnics[end]).ok_or(Errno::EOPNOTSUPP)?;
        windows.take(neighbour).map(Some)
    }
}
