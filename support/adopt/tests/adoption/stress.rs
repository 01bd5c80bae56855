//! Tests that no store is ever lost: threads count in memory only they write, while the pages under
//! them move out and back. A word that does not hold what its owner stored last is a lost store.

use crate::page_contents::access;
use crate::raw_syscall_helpers::{Memory, PAGE, epoll_nap, pipe, poll_nap, sleep_nap};
use crate::{Outcome, cycles, cycles_are_given, require};
use omniverb_adopt::{Access, Strategy};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const WRITERS: usize = 3;

/// On an overloaded machine, where stopping threads takes long, fewer cycles must do.
const PATIENCE: Duration = Duration::from_millis(1500);
const CYCLES_MIN: usize = 100;

/// Moves `memory` out and back `count` times. Now and then the cycle has another shape.
pub fn cycle(memory: Memory, strategy: Strategy, count: usize) {
    let begin = Instant::now();
    for round in 0..count {
        if round >= CYCLES_MIN && begin.elapsed() > PATIENCE && !cycles_are_given() {
            println!("    {round} of {count} cycles, the machine is busy");
            return;
        }
        let skip = if round % 3 == 0 { PAGE } else { 0 };
        let part = memory.part(skip, memory.length - skip);
        let pages = crate::take(part, access(round as u64), strategy);
        crate::give_back(pages, &[strategy]);
    }
}

/// Tells the threads of a scope to stop, whatever becomes of it: a scope waits for its threads also
/// after an assertion in it failed.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Counts in every word until told to stop. Panics at the first lost store.
pub fn count_in(words: &[(Memory, usize)], stop: &AtomicBool) -> u64 {
    let mut value = 0;
    while !stop.load(Ordering::Relaxed) {
        for &(memory, index) in words {
            let found = memory.get(index);
            assert_eq!(found, value, "lost store at {:#x}", memory.address + index * 8);
            memory.set(index, value + 1);
        }
        value += 1;
    }
    value
}

/// A buffer in the heap with small objects right before and behind it, on its head and tail page.
struct NeighbourPages {
    buffer: Memory,
    small: Vec<Memory>,
}

fn neighbourhood(pages: usize) -> NeighbourPages {
    let mut small: Vec<_> = (0..64).map(|_| Memory::heap(24)).collect();
    let buffer = Memory::heap(pages * PAGE + 600);
    small.extend((0..64).map(|_| Memory::heap(24)));
    NeighbourPages { buffer, small }
}

pub fn writers(strategy: Strategy) -> Outcome {
    require(strategy)?;
    let NeighbourPages { buffer, small } = neighbourhood(5);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stopping = StopOnDrop(&stop);
        let threads: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let own = (0..buffer.words() / 37).map(|group| (buffer, group * 37 + writer));
                let objects = small.iter().skip(writer).step_by(WRITERS).map(|&object| (object, 1));
                let words: Vec<_> = own.chain(objects).collect();
                let stop = &stop;
                scope.spawn(move || count_in(&words, stop))
            })
            .collect();
        // Stopping threads that compute takes until each of them gets a processor.
        cycle(buffer, strategy, cycles(if strategy == Strategy::Stop { 500 } else { 1_500 }));
        drop(stopping);
        for thread in threads {
            assert!(thread.join().expect("a writer lost a store") > 0);
        }
    });
    Ok(())
}

/// Many stretches: the writers run ahead of the move and behind it.
pub fn large_writers(strategy: Strategy) -> Outcome {
    require(strategy)?;
    let buffer = Memory::anonymous(24 << 20);
    buffer.want_huge_pages();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stopping = StopOnDrop(&stop);
        let threads: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let own = (0..buffer.length / PAGE).map(|page| (buffer, page * 512 + writer * 60));
                let words: Vec<_> = own.collect();
                let stop = &stop;
                scope.spawn(move || count_in(&words, stop))
            })
            .collect();
        cycle(buffer, strategy, cycles(2_000).div_ceil(200));
        drop(stopping);
        for thread in threads {
            assert!(thread.join().expect("a writer lost a store") > 0);
        }
    });
    Ok(())
}

/// One thread: it counts between the moves.
pub fn alone(strategy: Strategy) -> Outcome {
    require(strategy)?;
    let NeighbourPages { buffer, small } = neighbourhood(5);
    for round in 0..cycles(2_000) as u64 {
        let store = |value: u64, old: u64| {
            for index in (0..buffer.words()).step_by(61) {
                assert_eq!(buffer.get(index), old);
                buffer.set(index, value);
            }
            for object in &small {
                assert_eq!(object.get(0), old);
                object.set(0, value);
            }
        };
        store(2 * round + 1, 2 * round);
        let pages = crate::take(buffer, Access::ReadWrite, strategy);
        store(2 * round + 2, 2 * round + 1);
        crate::give_back(pages, &[strategy]);
    }
    Ok(())
}

/// Threads receive from pipes into the pages: the stores are the kernel's. Each checks every
/// number it receives; a number stored into a page that was replaced would be missing.
pub fn kernel_stores(strategy: Strategy) -> Outcome {
    require(strategy)?;
    let buffer = Memory::heap(5 * PAGE + 600);
    let stop = AtomicBool::new(false);
    let received = AtomicUsize::new(0);
    thread::scope(|scope| {
        let stopping = StopOnDrop(&stop);
        for reader in 0..2 {
            let (from, mut to) = pipe();
            let (stop, received) = (&stop, &received);
            scope.spawn(move || {
                let mut number = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    to.write_all(&number.to_ne_bytes()).unwrap();
                    number += 1;
                    // Let the reader fall asleep in its system call now and then.
                    if number.is_multiple_of(64) {
                        thread::sleep(Duration::from_micros(200));
                    }
                }
            });
            scope.spawn(move || {
                let mut expected = 0u64;
                loop {
                    let word = 1 + (expected as usize * 97 + reader * 1200) % (buffer.words() - 2);
                    let word = if word % 2 == reader { word } else { word - 1 };
                    match buffer.part(word * 8, 8).read_from(from.as_raw_fd()) {
                        8 => {}
                        0 => break,
                        other => panic!("read: {other} {}", std::io::Error::last_os_error()),
                    }
                    assert_eq!(buffer.get(word), expected, "the kernel's store was lost");
                    expected += 1;
                    received.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        cycle(buffer, strategy, cycles(500));
        drop(stopping);
    });
    assert!(received.load(Ordering::Relaxed) > 1000);
    Ok(())
}

/// Threads that sleep in the kernel do not notice: no EINTR, and they wake.
pub fn sleepers(strategy: Strategy) -> Outcome {
    require(strategy)?;
    const NAP_MS: i32 = 300;
    let buffer = Memory::heap(5 * PAGE + 600);
    let asleep = AtomicUsize::new(3);
    thread::scope(|scope| {
        for (name, nap) in [
            ("epoll_wait", epoll_nap as fn(i32) -> i32),
            ("poll", poll_nap),
            ("nanosleep", sleep_nap),
        ] {
            let asleep = &asleep;
            scope.spawn(move || {
                let begin = Instant::now();
                let errno = nap(NAP_MS);
                asleep.fetch_sub(1, Ordering::Relaxed);
                assert_eq!(errno, 0, "{name} noticed the move");
                assert!(
                    begin.elapsed() >= Duration::from_millis(NAP_MS as u64),
                    "{name} woke early"
                );
            });
        }
        // epoll_wait starts its time again when it is stopped, so stop for a while only.
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(200) {
            cycle(buffer, strategy, 1);
        }
        let left_alone = Instant::now();
        while asleep.load(Ordering::Relaxed) > 0 {
            assert!(left_alone.elapsed() < Duration::from_secs(20), "a sleeper did not wake");
            thread::sleep(Duration::from_millis(5));
        }
    });
    Ok(())
}

/// Threads begin and end all the time; none escapes.
pub fn come_and_go(strategy: Strategy) -> Outcome {
    require(strategy)?;
    let buffer = Memory::heap(5 * PAGE + 600);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stopping = StopOnDrop(&stop);
        for lane in 0..2 {
            let stop = &stop;
            scope.spawn(move || {
                let mut value = 0;
                while !stop.load(Ordering::Relaxed) {
                    value = thread::spawn(move || {
                        for step in 0..50 {
                            for word in (lane..buffer.words()).step_by(128) {
                                assert_eq!(buffer.get(word), value + step, "lost store");
                                buffer.set(word, value + step + 1);
                            }
                        }
                        value + 50
                    })
                    .join()
                    .expect("a thread lost a store");
                }
            });
        }
        cycle(buffer, strategy, cycles(600) / 2);
        drop(stopping);
    });
    Ok(())
}
