//! Divides a budget of messages among senders: each has a part that no other can spend.
//!
//! While half of the whole is left, a sender may have more than its part. A sender that floods has
//! one part, and leaves the others theirs. A host may have all addresses of an IPv6 network (/64),
//! so such a network is one sender; and one address of it leaves the others theirs.
//!
//! An answer to a question of ours spends none of it: those are told apart before
//! (`network/pending_probes.rs`).

use omniverb_pacer::{Limit, Limiter};
use omniverb_terms::Gid;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

/// Parts of a budget, to which addresses are dealt: neighbours to one each, neighbourhoods by a
/// hash that an attacker cannot foresee.
const LOTS: u64 = 64;
/// Budget: an address of an IPv6 network has one of so many parts of what the network has, if
/// others of that network want theirs. A host that uses as many addresses has all of it.
const ADDRESS_PARTS: u64 = 4;

/// How many messages a second, and how many at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) per_second: u64,
    pub(crate) at_once: u64,
}

impl Rate {
    /// One of so many parts.
    fn part(self, parts: u64) -> Rate {
        Rate { per_second: self.per_second / parts, at_once: self.at_once / parts }
    }

    /// A limiter that has a byte for each message.
    pub(crate) fn limiter(self, now: u64) -> Limiter {
        let Rate { per_second, at_once } = self;
        Limiter::new(Limit { bits_per_second: per_second * 8, burst_bytes: at_once }, now)
    }
}

/// The unspent budget.
pub(crate) struct Shares {
    whole: Limiter,
    lots: Vec<Limiter>,
    /// Of addresses of IPv6 networks, dealt likewise; none until there was one.
    address_lots: Vec<Limiter>,
    of_address: Rate,
    dealt: RandomState,
}

impl Shares {
    /// All of them, of which one sender has `of_one` if others want theirs.
    pub(crate) fn new(all: Rate, of_one: Rate, now: u64) -> Shares {
        let lots = (0..LOTS).map(|_| of_one.limiter(now)).collect();
        let (address_lots, of_address) = (Vec::new(), of_one.part(ADDRESS_PARTS));
        let (whole, dealt) = (all.limiter(now), RandomState::new());
        Shares { whole, lots, address_lots, of_address, dealt }
    }

    /// One more of this sender's, if there may be one more.
    pub(crate) fn take(&mut self, from: IpAddr, now: u64) -> bool {
        let (lot, has_part) = (self.lot(from), self.take_of_address(from, now));
        let lot = self.lots.get_mut(lot).filter(|lot| has_part || lot.is_half_full(now));
        let left = lot.is_some_and(|lot| take(lot, now));
        (left || self.whole.is_half_full(now)) && take(&mut self.whole, now)
    }

    /// One more of what this address has of its network's, if there may be one more. An address
    /// that is a network by itself has all of it.
    fn take_of_address(&mut self, from: IpAddr, now: u64) -> bool {
        let address = Gid::from(from);
        if address.host() == address {
            return true;
        }
        if self.address_lots.is_empty() {
            self.address_lots = (0..LOTS).map(|_| self.of_address.limiter(now)).collect();
        }
        let lot = self.deal(address);
        self.address_lots.get_mut(lot).is_some_and(|lot| take(lot, now))
    }

    fn lot(&self, from: IpAddr) -> usize {
        self.deal(Gid::from(from).host())
    }

    fn deal(&self, address: Gid) -> usize {
        let address = u128::from_be_bytes(address.bytes());
        let number = (address ^ address >> 64) as u64;
        let neighbourhood = self.dealt.hash_one(number / LOTS);
        ((number ^ neighbourhood) % LOTS) as usize
    }
}

/// One more, if there may be one more.
fn take(from: &mut Limiter, now: u64) -> bool {
    let may = from.ready(now).is_ok();
    if may {
        from.take(1);
    }
    may
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Rate = Rate { per_second: 5000, at_once: 2048 };
    const OF_ONE: Rate = Rate { per_second: 1000, at_once: 1024 };

    fn ip(n: u32) -> IpAddr {
        IpAddr::from((0x0a4d_0000 + n).to_be_bytes())
    }

    #[test]
    fn a_flooding_peer_leaves_others_their_budget() {
        let mut shares = Shares::new(ALL, OF_ONE, 0);
        let mut heard = 0;
        for millisecond in 0..1000u64 {
            let now = millisecond * 1_000_000;
            for _ in 0..100 {
                heard += u32::from(shares.take(ip(1), now));
            }
            // Its neighbours, which never have its lot, now and then.
            if millisecond % 100 == 50 {
                assert!((2..64).all(|n| shares.take(ip(n), now)), "{millisecond} ms");
            }
        }
        assert!((1000..2048 + 5000).contains(&heard), "{heard}");
    }

    fn of_network(network: u16, host: u64) -> IpAddr {
        IpAddr::from(
            (0x2001_0db8 << 96 | u128::from(network) << 64 | u128::from(host)).to_be_bytes(),
        )
    }

    #[test]
    fn a_flooding_address_leaves_others_of_its_network_their_budget() {
        let mut shares = Shares::new(ALL, OF_ONE, 0);
        for millisecond in 0..1000u64 {
            let now = millisecond * 1_000_000;
            for _ in 0..100 {
                shares.take(of_network(1, 1), now);
            }
            if millisecond % 100 == 50 {
                let mut neighbours = 2..64;
                assert!(neighbours.all(|n| shares.take(of_network(1, n), now)), "{millisecond} ms");
            }
        }
    }

    #[test]
    fn a_network_that_floods_from_all_its_addresses_leaves_other_networks_their_budget() {
        let mut shares = Shares::new(ALL, OF_ONE, 0);
        let other =
            (2..200).find(|n| shares.lot(of_network(*n, 1)) != shares.lot(of_network(1, 1)));
        let (mut heard, other) = (0, of_network(other.unwrap(), 1));
        for millisecond in 0..1000u64 {
            let now = millisecond * 1_000_000;
            for n in 0..100 {
                heard += u32::from(shares.take(of_network(1, millisecond * 1000 + n), now));
            }
            assert!(millisecond % 10 != 5 || shares.take(other, now), "{millisecond} ms");
        }
        assert!((1000..2048 + 5000).contains(&heard), "{heard}");
        assert_eq!(shares.address_lots.len() as u64, LOTS);
    }

    #[test]
    fn one_peer_alone_has_the_whole_budget() {
        for peer in [ip(1), of_network(1, 1)] {
            let mut shares = Shares::new(ALL, OF_ONE, 0);
            let at_once = (0..4000).filter(|_| shares.take(peer, 0)).count();
            assert!((1024..=1025).contains(&at_once), "{at_once}");
            // 4000 a second, where its lot has 1000.
            for n in 0..10_000u64 {
                assert!(shares.take(peer, 1_000_000_000 + n * 250_000), "{n}");
            }
        }
    }

    #[test]
    fn a_host_has_one_share_under_all_its_names() {
        let shares = Shares::new(ALL, OF_ONE, 0);
        let lot = |text: &str| shares.lot(text.parse().unwrap());
        assert_eq!(lot("2001:db8::1"), lot("2001:db8::1234:5678:9abc:def0"));
        assert_ne!(lot("2001:db8::1"), lot("2001:db8:0:1::1"));
        assert_ne!(lot("fe80::1"), lot("fe80::2"));
        assert_ne!(lot("10.0.0.1"), lot("10.0.0.2"));
        assert_eq!(lot("10.0.0.1"), lot("::ffff:10.0.0.1"));
    }
}
