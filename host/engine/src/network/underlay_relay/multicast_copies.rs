//! Copies what is sent to a group of a virtual network for its members, within budgets.

use super::vnic_lookup_tables::Seats;
use crate::pacing::multicast_copy_budget::Copies;
use crate::pacing::per_sender_budget::{Rate, Shares};
use omniverb_pacer::Limiter;
use omniverb_psp::tunnel::Addresses;
use omniverb_sys::proxied_udp::{PAYLOAD_MAX, ProxiedHeader};
use omniverb_terms::Qpn;
use omniverb_wire::PORT;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Budget: copies to other hosts that groups of a virtual network may ask for. One packet makes as
/// many as there are hosts, and is on its sender's account once. A packet beyond is lost to all
/// other hosts alike.
const HOST_COPIES: Rate = Rate { per_second: 200_000, at_once: 4096 };

/// Budget: copies in plain from other hosts that are looked at. Each costs a look at the virtual
/// networks that have the group, before it is known whether it is of one.
const PLAIN_COPIES: Rate = Rate { per_second: 200_000, at_once: 4096 };
/// Budget: of those, of one address.
const PLAIN_COPIES_OF_ONE: Rate = Rate { per_second: 50_000, at_once: 2048 };

/// Budget: other hosts of a virtual network hear so often that this one is there, in nanoseconds.
/// Each time costs a look at all of them, and processes join groups and leave them as they like.
const INTRODUCED_AGAIN: u64 = 1_000_000_000;

/// What a virtual network has used of its budgets.
struct NetworkCopies {
    /// Other hosts do not hear of this one before.
    introduced_again_at: u64,
    /// On this host.
    here: Copies,
    /// To other hosts.
    away: Limiter,
}

/// All virtual networks with groups.
pub(super) struct GroupCopies {
    networks: BTreeMap<u64, NetworkCopies>,
    arrivals: Shares,
}

impl GroupCopies {
    pub(super) fn new(now: u64) -> GroupCopies {
        let arrivals = Shares::new(PLAIN_COPIES, PLAIN_COPIES_OF_ONE, now);
        GroupCopies { networks: BTreeMap::new(), arrivals }
    }

    /// Whether one more copy in plain of another host is looked at.
    pub(super) fn may_arrive(&mut self, from: IpAddr, now: u64) -> bool {
        self.arrivals.take(from, now)
    }

    fn of(&mut self, network: u64, now: u64) -> &mut NetworkCopies {
        self.networks.entry(network).or_insert_with(|| NetworkCopies {
            introduced_again_at: 0,
            here: Copies::default(),
            away: HOST_COPIES.limiter(now),
        })
    }

    /// Whether other hosts are to hear now that this one is there. Those that heard it a moment ago
    /// know.
    pub(super) fn may_introduce(&mut self, network: u64, now: u64) -> bool {
        let of = self.of(network, now);
        let may = now >= of.introduced_again_at;
        if may {
            of.introduced_again_at = now.saturating_add(INTRODUCED_AGAIN);
        }
        may
    }

    /// A virtual network has other hosts, which may not have heard of this one.
    pub(super) fn note_new_hosts(&mut self, network: u64) {
        if let Some(of) = self.networks.get_mut(&network) {
            of.introduced_again_at = 0;
        }
    }

    /// No vNIC of a virtual network is left.
    pub(super) fn forget(&mut self, network: u64) {
        self.networks.remove(&network);
    }

    /// Gives a packet to all vNICs of this host that are in the group.
    pub(super) fn deliver(
        &mut self,
        seats: &Seats,
        network: u64,
        (ends, ecn): (Addresses, u8),
        (group, _, packet): (IpAddr, Qpn, &[u8]),
        turn: u64,
    ) {
        let count = seats.members(group, network).count();
        let fits = packet.len() <= PAYLOAD_MAX && count > 0;
        if !fits || !self.of(network, 0).here.may_make(turn, count) {
            return;
        }
        let (local, remote) = (Some(group), ends.remote);
        let head = ProxiedHeader { local, remote, interface: 0, port: PORT, ecn };
        seats.members(group, network).for_each(|member| member.put(&head, packet));
    }

    /// Whether copies of one more packet may leave for other hosts.
    pub(super) fn may_leave(&mut self, network: u64, now: u64) -> bool {
        self.of(network, now).away.ready(now).is_ok()
    }

    /// So many have left.
    pub(super) fn left(&mut self, network: u64, copies: u64) {
        if let Some(of) = self.networks.get_mut(&network) {
            of.away.take(copies);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_to_other_hosts_are_bounded_for_each_network() {
        let mut copies = GroupCopies::new(0);
        let mut sent = 0;
        for millisecond in 0..1000_u64 {
            let now = millisecond * 1_000_000;
            for _ in 0..100 {
                if copies.may_leave(1, now) {
                    copies.left(1, 100);
                    sent += 100;
                }
            }
            assert!(millisecond > 0 || copies.may_leave(2, now), "it costs others nothing");
        }
        let most = HOST_COPIES.per_second + HOST_COPIES.at_once + 100;
        assert!((HOST_COPIES.per_second / 2..=most).contains(&sent), "{sent}");
        copies.forget(1);
        assert_eq!(copies.networks.len(), 1);
    }

    #[test]
    fn processes_that_join_and_leave_groups_have_other_hosts_hear_of_it_now_and_then() {
        let mut copies = GroupCopies::new(0);
        let joined = |copies: &mut GroupCopies, network, milliseconds: u64| {
            (0..milliseconds).filter(|n| copies.may_introduce(network, n * 1_000_000)).count()
        };
        assert_eq!(joined(&mut copies, 1, 10_000), 10);
        assert_eq!(joined(&mut copies, 2, 1), 1, "another network's");
        assert_eq!(joined(&mut copies, 1, 1), 0);
        copies.note_new_hosts(1);
        assert_eq!(joined(&mut copies, 1, 1), 1);
    }

    #[test]
    fn a_host_that_floods_with_copies_leaves_others_theirs() {
        let mut copies = GroupCopies::new(0);
        let [flood, other] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        let (mut looked_at, mut of_other) = (0, 0);
        for millisecond in 0..1000_u64 {
            let now = millisecond * 1_000_000;
            looked_at += (0..1000).filter(|_| copies.may_arrive(flood, now)).count();
            of_other += (0..10).filter(|_| copies.may_arrive(other, now)).count();
        }
        let most = (PLAIN_COPIES.per_second + PLAIN_COPIES.at_once) as usize;
        assert!(looked_at <= most, "{looked_at}");
        assert_eq!(of_other, 10_000);
    }
}
