//! The table of descriptors beside a model of one: sockets that have any number of descriptors.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use omniverb_connection::descriptors::{
    DescriptorTable, Entry, Kind, Member, Members, PIECE, Room, Why,
};
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

const DESCRIPTORS: i32 = 6;

#[derive(Clone, Copy, PartialEq, Debug)]
struct Model {
    socket: usize,
    kind: Kind,
    why: Why,
}

proptest! {
    #[test]
    fn numbers_are_as_their_model(
        steps in prop::collection::vec((0_u8..7, 0..DESCRIPTORS, 0..DESCRIPTORS), 1..80)
    ) {
        let table = DescriptorTable::new(Heap::new(4));
        let mut model: BTreeMap<i32, Model> = BTreeMap::new();
        for (count, (what, fd, other)) in steps.into_iter().enumerate() {
            match what {
                0 => {
                    let kind = if other == 0 { Kind::Set } else { Kind::Fresh };
                    table.put(fd, kind);
                    model.insert(fd, Model { socket: count, kind, why: Why::Free });
                }
                1 => {
                    table.forget(fd);
                    model.remove(&fd);
                }
                2 | 3 => {
                    let kind = if what == 2 { Kind::Connected } else { Kind::Listening };
                    table.turn(fd, kind);
                    change(&mut model, fd, |one| {
                        one.kind = if one.kind == Kind::Set { Kind::Set } else { kind };
                    });
                }
                4 => {
                    table.keep(fd, Why::Stdio);
                    change(&mut model, fd, |one| one.why = Why::Stdio);
                }
                5 if fd != other => {
                    table.copy(fd, other);
                    match model.get(&fd).copied() {
                        Some(one) => model.insert(other, one),
                        None => model.remove(&other),
                    };
                }
                _ => {
                    let was = table.forget(fd);
                    table.restore(fd, was);
                }
            }
            check(&table, &model)?;
        }
    }
}

fn change(model: &mut BTreeMap<i32, Model>, fd: i32, to: impl Fn(&mut Model)) {
    if let Some(socket) = model.get(&fd).map(|one| one.socket) {
        model.values_mut().filter(|one| one.socket == socket).for_each(to);
    }
}

fn check(
    table: &DescriptorTable<Heap>,
    model: &BTreeMap<i32, Model>,
) -> Result<(), proptest::test_runner::TestCaseError> {
    for fd in 0..DESCRIPTORS {
        let entry = table.look(fd);
        let Some(one) = model.get(&fd) else {
            prop_assert_eq!((entry.kind(), entry.id()), (Kind::Unknown, 0));
            continue;
        };
        prop_assert_eq!((entry.kind(), entry.why()), (one.kind, one.why));
        let ours: Vec<i32> = table.fds_of(entry.id()).collect();
        let theirs: Vec<i32> = model
            .iter()
            .filter(|(_, other)| other.socket == one.socket)
            .map(|(fd, _)| *fd)
            .collect();
        prop_assert_eq!(&ours, &theirs);
        prop_assert!(ours.len() == 1 || entry.is_duplicated());
    }
    Ok(())
}

#[test]
fn what_was_found_late_is_not_written() {
    let table = DescriptorTable::new(Heap::new(4));
    let seen = table.watch(3);
    table.forget(3);
    table.guess(3, seen, Kind::Set);
    assert_eq!(table.look(3).kind(), Kind::Unknown);
    let seen = table.watch(3);
    table.guess(3, seen, Kind::Set);
    assert_eq!((table.look(3).kind(), table.look(3).was_found()), (Kind::Set, true));
}

#[test]
fn numbers_that_cannot_be_are_nothing_of_ours() {
    let table = DescriptorTable::new(Heap::new(1));
    for fd in [-1, i32::MIN, 1 << 20, i32::MAX] {
        table.put(fd, Kind::Fresh);
        assert_eq!(table.look(fd).kind(), Kind::Other);
        assert_eq!(table.forget(fd), Entry::default());
    }
    // There is no memory for it.
    table.put(5000, Kind::Fresh);
    assert_eq!(table.look(5000).kind(), Kind::Unknown);
}

proptest! {
    /// A set's members are those of the kernel: by descriptor and what is open there.
    #[test]
    fn members_are_as_their_model(
        steps in prop::collection::vec((0_u8..5, 1_u32..4, 0_i32..3, 1_u32..4), 1..100)
    ) {
        let members = Members::new(Heap::new(1 << 13));
        let mut model: BTreeMap<(u32, i32, u32), (u32, u64)> = BTreeMap::new();
        for (count, (what, set, fd, id)) in steps.into_iter().enumerate() {
            let (events, data) = (count as u32, count as u64 * 3);
            let member = Member { set, fd, id, events, data };
            let key = (set, fd, id);
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
                    members.remove(set, fd, id);
                    model.remove(&key);
                }
                4 => {
                    members.remove_all(fd, id);
                    model.retain(|(_, at, of), _| (*at, *of) != (fd, id));
                }
                _ => {}
            }
            let mut ours = BTreeMap::new();
            for (fd, id) in (0..3).flat_map(|n| (1..4).map(move |id| (n, id))) {
                members.of_fd(fd, id, |one| {
                    ours.insert((one.set, one.fd, one.id), (one.events, one.data));
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
        let member = Member { set, fd: 1, id: 1, events: 1, data: 0 };
        members.add(member, |open| open == set);
    }
    let mut count = 0;
    members.of_fd(1, 1, |_| count += 1);
    assert_eq!(count, 1);
}

#[test]
fn only_the_first_share_of_a_socket_is_told_so() {
    let table = DescriptorTable::new(Heap::new(1));
    table.put(3, Kind::Connected);
    let id = table.look(3).id();
    assert!(!table.share(3, id + 1), "another socket's id");
    assert!(table.share(3, id) && !table.share(3, id));
    assert!(table.look(3).is_shared());
}

#[test]
fn what_is_loose_is_so_at_all_descriptors_of_a_socket() {
    let table = DescriptorTable::new(Heap::new(1));
    table.put(3, Kind::Connected);
    table.copy(3, 4);
    assert!(table.has_another(table.look(3).id(), 3));
    table.loosen(4);
    assert!(table.look(3).is_loose() && table.look(4).is_loose());
    table.put(5, Kind::Other);
    table.loosen(5);
    assert!(!table.look(5).is_loose(), "no socket and no set");
    table.forget(4);
    assert!(!table.has_another(table.look(3).id(), 3));
}

#[test]
fn a_descriptor_that_was_made_anew_is_not_restored() {
    let table = DescriptorTable::new(Heap::new(1));
    table.put(3, Kind::Connected);
    let was = table.forget(3);
    table.put(3, Kind::Set);
    table.restore(3, was);
    assert_eq!(table.look(3).kind(), Kind::Set);
    assert!(table.given() > was.id() && table.end() == 4);
}

#[test]
fn the_first_reason_to_leave_a_socket_to_the_kernel_stays() {
    let table = DescriptorTable::new(Heap::new(1));
    table.put(3, Kind::Fresh);
    table.keep(3, Why::Stdio);
    table.keep(3, Why::Passed);
    assert_eq!(table.look(3).why(), Why::Stdio);
    table.put(4, Kind::Other);
    table.keep(4, Why::Stdio);
    table.turn(4, Kind::Listening);
    assert_eq!((table.look(4).why(), table.look(4).kind()), (Why::Free, Kind::Other));
}
