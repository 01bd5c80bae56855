//! Model-checks a lane: bytes come in order, and no reader sleeps beside bytes.

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use omniverb_formats::Lane;
use omniverb_formats::channel_layout::{
    BYTES, LANE_HEAD, LANE_IS_AWAITED, LANE_TAIL, lane_ring, lane_words,
};
use omniverb_ring::UserMemory;
use omniverb_ring::loom_memory::Words;
use std::sync::Arc;

const SENT: [u8; 8] = *b"by lane!";

fn lane() -> Lane<Words> {
    let words = [LANE_HEAD, LANE_TAIL, LANE_IS_AWAITED].map(|word| lane_words(0, 1) + word);
    let ring = (0..2).map(|index| lane_ring(0, 1) + index * 8);
    Lane::new(Words::at(BYTES, words.into_iter().chain(ring)), 0, 1)
}

fn puts(lane: &Lane<Words>, head: u64) -> bool {
    UserMemory::lend(&SENT, |bytes| lane.fill(head, 0, bytes));
    lane.publish(head + 8)
}

fn takes(lane: &Lane<Words>, tail: &mut u64) -> bool {
    if lane.waiting(*tail).unwrap() == 0 {
        return false;
    }
    let mut bytes = [0; 8];
    UserMemory::lend_mut(&mut bytes, |to| lane.drain(*tail, 0, to));
    assert_eq!(bytes, SENT);
    *tail += 8;
    lane.take(*tail);
    true
}

/// Two messages; the reader sleeps when there is nothing. It is woken if it needs that.
#[test]
fn who_sleeps_is_woken() {
    loom::model(|| {
        let (lane, bell) = (lane(), Arc::new(AtomicBool::new(false)));
        let (sent, rings) = (lane.clone(), bell.clone());
        let writer = thread::spawn(move || {
            for message in 0..2 {
                if puts(&sent, message * 8) {
                    sent.clear_reader_mark();
                    rings.store(true, Ordering::SeqCst);
                }
            }
        });
        let (mut tail, mut is_asleep) = (0, false);
        for _ in 0..2 {
            if !takes(&lane, &mut tail) {
                lane.awaits();
                is_asleep = !takes(&lane, &mut tail);
                if is_asleep {
                    break;
                }
            }
        }
        writer.join().unwrap();
        assert!(!is_asleep || bell.load(Ordering::SeqCst), "asleep, with bytes, and not woken");
    });
}

/// Room is used again only when it was read; the memory shows a race if not.
#[test]
fn room_is_what_was_read() {
    loom::model(|| {
        let lane = lane();
        let sent = lane.clone();
        puts(&lane, 0);
        let writer = thread::spawn(move || {
            // As if the lane had room for these eight bytes only.
            let mut seen = 8_u64.wrapping_sub(omniverb_formats::channel_layout::LANE as u64);
            let has_room = sent.room(8, &mut seen, 8) >= 8 && seen == 8;
            if has_room {
                UserMemory::lend(&SENT, |bytes| sent.fill(0, 0, bytes));
            }
        });
        let mut tail = 0;
        assert!(takes(&lane, &mut tail));
        writer.join().unwrap();
    });
}

/// What the reader's threads know of a lane, as
/// `sockets/preload/src/light/lane_assignment.rs` has it.
#[derive(Default)]
struct Known {
    tail: u64,
    noted: u64,
    /// A thread sleeps for the lane, and was not woken.
    is_awaited: bool,
    was_woken: bool,
}

impl Known {
    /// What any thread does that comes by.
    fn look(&mut self, lane: &Lane<Words>) {
        let head = lane.head();
        if head != self.noted {
            self.noted = head;
            self.was_woken |= core::mem::take(&mut self.is_awaited);
        }
    }

    /// A thread is about to sleep: whether it found something after all.
    fn sleeps(&mut self, lane: &Lane<Words>) -> bool {
        (self.is_awaited, self.was_woken) = (true, false);
        lane.awaits();
        self.look(lane);
        takes(lane, &mut self.tail)
    }
}

/// One thread sleeps for the lane, and again after a message; another one hears the doorbell. No
/// thread sleeps with bytes in the lane, unless the doorbell has rung or it was woken.
#[test]
fn the_woken_thread_wakes_other_sleepers() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (lane, bell) = (lane(), Arc::new(Mutex::new(false)));
        let known = Arc::new(Mutex::new(Known::default()));
        let (sent, rings) = (lane.clone(), bell.clone());
        let writer = thread::spawn(move || {
            for message in 0..2 {
                if puts(&sent, message * 8) {
                    sent.clear_reader_mark();
                    *rings.lock().unwrap() = true;
                }
            }
        });
        let (heard, knows, hears) = (lane.clone(), known.clone(), bell.clone());
        let hearer = thread::spawn(move || {
            if core::mem::take(&mut *hears.lock().unwrap()) {
                let mut known = knows.lock().unwrap();
                if known.is_awaited {
                    heard.awaits();
                }
                known.look(&heard);
            }
        });
        let mut is_asleep = false;
        for _ in 0..2 {
            if !known.lock().unwrap().sleeps(&lane) {
                is_asleep = true;
                break;
            }
        }
        writer.join().unwrap();
        hearer.join().unwrap();
        let known = known.lock().unwrap();
        let has_bytes = lane.waiting(known.tail).unwrap() > 0;
        let is_told = known.was_woken || *bell.lock().unwrap();
        assert!(!(is_asleep && has_bytes) || is_told, "asleep, with bytes, and nobody was told");
    });
}
