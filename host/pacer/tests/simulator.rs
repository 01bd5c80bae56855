//! Thousands of limiters in virtual time: each gets what its limit says, within one packet.
//!
//! Senders always have something to send, a packet takes no time, and the thread looks at the pacer
//! when that asks for it. So what differs from a limit is the pacer's doing.

use omniverb_pacer::{Limit, NodeId, OPERATION, Pacer};
use proptest::prelude::*;
use std::collections::HashMap;

const SECOND: u64 = 1_000_000_000;
/// Before anything is measured, bursts are over.
const WARM: u64 = SECOND / 5;

/// A limit that allows a packet at once.
fn rate(bits_per_second: u64) -> Option<Limit> {
    Some(Limit { bits_per_second, burst_bytes: 4096 })
}

/// A leaf: what it may have, the size of its packets, what it has sent.
struct Sender {
    id: NodeId,
    tenant: usize,
    bits_per_second: u64,
    packet: u64,
    sent: u64,
}

/// A line, its tenants, their senders.
struct Line {
    pacer: Pacer,
    tenants: Vec<(NodeId, u64)>,
    senders: Vec<Sender>,
    by_id: HashMap<NodeId, usize>,
    now: u64,
}

impl Line {
    /// Senders have 9/10 of the line, one up to three times as much as another, and tenants
    /// `room` percent of what theirs may have.
    fn new((tenants, each): (usize, usize), line: u64, room: u64, packet: u64) -> Line {
        let mut pacer = Pacer::new(0);
        let root = pacer.root();
        pacer.set_limit(root, rate(line), 0).unwrap();
        let count = tenants * each;
        let weight = |n: usize| 1000 + 2000 * (n * 7919 % count) as u64 / count as u64;
        let all: u64 = (0..count).map(weight).sum();
        let mut made =
            Line { pacer, tenants: Vec::new(), senders: Vec::new(), by_id: HashMap::new(), now: 0 };
        for tenant in 0..tenants {
            let rates = (tenant * each..(tenant + 1) * each).map(|n| {
                (u128::from(line) * 9 / 10 * u128::from(weight(n)) / u128::from(all)) as u64
            });
            let cap = rates.clone().sum::<u64>() * room / 100;
            let group = made.pacer.add_group(root, rate(cap), 0).unwrap();
            made.tenants.push((group, cap));
            for bits_per_second in rates {
                let id = made.pacer.add_leaf(group, rate(bits_per_second), 0).unwrap();
                made.by_id.insert(id, made.senders.len());
                made.senders.push(Sender { id, tenant, bits_per_second, packet, sent: 0 });
            }
        }
        made
    }

    fn begin(&mut self) {
        self.senders.iter().for_each(|sender| self.pacer.want(sender.id, 0));
    }

    /// Goes on until this time.
    fn run(&mut self, end: u64) {
        while self.now < end {
            while let Some(leaf) = self.pacer.next(self.now) {
                let sender = &mut self.senders[self.by_id[&leaf]];
                sender.sent += sender.packet;
                self.pacer.sent(leaf, sender.packet, self.now);
                self.pacer.want(leaf, self.now);
            }
            self.now = self.pacer.next_at().map_or(end, |at| at.clamp(self.now, end));
        }
    }

    /// Bytes that each sends within so long.
    fn measure(&mut self, time: u64) -> Vec<u64> {
        let before: Vec<_> = self.senders.iter().map(|sender| sender.sent).collect();
        self.run(self.now + time);
        self.senders.iter().zip(before).map(|(sender, before)| sender.sent - before).collect()
    }

    /// How many packets what they sent is off at most from what they may.
    fn worst(&self, sent: &[u64], time: u64) -> f64 {
        let off = self.senders.iter().zip(sent).map(|(sender, sent)| {
            let may = allowed(sender.bits_per_second, time);
            (*sent as f64 - may).abs() / sender.packet as f64
        });
        off.fold(0.0, f64::max)
    }

    /// Bytes that each tenant has sent.
    fn of_tenants(&self, sent: &[u64]) -> Vec<u64> {
        let mut all = vec![0; self.tenants.len()];
        self.senders.iter().zip(sent).for_each(|(sender, sent)| all[sender.tenant] += sent);
        all
    }
}

/// Bytes that a rate lets pass in a time.
fn allowed(bits_per_second: u64, time: u64) -> f64 {
    bits_per_second as f64 / 8.0 * time as f64 / SECOND as f64
}

/// All are within a packet: of one more by the rounding of the wheel's slots.
#[track_caller]
fn exact(line: &mut Line, time: u64) {
    line.begin();
    line.run(WARM);
    let sent = line.measure(time);
    let worst = line.worst(&sent, time);
    assert!(worst <= 1.01, "{worst} packets");
}

#[test]
fn each_of_10_201_nodes_is_exact() {
    exact(&mut Line::new((300, 33), 20_000_000_000, 120, 4096), 2 * SECOND);
}

#[test]
fn each_of_300_tenants_with_one_vnic_is_exact() {
    exact(&mut Line::new((300, 1), 10_000_000_000, 120, 4096), 2 * SECOND);
}

#[test]
fn each_of_10_000_vnics_of_one_tenant_is_exact() {
    exact(&mut Line::new((1, 10_000), 20_000_000_000, 120, 1024), SECOND / 2);
}

#[test]
fn a_tenants_cap_is_exact_and_shared_evenly() {
    let mut line = Line::new((300, 33), 20_000_000_000, 50, 4096);
    line.begin();
    line.run(WARM);
    let sent = line.measure(2 * SECOND);
    for ((_, cap), bytes) in line.tenants.iter().zip(line.of_tenants(&sent)) {
        let off = (bytes as f64 - allowed(*cap, 2 * SECOND)).abs() / 4096.0;
        assert!(off <= 1.5, "{off} packets");
    }
    // A sender that may have more than an even share has no more than the others.
    for tenant in [0, 150, 299] {
        let of = |sender: &&Sender| sender.tenant == tenant;
        let mine: Vec<_> =
            line.senders.iter().zip(&sent).filter(|(sender, _)| of(sender)).collect();
        let most = mine.iter().map(|(_, sent)| **sent).max().unwrap();
        for (sender, sent) in mine {
            let may = allowed(sender.bits_per_second, 2 * SECOND);
            assert!(*sent as f64 + 2.0 * 4096.0 >= may.min(most as f64), "{sent} of {may}, {most}");
        }
    }
}

/// A sender that may have less than an even share of its tenant's rate is not held up by those that
/// have more than they can use.
#[test]
fn small_limits_are_exact_beside_greedy_siblings() {
    let mut line = Line::new((20, 10), 2_000_000_000, 100, 1500);
    for n in 0..20 {
        let sender = &mut line.senders[n * 10 + n % 10];
        sender.bits_per_second = 1_000_000_000;
        sender.packet = 4200;
        line.pacer.set_limit(sender.id, rate(sender.bits_per_second), 0).unwrap();
    }
    line.begin();
    line.run(WARM);
    let sent = line.measure(2 * SECOND);
    // An even share is about a tenth.
    let small = |one: &Sender| one.bits_per_second < line.tenants[one.tenant].1 * 8 / 100;
    for (sender, sent) in line.senders.iter().zip(&sent).filter(|(one, _)| small(one)) {
        let off = (*sent as f64 - allowed(sender.bits_per_second, 2 * SECOND)).abs();
        assert!(off <= 3.0 * 1500.0, "{off} of {sent} bytes");
    }
}

/// Every tenth sender sends packets of 64 bytes or 64 KiB, and a tenant is called without end: fair
/// senders do not notice.
#[test]
fn hostile_senders_harm_no_other_sender() {
    let mut line = Line::new((300, 33), 20_000_000_000, 120, 4096);
    for (n, sender) in line.senders.iter_mut().enumerate().filter(|(n, _)| n % 10 == 0) {
        sender.packet = if n % 20 == 0 { 64 } else { 65_536 };
    }
    line.begin();
    line.run(WARM);
    let sent = line.measure(SECOND);
    let (mut honest, mut hostile) = (0.0_f64, 0.0_f64);
    for (n, (sender, sent)) in line.senders.iter().zip(&sent).enumerate() {
        let off = (*sent as f64 - allowed(sender.bits_per_second, SECOND)).abs();
        match n % 10 {
            0 => hostile = hostile.max(off / sender.packet.max(4096) as f64),
            _ => honest = honest.max(off / 4096.0),
        }
    }
    // A packet of 64 KiB keeps its tenant's limit busy for 7 ms, about half a packet of others.
    assert!(honest <= 1.5, "{honest} packets");
    // They are held to their limits, too: within a burst or a packet of theirs.
    assert!(hostile <= 1.5, "{hostile} bursts or packets");
}

#[test]
fn changes_of_limits_lose_no_rate() {
    let mut line = Line::new((300, 3), 10_000_000_000, 120, 4096);
    line.begin();
    line.run(WARM);
    // A third of them gets twice as much, and half as much again, in turn.
    for round in 0..6 {
        for n in (round % 3..line.senders.len()).step_by(3) {
            let sender = &mut line.senders[n];
            sender.bits_per_second =
                if round < 3 { sender.bits_per_second / 2 } else { sender.bits_per_second * 2 };
            line.pacer.set_limit(sender.id, rate(sender.bits_per_second), line.now).unwrap();
        }
        // Immediately after it, all have the new rate, or the old.
        let sent = line.measure(SECOND / 4);
        let worst = line.worst(&sent, SECOND / 4);
        assert!(worst <= 1.2, "{worst} packets in round {round}");
    }
}

#[test]
fn stopping_and_starting_gives_no_more_than_a_burst() {
    let mut line = Line::new((100, 3), 1_000_000_000, 120, 1500);
    line.begin();
    line.run(WARM);
    for sender in line.senders.iter().step_by(2) {
        line.pacer.cancel(sender.id);
    }
    let sent = line.measure(SECOND / 2);
    for (n, (sender, sent)) in line.senders.iter().zip(&sent).enumerate() {
        let off = *sent as f64 - allowed(sender.bits_per_second, SECOND / 2);
        assert!(if n % 2 == 0 { *sent == 0 } else { off.abs() <= 1.2 * 1500.0 });
    }
    for sender in line.senders.iter().step_by(2) {
        line.pacer.want(sender.id, line.now);
    }
    let sent = line.measure(SECOND / 2);
    for (sender, sent) in line.senders.iter().zip(&sent) {
        let off = *sent as f64 - allowed(sender.bits_per_second, SECOND / 2);
        assert!((-1.2 * 1500.0..4096.0 + 1.2 * 1500.0).contains(&off), "{off}");
    }
}

/// A sender with limits of both units. It is a leaf of two trees: it waits for an operation in one,
/// takes it, and waits for the bytes of each of its packets in the other.
struct Counted {
    in_operations: NodeId,
    in_bytes: NodeId,
    per_second: u32,
    bits_per_second: u64,
    /// Packets of an operation, and those that are left of the one that has begun.
    packets: u64,
    left: u64,
    begun: u64,
}

impl Counted {
    const PACKET: u64 = 1500;

    /// Operations that it may begin in a time: as the limit that is lower for it says.
    fn allowed(&self, time: u64) -> f64 {
        let bytes = allowed(self.bits_per_second, time) / (self.packets * Self::PACKET) as f64;
        bytes.min(f64::from(self.per_second) * time as f64 / SECOND as f64)
    }
}

/// Senders of tenants that have room for all of them in bytes, and for `room` percent of their
/// operations.
struct TwoTrees {
    operations: Pacer,
    bytes: Pacer,
    senders: Vec<Counted>,
    /// Operations that each tenant may begin in a second.
    cap: u32,
    now: u64,
}

impl TwoTrees {
    fn new(each: usize, room: u64, limits: &[(u32, u64, u64)]) -> TwoTrees {
        let (mut operations, mut bytes) = (Pacer::new(0), Pacer::new(0));
        let all: u64 = limits.iter().map(|(per_second, ..)| u64::from(*per_second)).sum();
        let cap = (all * room / 100 * each as u64 / limits.len() as u64) as u32;
        let mut senders = Vec::new();
        for limits in limits.chunks(each) {
            let root = operations.root();
            let tenant = operations.add_group(root, Some(Limit::of_operations(cap)), 0).unwrap();
            let group = bytes.add_group(bytes.root(), rate(100_000_000_000), 0).unwrap();
            for (per_second, bits_per_second, packets) in limits.iter().copied() {
                let limit = Some(Limit::of_operations(per_second));
                let in_operations = operations.add_leaf(tenant, limit, 0).unwrap();
                let in_bytes = bytes.add_leaf(group, rate(bits_per_second), 0).unwrap();
                let (left, begun) = (0, 0);
                operations.want(in_operations, 0);
                senders.push(Counted {
                    in_operations,
                    in_bytes,
                    per_second,
                    bits_per_second,
                    packets,
                    left,
                    begun,
                });
            }
        }
        TwoTrees { operations, bytes, senders, cap, now: 0 }
    }

    /// Operations that each begins within so long.
    fn measure(&mut self, time: u64) -> Vec<u64> {
        let before: Vec<_> = self.senders.iter().map(|sender| sender.begun).collect();
        let end = self.now + time;
        let by_id = |id: fn(&Counted) -> NodeId| {
            (0..).zip(&self.senders).map(|(n, sender)| (id(sender), n)).collect::<HashMap<_, _>>()
        };
        let in_operations: HashMap<NodeId, usize> = by_id(|sender| sender.in_operations);
        let in_bytes: HashMap<NodeId, usize> = by_id(|sender| sender.in_bytes);
        while self.now < end {
            let mut any = false;
            while let Some(leaf) = self.operations.next(self.now) {
                let sender = &mut self.senders[in_operations[&leaf]];
                self.operations.sent(leaf, OPERATION, self.now);
                (sender.begun, sender.left) = (sender.begun + 1, sender.packets);
                self.bytes.want(sender.in_bytes, self.now);
                any = true;
            }
            while let Some(leaf) = self.bytes.next(self.now) {
                let sender = &mut self.senders[in_bytes[&leaf]];
                self.bytes.sent(leaf, Counted::PACKET, self.now);
                sender.left -= 1;
                match sender.left {
                    0 => self.operations.want(sender.in_operations, self.now),
                    _ => self.bytes.want(leaf, self.now),
                }
                any = true;
            }
            if !any {
                let next = [self.operations.next_at(), self.bytes.next_at()];
                let next = next.into_iter().flatten().min();
                self.now = next.map_or(end, |at| at.clamp(self.now + 1, end));
            }
        }
        self.senders.iter().zip(before).map(|(sender, before)| sender.begun - before).collect()
    }
}

#[test]
fn a_tenants_operations_are_exact_and_shared_evenly() {
    let mut trees = TwoTrees::new(10, 50, &[(2000, 1_000_000_000, 1); 200]);
    trees.measure(WARM);
    let begun = trees.measure(2 * SECOND);
    for begun in begun.chunks(10) {
        let off = begun.iter().sum::<u64>().abs_diff(2 * u64::from(trees.cap));
        assert!(off <= 1, "{off} operations");
        assert!(begun.iter().all(|begun| begun.abs_diff(2000) <= 1), "{begun:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Senders that may begin so many operations, and send so many bytes: each begins as many as
    /// the lower limit allows, within one, whatever the others do.
    #[test]
    fn operations_and_bytes_are_exact_together(
        limits in prop::collection::vec((1_u32..5000, 1_000_000_u64..100_000_000, 1_u64..9), 60),
        each in prop::sample::select(vec![1_usize, 6, 60]),
    ) {
        let mut trees = TwoTrees::new(each, 130 * 60, &limits);
        trees.measure(WARM);
        let begun = trees.measure(2 * SECOND);
        for (sender, begun) in trees.senders.iter().zip(begun) {
            let off = (begun as f64 - sender.allowed(2 * SECOND)).abs();
            prop_assert!(
                off <= 1.01,
                "{off} operations of {begun}: {}/s, {} bit/s, {} packets",
                sender.per_second, sender.bits_per_second, sender.packets
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    /// 300 senders of different rates in groups: from every change on each is within one packet,
    /// while some stop and start again and the rates of the others rise by 53 percent.
    #[test]
    fn each_of_300_different_rates_is_exact_after_every_change(
        rates in prop::collection::vec(2_000_000_u64..10_000_000, 300),
        each in prop::sample::select(vec![1_usize, 3, 10, 50, 300]),
        packet in 256_u64..4097,
        stopped in 1_usize..100,
    ) {
        // The groups and the line have room for all of it, the rise included.
        let mut line = Line::new((300 / each, each), 30_000_000_000, 160, packet);
        for (sender, bits_per_second) in line.senders.iter_mut().zip(&rates) {
            sender.bits_per_second = *bits_per_second;
            line.pacer.set_limit(sender.id, rate(*bits_per_second), 0).unwrap();
        }
        for (group, cap) in &mut line.tenants {
            *cap = each as u64 * 10_000_000 * 2;
            line.pacer.set_limit(*group, rate(*cap), 0).unwrap();
        }
        line.begin();
        line.run(WARM);
        let within = |line: &mut Line, what: &str| {
            let sent = line.measure(SECOND);
            let worst = line.worst(&sent, SECOND);
            prop_assert!(worst <= 1.01, "{worst} packets {what}");
            Ok(())
        };
        within(&mut line, "before")?;
        for round in 0..2 {
            for sender in &line.senders[..stopped] {
                line.pacer.cancel(sender.id);
            }
            let sent = line.measure(SECOND);
            for (n, (sender, sent)) in line.senders.iter().zip(&sent).enumerate() {
                let off = (*sent as f64 - allowed(sender.bits_per_second, SECOND)).abs();
                let is_exact = if n < stopped { *sent == 0 } else { off <= 1.01 * packet as f64 };
                prop_assert!(is_exact, "sender {n}, round {round}: {off} bytes");
            }
            for sender in &line.senders[..stopped] {
                line.pacer.want(sender.id, line.now);
            }
            // Of what it saved, a sender that starts again sends a burst at once.
            line.run(line.now + WARM);
            within(&mut line, "after they started again")?;
        }
        for sender in &mut line.senders {
            sender.bits_per_second = sender.bits_per_second * 153 / 100;
            line.pacer.set_limit(sender.id, rate(sender.bits_per_second), line.now).unwrap();
        }
        within(&mut line, "after the rise")?;
    }
}
