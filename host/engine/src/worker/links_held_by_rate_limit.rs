//! Holds up the links of a vNIC that has a rate limit, until it is their turn.
//!
//! A vNIC has two gates: one for bytes, which every packet passes, and one for operations, which a
//! link passes before the first packet of each. A link waits for an operation first, takes it
//! along, and then waits for its bytes. So what belongs to an operation that has begun waits for no
//! other, nor do answers to peers.
//!
//! A link that may not send waits here once, and comes out when the pacer says that it is the
//! vNIC's turn and it is the first in line, or when the vNIC has no limit any more. What is sent is
//! taken from the limit, and so is what peers are told of the wait. A vNIC whose limit could not be
//! put in place sends nothing.

use super::link::Link;
use super::rate_limit_tree::RateLimits;
use crate::command::{LimitGroup, LimitUnit};
use omniverb_pacer::{Limit, Limiter, NodeId};
use omniverb_terms::VnicId;
use std::collections::VecDeque;
use std::net::IpAddr;

/// Bytes that a link sends in a turn of its vNIC, the last packet apart: one train.
const TURN: u64 = 64 << 10;
/// What may be spent on telling peers that answers wait for a limit: a part of the limit itself, so
/// that whatever they do most of it is left for the answers; and bytes at once.
const NOTICES: (u64, u64) = (8, 512);

/// How long a vNIC that sends nothing is said to wait, in nanoseconds: its limit has to be set
/// again.
const CLOSED: u64 = 1_000_000_000;

/// What notices are a part of where the vNIC has no limit itself, nor its group.
const UNKNOWN: Limit = Limit { bits_per_second: 1_000_000, burst_bytes: 1500 };

/// Bytes that Ethernet, IP and UDP put around a packet to this address.
pub(super) const fn framing(to: IpAddr) -> u64 {
    14 + if to.is_ipv6() { 40 } else { 20 } + 8
}

/// The limit of a vNIC.
struct Limited {
    /// Its place among all limits; `None`: there is none for it, and it sends nothing.
    leaf: Option<NodeId>,
    /// What is left of it for notices.
    notices: Limiter,
}

/// What a limit leaves for notices.
fn notices(limit: Limit) -> Limit {
    Limit { bits_per_second: limit.bits_per_second / NOTICES.0, burst_bytes: NOTICES.1 }
}

/// A link that sends in the turn of its vNIC.
#[derive(Clone, Copy)]
struct Turn {
    index: usize,
    /// Bytes that it may still send in it.
    left: u64,
}

/// One limit of a vNIC, if it has one, and its links that wait for that.
pub(super) struct Gate {
    /// The unit that the limit counts.
    unit: LimitUnit,
    limited: Option<Limited>,
    /// By their indices, in the order in which they came.
    waiting: VecDeque<usize>,
    turn: Option<Turn>,
}

impl Gate {
    /// Without a limit.
    pub(super) fn new(unit: LimitUnit) -> Gate {
        Gate { unit, limited: None, waiting: VecDeque::new(), turn: None }
    }

    /// Another limit or group, or none; the links that wait no more. If it cannot be put in place
    /// nothing is sent: see [`Gate::is_closed`].
    pub(super) fn set_limit(
        &mut self,
        vnic: VnicId,
        (limit, group): (Option<Limit>, Option<LimitGroup>),
        limits: &mut RateLimits,
        now: u64,
    ) -> VecDeque<usize> {
        if limit.is_none() && group.is_none() {
            self.close(limits);
            return std::mem::take(&mut self.waiting);
        }
        let of_group = || limits.of_group(group?);
        let notices = notices(limit.or_else(of_group).unwrap_or(UNKNOWN));
        let (old, notices) = match self.limited.take() {
            None => (None, Limiter::new(notices, now)),
            Some(mut limited) => {
                limited.notices.change(notices, now);
                (limited.leaf, limited.notices)
            }
        };
        let leaf = match old {
            Some(leaf) => limits.change(leaf, limit, group, now).map(|()| leaf),
            None => limits.add(vnic, limit, group, now),
        };
        if leaf.is_err() {
            old.into_iter().for_each(|leaf| limits.remove(leaf));
        }
        let leaf = leaf.ok();
        self.limited = Some(Limited { leaf, notices });
        // Those that waited while nothing was sent.
        if let (None, Some(leaf), false) = (old, leaf, self.waiting.is_empty()) {
            limits.pacer.want(leaf, now);
        }
        VecDeque::new()
    }

    /// Whether nothing is sent, since a limit could not be put in place.
    pub(super) fn is_closed(&self) -> bool {
        self.limited.as_ref().is_some_and(|limited| limited.leaf.is_none())
    }

    /// Whether anything limits what the vNIC sends.
    pub(super) fn is_limited(&self) -> bool {
        self.limited.is_some()
    }

    /// Whether a link may send a packet now. If not it waits here, for the limit until the time
    /// that is returned, and for its turn.
    pub(super) fn pass(
        &mut self,
        (index, link): (usize, &mut Link),
        limits: &mut RateLimits,
        now: u64,
    ) -> Result<(), u64> {
        let Some(Limited { leaf, .. }) = self.limited else { return Ok(()) };
        let Some(leaf) = leaf else {
            if link.park(self.unit) {
                self.waiting.push_back(index);
            }
            return Err(now.saturating_add(CLOSED));
        };
        let pacer = &mut limits.pacer;
        let may = match self.turn {
            Some(turn) => turn.index == index && turn.left > 0 && pacer.may_go_on(leaf, now),
            None => self.waiting.is_empty() && pacer.may_begin(leaf, now),
        };
        if may {
            return Ok(());
        }
        if link.park(self.unit) {
            self.waiting.push_back(index);
        }
        // In a turn it is said at its end that more is wanted.
        if self.turn.is_none() {
            pacer.want(leaf, now);
        }
        Err(pacer.ready_at(leaf, now))
    }

    /// A packet of so many bytes has passed.
    pub(super) fn passed(&mut self, bytes: u64, limits: &mut RateLimits, now: u64) {
        if let Some(leaf) = self.leaf() {
            limits.pacer.sent(leaf, bytes, now);
        }
        if let Some(turn) = &mut self.turn {
            turn.left = turn.left.saturating_sub(bytes);
        }
    }

    /// How long a link waits that may not pass before `at`, if its peer may be told that now: all
    /// that wait take turns.
    pub(super) fn notice(&mut self, at: u64, now: u64) -> Option<u64> {
        let wait = at.checked_sub(now).filter(|wait| *wait > 0)?;
        let may = self.limited.as_mut()?.notices.ready(now).is_ok();
        may.then(|| wait.saturating_mul(self.waiting.len() as u64))
    }

    /// A notice of so many bytes was sent. It counts as a packet as well, on account.
    pub(super) fn noticed(&mut self, bytes: u64, limits: &mut RateLimits, now: u64) {
        if let Some(limited) = &mut self.limited {
            limited.notices.take(bytes);
        }
        self.passed(bytes, limits, now);
    }

    /// It is the turn of the vNIC: the link that sends in it, which does not wait any more. When it
    /// was served, [`Gate::end_turn`] follows.
    pub(super) fn begin_turn(&mut self) -> Option<usize> {
        let index = self.waiting.pop_front()?;
        self.turn = Some(Turn { index, left: TURN });
        Some(index)
    }

    /// The turn is over.
    pub(super) fn end_turn(&mut self, limits: &mut RateLimits, now: u64) {
        self.turn = None;
        if let Some(leaf) = self.leaf()
            && !self.waiting.is_empty()
        {
            limits.pacer.want(leaf, now);
        }
    }

    /// A link is gone.
    pub(super) fn forget(&mut self, index: usize, limits: &mut RateLimits) {
        self.waiting.retain(|waiting| *waiting != index);
        if let Some(leaf) = self.leaf()
            && self.waiting.is_empty()
        {
            limits.pacer.cancel(leaf);
        }
    }

    /// The limit is gone, or the vNIC.
    pub(super) fn close(&mut self, limits: &mut RateLimits) {
        if let Some(leaf) = self.limited.take().and_then(|limited| limited.leaf) {
            limits.remove(leaf);
        }
    }

    fn leaf(&self) -> Option<NodeId> {
        self.limited.as_ref().and_then(|limited| limited.leaf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::PerUnit;
    use crate::worker::link::{Ends, Kind};
    use omniverb_datapath::Allowance;
    use omniverb_datapath::queue_pair::datagram::Datagrams;
    use omniverb_datapath::testing::end;
    use omniverb_link::layout::{REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN, link_bytes};
    use omniverb_pacer::{OPERATION, SharedLimiter};
    use omniverb_ring::Window;
    use omniverb_terms::{Qpn, Service};
    use omniverb_wire::IcrcFlow;
    use std::net::Ipv4Addr;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn link(number: u32) -> Link {
        let memory = Window::private(link_bytes(REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN));
        let (qpn, peer_qpn, endpoint) = (Qpn(number), Qpn(99), end(&memory, 1).unwrap());
        let datagrams = Datagrams::new(
            endpoint,
            qpn,
            peer_qpn,
            0,
            Allowance::default(),
            std::sync::Arc::default(),
        );
        let ends = Ends {
            vnic: VnicId(1),
            qpn,
            peer_qpn,
            service: Service::Ud,
            flow: IcrcFlow { source: HERE, destination: HERE, source_port: 7 },
            interface: 0,
            within: None,
        };
        Link::new(ends, Kind::Datagrams(Box::new(datagrams)), (1, number), 4791)
    }

    #[test]
    fn a_limited_vnic_waits_once_until_its_turn() {
        let (mut gate, mut limits) = (Gate::new(LimitUnit::Bytes), RateLimits::default());
        let (mut one, mut other) = (link(1), link(2));
        assert_eq!(gate.pass((1, &mut one), &mut limits, 0), Ok(()), "no limit");
        let limit = Limit { bits_per_second: 8_000_000, burst_bytes: 1000 };
        let set = |gate: &mut Gate, limits: &mut RateLimits, limit, now| {
            gate.set_limit(VnicId(1), (limit, None), limits, now)
        };
        assert!(set(&mut gate, &mut limits, Some(limit), 0).is_empty());
        assert_eq!(gate.pass((1, &mut one), &mut limits, 0), Ok(()));
        gate.passed(5000, &mut limits, 0);
        let at = gate.pass((1, &mut one), &mut limits, 0).unwrap_err();
        for (index, link) in [(2, &mut other), (1, &mut one)] {
            assert_eq!(gate.pass((index, link), &mut limits, 0), Err(at));
        }
        assert_eq!(gate.notice(at, 0), Some(2 * at), "all that wait take turns");
        assert_eq!(gate.notice(at, at), None, "a turn is not waited for long");
        assert_eq!(limits.next(at - 1), None);
        let now = limits.next_at().unwrap();
        assert!((at..at + 4096).contains(&now), "{at} {now}");
        assert_eq!(limits.next(now), Some(VnicId(1)));
        assert_eq!(gate.begin_turn(), Some(1));
        one.unpark(LimitUnit::Bytes);
        assert_eq!(gate.pass((1, &mut one), &mut limits, now), Ok(()));
        assert!(gate.pass((2, &mut other), &mut limits, now).is_err(), "not its turn");
        gate.passed(5000, &mut limits, now);
        assert!(gate.pass((1, &mut one), &mut limits, now).is_err());
        gate.end_turn(&mut limits, now);
        let now = limits.next_at().unwrap();
        assert_eq!((limits.next(now), gate.begin_turn()), (Some(VnicId(1)), Some(2)));
        other.unpark(LimitUnit::Bytes);
        gate.end_turn(&mut limits, now);
        assert_eq!(
            gate.pass((2, &mut other), &mut limits, now).unwrap_err(),
            now,
            "its turn is over"
        );
        gate.forget(2, &mut limits);
        assert_eq!(set(&mut gate, &mut limits, None, now), [1], "without a limit no link waits");
        assert!(!gate.is_limited());
        assert_eq!(limits.next_at(), None);
    }

    #[test]
    fn a_turn_is_a_train_and_links_take_turns() {
        let (mut gate, mut limits) = (Gate::new(LimitUnit::Bytes), RateLimits::default());
        let mut links = [link(0), link(1)];
        let limit = Limit { bits_per_second: 8_000_000_000, burst_bytes: 1 << 20 };
        gate.set_limit(VnicId(1), (Some(limit), None), &mut limits, 0);
        gate.passed(1 << 20, &mut limits, 0);
        let mut sent = [0_u64; 2];
        for (index, link) in links.iter_mut().enumerate() {
            assert!(gate.pass((index, link), &mut limits, 0).is_err());
        }
        // The thread comes late: much has been earned.
        let mut now = 1_000_000;
        while let Some(vnic) = limits.next(now) {
            assert_eq!(vnic, VnicId(1));
            let index = gate.begin_turn().unwrap();
            links[index].unpark(LimitUnit::Bytes);
            let before = sent[index];
            while gate.pass((index, &mut links[index]), &mut limits, now).is_ok() {
                gate.passed(4096, &mut limits, now);
                sent[index] += 4096;
            }
            assert!(sent[index] - before <= TURN);
            gate.end_turn(&mut limits, now);
            now += 1000;
        }
        let all: u64 = sent.iter().sum();
        assert!((1_000_000..1_100_000).contains(&all), "{all}");
        assert!(sent[0].abs_diff(sent[1]) <= TURN, "{sent:?}");
    }

    #[test]
    fn vnics_of_a_group_share_its_limit() {
        let (mut limits, group) = (RateLimits::default(), LimitGroup(5));
        let limit = Limit { bits_per_second: 80_000_000, burst_bytes: 8192 };
        let shared = SharedLimiter::new(limit, 0);
        limits.set_group(LimitGroup(4), None, None, 0);
        limits.set_group(group, Some(LimitGroup(4)), Some(shared), 0);
        assert_eq!(limits.of_group(group), Some(limit));
        let mut gates: Vec<_> =
            (0..3).map(|_| (Gate::new(LimitUnit::Bytes), link(0), 0_u64)).collect();
        for (n, (gate, link, _)) in (0..).zip(&mut gates) {
            let slow = Limit { bits_per_second: 8_000_000, burst_bytes: 1500 };
            let own = (n == 0).then_some(slow);
            gate.set_limit(VnicId(n), (own, Some(group)), &mut limits, 0);
            assert!(gate.is_limited());
            while gate.pass((0, link), &mut limits, 0).is_ok() {
                gate.passed(1500, &mut limits, 0);
            }
        }
        let mut now = 0;
        while now < 1_000_000_000 {
            while let Some(VnicId(n)) = limits.next(now) {
                let (gate, link, sent) = &mut gates[n as usize];
                assert_eq!(gate.begin_turn(), Some(0));
                link.unpark(LimitUnit::Bytes);
                while gate.pass((0, link), &mut limits, now).is_ok() {
                    gate.passed(1500, &mut limits, now);
                    *sent += 1500;
                }
                gate.end_turn(&mut limits, now);
            }
            now = limits.next_at().unwrap();
        }
        let sent: Vec<_> = gates.iter().map(|(_, _, sent)| *sent).collect();
        let near = |bytes: u64, may: u64| bytes.abs_diff(may) < may / 50 + 20_000;
        assert!(near(sent.iter().sum(), 10_000_000) && near(sent[0], 1_000_000), "{sent:?}");
        assert!(near(sent[1], 4_500_000) && near(sent[2], 4_500_000), "{sent:?}");
        // A group that is closed limits those that have not left it yet.
        gates[0].0.set_limit(VnicId(0), (None, None), &mut limits, now);
        limits.close_group(LimitGroup(4));
        limits.close_group(group);
        let mut sent = 0;
        while let Some(VnicId(n)) = limits.next(now + 100_000_000) {
            let (gate, link, _) = &mut gates[n as usize];
            gate.begin_turn();
            link.unpark(LimitUnit::Bytes);
            while gate.pass((0, link), &mut limits, now + 100_000_000).is_ok() {
                gate.passed(1500, &mut limits, now + 100_000_000);
                sent += 1500;
            }
            gate.end_turn(&mut limits, now + 100_000_000);
        }
        assert!(sent < 100_000, "{sent}");
        // Out of the group nobody is held up by it, and it is gone with the last.
        for n in [1, 2] {
            let free = gates[n].0.set_limit(VnicId(n as u64), (None, None), &mut limits, now);
            assert_eq!((free.len(), gates[n].0.is_limited()), (1, false));
        }
        assert!(limits.is_empty());
    }

    /// A link waits for an operation and for bytes at once: its answers need no operation.
    #[test]
    fn a_link_waits_at_two_gates() {
        let (mut limits, mut one) = (PerUnit::<RateLimits>::default(), link(1));
        let mut bytes = Gate::new(LimitUnit::Bytes);
        let mut operations = Gate::new(LimitUnit::Operations);
        let limit = Limit { bits_per_second: 8_000_000, burst_bytes: 1500 };
        bytes.set_limit(VnicId(1), (Some(limit), None), &mut limits.bytes, 0);
        let limit = Limit::of_operations(1000);
        operations.set_limit(VnicId(1), (Some(limit), None), &mut limits.operations, 0);
        assert_eq!(operations.pass((1, &mut one), &mut limits.operations, 0), Ok(()));
        operations.passed(OPERATION, &mut limits.operations, 0);
        assert!(operations.pass((1, &mut one), &mut limits.operations, 0).is_err());
        assert_eq!(bytes.pass((1, &mut one), &mut limits.bytes, 0), Ok(()));
        bytes.passed(5000, &mut limits.bytes, 0);
        assert!(bytes.pass((1, &mut one), &mut limits.bytes, 0).is_err());
        // Each has it once, and lets it go by itself.
        let now = 10_000_000;
        assert_eq!(
            (limits.operations.next(now), operations.begin_turn()),
            (Some(VnicId(1)), Some(1))
        );
        one.unpark(LimitUnit::Operations);
        operations.passed(OPERATION, &mut limits.operations, now);
        operations.end_turn(&mut limits.operations, now);
        assert_eq!(operations.begin_turn(), None);
        assert_eq!((limits.bytes.next(now), bytes.begin_turn()), (Some(VnicId(1)), Some(1)));
        assert_eq!(bytes.begin_turn(), None);
    }

    #[test]
    fn a_vnic_whose_limit_cannot_be_put_in_place_sends_nothing() {
        let (mut gate, mut limits) = (Gate::new(LimitUnit::Bytes), RateLimits::default());
        let (mut one, vnic) = (link(0), VnicId(1));
        let limit = Limit { bits_per_second: 8_000_000, burst_bytes: 1500 };
        let group = LimitGroup(5);
        // A group within none that there is, or too deep, is not made.
        limits.set_group(group, Some(LimitGroup(4)), None, 0);
        for n in 10..30 {
            let within = (n > 10).then(|| LimitGroup(n - 1));
            limits.set_group(LimitGroup(n), within, Some(SharedLimiter::new(limit, 0)), 0);
        }
        for group in [group, LimitGroup(29)] {
            gate.set_limit(vnic, (None, Some(group)), &mut limits, 0);
            assert!(gate.is_limited() && gate.is_closed());
            assert!(gate.pass((0, &mut one), &mut limits, 0).is_err());
        }
        assert_eq!(limits.next(u64::MAX / 4), None);
        // What waited goes on as soon as there is a limit.
        limits.set_group(group, None, Some(SharedLimiter::new(limit, 0)), 0);
        gate.set_limit(vnic, (None, Some(group)), &mut limits, 0);
        assert!(!gate.is_closed());
        assert_eq!((limits.next(10_000), gate.begin_turn()), (Some(vnic), Some(0)));
        one.unpark(LimitUnit::Bytes);
        assert_eq!(gate.pass((0, &mut one), &mut limits, 10_000), Ok(()));
        gate.end_turn(&mut limits, 10_000);
        // From a good place into none: not where it was, nor anywhere else.
        gate.set_limit(vnic, (Some(limit), Some(LimitGroup(99))), &mut limits, 10_000);
        assert!(gate.is_closed() && gate.pass((0, &mut one), &mut limits, 10_000).is_err());
        assert_eq!(gate.set_limit(vnic, (None, None), &mut limits, 10_000), [0]);
        assert_eq!(gate.pass((0, &mut one), &mut limits, 10_000), Ok(()));
    }
}
