//! Links that end although neither end asked for it: an operator ends a vNIC's, or the network no
//! longer joins the two. Both ends are told, with a reason that makes connected queue pairs fail
//! as when their retries are over: the memory they share would carry them on otherwise.

use super::engine_link::Cause;
use crate::action::Action;
use crate::ids::LinkKey;
use crate::links::unrelated::Unrelated;
use crate::tenancy::Tenancy;
use omniverb_session::body::{CLOSED_BY_NETWORK, LinkClosed};
use omniverb_terms::{Qpn, VnicId};

impl Tenancy {
    /// Ends all links of a vNIC, direct ones and those to the engine, and those to the engine that
    /// lead to it. What is known of the network from it and to it is forgotten: whoever connects
    /// again has the network asked first.
    #[must_use]
    pub fn disconnect_vnic(&mut self, key: VnicId) -> Vec<Action> {
        let direct = self.links.all_direct().filter(|(_, link)| link.vnics.contains(&key));
        let direct: Vec<LinkKey> = direct.map(|(link, _)| link).collect();
        for link in direct {
            self.part_link(link);
        }
        let engine = self.links.all_engine();
        // A group is nobody to part from.
        let engine = engine.filter(|link| link.cause != Cause::Group);
        let engine = engine.filter(|link| link.vnic == key || link.within == Some(key));
        let engine: Vec<(Qpn, Qpn)> = engine.map(|link| (link.way.qpn, link.way.peer)).collect();
        for (qpn, peer) in engine {
            self.end_engine_links(qpn, peer, Some(CLOSED_BY_NETWORK));
        }
        self.end_relations(key, Unrelated::Gone);
        self.forget_answers(key);
        self.queue_pairs.forget_targets(key);
        self.decided()
    }

    /// Ends a direct link; both ends are told.
    pub(crate) fn part_link(&mut self, key: LinkKey) {
        if self.links.direct(key).is_none() {
            return;
        }
        self.remove_link(key);
        let ends = [(key.0, key.1), (key.1, key.0)];
        // One queue pair with itself is told once.
        for (qpn, peer) in ends.into_iter().take(if key.0 == key.1 { 1 } else { 2 }) {
            // It cannot tell apart what has the same number.
            self.end_engine_links(qpn, peer, None);
            if let Some(session) = self.queue_pairs.session_of(qpn) {
                let reason = CLOSED_BY_NETWORK;
                self.event(session, LinkClosed { qpn, peer_qpn: peer, reason, reserved: 0 });
            }
        }
    }
}
