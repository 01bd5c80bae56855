//! Bounds the gateways of other hosts that have proved nothing so far, and evicts silent ones.

use crate::limits::{IPV6_PREFIX_BITS, UNPROVEN_PEERS, UNPROVEN_PEERS_LEAVING, UNPROVEN_PEERS_OF};
use omniverb_sys::{EventFd, lock};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

/// The holder that an address counts for: an IPv4 address itself, or the prefix of an IPv6 address,
/// since a host has as many addresses of its prefix as it likes.
pub(crate) fn holder(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => {
            Ipv6Addr::from(u128::from(six) & (u128::MAX << (u128::BITS - IPV6_PREFIX_BITS))).into()
        }
        four @ IpAddr::V4(_) => four,
    }
}

/// All of them.
#[derive(Default)]
pub(crate) struct UnprovenPeers(Mutex<Table>);

#[derive(Default)]
struct Table {
    /// In the order of their coming.
    all: BTreeMap<u64, Entry>,
    /// Threads of those that make way.
    leaving: BTreeMap<u64, IpAddr>,
    last: u64,
}

struct Entry {
    holder: IpAddr,
    has_spoken: bool,
    eviction: Arc<EventFd>,
}

impl Table {
    fn count(&self, holder: IpAddr) -> usize {
        self.all.values().filter(|one| one.holder == holder).count()
    }

    /// The unproven that makes way for one more of a holder, if one has to: the oldest silent one
    /// of the holder with the most; one of the newcomer's own holder if that has its share.
    fn peer_to_evict(&self, newcomer: IpAddr) -> Option<u64> {
        let own = self.count(newcomer);
        if own < UNPROVEN_PEERS_OF && self.all.len() < UNPROVEN_PEERS {
            return None;
        }
        let may = |one: &Entry| own < UNPROVEN_PEERS_OF || one.holder == newcomer;
        let all = || self.all.iter().filter(|(_, one)| may(one));
        // The first of equals is the oldest.
        let rank = |(_, one): &(&u64, &Entry)| (!one.has_spoken, self.count(one.holder));
        all().rev().max_by_key(rank).map(|(number, _)| *number)
    }

    fn admit(&mut self, holder: IpAddr, eviction: Arc<EventFd>) -> Option<u64> {
        let leaving = self.leaving.values().filter(|one| **one == holder).count();
        if leaving >= UNPROVEN_PEERS_OF || self.leaving.len() >= UNPROVEN_PEERS_LEAVING {
            return None;
        }
        if let Some(number) = self.peer_to_evict(holder) {
            let gone = self.all.remove(&number)?;
            self.leaving.insert(number, gone.holder);
            gone.eviction.signal();
        }
        self.last += 1;
        self.all.insert(self.last, Entry { holder, has_spoken: false, eviction });
        Some(self.last)
    }
}

/// One of them, as long as it lives.
pub(crate) struct UnprovenPeer {
    all: Arc<UnprovenPeers>,
    number: u64,
    eviction: Arc<EventFd>,
}

impl UnprovenPeer {
    /// One more from an address. `None`: those of its that have made way have not ended.
    pub(crate) fn new(all: &Arc<UnprovenPeers>, from: IpAddr) -> Option<Self> {
        let eviction = Arc::new(EventFd::new().ok()?);
        let number = lock(&all.0).admit(holder(from), eviction.clone())?;
        Some(Self { all: all.clone(), number, eviction })
    }

    /// It has said what it wants.
    pub(crate) fn mark_spoken(&self) {
        if let Some(entry) = lock(&self.all.0).all.get_mut(&self.number) {
            entry.has_spoken = true;
        }
    }

    /// It is to make way for others.
    pub(crate) fn is_evicted(&self) -> bool {
        !lock(&self.all.0).all.contains_key(&self.number)
    }
}

impl AsFd for UnprovenPeer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eviction.as_fd()
    }
}

impl Drop for UnprovenPeer {
    fn drop(&mut self) {
        let mut table = lock(&self.all.0);
        table.all.remove(&self.number);
        table.leaving.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn four(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn silent_peers_shut_no_other_out() {
        let all = Arc::new(UnprovenPeers::default());
        let mut silent: Vec<_> =
            (0..UNPROVEN_PEERS + 5).map(|_| UnprovenPeer::new(&all, four(1))).collect();
        assert!(silent.iter().filter(|one| one.is_none()).count() > 5);
        silent.retain(Option::is_some);
        let stay = silent.iter().flatten().filter(|one| !one.is_evicted()).count();
        assert_eq!(stay, UNPROVEN_PEERS_OF);
        // Others come, from as many addresses as there are places.
        let others: Vec<_> = (10..10 + UNPROVEN_PEERS as u8)
            .map(|last| UnprovenPeer::new(&all, four(last)))
            .collect();
        assert!(
            others.iter().flatten().filter(|one| !one.is_evicted()).count() >= UNPROVEN_PEERS - 1
        );
        // A peer that has said what it wants stays, and a newcomer has a place.
        others[5].as_ref().unwrap().mark_spoken();
        for last in 100..140 {
            silent.clear();
            let next = UnprovenPeer::new(&all, four(last)).unwrap();
            assert!(!next.is_evicted() && !others[5].as_ref().unwrap().is_evicted(), "{last}");
        }
    }

    #[test]
    fn the_oldest_of_the_largest_makes_way() {
        let all = Arc::new(UnprovenPeers::default());
        let many = UNPROVEN_PEERS / UNPROVEN_PEERS_OF;
        let full: Vec<_> = (0..many as u8 - 1)
            .flat_map(|last| (0..UNPROVEN_PEERS_OF).map(move |_| last))
            .chain((0..UNPROVEN_PEERS_OF as u8).map(|last| 200 + last))
            .map(|last| UnprovenPeer::new(&all, four(last)).unwrap())
            .collect();
        assert!(full.iter().all(|one| !one.is_evicted()));
        let next = UnprovenPeer::new(&all, four(99)).unwrap();
        let gone: Vec<_> = (0..full.len()).filter(|at| full[*at].is_evicted()).collect();
        assert_eq!((gone, next.is_evicted()), (vec![0], false));
    }

    #[test]
    fn a_host_has_many_addresses_of_ipv6() {
        let [one, same, other] = ["fd00::1:2:3:4", "fd00::ffff:0:0:9", "fd00:0:0:1::1"]
            .map(|text| holder(text.parse().unwrap()));
        assert!(one == same && one != other);
        assert_eq!(holder("::ffff:10.0.0.1".parse().unwrap()), four(1));
        assert_ne!(holder(four(1)), holder(four(2)));
    }
}
