//! Keeps claims of channels between network namespaces that an earlier broker has given.
//!
//! These go on without a broker, and their processes tell the next one, which the daemon can tell
//! then that they are over. A claim proves nothing, and is given nothing: what may become of it is
//! that one's own channel ends, or that it counts as one of one's own. A channel is named by a
//! number that cannot be guessed, so no process is taken for the other end of another's.

use crate::broker_daemon_messages::NamespaceAddress;
use crate::channels::{Ends, ProcessPair};
use crate::client::Client;
use crate::limits::{CHANNELS, INHERITED_ASKED, INHERITED_KEPT};
use crate::listeners::Process;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::{Arc, Weak};

/// Those that the daemon is asked about in one go.
const PER_PASS: usize = 64;

/// What a process says of one.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) client: Weak<Client>,
    process: Process,
    own: NamespaceAddress,
    others: IpAddr,
    /// Until when the other one is waited for, in nanoseconds.
    until: u64,
}

impl Claim {
    pub(crate) fn new(client: &Arc<Client>, [own, others]: [IpAddr; 2], now: u64) -> Claim {
        Claim {
            client: Arc::downgrade(client),
            process: client.process(),
            own: NamespaceAddress { namespace: client.namespace, address: own },
            others,
            until: now.saturating_add(INHERITED_KEPT),
        }
    }

    fn fits(&self, other: &Claim) -> bool {
        self.own.namespace != other.own.namespace
            && self.own.address == other.others
            && self.others == other.own.address
    }
}

/// All of them, by name.
#[derive(Debug, Default)]
pub(crate) struct InheritedChannels {
    /// What one has said.
    claims: HashMap<u64, Claim>,
    /// What both have said: the daemon is to be asked, until then.
    confirmed: BTreeMap<u64, (ProcessPair, u64)>,
    /// The last of these that was taken.
    last: u64,
    /// How many a process has said alone.
    count: BTreeMap<Process, usize>,
}

/// What becomes of a claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ClaimOutcome {
    /// The other one is waited for.
    Waiting,
    /// Both processes have claimed it.
    Confirmed(ProcessPair),
    /// There can be no such channel.
    Refused,
}

impl InheritedChannels {
    /// A process says that it has one. What both have said is to be kept
    /// ([`InheritedChannels::queue_question`]).
    pub(crate) fn add(&mut self, name: u64, claim: Claim) -> ClaimOutcome {
        match self.claims.get(&name) {
            None => {
                let count = self.count.entry(claim.process).or_default();
                if *count >= CHANNELS {
                    return ClaimOutcome::Refused;
                }
                *count += 1;
                self.claims.insert(name, claim);
                ClaimOutcome::Waiting
            }
            // Once more.
            Some(claimed) if claimed.process == claim.process => ClaimOutcome::Waiting,
            Some(claimed) if claimed.fits(&claim) => {
                let (processes, places) =
                    ([claimed.process, claim.process], [claimed.own, claim.own]);
                self.forget(name);
                ClaimOutcome::Confirmed(ProcessPair { processes, ends: Ends::Across(places) })
            }
            Some(_) => ClaimOutcome::Refused,
        }
    }

    fn forget(&mut self, name: u64) -> Option<Claim> {
        let claim = self.claims.remove(&name)?;
        if let Some(count) = self.count.get_mut(&claim.process) {
            *count -= 1;
            if *count == 0 {
                self.count.remove(&claim.process);
            }
        }
        Some(claim)
    }

    /// The daemon is to be asked about one, which counts as a channel of both already.
    pub(crate) fn queue_question(&mut self, name: u64, two: ProcessPair, now: u64) {
        self.confirmed.insert(name, (two, now.saturating_add(INHERITED_ASKED)));
    }

    /// One of which the daemon is to be asked, and until when.
    pub(crate) fn question(&self, name: u64) -> Option<(ProcessPair, u64)> {
        self.confirmed.get(&name).copied()
    }

    /// Some of those, others each time.
    pub(crate) fn next_batch(&mut self) -> Vec<u64> {
        let behind = self.confirmed.range((Bound::Excluded(self.last), Bound::Unbounded));
        let all = behind.chain(self.confirmed.range(..=self.last));
        let some: Vec<u64> = all.map(|(name, _)| *name).take(PER_PASS).collect();
        self.last = some.last().copied().unwrap_or_default();
        some
    }

    /// What is to become of one is known.
    pub(crate) fn resolve(&mut self, name: u64) {
        self.confirmed.remove(&name);
    }

    /// Removes claims whose other process has not claimed the channel in time.
    pub(crate) fn sweep(&mut self, now: u64) -> Vec<(u64, Claim)> {
        let over = self.claims.iter().filter(|(_, claim)| claim.until <= now);
        let over: Vec<u64> = over.map(|(name, _)| *name).collect();
        over.into_iter().filter_map(|name| Some((name, self.forget(name)?))).collect()
    }

    /// A process has no use for one any more.
    pub(crate) fn withdraw(&mut self, name: u64, process: Process) {
        if self.claims.get(&name).is_some_and(|claim| claim.process == process) {
            self.forget(name);
        }
    }

    /// A process has gone.
    pub(crate) fn forget_process(&mut self, process: Process) {
        let its = self.claims.iter().filter(|(_, claim)| claim.process == process);
        let its: Vec<u64> = its.map(|(name, _)| *name).collect();
        its.into_iter().for_each(|name| _ = self.forget(name));
    }

    /// There is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.confirmed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(client: &Arc<Client>, [own, others]: [u8; 2]) -> Claim {
        Claim::new(client, [own, others].map(|last| [10, 0, 0, last].into()), 5)
    }

    #[test]
    fn what_both_say_is_one() {
        let (mut all, one, other) =
            (InheritedChannels::default(), Client::alone(5), Client::alone(6));
        assert_eq!(all.add(70, claim(&one, [1, 2])), ClaimOutcome::Waiting);
        assert_eq!(all.add(70, claim(&one, [1, 2])), ClaimOutcome::Waiting, "once more");
        let stranger = Client::alone(5);
        for (who, wrong) in [(&other, [3, 1]), (&other, [2, 3]), (&stranger, [2, 1])] {
            assert_eq!(all.add(70, claim(who, wrong)), ClaimOutcome::Refused);
        }
        all.withdraw(70, other.process());
        let ClaimOutcome::Confirmed(two) = all.add(70, claim(&other, [2, 1])) else {
            panic!("not one")
        };
        assert_eq!(two.processes, [one.process(), other.process()]);
        let places = two.ends.places().unwrap();
        assert_eq!(places.map(|place| place.namespace), [5, 6]);
        assert_eq!(places[1].address, IpAddr::from([10, 0, 0, 2]));
        assert!(all.is_empty() && all.count.is_empty());
        all.queue_question(70, two, 7);
        assert_eq!(
            (all.next_batch(), all.question(70)),
            (vec![70], Some((two, 7 + INHERITED_ASKED)))
        );
        (0..100).for_each(|name| all.queue_question(name, two, 7));
        let mut seen: Vec<u64> = [all.next_batch(), all.next_batch()].concat();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 100, "all have their turn");
        (0..100).for_each(|name| all.resolve(name));
        assert!(all.is_empty());
    }

    #[test]
    fn claims_wait_for_a_while_and_few_are_kept() {
        let (mut all, one, other) =
            (InheritedChannels::default(), Client::alone(5), Client::alone(6));
        for name in 0..CHANNELS as u64 {
            assert_eq!(all.add(name, claim(&one, [1, 2])), ClaimOutcome::Waiting);
        }
        assert_eq!(all.add(1000, claim(&one, [1, 2])), ClaimOutcome::Refused);
        assert_eq!(all.add(1000, claim(&other, [1, 2])), ClaimOutcome::Waiting, "others have room");
        assert!(all.sweep(4 + INHERITED_KEPT).is_empty());
        all.forget_process(other.process());
        assert!(matches!(all.add(7, claim(&other, [2, 1])), ClaimOutcome::Confirmed(_)));
        all.withdraw(8, one.process());
        let over = all.sweep(5 + INHERITED_KEPT);
        assert_eq!(over.len(), CHANNELS - 2);
        assert!(over.iter().all(|(_, claim)| claim.client.upgrade().is_some()));
        all.forget_process(one.process());
        assert!(all.is_empty() && all.count.is_empty());
    }
}
