//! Links queue pairs by one of four paths, and ends these links.
//!
//! `qp_pairing.rs` (RC, UC) and `datagram_pairing.rs` (UD) choose the peer of a queue pair.
//! `direct_link_lifecycle.rs` makes and ends links between processes (`direct_link.rs`,
//! `direct_link_table.rs`), `engine_link_lifecycle.rs` links to the engine (`engine_link.rs`,
//! `engine_link_table.rs`), `multicast_groups.rs` those of multicast groups.
//! `carried_links.rs` (`carried_link_table.rs`) has processes carry links to other hosts
//! themselves, with the ports that `port_exchange.rs` learns.
//! `doorbell_assignment.rs` gives links places in doorbells. `reachability_table.rs` and
//! `reachability_probes.rs` probe the network as long as a link lives; `forced_disconnect.rs` ends
//! links for operators. `socket_relation_rules.rs` decides which sockets may share memory
//! (`socket_relations.rs`), and why not (`socket_relation_refusal.rs`). `link_eviction.rs` chooses
//! the link that makes way for another, of those in `uninvited_direct_link_quota.rs` (direct ones)
//! or `engine_link_ages.rs` (to the engine). `qp_lifecycle.rs` creates and destroys queue pairs;
//! `restore_links.rs` restores those that outlived a daemon. `rule_checks.rs` applies rules to
//! links. `link_audit.rs` and `link_tracing.rs` report on watched links.

mod carried_link_table;
mod carried_links;
mod datagram_pairing;
pub(crate) mod direct_link;
pub(crate) mod direct_link_lifecycle;
mod direct_link_table;
mod doorbell_assignment;
pub(crate) mod engine_link;
mod engine_link_ages;
mod engine_link_lifecycle;
mod engine_link_table;
mod forced_disconnect;
mod link_audit;
pub(crate) mod link_eviction;
mod link_operation_contexts;
mod link_tracing;
mod multicast_groups;
mod port_exchange;
mod probe_answers;
mod qp_lifecycle;
mod qp_pairing;
mod reachability_probes;
mod reachability_table;
mod restore_links;
mod rule_checks;
pub(crate) mod socket_relation_refusal;
mod socket_relation_rules;
pub(crate) mod socket_relations;
mod uninvited_direct_link_quota;
mod unsolicited_engine_link_eviction;

pub(crate) use link_operation_contexts::{Linker, Observer, Pairing, Relater, Unlinker};

use crate::accounts::Paid;
use crate::memory::LinkTable;
use crate::row_keys::{LinkKey, RemotePeer, SessionId};
use carried_link_table::CarriedLinks;
use direct_link::Link;
use direct_link_table::DirectLinks;
use doorbell_assignment::Bells;
use engine_link::EngineLink;
use engine_link_table::EngineLinks;
use omniverb_terms::{Gid, Operations, Qpn, VnicId};
use reachability_table::Consents;
use socket_relations::Relations;

/// All links. The files of this folder change them; others look.
#[derive(Debug, Default)]
pub(crate) struct Links {
    direct: DirectLinks,
    engine: EngineLinks,
    pub(crate) carried: CarriedLinks,
    bells: Bells,
    /// The questions that the network must go on answering for links to live.
    consents: Consents,
    /// Where sockets may share memory.
    relations: Relations,
}

impl Links {
    /// There is a link of a queue pair for this peer, of whatever kind.
    pub(crate) fn is_linked(&self, qpn: Qpn, peer: Qpn) -> bool {
        self.has_direct(qpn, peer) || self.has_engine(qpn, peer)
    }

    /// There is a direct one.
    pub(crate) fn has_direct(&self, qpn: Qpn, peer: Qpn) -> bool {
        self.direct.join(qpn, peer)
    }

    /// There is one to the engine for a peer of this number.
    pub(crate) fn has_engine(&self, qpn: Qpn, peer: Qpn) -> bool {
        self.engine.to(qpn, peer).next().is_some()
    }

    /// The vNICs with queue pairs that are attached to groups.
    pub(crate) fn in_groups(&self) -> impl Iterator<Item = VnicId> {
        self.engine.in_groups()
    }

    /// A direct link.
    pub(crate) fn direct(&self, key: LinkKey) -> Option<&Link> {
        self.direct.get(key)
    }

    /// All direct links, in order.
    pub(crate) fn all_direct(&self) -> impl Iterator<Item = (LinkKey, &Link)> {
        self.direct.iter()
    }

    /// The peers that a queue pair has direct links with, in order.
    pub(crate) fn peers_of(&self, qpn: Qpn) -> Vec<Qpn> {
        self.direct.peers_from(qpn, Qpn(0)).collect()
    }

    /// The first of these from this number on.
    pub(crate) fn next_peer(&self, qpn: Qpn, from: Qpn) -> Option<Qpn> {
        self.direct.peers_from(qpn, from).next()
    }

    /// All links to the engine, with what they pay.
    pub(crate) fn all_engine(&self) -> impl Iterator<Item = &Paid<EngineLink>> {
        self.engine.iter()
    }

    /// The first link of a queue pair to the engine from this peer on.
    pub(crate) fn next_engine(&self, qpn: Qpn, from: RemotePeer) -> Option<&EngineLink> {
        self.engine.of(qpn, from).next()
    }

    /// The numbers of a queue pair's peers beyond the engine, in order; once for each link.
    fn engine_peers(&self, qpn: Qpn) -> Vec<Qpn> {
        self.engine.of(qpn, (Qpn(0), Gid::ZERO)).map(|link| link.flow.peer).collect()
    }

    /// A session has ended, and all its links before: which others had a bell with it, and which.
    pub(crate) fn end_session(&mut self, session: SessionId) -> Vec<(SessionId, u64)> {
        self.bells.end(session)
    }

    /// No direct link, and nothing that finds some.
    pub(crate) fn has_no_direct(&self) -> bool {
        self.direct.is_empty()
    }

    /// No link to the engine, and nothing that finds some or is shared by them.
    pub(crate) fn has_no_engine(&self) -> bool {
        self.engine.is_empty() && self.carried.is_empty() && self.bells.count() == 0
    }

    /// Nothing rests on an answer of the network.
    pub(crate) fn asks_nothing(&self) -> bool {
        self.consents.is_empty()
    }

    /// Checks that indexes and rows agree.
    ///
    /// # Panics
    /// If not.
    pub(crate) fn check(&self) {
        self.direct.check();
        self.engine.check();
        self.carried.check(|qpn, peer| self.engine.get(qpn, peer).is_some());
    }
}

impl LinkTable for Links {
    fn has_direct(&self, qpn: Qpn, peer: Qpn) -> bool {
        Links::has_direct(self, qpn, peer)
    }

    fn has_engine(&self, qpn: Qpn, peer: Qpn) -> bool {
        Links::has_engine(self, qpn, peer)
    }

    fn refused(&self, qpn: Qpn, peer: Qpn) -> Operations {
        let direct = self.direct(LinkKey::new(qpn, peer));
        let of_direct = direct.map(|link| link.refused[usize::from(qpn > peer)]);
        let engine = self.engine.to(qpn, peer).map(|link| link.refused.inbound);
        engine.chain(of_direct).fold(Operations::NONE, Operations::with)
    }

    fn ends(&self, key: LinkKey) -> Option<[SessionId; 2]> {
        self.direct(key).map(|link| link.sessions)
    }
}

#[cfg(test)]
impl Links {
    /// Simulates a bug: a link goes, and its receipt of a pair window is not returned.
    pub(crate) fn lose_pair(&mut self, key: LinkKey) {
        std::mem::forget(self.direct.remove(key).unwrap().receipts.pair);
    }
}
