//! Measures what the pacer costs for each packet: 10,000 vNICs of 300 tenants, in virtual time.
//!
//! In: words that the names of the cases to measure have, all by default; `--json`. Out: for each
//! case the nanoseconds of a packet, the median of pieces and the first decile, which shows what it
//! costs while no other program has the processor or its caches.

use omniverb_pacer::{Limit, NodeId, OPERATION, Pacer};
use std::time::Instant;

const SECOND: u64 = 1_000_000_000;
/// Packets between two looks at the clock.
const PIECE: u32 = 1000;

fn rate(bits_per_second: u64) -> Option<Limit> {
    Some(Limit { bits_per_second, burst_bytes: 4096 })
}

fn line(tenants: u64, each: u64, bits_per_second: u64, room: u64) -> (Pacer, Vec<NodeId>) {
    let mut pacer = Pacer::new(0);
    let root = pacer.root();
    pacer.set_limit(root, rate(bits_per_second), 0).expect("there is a root");
    let share = bits_per_second * 9 / 10 / tenants;
    let mut leaves = Vec::new();
    for _ in 0..tenants {
        let tenant = pacer.add_group(root, rate(share * room / 100), 0).expect("a root is a group");
        for _ in 0..each {
            leaves.push(pacer.add_leaf(tenant, rate(share / each), 0).expect("it is a group"));
        }
    }
    (pacer, leaves)
}

fn measure((name, (tenants, each), room, packet, counts): Case) -> Cost {
    let (mut pacer, leaves) = line(tenants, each, 100_000_000_000, room);
    // Made in the same way, so its nodes have the same names.
    let (mut operations, _) = line(tenants, each, 100_000_000_000, room);
    for (n, leaf) in (0..).zip(&leaves) {
        pacer.want(*leaf, n * 7919 % 1_000_000);
    }
    let (mut now, mut costs) = (0, Vec::new());
    let (mut count, mut packets, mut begun) = (0, 0, Instant::now());
    while now < SECOND {
        while let Some(leaf) = pacer.next(now) {
            count += 1;
            packets += 1;
            pacer.sent(leaf, packet, now);
            match counts {
                Counts::Bytes => pacer.want(leaf, now),
                Counts::Operations => operations.want(leaf, now),
            }
        }
        while let Some(leaf) = operations.next(now) {
            operations.sent(leaf, OPERATION, now);
            pacer.want(leaf, now);
        }
        let next = [pacer.next_at(), operations.next_at()].into_iter().flatten().min();
        now = next.map_or(SECOND, |at| at.max(now));
        // In pieces, of which the median counts: those are left out in which others had the
        // processor.
        if count >= PIECE {
            if now > SECOND / 10 {
                costs.push(begun.elapsed().as_secs_f64() * 1e9 / f64::from(count));
            }
            (count, begun) = (0, Instant::now());
        }
    }
    costs.sort_by(f64::total_cmp);
    Cost { name, nodes: 1 + tenants + tenants * each, packets, costs }
}

/// What a case cost.
struct Cost {
    name: &'static str,
    nodes: u64,
    packets: u64,
    /// Nanoseconds of a packet in each piece, in order of size.
    costs: Vec<f64>,
}

impl Cost {
    fn print(&self, json: bool) {
        let (median, decile) =
            (self.costs[self.costs.len() / 2], self.costs[self.costs.len() / 10]);
        let Cost { name, nodes, packets, .. } = self;
        if json {
            println!(
                "{{\"case\": \"{name}\", \"nodes\": {nodes}, \"packets\": {packets}, \
                 \"median_ns\": {median:.1}, \"decile_ns\": {decile:.1}}}"
            );
        } else {
            println!(
                "{name:44} {median:6.1} ns a packet, first decile {decile:6.1}, {packets} packets"
            );
        }
    }
}

/// Which limits there are.
#[derive(Clone, Copy)]
enum Counts {
    Bytes,
    /// Also of operations, each of one packet.
    Operations,
}

/// A name, tenants and vNICs of each, the tenants' room in percent, bytes of a packet, limits.
type Case = (&'static str, (u64, u64), u64, u64, Counts);

const CASES: [Case; 6] = [
    ("300 tenants of one vNIC", (300, 1), 120, 4096, Counts::Bytes),
    ("300 tenants of 33 vNICs", (300, 33), 120, 4096, Counts::Bytes),
    ("300 tenants of 33 vNICs, tenants' caps bind", (300, 33), 50, 4096, Counts::Bytes),
    ("300 tenants of 33 vNICs, 1 KiB", (300, 33), 120, 1024, Counts::Bytes),
    ("one tenant of 10,000 vNICs", (1, 10_000), 120, 4096, Counts::Bytes),
    ("300 tenants of 33 vNICs, operations too", (300, 33), 120, 4096, Counts::Operations),
];

fn main() {
    let (flags, words): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|word| word == "--json");
    for case in CASES.iter().filter(|case| words.iter().all(|word| case.0.contains(word))) {
        measure(*case).print(!flags.is_empty());
    }
}
