//! Ends links that neither end asked to end.
//!
//! An operator ends a vNIC's, or the network no longer joins the two. Both ends are told, with a
//! reason that makes connected queue pairs fail as when their retries are over: the memory they
//! share would carry them on otherwise.

use super::Unlinker;
use super::engine_link::Cause;
use crate::policy::policies::Policy;
use crate::row_keys::{LinkKey, SessionId};
use omniverb_session::body::{CLOSED_BY_NETWORK, CLOSED_BY_PEER, LinkClosed, TAKE_ALL, TakeBack};
use omniverb_terms::{Qpn, Rkey, VnicId};
use std::collections::BTreeSet;

impl Unlinker<'_> {
    /// Ends all links of a vNIC, direct ones and those to the engine, and those to the engine that
    /// lead to it.
    pub(crate) fn part_vnic(&mut self, key: VnicId) {
        let direct = self.links.all_direct().filter(|(_, link)| link.vnics.contains(&key));
        let direct: Vec<LinkKey> = direct.map(|(link, _)| link).collect();
        for link in direct {
            self.part_link(link);
        }
        let engine = self.links.all_engine();
        // A group is no peer to disconnect from.
        let engine = engine.filter(|link| link.cause != Cause::Group);
        let engine = engine.filter(|link| link.vnic == key || link.within == Some(key));
        let engine: Vec<(Qpn, Qpn)> = engine.map(|link| (link.flow.qpn, link.flow.peer)).collect();
        for (qpn, peer) in engine {
            self.end_engine_links(qpn, peer, Some(CLOSED_BY_NETWORK));
        }
    }

    /// Ends the links that datagrams of senders caused which virtual networks do not describe any
    /// more: their numbers and addresses may be another vNIC's.
    pub(crate) fn end_undescribed_senders(&mut self) {
        let networks = &self.tenants.virtual_networks;
        let ended = self.links.all_engine().filter(|link| {
            link.cause == Cause::Stranger
                && !networks.is_described(link.vnic, link.flow.peer, link.flow.dgid)
        });
        let ended: Vec<(Qpn, Qpn)> = ended.map(|link| (link.flow.qpn, link.flow.peer)).collect();
        for (qpn, peer) in ended {
            self.end_engine_links(qpn, peer, Some(CLOSED_BY_PEER));
        }
    }

    /// Ends a direct link; both ends are told.
    pub(crate) fn part_link(&mut self, key: LinkKey) {
        if self.links.direct(key).is_none() {
            return;
        }
        self.remove_link(key);
        let ends = [(key.0, key.1), (key.1, key.0)];
        // A queue pair that is linked with itself gets one event.
        for (qpn, peer) in ends.into_iter().take(if key.0 == key.1 { 1 } else { 2 }) {
            // It cannot tell apart what has the same number.
            self.end_engine_links(qpn, peer, None);
            if let Some(session) = self.queue_pairs.session_of(qpn) {
                let reason = CLOSED_BY_NETWORK;
                self.tenants.event(
                    self.context,
                    session,
                    LinkClosed { qpn, peer_qpn: peer, reason, reserved: 0 },
                );
            }
        }
    }
}

impl Unlinker<'_> {
    /// A vNIC's policy has changed from `before`: where less is allowed than was, its processes and
    /// their peers take back what they granted. One event for each process, however many links it
    /// has.
    pub(crate) fn adoption_changed(&mut self, key: VnicId, before: Policy) {
        let now = self.tenants.policy(key).adoption;
        if before.adoption.with(now) == before.adoption {
            return;
        }
        let own = self.tenants.sessions.iter().filter(|(_, session)| session.client().vnic == key);
        let mut concerned: BTreeSet<SessionId> = own.map(|(id, _)| *id).collect();
        let linked = self.links.all_direct().filter(|(_, link)| link.vnics.contains(&key));
        concerned.extend(linked.flat_map(|(_, link)| link.sessions));
        for session in concerned {
            self.tenants.event(
                self.context,
                session,
                TakeBack { what: TAKE_ALL, rkey: Rkey(0), start: 0, number: 0 },
            );
        }
    }
}
