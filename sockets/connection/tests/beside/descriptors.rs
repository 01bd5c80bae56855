//! The table of descriptors beside a model of one: sockets that have any number of numbers.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use omniverb_connection::descriptors::{Entry, Kind, Member, Members, Numbers, PIECE, Room, Why};
use proptest::prelude::*;

/// Memory from the heap, which stays.
struct Heap(Vec<OnceLock<Box<[AtomicU64; PIECE]>>>);

impl Heap {
    fn new(pieces: usize) -> Self {
        Self((0..pieces).map(|_| OnceLock::new()).collect())
    }
}

impl Room for Heap {
    fn piece(&self, index: usize) -> Option<&[AtomicU64; PIECE]> {
        self.0.get(index)?.get().map(|piece| &**piece)
    }

    fn make(&self, index: usize) -> Option<&[AtomicU64; PIECE]> {
        let new = || Box::new([const { AtomicU64::new(0) }; PIECE]);
        Some(self.0.get(index)?.get_or_init(new))
    }
}

const NUMBERS: i32 = 6;

#[derive(Clone, Copy, PartialEq, Debug)]
struct Model {
    socket: usize,
    kind: Kind,
    why: Why,
}

proptest! {
    #[test]
    fn numbers_are_as_their_model(
        steps in prop::collection::vec((0_u8..7, 0..NUMBERS, 0..NUMBERS), 1..80)
    ) {
        let numbers = Numbers::new(Heap::new(4));
        let mut model: BTreeMap<i32, Model> = BTreeMap::new();
        for (count, (what, number, other)) in steps.into_iter().enumerate() {
            match what {
                0 => {
                    let kind = if other == 0 { Kind::Set } else { Kind::Fresh };
                    numbers.put(number, kind);
                    model.insert(number, Model { socket: count, kind, why: Why::Free });
                }
                1 => {
                    numbers.forget(number);
                    model.remove(&number);
                }
                2 | 3 => {
                    let kind = if what == 2 { Kind::Connected } else { Kind::Listening };
                    numbers.turn(number, kind);
                    change(&mut model, number, |one| {
                        one.kind = if one.kind == Kind::Set { Kind::Set } else { kind };
                    });
                }
                4 => {
                    numbers.keep(number, Why::Stdio);
                    change(&mut model, number, |one| one.why = Why::Stdio);
                }
                5 if number != other => {
                    numbers.copy(number, other);
                    match model.get(&number).copied() {
                        Some(one) => model.insert(other, one),
                        None => model.remove(&other),
                    };
                }
                _ => {
                    let was = numbers.forget(number);
                    numbers.restore(number, was);
                }
            }
            check(&numbers, &model)?;
        }
    }
}

fn change(model: &mut BTreeMap<i32, Model>, number: i32, to: impl Fn(&mut Model)) {
    if let Some(socket) = model.get(&number).map(|one| one.socket) {
        model.values_mut().filter(|one| one.socket == socket).for_each(to);
    }
}

fn check(
    numbers: &Numbers<Heap>,
    model: &BTreeMap<i32, Model>,
) -> Result<(), proptest::test_runner::TestCaseError> {
    for number in 0..NUMBERS {
        let entry = numbers.look(number);
        let Some(one) = model.get(&number) else {
            prop_assert_eq!((entry.kind(), entry.id()), (Kind::Unknown, 0));
            continue;
        };
        prop_assert_eq!((entry.kind(), entry.why()), (one.kind, one.why));
        let ours: Vec<i32> = numbers.numbers_of(entry.id()).collect();
        let theirs: Vec<i32> = model
            .iter()
            .filter(|(_, other)| other.socket == one.socket)
            .map(|(number, _)| *number)
            .collect();
        prop_assert_eq!(&ours, &theirs);
        prop_assert!(ours.len() == 1 || entry.is_duplicated());
    }
    Ok(())
}

#[test]
fn what_was_found_late_is_not_written() {
    let numbers = Numbers::new(Heap::new(4));
    let seen = numbers.watch(3);
    numbers.forget(3);
    numbers.guess(3, seen, Kind::Set);
    assert_eq!(numbers.look(3).kind(), Kind::Unknown);
    let seen = numbers.watch(3);
    numbers.guess(3, seen, Kind::Set);
    assert_eq!((numbers.look(3).kind(), numbers.look(3).was_found()), (Kind::Set, true));
}

#[test]
fn numbers_that_cannot_be_are_nothing_of_ours() {
    let numbers = Numbers::new(Heap::new(1));
    for number in [-1, i32::MIN, 1 << 20, i32::MAX] {
        numbers.put(number, Kind::Fresh);
        assert_eq!(numbers.look(number).kind(), Kind::Other);
        assert_eq!(numbers.forget(number), Entry::default());
    }
    // There is no memory for it.
    numbers.put(5000, Kind::Fresh);
    assert_eq!(numbers.look(5000).kind(), Kind::Unknown);
}

proptest! {
    /// A set's members are those of the kernel: by number and what is open there.
    #[test]
    fn members_are_as_their_model(
        steps in prop::collection::vec((0_u8..5, 1_u32..4, 0_i32..3, 1_u32..4), 1..100)
    ) {
        let members = Members::new(Heap::new(1 << 13));
        let mut model: BTreeMap<(u32, i32, u32), (u32, u64)> = BTreeMap::new();
        for (count, (what, set, number, id)) in steps.into_iter().enumerate() {
            let (events, data) = (count as u32, count as u64 * 3);
            let member = Member { set, number, id, events, data };
            let key = (set, number, id);
            match what {
                0 | 1 if !model.contains_key(&key) => {
                    members.add(member, |_| true);
                    model.insert(key, (events, data));
                }
                2 => {
                    members.modify(member);
                    model.entry(key).and_modify(|one| *one = (events, data));
                }
                3 => {
                    members.remove(set, number, id);
                    model.remove(&key);
                }
                4 => {
                    members.remove_all(number, id);
                    model.retain(|(_, at, of), _| (*at, *of) != (number, id));
                }
                _ => {}
            }
            let mut ours = BTreeMap::new();
            for (number, id) in (0..3).flat_map(|n| (1..4).map(move |id| (n, id))) {
                members.of_number(number, id, |one| {
                    ours.insert((one.set, one.number, one.id), (one.events, one.data));
                });
            }
            prop_assert_eq!(ours, model.clone());
        }
    }
}

#[test]
fn places_of_closed_sets_are_used_again() {
    let members = Members::new(Heap::new(1 << 13));
    for set in 1..100_000 {
        let member = Member { set, number: 1, id: 1, events: 1, data: 0 };
        members.add(member, |open| open == set);
    }
    let mut count = 0;
    members.of_number(1, 1, |_| count += 1);
    assert_eq!(count, 1);
}
