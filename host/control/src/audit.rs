//! The audit: who was linked with whom, and when that ended, a line each.
//!
//! Lines are counted for each vNIC, apart from all others of the log: who makes and ends links in a
//! loop has its own lines left out (and counted), not somebody else's. A link is of two vNICs; it
//! counts against the one that has caused more of late.

use crate::server::{Server, Timer};
use omniverb_sys::clock;
use omniverb_tenancy::{Audited, VnicId};
use omniverb_terms::Gid;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::time::Duration;

/// Lines that a vNIC may cause at once: a job that starts or ends.
const BURST: u64 = 64;
/// Lines a second that it may cause on and on.
const RATE: u64 = 8;
/// How often it is said how many were left out.
const SUMMARY: Duration = Duration::from_secs(1);
const SECOND: u64 = 1_000_000_000;

#[derive(Debug)]
struct Account {
    lines: u64,
    at: u64,
    left_out: u64,
}

impl Account {
    fn refill(&mut self, now: u64) {
        let earned = now.saturating_sub(self.at) / (SECOND / RATE);
        self.at += earned * (SECOND / RATE);
        self.lines = (self.lines + earned).min(BURST);
    }
}

/// What vNICs have caused of late.
#[derive(Debug, Default)]
pub(crate) struct Audit(BTreeMap<VnicId, Account>);

impl Audit {
    /// True if a line about these vNICs is to be written.
    fn take(&mut self, vnics: impl Iterator<Item = VnicId> + Clone, now: u64) -> bool {
        for key in vnics.clone() {
            let new = || Account { lines: BURST, at: now, left_out: 0 };
            self.0.entry(key).or_insert_with(new).refill(now);
        }
        let payer = vnics.min_by_key(|key| self.0.get(key).map(|account| account.lines));
        let Some(account) = payer.and_then(|key| self.0.get_mut(&key)) else { return false };
        let paid = account.lines.checked_sub(1);
        match paid {
            Some(lines) => account.lines = lines,
            None => account.left_out += 1,
        }
        paid.is_some()
    }

    /// How many lines of whom were left out; forgets who has caused nothing of late.
    fn left_out(&mut self, now: u64) -> Vec<(VnicId, u64)> {
        let mut found = Vec::new();
        self.0.retain(|key, account| {
            account.refill(now);
            if account.left_out > 0 {
                found.push((*key, std::mem::take(&mut account.left_out)));
            }
            account.lines < BURST
        });
        found
    }
}

impl Server {
    pub(crate) fn audit(&mut self, audited: &Audited) {
        let [own, peer] = audited.vnics;
        let peer = peer.filter(|peer| Some(*peer) != own);
        if self.audit.0.is_empty() {
            self.set_timer(SUMMARY, Timer::Audit);
        }
        if self.audit.take(own.into_iter().chain(peer), clock::now()) {
            let line = self.audit_line(audited);
            self.journal.audit(line);
        }
    }

    pub(crate) fn audit_due(&mut self) {
        for (key, lines) in self.audit.left_out(clock::now()) {
            let name = self.registry.name(key);
            self.journal.audit(format_args!("audit event=left-out vnic={name} lines={lines}"));
        }
        if !self.audit.0.is_empty() {
            self.set_timer(SUMMARY, Timer::Audit);
        }
    }

    /// Every value is ours: a number, a name we gave, an address.
    fn audit_line(&self, a: &Audited) -> String {
        let mut line = String::from("audit");
        let mut add = |key: &str, value: Option<&dyn Display>| {
            let none: &dyn Display = &"-";
            let _ = write!(line, " {key}={}", value.unwrap_or(none));
        };
        let service = a.service.name();
        let names = a.vnics.map(|vnic| vnic.map(|key| self.registry.name(key)));
        let gids = a.gids.map(|gid| gid.map(Gid::address));
        let [qpn, peer_qpn] = a.qpns;
        add("event", Some(&if a.linked { "linked" } else { "unlinked" }));
        add("type", Some(&service));
        add("path", Some(&a.path.name()));
        for (this, (prefix, qpn)) in [("", qpn), ("peer_", peer_qpn)].iter().enumerate() {
            add(&format!("{prefix}qpn"), Some(qpn));
            add(&format!("{prefix}vnic"), names[this].as_ref().map(|name| name as &dyn Display));
            add(&format!("{prefix}gid"), gids[this].as_ref().map(|gid| gid as &dyn Display));
            let client = a.clients[this];
            add(&format!("{prefix}pid"), client.as_ref().map(|c| &c.0 as &dyn Display));
            add(&format!("{prefix}uid"), client.as_ref().map(|c| &c.1 as &dyn Display));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_hides_only_its_own_lines() {
        let mut audit = Audit::default();
        let mut link = |one: u64, other: u64, now: u64| {
            audit.take([VnicId(one), VnicId(other)].into_iter(), now)
        };
        // One vNIC is linked with another all the time.
        let written = (0..10_000).filter(|_| link(1, 2, 0)).count();
        assert_eq!(written as u64, BURST);
        let written = (0..10_000).filter(|_| link(1, 3, 0)).count();
        assert_eq!(written, 0, "the first is the one that floods");
        assert!(link(3, 4, 0));
        let left = audit.left_out(0);
        assert_eq!(left.iter().map(|(_, lines)| lines).sum::<u64>(), 20_000 - BURST);
        assert!(audit.left_out(0).is_empty(), "said once");
        assert!(audit.take([VnicId(1)].into_iter(), SECOND), "a second later it may again");
        audit.left_out(1000 * SECOND);
        assert!(audit.0.is_empty());
    }
}
