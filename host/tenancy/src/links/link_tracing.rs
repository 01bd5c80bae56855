//! Tells the ends of captured links to trace what they do.
//!
//! A link is traced while one of its two vNICs is captured, and both of its ends write their
//! requests. The process of such an end gets memory to write into; its other links are not traced.

use crate::action::{Action, TracedEnd};
use crate::link_observers::Captures;
use crate::links::Observer;
use crate::links::direct_link::Link;
use crate::row_keys::{LinkKey, SessionId};
use omniverb_session::body::{TraceEnd, TraceLink};
use omniverb_terms::Qpn;
use std::collections::BTreeSet;

/// Messages about traces to the ends of a link.
#[derive(Clone, Copy)]
enum Tracing {
    /// To tell no more what they do.
    Ends = 0,
    /// To tell it from now on.
    Begins = 1,
}

impl Observer<'_> {
    /// Which vNICs are captured changes: ends of links begin to write what they do, or do no more.
    pub(crate) fn change_captures(&mut self, change: impl FnOnce(&mut Captures)) {
        let before: BTreeSet<LinkKey> = self.traced_links();
        change(&mut self.observers.captures);
        let after = self.traced_links();
        for key in before.difference(&after) {
            self.untrace(*key);
            self.tell_trace(*key, Tracing::Ends);
        }
        for key in after.difference(&before) {
            self.trace(*key);
            self.tell_trace(*key, Tracing::Begins);
        }
        let busy: BTreeSet<SessionId> = after
            .iter()
            .filter_map(|key| self.links.direct(*key))
            .flat_map(|link| link.sessions)
            .collect();
        for id in self.observers.captures.idle(&busy) {
            self.end_trace(id);
            self.tenants.event(self.context, id, TraceEnd { reserved: 0 });
        }
    }

    fn traced_links(&self) -> BTreeSet<LinkKey> {
        if self.observers.captures.is_off() {
            return BTreeSet::new();
        }
        let traced =
            self.links.all_direct().filter(|(_, link)| self.observers.captures.cover(link.vnics));
        traced.map(|(key, _)| key).collect()
    }

    /// A link's ends are to write what they do.
    pub(crate) fn is_traced(&self, key: LinkKey) -> bool {
        self.links.direct(key).is_some_and(|link| self.observers.captures.cover(link.vnics))
    }

    /// A link that its ends have already is in the tables now.
    pub(crate) fn trace_survivor(&mut self, key: LinkKey) {
        if self.is_traced(key) {
            self.trace(key);
            self.tell_trace(key, Tracing::Begins);
        }
    }

    /// A link has been taken out of the tables.
    pub(crate) fn untrace_removed(&mut self, key: LinkKey, link: &Link) {
        if self.observers.captures.cover(link.vnics) {
            self.untrace_ends(key, link.sessions);
        }
    }

    /// A session is over.
    pub(crate) fn end_trace(&mut self, id: SessionId) {
        if self.observers.captures.is_tracing(id) {
            self.observers.captures.end(id);
            self.context.act(Action::EndTrace { session: id });
        }
    }

    /// Tells the reader of traces about a link's ends.
    pub(crate) fn trace(&mut self, key: LinkKey) {
        for end in self.ends(key) {
            let session = end.session;
            let begins = !self.observers.captures.is_tracing(session);
            if begins && self.tenants.sessions.contains_key(&session) {
                self.observers.captures.begin(session);
                self.context.act(Action::BeginTrace { session });
            }
            self.context.act(Action::Trace(Box::new(end)));
        }
    }

    fn untrace(&mut self, key: LinkKey) {
        if let Some(link) = self.links.direct(key) {
            self.untrace_ends(key, link.sessions);
        }
    }

    fn untrace_ends(&mut self, key: LinkKey, sessions: [SessionId; 2]) {
        for (qpn, peer_qpn, this) in sides(key) {
            self.context.act(Action::Untrace { session: sessions[this], qpn, peer_qpn });
        }
    }

    fn tell_trace(&mut self, key: LinkKey, tracing: Tracing) {
        let Some(sessions) = self.links.direct(key).map(|link| link.sessions) else { return };
        for (qpn, peer_qpn, this) in sides(key) {
            let message = TraceLink { qpn, peer_qpn, on: tracing as u32, reserved: 0 };
            self.tenants.event(self.context, sessions[this], message);
        }
    }

    /// Both ends of a link, for the reader of traces.
    fn ends(&self, key: LinkKey) -> Vec<TracedEnd> {
        let Some(link) = self.links.direct(key) else { return Vec::new() };
        let ends = sides(key).filter_map(|(qpn, peer_qpn, this)| {
            let vnics = [link.vnics[this], link.vnics[1 - this]];
            let (sgid, dgid) = link.ways[this];
            let service = self.queue_pairs.get(qpn)?.service();
            let session = link.sessions[this];
            let underlay = self.network.route_to(self.tenants, vnics[0], sgid, dgid)?;
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
