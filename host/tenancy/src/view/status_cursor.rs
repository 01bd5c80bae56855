//! Walks through the rows of the status, from any place on.
//!
//! In: a place, as the caller had it from the last walk, or made it up; a number of steps. Out:
//! rows, and the place to go on from. Every step is one look-up in an ordered table, so a walk
//! costs what its steps cost, however large the tables; and since nothing is kept between two
//! walks, a caller can occupy no memory.

use super::status_rows::Row;
use crate::queue_pairs::queue_pair::QueuePair;
use crate::row_keys::SessionId;
use crate::view::StatusRows;
use omniverb_session::body::Cursor;
use omniverb_terms::{Gid, Qpn, VnicId};

/// `Cursor::stage`: a vNIC comes next.
const VNIC: u32 = 0;
/// A process of the vNIC.
const PROCESS: u32 = 1;
/// A queue pair of the process.
const QP: u32 = 2;
/// A direct peer of the queue pair.
const DIRECT: u32 = 3;
/// A peer that it has a link to the engine for.
const BY_ENGINE: u32 = 4;
/// One that is waited for.
const WISH: u32 = 5;

/// A row, if there was one, and where to go on; none: that was all.
type Step = (Option<Row>, Option<Cursor>);

impl StatusRows<'_> {
    /// Shows the rows of the vNIC `scope`, or of all, from a place on. Ends after so many steps, or
    /// when `show` has no room for a row; says where to go on, if that was not all.
    pub(crate) fn rows(
        &self,
        scope: Option<VnicId>,
        from: Cursor,
        steps: usize,
        show: &mut dyn FnMut(Row) -> bool,
    ) -> Option<Cursor> {
        let mut at = from;
        for _ in 0..steps {
            let (row, next) = self.step(scope, at);
            if row.is_some_and(|row| !show(row)) {
                return Some(at);
            }
            at = next?;
        }
        Some(at)
    }

    fn step(&self, scope: Option<VnicId>, at: Cursor) -> Step {
        let key = VnicId(at.vnic);
        if at.stage == VNIC {
            return self.vnic_step(scope, key);
        }
        let vnic = self.tenants.vnics.get(&key).filter(|_| scope.is_none_or(|scope| scope == key));
        let Some(vnic) = vnic else { return (None, after_vnic(key)) };
        if at.stage == PROCESS {
            let Some(id) = vnic.processes().range(SessionId(at.session)..).next() else {
                return (None, after_vnic(key));
            };
            let at = Cursor { session: id.0, ..at };
            return match self.process_row(*id) {
                Some(row) => {
                    (Some(Row::Process(row)), Some(Cursor { stage: QP, qpn: Qpn(0), ..at }))
                }
                None => (None, after_process(at)),
            };
        }
        let id = SessionId(at.session);
        let session = self.tenants.sessions.get(&id).filter(|_| vnic.processes().contains(&id));
        if session.is_none() {
            return (None, after_process(at));
        }
        if at.stage == QP {
            let Some(qpn) = self.queue_pairs.next_of(id, at.qpn) else {
                return (None, after_process(at));
            };
            let next = Cursor { stage: DIRECT, qpn, peer: Qpn(0), gid: Gid::ZERO, ..at };
            return (self.qp_row(qpn).map(Row::Qp), Some(next));
        }
        match self.queue_pairs.own(id, at.qpn) {
            Ok(qp) => self.peer_step(qp, at),
            Err(_) => (None, after_qp(at)),
        }
    }

    fn vnic_step(&self, scope: Option<VnicId>, from: VnicId) -> Step {
        let found = match scope {
            Some(own) => {
                Some(own).filter(|own| *own >= from && self.tenants.vnics.contains_key(own))
            }
            None => self.tenants.vnic_from(from),
        };
        let Some(key) = found else { return (None, None) };
        let next = Cursor { vnic: key.0, stage: PROCESS, ..Cursor::START };
        (self.vnic_row(key).map(Row::Vnic), Some(next))
    }

    fn peer_step(&self, qp: &QueuePair, at: Cursor) -> Step {
        let stage = |stage| Some(Cursor { stage, peer: Qpn(0), gid: Gid::ZERO, ..at });
        let after = |peer: Qpn, following: u32| match peer.next() {
            Some(peer) => Some(Cursor { peer, gid: Gid::ZERO, ..at }),
            None => stage(following),
        };
        match at.stage {
            DIRECT => match self.links.next_peer(at.qpn, at.peer) {
                Some(peer) => {
                    let row = self.direct_row(at.qpn, peer);
                    (row.map(|row| Row::Peer(at.qpn, row)), after(peer, BY_ENGINE))
                }
                None => (None, stage(BY_ENGINE)),
            },
            BY_ENGINE => match self.links.next_engine(at.qpn, (at.peer, at.gid)) {
                Some(link) => {
                    let row = Row::Peer(at.qpn, self.engine_row(link));
                    let (peer, gid) = link.flow.remote_peer();
                    let next = match gid.next() {
                        Some(gid) => Some(Cursor { peer, gid, ..at }),
                        None => after(peer, WISH),
                    };
                    (Some(row), next)
                }
                None => (None, stage(WISH)),
            },
            WISH => match qp.next_wished(at.peer) {
                Some(peer) => {
                    let linked = self.links.is_linked(at.qpn, peer);
                    let row = (!linked).then_some(Row::WaitsFor(peer));
                    let next = peer.next().map(|peer| Cursor { peer, ..at });
                    (row, next.or_else(|| after_qp(at)))
                }
                None => (None, after_qp(at)),
            },
            _ => (None, after_qp(at)),
        }
    }
}

fn after_qp(at: Cursor) -> Option<Cursor> {
    match at.qpn.next() {
        Some(qpn) => Some(Cursor { stage: QP, qpn, peer: Qpn(0), gid: Gid::ZERO, ..at }),
        None => after_process(at),
    }
}

fn after_process(at: Cursor) -> Option<Cursor> {
    let key = VnicId(at.vnic);
    let start = Cursor { vnic: at.vnic, ..Cursor::START };
    match at.session.checked_add(1) {
        Some(session) => Some(Cursor { stage: PROCESS, session, ..start }),
        None => after_vnic(key),
    }
}

fn after_vnic(key: VnicId) -> Option<Cursor> {
    let vnic = key.0.checked_add(1)?;
    Some(Cursor { vnic, stage: VNIC, ..Cursor::START })
}
