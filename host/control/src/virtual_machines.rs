//! Keeps the attached virtual machines: their machine sockets and their windows.
//!
//! A machine is attached as long as its machine socket is open.

mod shared_pair_windows;

pub(crate) use shared_pair_windows::{InBoth, Offer};

use crate::guest_boot_id::BootId;
use crate::guest_memory::Ram;
use crate::pair_windows::Pairs;
use crate::vm_window_allocator::Pieces;
use crate::vnic_references::Hold;
use omniverb_session::vm::MachineName;
use omniverb_sys::pidfd::Peer;
use omniverb_sys::udp_socket::UdpPort;
use omniverb_tenancy::{Neighbour, PairWindows, SessionId, VnicAddress, VnicId};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Budget: machines at the same time: each has a window of an operator's making.
const MACHINES_MAX: usize = 1024;
/// Budget: processes of one machine that are there at a time, or want to be.
pub(crate) const SESSIONS_MAX: usize = 1024;

/// The attachment of a machine's vNIC.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) name: MachineName,
    pub(crate) pieces: Arc<Pieces>,
}

/// An attached machine.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) machine: Arc<Machine>,
    /// Has its vNIC open.
    hold: Hold,
    /// Our end of its machine socket, and the process at the other end.
    pub(crate) machine_socket: OwnedFd,
    pub(crate) proxy: Peer,
    /// Its UDP port 4791, if its agent has it.
    pub(crate) port: Option<Arc<UdpPort>>,
    /// Which boot of its guest it is in.
    pub(crate) boots: BootId,
    /// Its memory, if its supervisor sent it.
    pub(crate) ram: Option<Arc<Ram>>,
    /// The windows that it shares with neighbours.
    pairs: Pairs,
    /// Sessions of its processes.
    pub(crate) sessions: BTreeSet<SessionId>,
    /// What its addresses are, as it says.
    pub(crate) addresses: Vec<VnicAddress>,
    /// The addresses that it has sent since; taken when the timer that is set is due.
    pub(crate) said: Option<Vec<VnicAddress>>,
    pub(crate) timer: bool,
    /// How many more times to check for windows without users.
    pub(crate) looks: u8,
}

/// The answers that waiting supervisors get, with the calls to answer.
#[derive(Default)]
pub(crate) struct WindowDemand {
    /// Another window is wanted.
    pub(crate) wanted: Vec<(SessionId, u64)>,
    /// Another machine's is to be plugged in.
    pub(crate) offers: Vec<Offer>,
    /// The one of this number is to be taken out.
    pub(crate) over: Vec<(SessionId, u64, u8)>,
}

impl Record {
    /// A machine of which only its proxy is known, the reports to earlier daemons, and its identity
    /// towards other machines.
    pub(crate) fn new(
        machine: Arc<Machine>,
        hold: Hold,
        (machine_socket, proxy): (OwnedFd, Peer),
        boots: BootId,
        this: Option<Neighbour>,
    ) -> Record {
        Record {
            machine,
            hold,
            machine_socket,
            proxy,
            port: None,
            boots,
            ram: None,
            pairs: Pairs::of(this),
            sessions: BTreeSet::new(),
            addresses: Vec::new(),
            said: None,
            timer: false,
            looks: 0,
        }
    }

    /// The one that it has open, and no other machine.
    pub(crate) fn vnic(&self) -> VnicId {
        self.hold.vnic()
    }

    /// Its machine socket, when nothing else of it is needed.
    pub(crate) fn into_door(self) -> OwnedFd {
        self.machine_socket
    }

    /// The windows that it shares with neighbours.
    pub(crate) fn pairs(&self) -> &Pairs {
        &self.pairs
    }
}

/// All of them, by numbers that no session has.
#[derive(Debug, Default)]
pub(crate) struct Machines {
    all: BTreeMap<SessionId, Record>,
    /// Machines whose pair windows have changed since the last query.
    changed: BTreeSet<SessionId>,
    /// Two that want a window in common, which they cannot have yet.
    wants: BTreeSet<[SessionId; 2]>,
}

impl Machines {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.all.len() >= MACHINES_MAX
    }

    pub(crate) fn add(&mut self, id: SessionId, record: Record) {
        self.all.insert(id, record);
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<&Record> {
        self.all.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut Record> {
        self.all.get_mut(&id)
    }

    pub(crate) fn remove(&mut self, id: SessionId) -> Option<Record> {
        // What others share with it is not in both any more.
        self.changed.insert(id);
        self.spread_changes();
        self.wants.retain(|both| !both.contains(&id));
        self.all.remove(&id)
    }

    pub(crate) fn numbers(&self) -> Vec<SessionId> {
        self.all.keys().copied().collect()
    }

    /// The one of this name.
    pub(crate) fn named(&self, name: MachineName) -> Option<SessionId> {
        let mut all = self.all.iter();
        all.find(|(_, record)| record.machine.name == name).map(|(id, _)| *id)
    }

    /// The one that has this vNIC.
    pub(crate) fn of_vnic(&self, vnic: VnicId) -> Option<&Record> {
        self.all.values().find(|record| record.vnic() == vnic)
    }

    /// The number of the one that has this vNIC.
    pub(crate) fn number_of(&self, vnic: VnicId) -> Option<SessionId> {
        self.all.iter().find(|(_, record)| record.vnic() == vnic).map(|(id, _)| *id)
    }

    /// A machine's pair windows.
    pub(crate) fn pairs(&self, id: SessionId) -> Option<&Pairs> {
        self.all.get(&id).map(|record| &record.pairs)
    }

    /// The same, to be changed.
    pub(crate) fn pairs_mut(&mut self, id: SessionId) -> Option<&mut Pairs> {
        let pairs = &mut self.all.get_mut(&id)?.pairs;
        self.changed.insert(id);
        Some(pairs)
    }

    /// The room in a machine's pair windows may differ from what the tables assume.
    pub(crate) fn look_at_pairs(&mut self, id: SessionId) {
        self.changed.insert(id);
    }

    /// There may be room again in the pair windows of the machine with this vNIC, and in those
    /// given to the holder of this proof.
    pub(crate) fn look_at_pairs_of(&mut self, vnic: VnicId, proof: [u64; 4]) {
        let concerned = |record: &Record| record.vnic() == vnic || record.pairs.are_of(proof);
        let ids = self.all.iter().filter(|(_, record)| concerned(record)).map(|(id, _)| *id);
        self.changed.extend(ids);
    }

    /// The pair windows that have changed since the last query, for the tables. `link_bytes`: of
    /// each link.
    pub(crate) fn changed_pairs(&mut self, link_bytes: u64) -> Vec<(VnicId, PairWindows)> {
        let changed = std::mem::take(&mut self.changed);
        let records = changed.iter().filter_map(|id| self.all.get(id));
        let is_in = |guest: &_, file| self.is_in(guest, file);
        records.map(|record| (record.vnic(), record.pairs.known(link_bytes, is_in))).collect()
    }

    /// The calls to answer, of machines that have changed.
    pub(crate) fn wanted_pairs(&mut self) -> WindowDemand {
        self.spread_changes();
        self.share();
        let offers = self.offers();
        let there: BTreeSet<Neighbour> =
            self.all.values().filter_map(|record| record.pairs.this()).collect();
        let (mut wanted, mut over) = (Vec::new(), Vec::new());
        for id in &self.changed {
            let Some(record) = self.all.get_mut(id) else { continue };
            wanted.extend(record.pairs.wanted());
            over.extend(record.pairs.over(|machine| there.contains(machine)));
        }
        WindowDemand { wanted, offers, over }
    }

    /// Those that have no place for another pair window, but would if one were taken out.
    pub(crate) fn full_ones(&self) -> Vec<SessionId> {
        let full = self.all.iter().filter(|(_, record)| record.pairs.is_full());
        full.map(|(id, _)| *id).collect()
    }

    /// An operator is gone. It may have been a machine's supervisor.
    pub(crate) fn operator_gone(&mut self, operator: SessionId) {
        for (id, record) in &mut self.all {
            if record.pairs.plugger().is_some_and(|plugger| plugger.operator == operator) {
                record.pairs.set_plugger(None);
                self.changed.insert(*id);
            }
        }
    }

    /// The first vNIC from this one on that a machine has.
    pub(crate) fn vnic_from(&self, vnic: VnicId) -> Option<VnicId> {
        self.all.values().map(|record| record.vnic()).filter(|other| *other >= vnic).min()
    }

    /// A session is over.
    pub(crate) fn session_over(&mut self, session: SessionId) {
        self.all.values_mut().for_each(|record| _ = record.sessions.remove(&session));
    }
}
