use super::*;
use omniverb_ring::WordMemory;
use omniverb_sys::memfd;
use omniverb_terms::{Gid, Qpn};

const DATA: Extent = Extent { offset: 2 * PAGE, length: (8 << 20) - 2 * PAGE };
const LINK: u64 = 640 << 10;

/// Files of a window and its ledger.
fn files() -> [OwnedFd; 2] {
    [DATA.offset + DATA.length, DATA.length / PAGE + Pair::LEDGER_BYTES]
        .map(|bytes| memfd::create("pair", bytes).unwrap())
}

/// One that is plugged in, as a device of its own.
fn pair(files: &[OwnedFd; 2]) -> Pair {
    pair_at(files, 0)
}

fn pair_at(files: &[OwnedFd; 2], at: u64) -> Pair {
    let [file, notes] = [&files[0], &files[1]].map(|file| file.try_clone().unwrap());
    Pair::new(file, (DATA, at), Ledger::of(notes), CloseQueue::new().unwrap()).unwrap()
}

fn pairs(files: &[[OwnedFd; 2]]) -> Pairs {
    let mut pairs = Pairs::default();
    (1..).zip(files).for_each(|(number, files)| pairs.add(number, pair(files)));
    pairs
}

fn neighbour(number: u64) -> Neighbour {
    Neighbour { proof: [1, 4, number, 9], uid: 0 }
}

fn ready() -> LinkReady {
    LinkReady {
        qpn: Qpn(1),
        peer_qpn: Qpn(2),
        side: 0,
        request_bytes: 256 << 10,
        response_bytes: 32 << 10,
        bell_new: 1,
        bell: 1,
        bell_side: 0,
        loopback: 0,
        local_slot: 0,
        peer_slot: 0,
        sgid: Gid::ZERO,
        dgid: Gid::ZERO,
        engine: 0,
        traced: 0,
        refused: 0,
        carried: 0,
        memory: Extent::NONE,
        bell_memory: Extent::NONE,
    }
}

#[test]
fn a_window_keeps_its_neighbour_and_the_next_daemon_knows_it() {
    let files = [files(), files()];
    let mut first = pairs(&files);
    assert_eq!(first.known(LINK, |_, _| false), PairWindows::default(), "the agent has found none");
    let none = first.make(neighbour(1), "one", &ready());
    assert_eq!(none.err().unwrap().kind(), io::ErrorKind::Unsupported);
    first.found(0b11);
    assert_eq!(first.known(LINK, |_, _| false).free, 2);
    let kept = first.make(neighbour(1), "one", &ready()).unwrap();
    let known = first.known(LINK, |_, _| false);
    assert_eq!((known.free, known.given.len()), (1, 1));
    assert_eq!(known.given[&neighbour(1)] + 1, known.room);
    drop(kept);
    // No other gets it when nothing of it is in use.
    first.make(neighbour(2), "two", &ready()).unwrap();
    assert!(first.make(neighbour(3), "three", &ready()).is_err());
    first.part();
    drop(first);
    let mut second = pairs(&files);
    second.found(u64::MAX);
    let known = second.known(LINK, |_, _| false);
    let owner: Vec<Neighbour> = known.given.into_keys().collect();
    assert_eq!((known.free, owner), (0, vec![neighbour(1), neighbour(2)]));
    assert!(second.make(neighbour(3), "three", &ready()).is_err());
    second.make(neighbour(2), "two", &ready()).unwrap();
}

#[test]
fn a_window_in_use_without_an_owner_is_given_to_no_neighbour() {
    let files = files();
    let first = pair(&files);
    let _used = first.pieces.take_in(first.links(), LINK).unwrap();
    first.pieces.part();
    let mut second = Pairs::default();
    second.add(1, pair(&files));
    second.found(1);
    assert_eq!(second.known(LINK, |_, _| false), PairWindows::default());
    assert!(second.make(neighbour(1), "one", &ready()).is_err());
    for wrong in [[0; WHOSE_BYTES], [0xff; WHOSE_BYTES]] {
        assert_eq!(read(&wrong), None);
    }
    assert_eq!(read(&written(&neighbour(7))), Some(neighbour(7)));
}

#[test]
fn a_window_has_room_for_so_many_links() {
    let mut pairs = pairs(&[files()]);
    pairs.found(1);
    let most = pairs.known(LINK, |_, _| false).room;
    assert!(most > 8);
    let shared: Vec<_> = (0..)
        .map(|_| pairs.make(neighbour(1), "one", &LinkReady { bell_new: 0, ..ready() }))
        .take_while(Result::is_ok)
        .collect();
    let link = shared[0].as_ref().unwrap().link.extent.length;
    assert!(link <= LINK, "{link}");
    assert!(shared.len() >= most, "{} of {most}", shared.len());
    assert_eq!(pairs.known(LINK, |_, _| false).given[&neighbour(1)], 0);
}

/// A thread that slept on the place before sees that it was rung since.
#[test]
fn a_doorbell_given_again_has_new_counters() {
    let files = files();
    let first = pair(&files);
    let mut pairs = Pairs::default();
    pairs.add(1, first);
    pairs.found(1);
    let shared = pairs.make(neighbour(1), "one", &ready()).unwrap();
    let window = shared.bell.as_ref().unwrap().map(Access::ReadWrite).unwrap();
    let counters = || [0, PAGE_BYTES].map(|at| window.load(at + 8, Ordering::Relaxed));
    assert_eq!(counters(), [0, 0], "the first");
    window.store(64, 7, Ordering::Relaxed);
    let place = Pages::new(&files[0], DATA.offset + PAGE, BELL_BYTES);
    let seen = place.map(Access::ReadOnly).unwrap();
    drop((window, shared));
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while pairs.windows[&1].pieces.sizes().1 > 0 {
        assert!(std::time::Instant::now() < end, "not in time");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let found = [8, PAGE_BYTES + 8].map(|at| seen.load(at, Ordering::Relaxed));
    assert!(found.iter().all(|counter| *counter != 0), "{found:?}");
    assert_eq!(seen.load(64, Ordering::Relaxed), 0, "nothing else is left of it");
}

fn machine(number: u64) -> Neighbour {
    Neighbour { proof: [2, number, 5, 1], uid: Neighbour::ALL_USERS }
}

#[test]
fn a_window_promised_to_a_machine_is_unused_until_plugged_in() {
    let files = [files(), files()];
    let mut first = pairs(&files);
    first.found(0b01);
    assert!(first.give(machine(1), "vm-one").unwrap());
    assert!(!first.give(machine(2), "vm-two").unwrap(), "the other one is not found");
    assert!(first.is_given(&machine(1)) && !first.is_given(&machine(2)));
    let known = first.known(LINK, |_, _| false);
    assert_eq!((known.coming.len(), known.given.len(), known.free), (1, 0, 0));
    let [(file, _)] = &first.given_to(machine(1))[..] else { panic!() };
    let known = first.known(LINK, |owner, which| *owner == machine(1) && which == *file);
    assert_eq!((known.coming.len(), known.given.len()), (0, 1));
    drop(first);
    // Also for the next daemon.
    let mut second = pairs(&files);
    second.found(0b11);
    assert_eq!(second.known(LINK, |_, _| false).coming, [machine(1)].into());
    assert!(second.is_given(&machine(1)));
}

/// A supervisor that waits and has places for so many more.
fn plugger(left: u32) -> MachineSupervisor {
    let (operator, tag) = (SessionId(7), Some(3));
    MachineSupervisor { operator, tag, left, may_join: true, can_take_out: false, trouble: None }
}

/// A neighbour may write anything into its window, so that the machine does not find it again.
#[test]
fn a_lost_window_keeps_no_other_neighbour_from_one() {
    let files = [files(), files()];
    let mut pairs = pairs(&files[..1]);
    let plugger = plugger(2);
    pairs.set_plugger(Some(plugger));
    pairs.found(1);
    assert_eq!(pairs.wanted(), None, "there is one without owner");
    pairs.make(neighbour(1), "one", &ready()).unwrap();
    pairs
        .joined_mut()
        .add(
            PieceRange { number: 2, at: 0 },
            memfd::create("x", 4096).unwrap(),
            CloseQueue::new().unwrap(),
        )
        .unwrap();
    pairs.found(0);
    assert_eq!(pairs.wanted(), Some((SessionId(7), 3)));
    assert_eq!(pairs.wanted(), None, "it has its answer");
    pairs.set_plugger(Some(plugger));
    pairs.add(3, pair(&files[1]));
    assert_eq!(pairs.wanted(), None, "the last one is not found");
}

/// Where windows that are mapped begin in their device.
const AT: u64 = 1 << 21;

/// What was plugged in, since the machine had no other way then, stays there.
#[test]
fn a_window_that_another_machine_has_is_not_unplugged() {
    let files = [files(), files()];
    let mut pairs = pairs(&files[..1]);
    pairs.found(0b11);
    pairs.give(machine(1), "vm-one").unwrap();
    pairs.set_plugger(Some(MachineSupervisor { can_take_out: true, ..plugger(0) }));
    assert!(pairs.is_full());
    assert_eq!(pairs.over(|_| false), None);
    // Another one beside it, which is mapped.
    pairs.add(2, pair_at(&files[1], AT));
    pairs.give(machine(2), "vm-two").unwrap();
    assert_eq!(pairs.over(|_| false), Some((SessionId(7), 3, 2)));
}

/// Where windows can be unplugged an unused one goes, and only when no slot is left.
#[test]
fn an_unused_window_makes_room_if_it_can_be_unplugged() {
    let files = [files(), files()];
    let mut pairs = Pairs::default();
    (1..).zip(&files).for_each(|(number, files)| pairs.add(number, pair_at(files, AT)));
    pairs.found(0b11);
    let shared = pairs.make(neighbour(1), "one", &ready()).unwrap();
    pairs.give(machine(1), "vm-one").unwrap();
    let gone = |_: &Neighbour| false;
    pairs.set_plugger(Some(plugger(0)));
    assert_eq!(pairs.over(gone), None, "it is plugged in");
    let full = MachineSupervisor { can_take_out: true, ..plugger(0) };
    pairs.set_plugger(Some(MachineSupervisor { left: 1, ..full }));
    assert_eq!(pairs.over(gone), None, "there is room");
    pairs.set_plugger(Some(full));
    assert!(pairs.is_full());
    assert_eq!(pairs.over(|_| true), None, "one is in use, one in a machine that is there");
    assert_eq!(pairs.over(gone), Some((SessionId(7), 3, 2)));
    assert!(!pairs.known(LINK, |_, _| true).given.contains_key(&machine(1)));
    pairs.set_plugger(Some(full));
    assert_eq!(pairs.over(gone), None, "one at a time");
    assert!(!pairs.take_out(1) && pairs.take_out(2) && !pairs.has(2) && !pairs.take_out(2));
    // Its neighbour gets another one, once there is one.
    drop(shared);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while pairs.windows[&1].pieces.sizes().1 > 0 {
        assert!(std::time::Instant::now() < end, "not in time");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(pairs.over(gone), Some((SessionId(7), 3, 1)));
    assert!(pairs.make(neighbour(1), "one", &ready()).is_err());
    assert!(pairs.make_for_pages(&neighbour(1), 4096, LINK).is_err());
}

/// The place of a piece that a machine is told counts from the beginning of its device.
#[test]
fn a_machine_is_told_where_in_its_device_a_piece_is() {
    let [file, notes] = files();
    let pair =
        Pair::new(file, (DATA, 1 << 21), Ledger::of(notes), CloseQueue::new().unwrap()).unwrap();
    let mut pairs = Pairs::default();
    pairs.add(3, pair);
    pairs.found(0b100);
    let shared = pairs.make(neighbour(1), "one", &ready()).unwrap();
    let (outside, said) = (shared.link.outside().0, shared.link.said());
    assert_eq!(pair_window::number(&said), Some(3));
    assert_eq!(pair_window::plain(said).offset, outside.offset - DATA.offset + (1 << 21));
    let other = shared.link.said_as(PieceRange { number: 9, at: 0 });
    assert_eq!(
        (pair_window::number(&other), pair_window::plain(other).offset),
        (Some(9), outside.offset - DATA.offset)
    );
}
