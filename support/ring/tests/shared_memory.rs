//! Windows and application memory: bounds, copies of all sizes, atomics, doorbells.

use omniverb_ring::doorbell::{DIED, LIFE_OFFSET, PAGE_BYTES, SLOTS};
use omniverb_ring::{DoorbellPage, UserMemory, Window, WordMemory};
use std::collections::BTreeSet;
use std::panic::catch_unwind;

fn bytes_of(window: &Window, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    UserMemory::lend_mut(&mut bytes, |target| window.drain(offset, target));
    bytes
}

#[test]
fn copies_touch_exactly_their_bytes() {
    for length in (0..40).chain([63, 64, 65, 255]) {
        for offset in 0..9 {
            let window = Window::private(512);
            let source: Vec<u8> = (1..=length as u8).collect();
            UserMemory::lend(&source, |source| window.fill_last_byte_last(offset, source));
            assert_eq!(bytes_of(&window, offset, length), source);
            let zeros = |part: Vec<u8>| part.iter().all(|byte| *byte == 0);
            assert!(zeros(bytes_of(&window, 0, offset)));
            assert!(zeros(bytes_of(&window, offset + length, 512 - offset - length)));
        }
    }
}

#[test]
fn nothing_outside_a_window_is_reached() {
    let whole = Window::private(256);
    let window = whole.part(64, 64).unwrap();
    assert!(whole.part(64, 193).is_none());
    assert!(whole.part(usize::MAX, 2).is_none());
    assert!(whole.part(257, 0).is_none());
    assert!(window.cell(56).is_some());
    assert!(window.cell(57).is_none());
    assert!(window.cell(usize::MAX).is_none());
    let refused = |offset: usize, length: usize| {
        let window = window.clone();
        let fill = catch_unwind(std::panic::AssertUnwindSafe(|| {
            UserMemory::lend(&vec![0; length], |source| window.fill(offset, source));
        }));
        fill.is_err()
    };
    assert!(!refused(0, 64) && !refused(64, 0));
    assert!(refused(0, 65) && refused(1, 64) && refused(65, 0) && refused(usize::MAX, 1));
    let word = |offset: usize| {
        let window = window.clone();
        catch_unwind(std::panic::AssertUnwindSafe(|| {
            window.word(offset).load(std::sync::atomic::Ordering::Relaxed);
        }))
    };
    assert!(word(56).is_ok() && word(64).is_err() && word(60).is_err());
}

#[test]
fn parts_of_application_memory() {
    let mut bytes = *b"0123456789";
    UserMemory::lend_mut(&mut bytes, |memory| {
        let read = |memory: UserMemory| {
            let mut copy = vec![0; memory.len()];
            memory.read(&mut copy);
            copy
        };
        assert_eq!(read(memory.part(2, 3).unwrap()), b"234");
        assert!(memory.part(8, 3).is_none() && memory.part(usize::MAX, 2).is_none());
        assert_eq!(memory.part(10, 0).unwrap().len(), 0);
        assert_eq!(read(memory.first(3)), b"012");
        assert_eq!(read(memory.skip(7)), b"789");
        assert_eq!(memory.skip(11).len(), 0);
        memory.part(4, 2).unwrap().write(b"xyz");
    });
    assert_eq!(&bytes, b"0123xy6789");
}

#[test]
fn atomics_want_eight_aligned_bytes() {
    let window = Window::private(32);
    let cell = window.cell(8).unwrap();
    assert_eq!(cell.fetch_add(5), Some(0));
    assert_eq!(cell.compare_swap(4, 9), Some(5));
    assert_eq!(cell.compare_swap(5, 9), Some(5));
    assert_eq!(cell.fetch_add(u64::MAX), Some(9));
    assert_eq!(bytes_of(&window, 8, 8), 8u64.to_ne_bytes());
    assert_eq!(window.cell(9).unwrap().fetch_add(1), None);
    assert_eq!(cell.first(4).compare_swap(0, 0), None);
}

#[test]
fn every_slot_is_distinct() {
    let page = DoorbellPage::new(Window::private(PAGE_BYTES));
    let rung: BTreeSet<u32> = (0..SLOTS).step_by(37).chain([63, 64, SLOTS - 1]).collect();
    assert!(!page.has_ready());
    for slot in &rung {
        page.set_ready(*slot);
        page.set_ready(*slot);
    }
    assert!(page.has_ready());
    let mut taken = Vec::new();
    page.take_ready(|slot| taken.push(slot));
    assert_eq!(taken, rung.into_iter().collect::<Vec<_>>());
    assert!(!page.has_ready());
    page.take_ready(|slot| panic!("{slot} again"));
}

/// A slot that does not exist, from a daemon gone wrong: stays inside the page.
#[test]
fn slots_beyond_the_last_stay_inside() {
    let page = DoorbellPage::new(Window::private(PAGE_BYTES));
    page.set_ready(u32::MAX);
    page.take_ready(|slot| assert!(slot < SLOTS));
}

#[test]
fn a_kick_is_taken_once() {
    let page = DoorbellPage::new(Window::private(PAGE_BYTES));
    assert!(!page.take_kick());
    page.want_kick();
    assert!(page.wants_kick());
    assert!(page.take_kick() && !page.take_kick() && !page.wants_kick());
}

#[test]
fn an_owner_has_died_when_the_kernel_says_so() {
    let memory = Window::private(PAGE_BYTES);
    let page = DoorbellPage::new(memory.clone());
    for (word, died) in [(0, false), (4711, false), (DIED, true), (1 << 31 | DIED, true)] {
        memory.store(LIFE_OFFSET, word, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(page.owner_has_died(), died, "{word:#x}");
    }
}
