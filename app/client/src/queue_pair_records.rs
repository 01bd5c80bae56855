//! The queue pairs of the process, and what must be announced of them to a daemon that was
//! restarted.

use crate::multicast_groups_of_qp::Groups;
use crate::peer_doorbells::BellName;
use omniverb_device::Qp;
use omniverb_sys::lock;
use omniverb_terms::{Gid, Qpn};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex};

/// The peer that a QP is to be connected with.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// GID of the peer's port.
    pub dgid: Gid,
    /// The one of our GIDs that the peer knows us by.
    pub sgid: Gid,
    /// Number of the peer's QP.
    pub dest_qpn: Qpn,
}

/// What came with a queue pair's number: proves to the next daemon that it is ours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) issued: u64,
    pub(crate) proof: [u8; 16],
}

/// A queue pair and what the daemon gave for it.
#[derive(Clone)]
pub(crate) struct QpRecord {
    pub(crate) qp: Arc<Qp>,
    pub(crate) statistics_slot: u32,
    pub(crate) ticket: Ticket,
    /// The peer that it is connected with, or waits for.
    pub(crate) connection: Option<Connection>,
    /// The groups that it is attached to.
    pub(crate) groups: Groups,
    /// The bell of its latest link, which stands for the peer's process.
    pub(crate) bell: Option<BellName>,
}

/// All of them, by number.
#[derive(Default)]
pub(crate) struct QueuePairs {
    pub(crate) list: Mutex<HashMap<Qpn, QpRecord>>,
    /// Something became of the link of a group.
    pub(crate) group_news: Condvar,
}

impl QueuePairs {
    /// A new one, without a connection.
    pub(crate) fn add(&self, qp: Arc<Qp>, statistics_slot: u32, ticket: Ticket) {
        let number = qp.number;
        let (connection, bell, groups) = (None, None, Groups::default());
        let record = QpRecord { qp, statistics_slot, ticket, connection, groups, bell };
        lock(&self.list).insert(number, record);
    }

    /// Takes one out; the slot of its statistics.
    pub(crate) fn remove(&self, number: Qpn) -> Option<u32> {
        lock(&self.list).remove(&number).map(|record| record.statistics_slot)
    }

    /// The one of this number.
    pub(crate) fn get(&self, number: Qpn) -> Option<Arc<Qp>> {
        lock(&self.list).get(&number).map(|record| record.qp.clone())
    }

    /// All of them. Nothing is locked when this returns.
    pub(crate) fn all(&self) -> Vec<Arc<Qp>> {
        lock(&self.list).values().map(|record| record.qp.clone()).collect()
    }

    /// Those of these numbers that are there.
    pub(crate) fn those(&self, numbers: &BTreeSet<Qpn>) -> Vec<Arc<Qp>> {
        let list = lock(&self.list);
        numbers.iter().filter_map(|number| list.get(number)).map(|it| it.qp.clone()).collect()
    }

    /// All of them, and what is known of each.
    pub(crate) fn records(&self) -> Vec<QpRecord> {
        lock(&self.list).values().cloned().collect()
    }

    /// It is to be connected.
    pub(crate) fn connect(&self, number: Qpn, connection: Connection) {
        if let Some(record) = lock(&self.list).get_mut(&number) {
            record.connection = Some(connection);
        }
    }

    /// The peer that it is to be connected with.
    pub(crate) fn connection(&self, number: Qpn) -> Option<Connection> {
        lock(&self.list).get(&number).and_then(|record| record.connection)
    }

    /// It is connected no longer. Says whether it was.
    pub(crate) fn disconnect(&self, number: Qpn) -> bool {
        let mut list = lock(&self.list);
        list.get_mut(&number).is_some_and(|record| record.connection.take().is_some())
    }

    /// It has a link, by this bell.
    pub(crate) fn linked(&self, number: Qpn, bell: BellName) {
        if let Some(record) = lock(&self.list).get_mut(&number) {
            record.bell = Some(bell);
        }
    }

    /// The bells of the links of these.
    pub(crate) fn bells(&self, numbers: &BTreeSet<Qpn>) -> BTreeSet<BellName> {
        let list = lock(&self.list);
        numbers.iter().filter_map(|number| list.get(number)?.bell).collect()
    }

    /// Does something while this one is there. Once it is not the daemon may hear so, and give
    /// what was its link's to others.
    pub(crate) fn while_there(&self, number: Qpn, work: impl FnOnce()) {
        let list = lock(&self.list);
        if list.contains_key(&number) {
            work();
        }
    }

    /// The one of this number, and what stands for its peer's process.
    pub(crate) fn with_peer(&self, number: Qpn) -> Option<(Arc<Qp>, BellName)> {
        let list = lock(&self.list);
        list.get(&number).map(|record| (record.qp.clone(), record.bell.unwrap_or_default()))
    }
}
