//! Channels between two network namespaces that a broker before this one has given.
//!
//! They go on without it, and their processes say so to the next one, which the daemon can tell
//! then that they are over. Who says that he has one proves nothing by it, and is given nothing:
//! what may become of it is that his own channel ends, or that it counts as one of his. It is
//! called by what nobody guesses, so that nobody is taken for the other end of somebody else's.

use crate::channels::{Between, Ends};
use crate::client::Client;
use crate::daemon::Place;
use crate::limits::{CHANNELS, STILL_ASKED, STILL_KEPT};
use crate::listeners::Process;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::{Arc, Weak};

/// Those that the daemon is asked about in one go.
const PER_TURN: usize = 64;

/// What a process says of one.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) client: Weak<Client>,
    process: Process,
    own: Place,
    others: IpAddr,
    /// Until when the other one is waited for, in nanoseconds.
    until: u64,
}

impl Claim {
    pub(crate) fn new(client: &Arc<Client>, [own, others]: [IpAddr; 2], now: u64) -> Claim {
        Claim {
            client: Arc::downgrade(client),
            process: client.process(),
            own: Place { namespace: client.namespace, address: own },
            others,
            until: now.saturating_add(STILL_KEPT),
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
pub(crate) struct Stills {
    /// What one has said.
    said: HashMap<u64, Claim>,
    /// What both have said: the daemon is to be asked, until then.
    both: BTreeMap<u64, (Between, u64)>,
    /// The last of these that was taken.
    last: u64,
    /// How many a process has said alone.
    count: BTreeMap<Process, usize>,
}

/// What becomes of a claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// The other one is waited for.
    Waits,
    /// Both have said it: who they are.
    Both(Between),
    /// Destination can be no such channel.
    Wrong,
}

impl Stills {
    /// A process says that it has one. What both have said is to be kept ([`Stills::asks`]).
    pub(crate) fn add(&mut self, name: u64, claim: Claim) -> Said {
        match self.said.get(&name) {
            None => {
                let count = self.count.entry(claim.process).or_default();
                if *count >= CHANNELS {
                    return Said::Wrong;
                }
                *count += 1;
                self.said.insert(name, claim);
                Said::Waits
            }
            // Once more.
            Some(said) if said.process == claim.process => Said::Waits,
            Some(said) if said.fits(&claim) => {
                let (processes, places) = ([said.process, claim.process], [said.own, claim.own]);
                self.forget(name);
                Said::Both(Between { processes, ends: Ends::Across(places) })
            }
            Some(_) => Said::Wrong,
        }
    }

    fn forget(&mut self, name: u64) -> Option<Claim> {
        let claim = self.said.remove(&name)?;
        if let Some(count) = self.count.get_mut(&claim.process) {
            *count -= 1;
            if *count == 0 {
                self.count.remove(&claim.process);
            }
        }
        Some(claim)
    }

    /// The daemon is to be asked about one, which counts as a channel of both already.
    pub(crate) fn asks(&mut self, name: u64, two: Between, now: u64) {
        self.both.insert(name, (two, now.saturating_add(STILL_ASKED)));
    }

    /// One of which the daemon is to be asked, and until when.
    pub(crate) fn asked(&self, name: u64) -> Option<(Between, u64)> {
        self.both.get(&name).copied()
    }

    /// Some of those, others each time.
    pub(crate) fn next_ones(&mut self) -> Vec<u64> {
        let behind = self.both.range((Bound::Excluded(self.last), Bound::Unbounded));
        let all = behind.chain(self.both.range(..=self.last));
        let some: Vec<u64> = all.map(|(name, _)| *name).take(PER_TURN).collect();
        self.last = some.last().copied().unwrap_or_default();
        some
    }

    /// What is to become of one is known.
    pub(crate) fn is_known(&mut self, name: u64) {
        self.both.remove(&name);
    }

    /// Those whose other end has not come.
    pub(crate) fn sweep(&mut self, now: u64) -> Vec<(u64, Claim)> {
        let over = self.said.iter().filter(|(_, claim)| claim.until <= now);
        let over: Vec<u64> = over.map(|(name, _)| *name).collect();
        over.into_iter().filter_map(|name| Some((name, self.forget(name)?))).collect()
    }

    /// A process has no use for one any more.
    pub(crate) fn end(&mut self, name: u64, process: Process) {
        if self.said.get(&name).is_some_and(|claim| claim.process == process) {
            self.forget(name);
        }
    }

    /// A process has gone.
    pub(crate) fn gone(&mut self, process: Process) {
        let its = self.said.iter().filter(|(_, claim)| claim.process == process);
        let its: Vec<u64> = its.map(|(name, _)| *name).collect();
        its.into_iter().for_each(|name| _ = self.forget(name));
    }

    /// Destination is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.said.is_empty() && self.both.is_empty()
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
        let (mut all, one, other) = (Stills::default(), Client::alone(5), Client::alone(6));
        assert_eq!(all.add(70, claim(&one, [1, 2])), Said::Waits);
        assert_eq!(all.add(70, claim(&one, [1, 2])), Said::Waits, "once more");
        let stranger = Client::alone(5);
        for (who, wrong) in [(&other, [3, 1]), (&other, [2, 3]), (&stranger, [2, 1])] {
            assert_eq!(all.add(70, claim(who, wrong)), Said::Wrong);
        }
        all.end(70, other.process());
        let Said::Both(two) = all.add(70, claim(&other, [2, 1])) else { panic!("not one") };
        assert_eq!(two.processes, [one.process(), other.process()]);
        let places = two.ends.places().unwrap();
        assert_eq!(places.map(|place| place.namespace), [5, 6]);
        assert_eq!(places[1].address, IpAddr::from([10, 0, 0, 2]));
        assert!(all.is_empty() && all.count.is_empty());
        all.asks(70, two, 7);
        assert_eq!((all.next_ones(), all.asked(70)), (vec![70], Some((two, 7 + STILL_ASKED))));
        (0..100).for_each(|name| all.asks(name, two, 7));
        let mut seen: Vec<u64> = [all.next_ones(), all.next_ones()].concat();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 100, "all have their turn");
        (0..100).for_each(|name| all.is_known(name));
        assert!(all.is_empty());
    }

    #[test]
    fn who_does_not_come_is_waited_for_for_a_while_and_few_are_kept() {
        let (mut all, one, other) = (Stills::default(), Client::alone(5), Client::alone(6));
        for name in 0..CHANNELS as u64 {
            assert_eq!(all.add(name, claim(&one, [1, 2])), Said::Waits);
        }
        assert_eq!(all.add(1000, claim(&one, [1, 2])), Said::Wrong);
        assert_eq!(all.add(1000, claim(&other, [1, 2])), Said::Waits, "others have room");
        assert!(all.sweep(4 + STILL_KEPT).is_empty());
        all.gone(other.process());
        assert!(matches!(all.add(7, claim(&other, [2, 1])), Said::Both(_)));
        all.end(8, one.process());
        let over = all.sweep(5 + STILL_KEPT);
        assert_eq!(over.len(), CHANNELS - 2);
        assert!(over.iter().all(|(_, claim)| claim.client.upgrade().is_some()));
        all.gone(one.process());
        assert!(all.is_empty() && all.count.is_empty());
    }
}
