//! Limits the audit lines about links, for each vNIC, and counts those that are left out.
//!
//! Lines are counted for each vNIC, apart from all others of the log: a vNIC that makes and ends
//! links in a loop has its own lines left out (and counted), not another's. A link has two vNICs;
//! its line counts against the one with more recent lines.

use omniverb_tenancy::VnicId;
use std::collections::BTreeMap;

/// Budget: lines of the audit that a vNIC may cause at once: a job that starts or ends.
const BURST: u64 = 64;
/// Budget: lines of the audit that a vNIC may cause a second, on and on.
const RATE: u64 = 8;
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
    /// No vNIC has recent lines.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if a line about these vNICs is to be written.
    pub(crate) fn take(&mut self, vnics: impl Iterator<Item = VnicId> + Clone, now: u64) -> bool {
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

    /// The number of lines left out of each vNIC; forgets vNICs without recent lines.
    pub(crate) fn left_out(&mut self, now: u64) -> Vec<(VnicId, u64)> {
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
