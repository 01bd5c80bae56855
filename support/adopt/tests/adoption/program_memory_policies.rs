//! What the program arranges for its own memory while pages move: it is respected, and a move never
//! waits for itself.

use crate::raw_syscall_helpers::{self, Memory, PAGE};
use crate::stress::StopOnDrop;
use crate::{Outcome, cycles, require};
use omniverb_adopt::{Access, AdoptError, Strategy, adopt_with};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than any of these takes on a busy machine; one that hangs ends by SIGALRM.
const DEADLINE_SECONDS: usize = 120;
const TIME_MAX: Duration = Duration::from_secs(5);

/// A process that is its own peer maps the file elsewhere, and unmaps it at any moment. What is
/// mapped at that place then may be the very pages that the contents are copied to.
pub fn own_peer(strategy: Strategy) -> Outcome {
    require(strategy)?;
    raw_syscall_helpers::set_deadline(DEADLINE_SECONDS);
    let buffer = Memory::anonymous(16 * PAGE);
    buffer.fill(7);
    let stop = AtomicBool::new(false);
    let file = std::sync::Mutex::new(None::<File>);
    thread::scope(|scope| {
        let _stopping = StopOnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let known = file.lock().unwrap().as_ref().map(|file| file.try_clone().unwrap());
                let Some(known) = known else { continue };
                for _ in 0..20 {
                    let peer = Memory::of_file(&known, buffer.length, true).unwrap();
                    let _ = peer.get(0);
                    peer.unmap();
                    // As Omniverb itself does, with a page behind it.
                    let room = Memory::anonymous(buffer.length + PAGE);
                    room.unmap();
                }
            }
        });
        let begin = Instant::now();
        for round in 0..cycles(1000) {
            let pages = crate::take(buffer, Access::ReadWrite, strategy_out(strategy));
            *file.lock().unwrap() = Some(crate::page_contents::file_of(&pages));
            crate::give_back(pages, &[strategy]);
            *file.lock().unwrap() = None;
            assert_eq!(buffer.get(round % buffer.words()), 0x0707_0707_0707_0707);
            if begin.elapsed() > TIME_MAX && !crate::cycles_are_given() {
                break;
            }
        }
    });
    Ok(())
}

/// Adoptions are never made by protection alone.
fn strategy_out(back: Strategy) -> Strategy {
    if back == Strategy::SingleThread { back } else { Strategy::Stop }
}

/// `mprotect()` by another thread holds, whatever moves meanwhile: the kernel refuses to store into
/// pages that may not be written, and stores into those that may be.
pub fn protection_holds() -> Outcome {
    require(Strategy::Stop)?;
    raw_syscall_helpers::set_deadline(DEADLINE_SECONDS);
    let buffer = Memory::anonymous(8 * PAGE);
    buffer.fill(7);
    let zeros = File::open("/dev/zero").unwrap();
    let stop = AtomicBool::new(false);
    let (rounds, moves) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        let stopping = StopOnDrop(&stop);
        for changed in [buffer.part(0, PAGE), buffer.part(2 * PAGE, 3 * PAGE)] {
            let (zeros, rounds, stop) = (zeros.as_raw_fd(), &rounds, &stop);
            scope.spawn(move || {
                let part = changed.part(0, 8);
                while !stop.load(Ordering::Relaxed) {
                    changed.protect(libc::PROT_READ);
                    for _ in 0..50 {
                        assert_eq!(part.read_from(zeros), -1, "a store into read-only pages");
                    }
                    changed.protect(libc::PROT_READ | libc::PROT_WRITE);
                    for _ in 0..50 {
                        assert_eq!(part.read_from(zeros), 8, "pages that may be written");
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                    // Only what may be written moves.
                    thread::sleep(Duration::from_micros(200));
                }
            });
        }
        let (begin, mut tried) = (Instant::now(), 0);
        while tried < cycles(1000) || moves.load(Ordering::Relaxed) < 10 {
            tried += 1;
            match adopt_with(buffer.address, buffer.length, Access::ReadWrite, &Strategy::EXACT) {
                Ok(pages) => {
                    moves.fetch_add(1, Ordering::Relaxed);
                    crate::give_back(pages, &Strategy::EXACT);
                }
                Err(AdoptError::Busy | AdoptError::Changed | AdoptError::NotAnonymous) => {}
                Err(other) => panic!("{other}"),
            }
            if begin.elapsed() > TIME_MAX
                && moves.load(Ordering::Relaxed) >= 10
                && !crate::cycles_are_given()
            {
                break;
            }
        }
        drop(stopping);
    });
    let (rounds, moves) = (rounds.into_inner(), moves.into_inner());
    assert!(rounds > 10 && moves > 0, "{rounds} changes, {moves} moves: too few to tell");
    Ok(())
}
