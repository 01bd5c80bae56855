//! Tests the life of a window's pieces.

use super::*;
use omniverb_ring::WordMemory;
use omniverb_ring::shared_atomics::Ordering;
use omniverb_sys::{Access, memfd};

fn pieces(pages: u64) -> Arc<Pieces> {
    let file = memfd::create("window", (pages + 2) * PAGE).unwrap();
    let data = body::Extent { offset: 2 * PAGE, length: pages * PAGE };
    Pieces::new(file, data, Ledger::none(), CloseQueue::new().unwrap()).unwrap()
}

#[test]
fn pieces_lie_apart_behind_the_first_page_and_come_back() {
    let pieces = pieces(10);
    let taken: Vec<Piece> = [1, 3, 2, 3].map(|n| pieces.take(n * PAGE).unwrap()).into();
    let offsets: Vec<u64> = taken.iter().map(|piece| piece.in_guest().offset / PAGE).collect();
    assert_eq!(offsets, [1, 2, 5, 7]);
    assert_eq!(pieces.sizes(), (10 * PAGE, 9 * PAGE));
    assert_eq!(pieces.take(1).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
    let mut taken: Vec<Option<Piece>> = taken.into_iter().map(Some).collect();
    // In any order they grow together again.
    for index in [1, 3, 0, 2] {
        taken[index] = None;
    }
    until(|| pieces.sizes().1 == 0);
    assert_eq!(pieces.take(9 * PAGE).unwrap().in_guest().offset, PAGE);
    for invalid in [0, u64::MAX, 10 * PAGE] {
        assert!(pieces.take(invalid).is_err(), "{invalid}");
    }
}

/// Until the thread that empties has done so.
fn until(what: impl Fn() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !what() {
        assert!(std::time::Instant::now() < end, "not in time");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn a_piece_is_empty_for_its_next_holder() {
    let pieces = pieces(3);
    let first = pieces.take(PAGE).unwrap();
    first.extent().map(Access::ReadWrite).unwrap().store(8, 1, Ordering::Relaxed);
    drop(first);
    until(|| pieces.sizes().1 == 0);
    let next = pieces.take(PAGE).unwrap();
    assert_eq!(next.in_guest().offset, PAGE);
    let found = next.extent().map(Access::ReadOnly).unwrap();
    assert_eq!(found.load(8, Ordering::Relaxed), 0);
}

#[test]
fn pages_leave_half_of_the_window_for_links() {
    let pieces = pieces(10);
    let first = pieces.take_for_pages(3 * PAGE).unwrap();
    assert!(pieces.take_for_pages(3 * PAGE).is_err() && pieces.take_for_pages(u64::MAX).is_err());
    let links = pieces.take(2 * PAGE).unwrap();
    assert!(pieces.take_for_pages(PAGE).is_err());
    drop(first);
    until(|| pieces.sizes().1 == 2 * PAGE);
    drop((pieces.take_for_pages(3 * PAGE).unwrap(), links));
}

#[test]
fn a_piece_in_use_is_neither_emptied_nor_given_again() {
    let pieces = pieces(4);
    let [retired, other] = [(); 2].map(|()| pieces.take(PAGE).unwrap());
    let mapped = [&retired, &other].map(|piece| piece.extent().map(Access::ReadWrite).unwrap());
    mapped.iter().for_each(|window| window.store(8, 7, Ordering::Relaxed));
    retired.retire();
    drop(retired);
    // A piece returned after this one has been emptied when this holds.
    drop(pieces.take(PAGE).unwrap());
    until(|| pieces.sizes().1 == 2 * PAGE);
    assert_eq!(pieces.take(PAGE).unwrap().in_guest().offset, 3 * PAGE);
    pieces.part();
    drop(other);
    drop(pieces);
    let found = mapped.map(|window| window.load(8, Ordering::Relaxed));
    assert_eq!(found, [7, 7]);
}

#[test]
fn pieces_of_one_daemon_are_not_given_by_the_next() {
    let [window, notes] = [12 * PAGE, 10].map(|bytes| memfd::create("window", bytes).unwrap());
    let attach = || {
        let [file, notes] = [&window, &notes].map(|file| file.try_clone().unwrap());
        let data = body::Extent { offset: 2 * PAGE, length: 10 * PAGE };
        Pieces::new(file, data, Ledger::of(notes), CloseQueue::new().unwrap()).unwrap()
    };
    let offsets = |pieces: &Arc<Pieces>, many: usize| -> Vec<u64> {
        let taken: Vec<_> = (0..many).map(|_| pieces.take(2 * PAGE).unwrap()).collect();
        let offsets = taken.iter().map(|piece| piece.in_guest().offset / PAGE).collect();
        // As at the end of a daemon.
        pieces.part();
        offsets
    };
    let first = attach();
    let returned = first.take(PAGE).unwrap();
    let kept = first.take(2 * PAGE).unwrap();
    drop(returned);
    until(|| first.sizes().1 == 2 * PAGE);
    first.part();
    drop((kept, first));
    let second = attach();
    assert_eq!(second.sizes().1, 2 * PAGE);
    assert_eq!(offsets(&second, 2), [4, 6]);
    drop(second);
    let third = attach();
    assert_eq!(third.sizes().1, 6 * PAGE);
    assert!(third.take(3 * PAGE).is_err());
    assert_eq!(offsets(&third, 1), [8]);
}

#[test]
fn a_malformed_window_is_refused() {
    let file = || memfd::create("window", 4 * PAGE).unwrap();
    for (offset, length) in [(0, PAGE), (0, 5 * PAGE), (1, 2 * PAGE), (0, u64::MAX)] {
        assert!(Pieces::check(&file(), body::Extent { offset, length }).is_err());
    }
    let open = memfd::unsealed("window", 4 * PAGE).unwrap();
    let data = body::Extent { offset: 0, length: 4 * PAGE };
    assert!(Pieces::check(&open, data).is_err(), "it can be cut short");
    let other = std::fs::File::open("/dev/null").unwrap();
    assert!(Pieces::check(&other.into(), data).is_err());
}
