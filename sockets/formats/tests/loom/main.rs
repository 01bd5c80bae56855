//! A direction against the memory model: every interleaving of a few steps, and every value a load
//! may return.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p omniverb_formats --release --test loom`
#![cfg(loom)]

mod lanes;
mod try_guard;

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::thread;
use omniverb_formats::link_layout::{self, FENCE, HEAD, PLACE, POLLING, RING};
use omniverb_formats::{Direction, Head};
use omniverb_ring::UserMemory;
use omniverb_ring::loom_memory::Words;
use std::sync::Arc;

const BYTES: [u8; 8] = *b"carried!";

fn direction() -> Direction<Words> {
    let readers = [PLACE, POLLING].map(|word| link_layout::word(1, word));
    let words = readers.into_iter().chain([HEAD, FENCE].map(|word| link_layout::word(0, word)));
    let ring = (0..4).map(|index| link_layout::ring(0) + index * 8);
    Direction::new(Words::at(link_layout::BYTES, words.chain(ring)), 0)
}

/// Eight bytes go in; where the head was.
fn fill(direction: &Direction<Words>) -> Head {
    let head = direction.head();
    UserMemory::lend(&BYTES, |bytes| direction.fill(head.position(), 0, bytes));
    head
}

/// What a reader does with what is there. How many bytes it has got.
fn read(direction: &Direction<Words>) -> u64 {
    let (place, waiting) = direction.waiting().unwrap();
    if waiting == 0 {
        return 0;
    }
    let mut bytes = [0; 8];
    UserMemory::lend_mut(&mut bytes[..waiting.min(8)], |to| {
        direction.drain(place.position(), 0, to);
    });
    if !direction.take(place, waiting) {
        return 0;
    }
    assert_eq!(bytes, BYTES);
    waiting as u64
}

/// The same for eight bytes, of a reader that has seen the head before.
fn read_by(direction: &Direction<Words>, seen: &mut u64) -> u64 {
    let (place, waiting) = direction.waiting_by(seen, 8).unwrap();
    if waiting == 0 {
        return 0;
    }
    let mut bytes = [0; 8];
    UserMemory::lend_mut(&mut bytes, |to| direction.drain(place.position(), 0, to));
    if !direction.take(place, 8) {
        return 0;
    }
    assert_eq!(bytes, BYTES);
    8
}

/// What a writer does that must send by the kernel. How many bytes the kernel has got.
fn reclaim(direction: &Direction<Words>) -> u64 {
    let Some(stretch) = direction.reclaim().unwrap() else { return 0 };
    for offset in (0..stretch.bytes).step_by(8) {
        let mut bytes = [0; 8];
        UserMemory::lend_mut(&mut bytes, |to| direction.drain(stretch.from, offset, to));
        assert_eq!(bytes, BYTES);
    }
    direction.finish_reclaim(stretch, stretch.bytes).unwrap();
    stretch.bytes as u64
}

/// A writer publishes while the reader goes to sleep: it has the bytes before, or the kernel has
/// them, which wakes it.
#[test]
fn no_reader_sleeps_beside_bytes_in_the_ring() {
    loom::model(|| {
        let writers = direction();
        writers.start_polling(1, || true);
        let readers = writers.clone();
        let writer = thread::spawn(move || {
            let head = fill(&writers);
            if writers.publish(head, 8).unwrap() { 0 } else { reclaim(&writers) }
        });
        readers.stop_polling();
        let mut got = 0;
        let mut wakes = false;
        while !wakes && got == 0 {
            got = read(&readers);
            // Asleep, unless there was something that another has taken meanwhile.
            wakes = readers.waiting().unwrap().1 == 0;
        }
        let by_kernel = writer.join().unwrap();
        let late = read(&readers);
        assert!(got + by_kernel == 8 && late == 0, "{got} {by_kernel} {late}");
    });
}

/// Two readers at a time: one of them has the bytes.
#[test]
fn bytes_are_read_once() {
    loom::model(|| {
        let writers = direction();
        let readers = [writers.clone(), writers.clone()];
        let readers = readers.map(|one| thread::spawn(move || read(&one)));
        let head = fill(&writers);
        writers.publish(head, 8).unwrap();
        let got: u64 = readers.into_iter().map(|one| one.join().unwrap()).sum();
        assert_eq!(got + read(&writers), 8);
    });
}

/// A reader reads while the writer takes back.
#[test]
fn reclaimed_bytes_are_not_read() {
    loom::model(|| {
        let writers = direction();
        let head = fill(&writers);
        writers.publish(head, 8).unwrap();
        let readers = writers.clone();
        let reader = thread::spawn(move || read(&readers));
        let by_kernel = reclaim(&writers);
        assert_eq!(reader.join().unwrap() + by_kernel, 8);
        assert!(!writers.place().is_taken());
    });
}

/// One thread stops the direction and takes back while a writer publishes: the writer has published
/// before, or not at all.
#[test]
fn what_is_stopped_is_not_published() {
    loom::model(|| {
        let writers = direction();
        let others = writers.clone();
        let by_kernel = Arc::new(AtomicU64::new(0));
        let kernel = by_kernel.clone();
        let other = thread::spawn(move || {
            others.stop();
            kernel.fetch_add(reclaim(&others), Ordering::Relaxed);
        });
        let head = fill(&writers);
        if writers.publish(head, 8).is_none() {
            by_kernel.fetch_add(8, Ordering::Relaxed);
        }
        other.join().unwrap();
        assert_eq!(by_kernel.load(Ordering::Relaxed) + read(&writers), 8);
    });
}

/// A reader leaves while a writer publishes: that one takes the bytes back, then or by its next
/// call.
#[test]
fn a_reader_that_leaves_leaves_bytes_to_the_writer() {
    loom::model(|| {
        let writers = direction();
        writers.start_polling(1, || true);
        let readers = writers.clone();
        let reader = thread::spawn(move || readers.leave().unwrap());
        let head = fill(&writers);
        let is_polling = writers.publish(head, 8).unwrap();
        let at_once = if is_polling { 0 } else { reclaim(&writers) };
        reader.join().unwrap();
        assert_eq!(read(&writers), 0, "the reader is not there any more");
        assert_eq!(at_once + reclaim(&writers), 8);
    });
}

/// A reader finds no bytes, and clears the marks that there may be some (a word of the link and a
/// bit among those of all links), while a writer puts some. Either the kernel has them, or the
/// marks are still set (`sockets/preload/src/carry/unread_links.rs`, `published_bytes.rs`).
#[test]
fn unread_bytes_stay_marked() {
    loom::model(|| {
        let writers = direction();
        let others = writers.clone();
        // As it is where bytes were that have been read.
        let [word, bit] = [(), ()].map(|()| Arc::new(AtomicBool::new(true)));
        let (cleared, taken) = (word.clone(), bit.clone());
        let says = |word: &AtomicBool, bit: &AtomicBool| {
            word.swap(true, Ordering::SeqCst);
            bit.swap(true, Ordering::SeqCst);
        };
        let other = thread::spawn(move || {
            let before = reclaim(&others);
            cleared.swap(false, Ordering::SeqCst);
            taken.swap(false, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let has_more = others.waiting().unwrap().1 > 0;
            if has_more || cleared.load(Ordering::SeqCst) {
                says(&cleared, &taken);
            }
            before
        });
        let head = fill(&writers);
        if !word.load(Ordering::SeqCst) {
            says(&word, &bit);
        }
        writers.publish(head, 8).unwrap();
        fence(Ordering::SeqCst);
        if !word.load(Ordering::SeqCst) {
            says(&word, &bit);
        }
        let by_kernel = other.join().unwrap();
        assert!(by_kernel == 8 || bit.load(Ordering::Relaxed));
    });
}

/// A thread or set that some sleep in, as they say.
#[derive(Clone)]
struct Sleepers(Arc<AtomicU64>);

impl Sleepers {
    fn none() -> Self {
        Self(Arc::new(AtomicU64::new(0)))
    }

    /// One is about to sleep. Loom takes what is sequentially consistent there for less, hence the
    /// fences.
    fn more(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    fn less(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    fn are_none(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::SeqCst) == 0
    }

    /// A thread that starts polling if none sleeps, and does something before it looks.
    fn poller(
        &self,
        readers: &Direction<Words>,
        attempt: u64,
        before: impl FnOnce() + 'static,
    ) -> thread::JoinHandle<bool> {
        let (others, seen) = (readers.clone(), self.clone());
        thread::spawn(move || {
            others.start_polling(attempt, || {
                before();
                seen.are_none()
            })
        })
    }
}

/// A thread starts polling while another one falls asleep on the socket, or in a set that
/// has it: nothing polls while that one sleeps (`receive.rs`, `epoll_membership.rs`).
#[test]
fn no_thread_polls_while_one_sleeps() {
    loom::model(|| {
        let (readers, sleepers) = (direction(), Sleepers::none());
        let other = sleepers.poller(&readers, 1, || {});
        sleepers.more();
        readers.stop_polling();
        other.join().unwrap();
        assert!(!readers.is_polling());
    });
}

/// The same with two that start polling: an attempt that was cancelled does not come true by
/// another one.
#[test]
fn an_attempt_belongs_to_one_thread() {
    loom::model(|| {
        let (readers, sleepers) = (direction(), Sleepers::none());
        let others = [1, 2].map(|attempt| sleepers.poller(&readers, attempt, || {}));
        sleepers.more();
        readers.stop_polling();
        others.into_iter().for_each(|other| _ = other.join().unwrap());
        assert!(!readers.is_polling());
    });
}

/// A set has a mark for each end that may be polled. The thread that polls sets it, and the thread
/// that settles that it is not polled takes it (`sockets/preload/src/carry/epoll_slot.rs`), while
/// another one falls asleep and wakes: nothing polls without a mark, or beside a sleeper.
#[test]
fn an_end_that_polls_is_marked() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (readers, sleepers) = (direction(), Sleepers::none());
        let marked = Arc::new(AtomicU64::new(1));
        let (settling, taken) = (readers.clone(), marked.clone());
        let settles = thread::spawn(move || {
            settling.while_not_polling(|| _ = taken.swap(0, Ordering::SeqCst));
        });
        let sets = marked.clone();
        let polling = sleepers.poller(&readers, 1, move || _ = sets.swap(1, Ordering::SeqCst));
        // Asleep, and awake again: then it starts polling, too.
        sleepers.more();
        if marked.load(Ordering::SeqCst) != 0 && readers.may_be_polling() {
            readers.stop_polling();
        }
        fence(Ordering::SeqCst);
        let is_beside_a_sleeper = readers.is_polling();
        sleepers.less();
        readers.start_polling(2, || {
            marked.swap(1, Ordering::SeqCst);
            true
        });
        settles.join().unwrap();
        polling.join().unwrap();
        assert!(!is_beside_a_sleeper);
        assert!(!readers.is_polling() || marked.load(Ordering::SeqCst) != 0);
    });
}

/// A thread that falls asleep leaves alone a ring that none polls or tries to poll.
#[test]
fn a_sleeper_cancels_attempts() {
    loom::model(|| {
        let (readers, sleepers) = (direction(), Sleepers::none());
        let other = sleepers.poller(&readers, 1, || {});
        sleepers.more();
        if readers.may_be_polling() {
            readers.stop_polling();
        }
        other.join().unwrap();
        assert!(!readers.is_polling());
    });
}

/// As before, and the other end puts bytes there as soon as the reader polls: a sleeper has looked
/// after that, or is woken by the kernel.
#[test]
fn no_writer_sees_polling_beside_a_sleeper() {
    loom::model(|| {
        let (readers, sleepers) = (direction(), Sleepers::none());
        let writers = readers.clone();
        let other = sleepers.poller(&readers, 1, || {});
        let writer = thread::spawn(move || {
            let head = fill(&writers);
            // Not polling: by the kernel. It is only looked at here, before and behind.
            let was_polling = writers.is_polling();
            was_polling && writers.publish(head, 8) == Some(true)
        });
        sleepers.more();
        readers.stop_polling();
        let has_bytes = readers.waiting().unwrap().1 > 0;
        other.join().unwrap();
        let is_in_ring = writer.join().unwrap();
        assert!(has_bytes || !is_in_ring, "it sleeps beside bytes");
    });
}

/// A reader goes by where it has seen the head, and a writer by where it has seen the reader, while
/// the writer takes back what is there: each byte is read once, or with the kernel, and none is
/// written over before.
#[test]
fn what_was_seen_is_enough() {
    loom::model(|| {
        let writers = direction();
        let readers = writers.clone();
        let mut seen = 0;
        let head = fill(&writers);
        writers.publish(head, 8).unwrap();
        let writer = thread::spawn(move || {
            let head = fill(&writers);
            // As far as it has seen nothing was read; when it looks it sees what is so.
            assert_eq!(writers.used(head, &mut seen, 8), Ok(8));
            writers.publish(head, 8).unwrap();
            let used = writers.used(writers.head(), &mut seen, RING).unwrap() as u64;
            assert!(used + seen == 16);
            reclaim(&writers)
        });
        let mut seen = 0;
        let got = read_by(&readers, &mut seen);
        let by_kernel = writer.join().unwrap();
        // What the kernel has had is not read, though it was seen.
        assert_eq!(got + by_kernel + read_by(&readers, &mut seen), 16);
    });
}

/// A thread shows that it reads while another one falls asleep: nothing polls for that.
#[test]
fn showing_activity_does_not_start_polling() {
    loom::model(|| {
        let readers = direction();
        readers.start_polling(1, || true);
        let others = readers.clone();
        let other = thread::spawn(move || others.show_activity());
        readers.stop_polling();
        other.join().unwrap();
        assert!(!readers.is_polling() && !readers.show_activity());
    });
}

/// Memory comes while a thread is about to send by the kernel: either the sender sees the memory,
/// or the thread that attaches it sees the sender (`mod.rs`, `send.rs`).
#[test]
fn a_sender_by_the_kernel_is_seen() {
    loom::model(|| {
        let (sending, memory) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (seen, comes) = (sending.clone(), memory.clone());
        let other = thread::spawn(move || {
            comes.store(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            seen.load(Ordering::SeqCst) == 0
        });
        sending.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let by_kernel = memory.load(Ordering::SeqCst) == 0;
        let by_ring = other.join().unwrap();
        assert!(!(by_kernel && by_ring));
    });
}
