//! Tells the audit of every link that is made and every one that ends, with both its ends.

use crate::action::{Action, Audited, LinkEvent};
use crate::links::Observer;
use crate::links::direct_link::Link;
use crate::links::engine_link::{Delivery, EngineLink};
use crate::qp_data_path::{Path, PathReason};
use crate::row_keys::LinkKey;

impl Observer<'_> {
    pub(crate) fn audit_link(&mut self, key: LinkKey, link: &Link, event: LinkEvent) {
        let Some(qp) = self.queue_pairs.get(key.0).filter(|_| self.observers.has_audit()) else {
            return;
        };
        let audited = Audited {
            event,
            refusal: None,
            service: qp.service(),
            path: Path::Direct,
            qpns: [key.0, key.1],
            vnics: link.vnics.map(Some),
            clients: link.sessions.map(|session| self.tenants.client_of(session)),
            addresses: [0, 1].map(|end| {
                let (vnic, (own, _)) = (link.vnics[end], link.ways[end]);
                Some(self.network.address_of(self.tenants, vnic, own))
            }),
        };
        self.context.act(Action::Audit(Box::new(audited)));
    }

    pub(crate) fn audit_engine_link(&mut self, link: &EngineLink, event: LinkEvent) {
        if !self.observers.has_audit() || !self.queue_pairs.contains(link.flow.qpn) {
            return;
        }
        let peer = link.within.and_then(|_| self.queue_pairs.session_of(link.flow.peer));
        let is_denied = link.delivery == Delivery::Lost && link.why == PathReason::Denied;
        let event = match event {
            LinkEvent::Made if is_denied => LinkEvent::Denied,
            // It was never there.
            LinkEvent::Ended if is_denied => return,
            event => event,
        };
        let audited = Audited {
            event,
            refusal: if is_denied { self.refusal_of(link) } else { None },
            service: link.service,
            path: link.path,
            qpns: [link.flow.qpn, link.flow.peer],
            vnics: [Some(link.vnic), link.within],
            clients: [Some(link.session), peer].map(|session| self.tenants.client_of(session?)),
            addresses: [link.flow.sgid, link.flow.dgid]
                .map(|gid| Some(self.network.address_of(self.tenants, link.vnic, gid))),
        };
        self.context.act(Action::Audit(Box::new(audited)));
    }
}
