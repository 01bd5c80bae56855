//! What the audit is told: every link that is made and every one that ends, with both its ends.

use crate::action::{Action, Audited};
use crate::ids::{Far, LinkKey, SessionId, VnicId};
use crate::path::Path;
use crate::tables::Link;
use crate::tenancy::Tenancy;
use crate::wire::Wire;
use omniverb_terms::Qpn;

impl Tenancy {
    /// Tells of links from now on, or not.
    pub fn audit(&mut self, on: bool) {
        self.audited = on;
    }

    pub(crate) fn audit_link(&mut self, key: LinkKey, link: &Link, linked: bool) {
        let Some(qp) = self.qps.get(&key.0).filter(|_| self.audited) else { return };
        let audited = Audited {
            linked,
            service: qp.service,
            path: Path::Direct,
            qpns: [key.0, key.1],
            vnics: link.vnics.map(Some),
            clients: link.sessions.map(|session| self.client_of(session)),
            gids: link.ways.map(|(own, _)| Some(own)),
        };
        self.out.push(Action::Audit(Box::new(audited)));
    }

    pub(crate) fn audit_wire(
        &mut self,
        (session, vnic): (SessionId, VnicId),
        qpn: Qpn,
        (peer, _): Far,
        wire: &Wire,
        linked: bool,
    ) {
        let Some(qp) = self.qps.get(&qpn).filter(|_| self.audited) else { return };
        let far = wire.within.and_then(|_| self.qps.get(&peer)).map(|qp| qp.session);
        let audited = Audited {
            linked,
            service: qp.service,
            path: wire.path,
            qpns: [qpn, peer],
            vnics: [Some(vnic), wire.within],
            clients: [self.client_of(session), far.and_then(|session| self.client_of(session))],
            gids: [Some(wire.sgid), Some(wire.dgid)],
        };
        self.out.push(Action::Audit(Box::new(audited)));
    }

    fn client_of(&self, session: SessionId) -> Option<(i32, u32)> {
        self.sessions.get(&session).map(|session| (session.client.pid, session.client.uid))
    }
}
