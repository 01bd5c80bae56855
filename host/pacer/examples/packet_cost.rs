//! Measures what the pacer costs for each packet: 10,000 vNICs of 300 tenants, in virtual time.
//!
//! Out: a line for each case, with the nanoseconds of a packet.

use omniverb_pacer::{Limit, NodeId, Pacer};
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

fn measure(name: &str, (tenants, each): (u64, u64), room: u64, packet: u64) {
    let (mut pacer, leaves) = line(tenants, each, 100_000_000_000, room);
    for (n, leaf) in (0..).zip(&leaves) {
        pacer.want(*leaf, n * 7919 % 1_000_000);
    }
    let (mut now, mut costs) = (0, Vec::new());
    let (mut count, mut begun) = (0, Instant::now());
    while now < SECOND {
        while let Some(leaf) = pacer.next(now) {
            count += 1;
            pacer.sent(leaf, packet, now);
            pacer.want(leaf, now);
        }
        now = pacer.next_at().map_or(SECOND, |at| at.max(now));
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
    println!("{name:44} {:6.1} ns a packet", costs[costs.len() / 2]);
}

fn main() {
    measure("300 tenants of one vNIC", (300, 1), 120, 4096);
    measure("300 tenants of 33 vNICs", (300, 33), 120, 4096);
    measure("300 tenants of 33 vNICs, tenants' caps bind", (300, 33), 50, 4096);
    measure("300 tenants of 33 vNICs, 1 KiB", (300, 33), 120, 1024);
    measure("one tenant of 10,000 vNICs", (1, 10_000), 120, 4096);
}
