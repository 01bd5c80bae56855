//! Links that end although neither end asked for it: an operator ends a vNIC's, or the network no
//! longer joins the two. Both ends are told, with a reason that makes connected queue pairs fail
//! as when their retries are over: the memory they share would carry them on otherwise.

use crate::action::Action;
use crate::ids::{LinkKey, VnicId};
use crate::tenancy::Tenancy;
use omniverb_session::body::{CLOSED_BY_NETWORK, LinkClosed};

impl Tenancy {
    /// Ends all links of a vNIC, direct ones and those to the engine, and those to the engine that
    /// lead to it. What is known of the network from it and to it is forgotten: whoever connects
    /// again has the network asked first.
    #[must_use]
    pub fn disconnect_vnic(&mut self, key: VnicId) -> Vec<Action> {
        let direct = self.links.iter().filter(|(_, link)| link.vnics.contains(&key));
        let direct: Vec<LinkKey> = direct.map(|(link, _)| *link).collect();
        for link in direct {
            self.part_link(link);
        }
        let mut wires = Vec::new();
        for (qpn, qp) in &self.qps {
            let far = qp.wires.iter().filter(|(_, w)| qp.vnic == key || w.within == Some(key));
            wires.extend(far.map(|((peer, _), _)| (*qpn, *peer)));
        }
        wires.sort_unstable();
        for (qpn, peer) in wires {
            self.end_wires(qpn, peer, Some(CLOSED_BY_NETWORK));
        }
        self.forget_answers(key);
        for qp in self.qps.values_mut() {
            let ours = qp.vnic == key;
            for wish in qp.wishes.values_mut().filter(|wish| ours || wish.target == Some(key)) {
                wish.target = None;
            }
        }
        std::mem::take(&mut self.out)
    }

    /// Ends a direct link; both ends are told.
    pub(crate) fn part_link(&mut self, key: LinkKey) {
        if !self.remove_link(key) {
            return;
        }
        let ends = [(key.0, key.1), (key.1, key.0)];
        // One queue pair with itself is told once.
        for (qpn, peer) in ends.into_iter().take(if key.0 == key.1 { 1 } else { 2 }) {
            // It cannot tell apart what has the same number.
            self.end_wires(qpn, peer, None);
            if let Some(session) = self.qps.get(&qpn).map(|qp| qp.session) {
                let reason = CLOSED_BY_NETWORK;
                self.event(session, LinkClosed { qpn, peer_qpn: peer, reason, reserved: 0 });
            }
        }
    }
}
