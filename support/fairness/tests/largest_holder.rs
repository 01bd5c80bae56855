//! Tests which holder makes room, against a model.

use omniverb_fairness::{Holder, Holders};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A path as words: cgroups, user, vNIC.
type Words = (Vec<u8>, u32, u64);

fn holder((groups, user, vnic): &Words) -> Holder {
    let cgroup: String = groups.iter().map(|group| format!("/g{group}")).collect();
    Holder::new(&cgroup, *user).in_vnic(*vnic)
}

fn steps((groups, user, vnic): &Words) -> Vec<String> {
    let groups = groups.iter().map(|group| format!("g{group}"));
    groups.chain([format!("u{user}"), format!("v{vnic}")]).collect()
}

/// Everything that is held, in the order of its coming, with the way to its holder.
#[derive(Default)]
struct Model {
    rows: Vec<(u32, Vec<String>)>,
}

impl Model {
    /// Branches below `way`: how much is in each, and which rows.
    fn branches(&self, way: &[String]) -> BTreeMap<String, Vec<u32>> {
        let mut found: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for (key, steps) in self.rows.iter().filter(|(_, steps)| steps.starts_with(way)) {
            if let Some(next) = steps.get(way.len()) {
                found.entry(next.clone()).or_default().push(*key);
            }
        }
        found
    }

    /// All that could be the oldest of a largest holder: where branches are equal, any may do.
    fn may_yield(&self, way: &[String]) -> Vec<u32> {
        let branches = self.branches(way);
        let Some(most) = branches.values().map(Vec::len).max() else {
            return self
                .rows
                .iter()
                .find(|(_, s)| s == way)
                .map(|(key, _)| *key)
                .into_iter()
                .collect();
        };
        let heavy = branches.iter().filter(|(_, keys)| keys.len() == most);
        heavy
            .flat_map(|(name, _)| self.may_yield(&[way, std::slice::from_ref(name)].concat()))
            .collect()
    }

    /// The same, if `newcomer` is to get one more; empty if it is refused.
    fn may_yield_to(&self, newcomer: &[String]) -> Vec<u32> {
        for depth in 0..newcomer.len() {
            let branches = self.branches(&newcomer[..depth]);
            let own = branches.get(&newcomer[depth]).map_or(0, Vec::len);
            let other = branches.iter().filter(|(name, _)| **name != newcomer[depth]);
            let most = other.map(|(_, keys)| keys.len()).max().unwrap_or(0);
            if most > own + 1 {
                let heavy = branches.iter().filter(|(_, keys)| keys.len() == most);
                let ways = heavy
                    .map(|(name, _)| [&newcomer[..depth], std::slice::from_ref(name)].concat());
                return ways.flat_map(|way| self.may_yield(&way)).collect();
            }
        }
        Vec::new()
    }
}

fn words() -> impl Strategy<Value = Words> {
    (prop::collection::vec(0..3u8, 0..4), 0..3u32, 0..3u64)
}

#[derive(Clone, Debug)]
enum Step {
    Add(Words),
    Remove(usize),
    Yield,
    YieldTo(Words),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => words().prop_map(Step::Add),
        1 => any::<usize>().prop_map(Step::Remove),
        1 => Just(Step::Yield),
        1 => words().prop_map(Step::YieldTo),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(100)
    })]

    #[test]
    fn holders_are_as_in_the_model(steps_to_do in prop::collection::vec(step(), 1..120)) {
        let (mut holders, mut model) = (Holders::default(), Model::default());
        for (number, step) in (0u32..).zip(steps_to_do) {
            match step {
                Step::Add(words) => {
                    holders.add(&holder(&words), number);
                    model.rows.push((number, steps(&words)));
                }
                Step::Remove(index) if !model.rows.is_empty() => {
                    let (key, _) = model.rows.remove(index % model.rows.len());
                    holders.remove(&key);
                    holders.remove(&key);
                }
                Step::Remove(_) => {}
                Step::Yield => match holders.yields().copied() {
                    Some(key) => {
                        prop_assert!(model.may_yield(&[]).contains(&key));
                        holders.remove(&key);
                        model.rows.retain(|(other, _)| *other != key);
                    }
                    None => prop_assert!(model.rows.is_empty()),
                },
                Step::YieldTo(words) => {
                    let allowed = model.may_yield_to(&steps(&words));
                    match holders.yields_to(&holder(&words)) {
                        Some(key) => prop_assert!(allowed.contains(key)),
                        None => prop_assert!(allowed.is_empty()),
                    }
                }
            }
            prop_assert_eq!(holders.len(), model.rows.len());
            prop_assert_eq!(holders.is_empty(), model.rows.is_empty());
        }
    }

    #[test]
    fn splitting_up_gains_nothing(
        ways in prop::collection::vec(words(), 40..80),
        victims in prop::collection::vec(words(), 1..30),
    ) {
        // One cgroup against another: whatever is below the first, what goes is below the first.
        let mut holders = Holders::default();
        let below = |top: u8, (groups, user, vnic): &Words| {
            (([&[top], groups.as_slice()].concat()), *user, *vnic)
        };
        for (number, words) in (0u32..).zip(&victims) {
            holders.add(&holder(&below(9, words)), number);
        }
        for (number, words) in (1000u32..).zip(&ways) {
            holders.add(&holder(&below(7, words)), number);
        }
        let polite = |holders: &Holders<u32>, top, words| {
            holders.yields_to(&holder(&below(top, words))).copied()
        };
        for held in (victims.len() + 1..=ways.len()).rev() {
            let key = *holders.yields().unwrap();
            prop_assert!(key >= 1000);
            if held > victims.len() + 1 {
                prop_assert!(polite(&holders, 9, &victims[0]).is_some_and(|key| key >= 1000));
            }
            prop_assert!(polite(&holders, 7, &ways[0]).is_none_or(|key| key >= 1000));
            holders.remove(&key);
        }
    }
}

#[test]
fn the_oldest_of_the_largest_goes_and_equals_take_turns() {
    let mut holders = Holders::default();
    let user = |user: u32| Holder::new("/", user);
    for key in 0..3 {
        holders.add(&user(1), key);
    }
    holders.add(&user(2), 10);
    assert_eq!(holders.yields(), Some(&0));
    // With one more, user 2 would hold two; user 1 holds three.
    assert_eq!(holders.yields_to(&user(2)), Some(&0));
    assert_eq!(holders.yields_to(&user(1)), None);
    holders.remove(&0);
    assert_eq!(holders.yields_to(&user(2)), None);
    assert_eq!(holders.yields_to(&user(3)), Some(&1));
    // Of equals, the one that came first, so that none stays for ever.
    let mut equals = Holders::default();
    for number in 0..100 {
        equals.add(&user(number), number);
    }
    for number in 0..100 {
        assert_eq!(equals.yields(), Some(&number));
        equals.remove(&number);
        equals.add(&user(1000 + number), 1000 + number);
    }
}

#[test]
fn depth_is_bounded() {
    let deep = |last: &str| Holder::new(&format!("{}/{last}", "/a".repeat(5000)), 1);
    assert_eq!(deep("x"), deep("y"));
    assert_ne!(Holder::new("/x", 1), Holder::new("/y", 1));
    assert_ne!(Holder::new("/x", 1), Holder::new("/x", 2));
}
