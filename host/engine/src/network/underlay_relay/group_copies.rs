//! Copies what is sent to a group of a virtual network for its members, within budgets.

use super::seats::Seats;
use crate::pacing::multicast_copy_budget::Copies;
use crate::pacing::shared_budget::Rate;
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

/// What a virtual network has used of its budgets.
struct NetworkCopies {
    /// On this host.
    here: Copies,
    /// To other hosts.
    away: Limiter,
}

/// All virtual networks with groups.
#[derive(Default)]
pub(super) struct GroupCopies(BTreeMap<u64, NetworkCopies>);

impl GroupCopies {
    fn of(&mut self, network: u64, now: u64) -> &mut NetworkCopies {
        self.0.entry(network).or_insert_with(|| NetworkCopies {
            here: Copies::default(),
            away: HOST_COPIES.limiter(now),
        })
    }

    /// No vNIC of a virtual network is left.
    pub(super) fn forget(&mut self, network: u64) {
        self.0.remove(&network);
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
        if let Some(of) = self.0.get_mut(&network) {
            of.away.take(copies);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_to_other_hosts_are_bounded_for_each_network() {
        let mut copies = GroupCopies::default();
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
        assert_eq!(copies.0.len(), 1);
    }
}
