//! Writes lines of the audit.

use crate::reactor::Timer;
use crate::server::operation_contexts::AuditLines;
use omniverb_sys::clock;
use omniverb_tenancy::{Audited, LinkEvent, Refusal};
use std::fmt::{Display, Write};
use std::time::Duration;

/// How often it is said how many lines were left out.
const SUMMARY: Duration = Duration::from_secs(1);

impl AuditLines<'_> {
    pub(super) fn audit(&mut self, audited: &Audited) {
        let [own, peer] = audited.vnics;
        let peer = peer.filter(|peer| Some(*peer) != own);
        if self.audit.is_empty() {
            self.reactor.set(SUMMARY, Timer::Audit);
        }
        if self.audit.take(own.into_iter().chain(peer), clock::now()) {
            let line = self.audit_line(audited);
            self.journal.audit(line);
        }
    }

    pub(super) fn audit_due(&mut self) {
        for (key, lines) in self.audit.left_out(clock::now()) {
            let name = self.vnics.registry().name(key);
            self.journal.audit(format_args!("audit event=left-out vnic={name} lines={lines}"));
        }
        if !self.audit.is_empty() {
            self.reactor.set(SUMMARY, Timer::Audit);
        }
    }

    /// Every value is ours, or an operator's: a number, a name, an address, a rule.
    pub(super) fn audit_line(&self, a: &Audited) -> String {
        let mut line = String::from("audit");
        let mut add = |key: &str, value: Option<&dyn Display>| {
            let none: &dyn Display = &"-";
            let _ = write!(line, " {key}={}", value.unwrap_or(none));
        };
        let service = a.service.name();
        let names = a.vnics.map(|vnic| vnic.map(|key| self.vnics.registry().name(key)));
        let [qpn, peer_qpn] = a.qpns;
        let event = match a.event {
            LinkEvent::Made => "linked",
            LinkEvent::Ended => "unlinked",
            LinkEvent::Denied => "denied",
        };
        let tenant = a.vnics[0].map(|key| self.objects.tenant_of(key));
        add("event", Some(&event));
        add("type", Some(&service));
        let has_path = a.event != LinkEvent::Denied;
        let path = a.path.name();
        add("path", has_path.then_some(&path as &dyn Display));
        add("tenant", tenant.as_ref().map(|name| name as &dyn Display));
        for (this, (prefix, qpn)) in [("", qpn), ("peer_", peer_qpn)].iter().enumerate() {
            add(&format!("{prefix}qpn"), Some(qpn));
            add(&format!("{prefix}vnic"), names[this].as_ref().map(|name| name as &dyn Display));
            add(
                &format!("{prefix}gid"),
                a.addresses[this].as_ref().map(|address| address as &dyn Display),
            );
            let client = a.clients[this];
            add(&format!("{prefix}pid"), client.as_ref().map(|c| &c.0 as &dyn Display));
            add(&format!("{prefix}uid"), client.as_ref().map(|c| &c.1 as &dyn Display));
        }
        if let Some(Refusal { vnic, direction, rule }) = &a.refusal {
            let by = self.vnics.registry().name(*vnic);
            add("denied_by", Some(&by));
            let (policy, number, text) = match rule {
                Some((origin, text)) => {
                    (origin.policy.to_string(), origin.number.to_string(), text.clone())
                }
                None => {
                    let text = format!("no {} rule accepts it", direction.word());
                    ("-".into(), "-".into(), text)
                }
            };
            add("policy", Some(&policy));
            add("rule", Some(&number));
            add("text", Some(&format_args!("{text:?}")));
        }
        line
    }
}
