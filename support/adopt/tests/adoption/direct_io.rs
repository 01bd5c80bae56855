//! Direct I/O, whose stores pass by every protection of pages: through descriptors that are in
//! another thread's table only, or another process's in the same memory, or that are closed or
//! changed while a request is under way.
#![expect(unsafe_code)]
// UNSAFETY: descriptors by number, as a C program has them, and `unshare`.

use crate::raw_syscall_helpers::{Memory, PAGE};
use crate::stress::StopOnDrop;
use crate::{Outcome, cycles, require};
use omniverb_adopt::{Access, AdoptError, Strategy, adopt, adopt_with};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PAGES: usize = 256;
const CONTENTS: u8 = 0x55;

/// A file that goes with the test.
struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn stored() -> Result<TemporaryFile, String> {
    let path = std::env::temp_dir().join(format!("adopt-stored-{}", std::process::id()));
    std::fs::write(&path, vec![CONTENTS; PAGES * PAGE]).unwrap();
    let stored = TemporaryFile(path);
    File::open(&stored.0).unwrap().sync_all().unwrap();
    match direct(&stored.0) {
        Ok(_) => Ok(stored),
        Err(error) => Err(format!("no direct I/O on {}: {error}", stored.0.display())),
    }
}

fn direct(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)
}

/// As before, with a descriptor number that is not given out again once it is closed, as the lowest
/// ones are.
fn direct_far_up(path: &Path) -> i32 {
    const FAR_UP: i32 = 500;
    let file = direct(path).unwrap();
    // SAFETY: a copy of our own descriptor.
    let number = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FAR_UP) };
    assert!(number >= FAR_UP);
    number
}

fn userfault(memory: Memory) -> Option<AdoptError> {
    adopt_with(memory.address, memory.length, Access::ReadWrite, &[Strategy::Userfault]).err()
}

fn own_table() {
    // SAFETY: the calling thread gets a table of its own.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
}

/// Reads everything from the beginning. True if not all of it has arrived.
fn lost(descriptor: i32, memory: Memory) -> bool {
    for page in 0..PAGES {
        memory.set(page * 512, 1);
    }
    let to = std::ptr::with_exposed_provenance_mut(memory.address);
    // SAFETY: memory of the test, and a descriptor that may have been closed.
    let count = unsafe { libc::pread(descriptor, to, memory.length, 0) };
    // Otherwise it was closed before this began.
    count == memory.length as isize
        && (0..PAGES).any(|page| memory.get(page * 512) != u64::from_ne_bytes([CONTENTS; 8]))
}

/// Moves out and back, by whichever way there is, until `reads` requests were made and so many
/// moves, or for a while.
fn move_while(memory: Memory, reads: &AtomicU64, back: &[Strategy]) {
    let (begin, mut moved) = (Instant::now(), 0);
    let (enough, least) = (cycles(250), Duration::from_secs(1));
    while (moved < enough || begin.elapsed() < least) && begin.elapsed() < Duration::from_secs(10) {
        match adopt(memory.address, memory.length, Access::ReadWrite) {
            Ok(mut pages) => {
                moved += 1;
                while let Err(failed) = pages.release_with(back) {
                    assert_eq!(failed.error, AdoptError::Busy);
                    pages = failed.pages;
                }
            }
            Err(error) => assert_eq!(error, AdoptError::Busy),
        }
    }
    let reads = reads.load(Ordering::Relaxed);
    println!("    {moved} moves, {reads} reads");
    assert!(reads > 3);
}

/// One thread reads all the time, by `read`, while pages move.
fn nothing_is_lost(prepare: fn(), read: impl Fn(Memory) -> bool + Sync) {
    nothing_is_lost_with(&Strategy::ALL, prepare, read);
}

/// The same with only these ways back.
fn nothing_is_lost_with(back: &[Strategy], prepare: fn(), read: impl Fn(Memory) -> bool + Sync) {
    let memory = Memory::anonymous(PAGES * PAGE);
    let (stop, reads, losses) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        let stopping = StopOnDrop(&stop);
        scope.spawn(|| {
            prepare();
            while !stop.load(Ordering::Relaxed) {
                losses.fetch_add(u64::from(read(memory)), Ordering::Relaxed);
                reads.fetch_add(1, Ordering::Relaxed);
            }
        });
        move_while(memory, &reads, back);
        drop(stopping);
    });
    assert_eq!(losses.load(Ordering::Relaxed), 0, "the device's stores were lost");
}

/// The descriptor is in the table of another thread only.
pub fn in_another_table() -> Outcome {
    require(Strategy::Userfault)?;
    let stored = stored()?;
    let memory = Memory::anonymous(PAGE);
    let (told, news) = std::sync::mpsc::channel();
    let (done, wait) = std::sync::mpsc::channel::<()>();
    thread::scope(|scope| {
        let stored = &stored;
        scope.spawn(move || {
            own_table();
            let _file = direct(&stored.0).unwrap();
            told.send(()).unwrap();
            let _ = wait.recv();
        });
        news.recv().unwrap();
        assert_eq!(userfault(memory), Some(AdoptError::NotPermitted));
        adopt(memory.address, memory.length, Access::ReadWrite).unwrap().release().unwrap();
        drop(done);
    });
    assert_eq!(userfault(memory), None);
    Ok(())
}

/// It is in the table of another process that has the same memory.
pub fn in_another_process() -> Outcome {
    extern "C" fn wait(stop: *mut libc::c_void) -> i32 {
        // SAFETY: below, alive until this has ended; the sleep uses no thread's storage.
        unsafe {
            libc::alarm(60);
            while !(*stop.cast::<AtomicBool>()).load(Ordering::Relaxed) {
                let pause = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                libc::syscall(libc::SYS_nanosleep, &raw const pause, 0);
            }
        }
        0
    }
    require(Strategy::Userfault)?;
    let stored = stored()?;
    let (memory, stack) = (Memory::anonymous(PAGE), Memory::anonymous(64 * PAGE));
    let stop = AtomicBool::new(false);
    let file = direct(&stored.0).unwrap();
    let top = std::ptr::with_exposed_provenance_mut(stack.address + stack.length);
    let argument = std::ptr::from_ref(&stop).cast_mut().cast();
    // SAFETY: a child on a stack of its own, which is waited for. It has a copy of the table.
    let child = unsafe { libc::clone(wait, top, libc::CLONE_VM | libc::SIGCHLD, argument) };
    assert!(child > 0);
    drop(file);
    let refused = userfault(memory);
    stop.store(true, Ordering::Relaxed);
    crate::raw_syscall_helpers::reap(child);
    assert_eq!(refused, Some(AdoptError::NotPermitted));
    assert_eq!(userfault(memory), None);
    Ok(())
}

/// A thread with a table of its own reads.
pub fn reads_by_another_table() -> Outcome {
    let stored = stored()?;
    let number = AtomicI32::new(-1);
    nothing_is_lost(own_table, |memory| {
        if number.load(Ordering::Relaxed) < 0 {
            number.store(direct(&stored.0).unwrap().into_raw_fd(), Ordering::Relaxed);
        }
        lost(number.load(Ordering::Relaxed), memory)
    });
    Ok(())
}

/// The descriptor is open for direct I/O for each request anew.
pub fn reads_by_a_changing_descriptor() -> Outcome {
    let stored = stored()?;
    let file = File::open(&stored.0).unwrap();
    let set = |flags: i32| {
        // SAFETY: flags of our own descriptor.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) }, 0);
    };
    nothing_is_lost(
        || {},
        |memory| {
            thread::sleep(Duration::from_micros(300));
            set(libc::O_DIRECT);
            let lost = lost(file.as_raw_fd(), memory);
            set(0);
            lost
        },
    );
    Ok(())
}

/// No thread may be stopped, and the memory is to be taken back all the same.
pub fn reads_that_cannot_be_stopped() -> Outcome {
    require(Strategy::Userfault)?;
    let stored = stored()?;
    let file = direct(&stored.0).unwrap();
    let read = |memory| {
        thread::sleep(Duration::from_millis(1));
        lost(file.as_raw_fd(), memory)
    };
    nothing_is_lost_with(&[Strategy::Userfault], || {}, read);
    Ok(())
}

/// Another thread closes the descriptor while the request is under way.
pub fn reads_by_a_closed_descriptor() -> Outcome {
    let stored = stored()?;
    let begin = Instant::now();
    let late = || begin.elapsed() > Duration::from_secs(30);
    let (open, stop) = (AtomicI32::new(-1), AtomicBool::new(false));
    thread::scope(|scope| {
        let stopping = StopOnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) && !late() {
                let number = open.swap(-1, Ordering::Relaxed);
                if number >= 0 {
                    thread::sleep(Duration::from_micros(200));
                    // SAFETY: opened below for this.
                    unsafe { libc::close(number) };
                }
                thread::yield_now();
            }
        });
        nothing_is_lost(
            || {},
            |memory| {
                let number = direct_far_up(&stored.0);
                open.store(number, Ordering::Relaxed);
                let lost = lost(number, memory);
                while open.load(Ordering::Relaxed) >= 0 && !late() {
                    thread::yield_now();
                }
                lost
            },
        );
        drop(stopping);
    });
    Ok(())
}
