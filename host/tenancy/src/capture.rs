//! Captures of vNICs: which links' ends tell what they do.
//!
//! A link is traced while one of its two vNICs is captured, and both of its ends tell: each what it
//! requests. Who has such an end gets memory to tell through; of its other links nothing is asked.

use crate::action::{Action, TracedEnd};
use crate::ids::{LinkKey, SessionId, VnicId};
use crate::tables::Link;
use crate::tenancy::Tenancy;
use omniverb_session::body::{TraceEnd, TraceLink};
use omniverb_terms::Qpn;
use std::collections::BTreeSet;

impl Tenancy {
    /// Packets of this vNIC are captured from now on, or no longer.
    #[must_use]
    pub fn capture(&mut self, vnic: VnicId, on: bool) -> Vec<Action> {
        let before: BTreeSet<LinkKey> = self.traced_links();
        self.captures.set(vnic, on);
        let after = self.traced_links();
        for key in before.difference(&after) {
            self.untrace(*key);
            self.tell_trace(*key, false);
        }
        for key in after.difference(&before) {
            self.trace(*key);
            self.tell_trace(*key, true);
        }
        let busy: BTreeSet<SessionId> = after
            .iter()
            .filter_map(|key| self.links.get(key))
            .flat_map(|link| link.sessions)
            .collect();
        for id in self.captures.idle(&busy) {
            self.end_trace(id);
            self.event(id, TraceEnd { reserved: 0 });
        }
        std::mem::take(&mut self.out)
    }

    fn traced_links(&self) -> BTreeSet<LinkKey> {
        if self.captures.is_off() {
            return BTreeSet::new();
        }
        let traced = self.links.iter().filter(|(_, link)| self.captures.cover(link.vnics));
        traced.map(|(key, _)| *key).collect()
    }

    /// A link is in the tables now. True: its ends are to tell, and whoever reads it knows of them.
    pub(crate) fn trace_if_captured(&mut self, key: LinkKey) -> bool {
        let traced = self.links.get(&key).is_some_and(|link| self.captures.cover(link.vnics));
        if traced {
            self.trace(key);
        }
        traced
    }

    /// A link that its ends have already is in the tables now.
    pub(crate) fn trace_survivor(&mut self, key: LinkKey) {
        if self.trace_if_captured(key) {
            self.tell_trace(key, true);
        }
    }

    /// A link has been taken out of the tables.
    pub(crate) fn untrace_removed(&mut self, key: LinkKey, link: &Link) {
        if self.captures.cover(link.vnics) {
            self.untrace_ends(key, link.sessions);
        }
    }

    /// A session is over.
    pub(crate) fn end_trace(&mut self, id: SessionId) {
        if self.captures.end(id) {
            self.out.push(Action::EndTrace { session: id });
        }
    }

    fn trace(&mut self, key: LinkKey) {
        for end in self.ends(key) {
            let session = end.session;
            if self.sessions.contains_key(&session) && self.captures.begin(session) {
                self.out.push(Action::BeginTrace { session });
            }
            self.out.push(Action::Trace(Box::new(end)));
        }
    }

    fn untrace(&mut self, key: LinkKey) {
        if let Some(link) = self.links.get(&key) {
            self.untrace_ends(key, link.sessions);
        }
    }

    fn untrace_ends(&mut self, key: LinkKey, sessions: [SessionId; 2]) {
        for (qpn, peer_qpn, this) in sides(key) {
            self.out.push(Action::Untrace { session: sessions[this], qpn, peer_qpn });
        }
    }

    fn tell_trace(&mut self, key: LinkKey, on: bool) {
        let Some(sessions) = self.links.get(&key).map(|link| link.sessions) else { return };
        for (qpn, peer_qpn, this) in sides(key) {
            let told = TraceLink { qpn, peer_qpn, on: u32::from(on), reserved: 0 };
            self.event(sessions[this], told);
        }
    }

    /// Both ends of a link, as whoever reads what they tell must know them.
    fn ends(&self, key: LinkKey) -> Vec<TracedEnd> {
        let Some(link) = self.links.get(&key) else { return Vec::new() };
        let ends = sides(key).filter_map(|(qpn, peer_qpn, this)| {
            let vnics = [link.vnics[this], link.vnics[1 - this]];
            let (sgid, dgid) = link.ways[this];
            let service = self.qps.get(&qpn)?.service;
            let session = link.sessions[this];
            let underlay = self.route_to(vnics[0], sgid, dgid)?;
            Some(TracedEnd { session, qpn, peer_qpn, service, vnics, underlay })
        });
        ends.collect()
    }
}

/// A link's ends: queue pair, peer, which one. A queue pair that is linked with itself is one end.
fn sides(key: LinkKey) -> impl Iterator<Item = (Qpn, Qpn, usize)> {
    let sides = [(key.0, key.1, 0), (key.1, key.0, 1)];
    sides.into_iter().take(if key.0 == key.1 { 1 } else { 2 })
}
