//! Chooses the stranger's link that makes way for one more at a vNIC.
//!
//! Datagrams of strangers cause links to the engine; their number is bounded for each vNIC.
//!
//! The sender with most of them makes way for one that has fewer. Only where no sender has more
//! than another, as when sources are forged, the oldest of all goes.

use super::engine_link::EngineLinkAge;
use omniverb_terms::Gid;
use std::collections::{BTreeMap, BTreeSet};

/// A host, by [`Gid::host`].
type Sender = Gid;

/// All of one vNIC.
#[derive(Debug, Default)]
pub(super) struct UnsolicitedLinks {
    all: BTreeSet<EngineLinkAge>,
    of: BTreeMap<Sender, BTreeSet<EngineLinkAge>>,
    /// How many there are of each sender.
    counts: BTreeSet<(usize, Sender)>,
}

impl UnsolicitedLinks {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// One more link.
    pub(super) fn add(&mut self, key: EngineLinkAge) {
        if self.all.insert(key) {
            let (_, _, (_, peer)) = key;
            self.change(peer.host(), |links| {
                links.insert(key);
            });
        }
    }

    /// A link has ended.
    pub(super) fn remove(&mut self, key: &EngineLinkAge) {
        if self.all.remove(key) {
            let (_, _, (_, peer)) = key;
            self.change(peer.host(), |links| {
                links.remove(key);
            });
        }
    }

    fn change(&mut self, sender: Sender, change: impl FnOnce(&mut BTreeSet<EngineLinkAge>)) {
        let links = self.of.entry(sender).or_default();
        let before = links.len();
        change(links);
        let after = links.len();
        self.counts.remove(&(before, sender));
        match after {
            0 => drop(self.of.remove(&sender)),
            _ => drop(self.counts.insert((after, sender))),
        }
    }

    /// Links that may make way for one more of `newcomer`'s, the first to go first. Of a larger
    /// sender: any; otherwise, so that these do not push each other out all the time, those made
    /// before `rested`.
    pub(super) fn yielding(&self, newcomer: Gid, rested: u64) -> Vec<EngineLinkAge> {
        let newcomer = newcomer.host();
        let own = self.of.get(&newcomer);
        let has = own.map_or(0, BTreeSet::len);
        let larger = self.counts.last().filter(|(most, _)| *most > has + 1);
        let oldest = |links: Option<&BTreeSet<EngineLinkAge>>, until: u64| -> Vec<EngineLinkAge> {
            let links = links.into_iter().flatten().take(YIELDING);
            links.take_while(|(born, ..)| *born <= until).copied().collect()
        };
        match larger {
            Some((_, sender)) => oldest(self.of.get(sender), u64::MAX),
            None if has > 0 => oldest(own, rested),
            None => oldest(Some(&self.all), rested),
        }
    }
}

/// Budget: links that are looked at for one that may make way.
const YIELDING: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_terms::Qpn;
    use std::net::IpAddr;

    fn gid(text: &str) -> Gid {
        Gid::from(text.parse::<IpAddr>().unwrap())
    }

    fn link(born: u64, from: &str) -> EngineLinkAge {
        (born, Qpn(7), (Qpn(100 + born as u32), gid(from)))
    }

    #[test]
    fn the_sender_with_most_makes_way_for_others_and_for_itself() {
        let mut strangers = UnsolicitedLinks::default();
        strangers.add(link(1, "10.0.0.1"));
        for born in 2..100 {
            strangers.add(link(born, "10.0.0.66"));
        }
        // At once, for a sender with fewer.
        assert_eq!(strangers.yielding(gid("10.0.0.2"), 0).first(), Some(&link(2, "10.0.0.66")));
        assert_eq!(strangers.yielding(gid("10.0.0.1"), 0).first(), Some(&link(2, "10.0.0.66")));
        // For itself it waits.
        assert_eq!(strangers.yielding(gid("10.0.0.66"), 1), []);
        assert_eq!(strangers.yielding(gid("10.0.0.66"), 2), [link(2, "10.0.0.66")]);
        for born in 2..100 {
            strangers.remove(&link(born, "10.0.0.66"));
        }
        // Among equals the oldest goes, once it has been there for a while.
        strangers.add(link(3, "10.0.0.3"));
        assert_eq!(strangers.yielding(gid("10.0.0.2"), 1), [link(1, "10.0.0.1")]);
        assert_eq!(strangers.yielding(gid("10.0.0.2"), 0), []);
        strangers.remove(&link(1, "10.0.0.1"));
        strangers.remove(&link(3, "10.0.0.3"));
        assert!(strangers.is_empty() && strangers.of.is_empty() && strangers.counts.is_empty());
    }
}
