//! Tests turns, waits and changes of a few nodes. Thousands of them: `tests/simulator.rs`.

use super::*;
use proptest::prelude::*;

/// A byte takes a microsecond.
const SLOW: Limit = Limit { bits_per_second: 8_000_000, burst_bytes: 1 };
const MILLISECOND: u64 = 1_000_000;

#[test]
fn a_leaf_without_limits_sends_at_once() {
    let mut pacer = Pacer::new(0);
    let leaf = pacer.add_leaf(pacer.root(), None, 0).unwrap();
    assert!(pacer.may_begin(leaf, 0) && pacer.may_go_on(leaf, 0));
    assert_eq!((pacer.next(0), pacer.next_at()), (None, None));
    pacer.want(leaf, 0);
    pacer.want(leaf, 0);
    assert_eq!((pacer.next_at(), pacer.next(0), pacer.next(0)), (Some(0), Some(leaf), None));
    pacer.want(leaf, 0);
    pacer.cancel(leaf);
    assert_eq!((pacer.next(0), pacer.next_at()), (None, None));
}

#[test]
fn each_level_holds_up_those_below_it() {
    let mut pacer = Pacer::new(0);
    let tenant = pacer.add_group(pacer.root(), Some(SLOW), 5).unwrap();
    let one = pacer.add_leaf(tenant, None, 5).unwrap();
    let other = pacer.add_leaf(tenant, None, 5).unwrap();
    let apart = pacer.add_leaf(pacer.root(), None, 5).unwrap();
    assert!(pacer.may_begin(one, 5));
    pacer.sent(one, 1000 + 1, 5);
    assert!(!pacer.may_begin(other, 5) && pacer.may_begin(apart, 5));
    assert_eq!(pacer.ready_at(other, 5), MILLISECOND + 6);
    pacer.want(other, 5);
    pacer.want(one, 5);
    assert_eq!(pacer.next(5), None);
    let at = pacer.next_at().unwrap();
    assert!((MILLISECOND + 6..MILLISECOND + 6 + 2048).contains(&at), "{at}");
    assert_eq!(pacer.next(at), Some(other));
    pacer.sent(other, 4096, at);
    assert_eq!(pacer.next(at), None, "the tenant waits again");
    assert!(!pacer.may_begin(other, at));
    let at = pacer.next_at().unwrap();
    assert_eq!(pacer.next(at), Some(one));
}

#[test]
fn siblings_get_the_same_whatever_the_size_of_their_packets() {
    let mut pacer = Pacer::new(0);
    let rate = Limit { bits_per_second: 1_000_000_000, burst_bytes: 9000 };
    let tenant = pacer.add_group(pacer.root(), Some(rate), 0).unwrap();
    // The last is hostile: it has itself called and sends nothing.
    let sizes = [64_u64, 1500, 4096, 9000, 65_536, 0];
    let leaves = sizes.map(|size| (pacer.add_leaf(tenant, None, 0).unwrap(), size));
    let (mut sent, mut now, end) = ([0_u64; 6], 0, 2_000 * MILLISECOND);
    leaves.iter().for_each(|(leaf, _)| pacer.want(*leaf, 0));
    let mut asked = 0;
    while now < end {
        while let Some(leaf) = pacer.next(now) {
            let at = leaves.iter().position(|(other, _)| *other == leaf).unwrap();
            sent[at] += sizes[at];
            asked += u32::from(sizes[at] == 0);
            pacer.sent(leaf, sizes[at], now);
            pacer.want(leaf, now);
            // Between two turns that cost nothing time passes, too.
            now += 100;
        }
        now = now.max(pacer.next_at().unwrap());
    }
    let share = 250_000_000 / 5;
    for bytes in &sent[..5] {
        assert!(bytes.abs_diff(share) < share / 50, "{sent:?}");
    }
    assert!(asked > 0);
}

/// Two leaves that sent a gigabyte without waiters take turns at once when both want to send,
/// whether that was let through or taken on account. So do two groups of such leaves, and one that
/// was alone beside one that comes later.
#[test]
fn bytes_sent_without_waiters_are_not_owed() {
    for (is_asked, is_grouped, both) in
        [(true, false, true), (true, true, true), (true, false, false), (false, true, true)]
    {
        let mut pacer = Pacer::new(0);
        let root = pacer.root();
        pacer.set_limit(root, Some(Limit { bits_per_second: 1 << 40, burst_bytes: 1 }), 0).unwrap();
        let leaves = [0, 1].map(|_| {
            let parent = if is_grouped { pacer.add_group(root, None, 0).unwrap() } else { root };
            pacer.add_leaf(parent, None, 0).unwrap()
        });
        let mut now = 1;
        for _ in 0..1_000_000_000 / 4000 {
            for leaf in &leaves[..if both { 2 } else { 1 }] {
                now += MILLISECOND;
                assert!(!is_asked || pacer.may_begin(*leaf, now));
                pacer.sent(*leaf, 4000, now);
            }
        }
        now += MILLISECOND;
        leaves.iter().for_each(|leaf| pacer.want(*leaf, now));
        // In the first 80 packets both have had turns, so many that neither was starved.
        let (mut sent, owed) = ([0_i32; 2], if is_asked { 2 } else { 17 });
        let least = pacer.nodes.iter().map(|node| node.left).min().unwrap();
        assert!(least >= -owed * TURN, "{least}: rotations of a turn each");
        for _ in 0..80 {
            let leaf = loop {
                if let Some(leaf) = pacer.next(now) {
                    break leaf;
                }
                now = pacer.next_at().unwrap().max(now);
            };
            sent[usize::from(leaf == leaves[1])] += 1;
            pacer.sent(leaf, 4096, now);
            pacer.want(leaf, now);
            assert!((sent[0] - sent[1]).abs() <= owed, "{sent:?} {is_asked} {is_grouped} {both}");
        }
    }
}

#[test]
fn changes_and_removals_wake_those_that_waited() {
    let mut pacer = Pacer::new(0);
    let tenant = pacer.add_group(pacer.root(), Some(SLOW), 0).unwrap();
    let leaf = pacer.add_leaf(tenant, Some(SLOW), 0).unwrap();
    pacer.sent(leaf, 1_000_000, 0);
    pacer.want(leaf, 0);
    assert_eq!(pacer.next(500 * MILLISECOND), None);
    let now = 600 * MILLISECOND;
    pacer.set_limit(leaf, None, now).unwrap();
    assert_eq!(pacer.next(now), None, "the tenant's is still there");
    pacer.set_limit(tenant, None, now).unwrap();
    assert_eq!(pacer.next(now), Some(leaf));
    assert_eq!(pacer.limit(leaf), None);

    pacer.set_limit(tenant, Some(SLOW), now).unwrap();
    pacer.sent(leaf, 1_000_000, now);
    pacer.want(leaf, now);
    assert_eq!(pacer.next(now), None);
    pacer.move_to(leaf, pacer.root(), now).unwrap();
    assert_eq!(pacer.next(now), Some(leaf));
    assert_eq!(pacer.remove(pacer.root()), Err(Refused::InUse));
    pacer.want(leaf, now);
    pacer.remove(leaf).unwrap();
    assert_eq!((pacer.next(now), pacer.next_at()), (None, None));
    pacer.remove(tenant).unwrap();
    let again = pacer.add_leaf(pacer.root(), None, now).unwrap();
    assert!(again != leaf && again != tenant);
    assert_eq!(pacer.remove(leaf), Err(Refused::NoNode), "its number is not used again");
    assert_eq!(pacer.add_leaf(again, None, 0), Err(Refused::NotGroup));
}

#[test]
fn a_tree_has_an_end() {
    let mut pacer = Pacer::new(0);
    let mut group = pacer.root();
    for _ in 1..DEPTH {
        group = pacer.add_group(group, None, 0).unwrap();
    }
    assert_eq!(pacer.add_leaf(group, None, 0), Err(Refused::TooDeep));
    let other = pacer.add_group(pacer.root(), None, 0).unwrap();
    assert_eq!(pacer.move_to(other, group, 0), Err(Refused::TooDeep));
    assert_eq!(pacer.move_to(other, other, 0), Err(Refused::InUse));
}

#[test]
fn a_leaf_that_pauses_sends_as_much() {
    let mut pacer = Pacer::new(MILLISECOND / 4);
    let limit = Limit { bits_per_second: 1_000_000_000, burst_bytes: 9000 };
    let leaf = pacer.add_leaf(pacer.root(), Some(limit), 0).unwrap();
    pacer.want(leaf, 0);
    let (mut now, mut sent, mut turns) = (0, 0_u64, 0);
    while now < 1_000 * MILLISECOND {
        if pacer.next(now) == Some(leaf) {
            turns += 1;
            while pacer.may_go_on(leaf, now) {
                pacer.sent(leaf, 1500, now);
                sent += 1500;
            }
            pacer.want(leaf, now);
        }
        now = pacer.next_at().unwrap();
    }
    assert!((3_900..4_100).contains(&turns), "{turns}");
    assert!(sent.abs_diff(125_000_000) < 9000 + 33_000, "{sent}");
}

#[test]
fn a_limit_is_shared_by_the_trees_of_several_threads() {
    let rate = Limit { bits_per_second: 100_000_000, burst_bytes: 4096 };
    let shared = SharedLimiter::new(rate, 0);
    let mut threads: Vec<_> = (0..3)
        .map(|n| {
            let mut pacer = Pacer::new(0);
            let group = pacer.add_group(pacer.root(), None, 0).unwrap();
            pacer.set_shared_limit(group, shared.clone(), 0).unwrap();
            // One is held back by its own limit.
            let own = Limit { bits_per_second: 10_000_000, burst_bytes: 1500 };
            let leaf = pacer.add_leaf(group, (n == 2).then_some(own), 0).unwrap();
            assert_eq!(pacer.set_shared_limit(leaf, shared.clone(), 0), Err(Refused::NotGroup));
            pacer.want(leaf, 0);
            (pacer, group, 0_u64)
        })
        .collect();
    let round = |from: u64, to: u64, threads: &mut Vec<(Pacer, NodeId, u64)>| {
        threads.iter_mut().for_each(|(_, _, sent)| *sent = 0);
        let mut now = from;
        while now < to {
            for (pacer, _, sent) in threads.iter_mut() {
                while let Some(leaf) = pacer.next(now) {
                    pacer.sent(leaf, 1500, now);
                    pacer.want(leaf, now);
                    *sent += 1500;
                }
            }
            let next = threads.iter().filter_map(|(pacer, ..)| pacer.next_at()).min().unwrap();
            now = now.max(next);
        }
        threads.iter().map(|(_, _, sent)| *sent).collect::<Vec<_>>()
    };
    // The lead of each, and a burst.
    let near = |bytes: u64, may: u64| bytes.abs_diff(may) <= 4 * 4096 + 1500;
    let sent = round(0, 1000 * MILLISECOND, &mut threads);
    assert!(near(sent.iter().sum(), 12_500_000) && near(sent[2], 1_250_000), "{sent:?}");
    assert!(sent[0].abs_diff(sent[1]) < 200_000, "{sent:?}");
    let now = 1000 * MILLISECOND;
    shared.change(Limit { bits_per_second: 20_000_000, burst_bytes: 4096 }, now);
    for (pacer, group, _) in &mut threads {
        pacer.set_shared_limit(*group, shared.clone(), now).unwrap();
        assert_eq!(pacer.limit(*group).unwrap().bits_per_second, 20_000_000);
    }
    let sent = round(now, 2 * now, &mut threads);
    assert!(near(sent.iter().sum(), 2_500_000), "{sent:?}");
    assert!(sent.iter().all(|sent| sent.abs_diff(2_500_000 / 3) < 500_000), "{sent:?}");
}

proptest! {
    /// In any sequence, a waiting leaf gets its turn in time, and the tree stays consistent: no
    /// node waits without cause.
    #[test]
    fn every_waiting_leaf_is_served(
        steps in proptest::collection::vec(
            (0_u8..9, 0_usize..6, 0_usize..4, 0_u64..3_000_000),
            1..200,
        ),
    ) {
        let mut pacer = Pacer::new(50_000);
        let limits = [None, Some(SLOW), Some(Limit { bits_per_second: 1 << 34, burst_bytes: 9000 }),
                      Some(Limit { bits_per_second: 80_000_000, burst_bytes: 1500 })];
        let mut groups = vec![pacer.root()];
        for parent in [0, 0, 1] {
            groups.push(pacer.add_group(groups[parent], None, 0).unwrap());
        }
        let mut leaves: Vec<_> = (0..6)
            .map(|n| (pacer.add_leaf(groups[n % 4], None, 0).unwrap(), false))
            .collect();
        let mut now = 0;
        for (what, leaf, group, passes) in steps {
            let limit = limits[(leaf + group) % 4];
            let (id, waits) = &mut leaves[leaf];
            match what {
                0..=2 => { pacer.want(*id, now); *waits = true; }
                3 => { pacer.cancel(*id); *waits = false; }
                4 => pacer.set_limit(*id, limit, now).unwrap(),
                5 => pacer.set_limit(groups[group], limit, now).unwrap(),
                6 => pacer.move_to(*id, groups[group], now).unwrap(),
                7 => {
                    pacer.remove(*id).unwrap();
                    *id = pacer.add_leaf(groups[group], limit, now).unwrap();
                    *waits = false;
                }
                _ => if pacer.may_begin(*id, now) { pacer.sent(*id, passes / 300, now); },
            }
            now += passes;
            while let Some(id) = pacer.next(now) {
                let found = leaves.iter_mut().find(|(other, _)| *other == id);
                let (_, waits) = found.expect("a leaf that is there");
                prop_assert!(std::mem::replace(waits, false), "it waits");
                prop_assert!(pacer.may_go_on(id, now));
                pacer.sent(id, 1500, now);
            }
        }
        // All limits go: then all that wait have their turns, and no others.
        let all: Vec<_> = leaves.iter().map(|(id, _)| *id).chain(groups).collect();
        for id in all {
            pacer.set_limit(id, None, now).unwrap();
        }
        while let Some(id) = pacer.next(now) {
            let (_, waits) = leaves.iter_mut().find(|(other, _)| *other == id).unwrap();
            prop_assert!(std::mem::replace(waits, false));
        }
        prop_assert!(leaves.iter().all(|(_, waits)| !*waits));
        prop_assert_eq!(pacer.next_at(), None);
    }
}
