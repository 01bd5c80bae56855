//! A release succeeds within whatever the program limits itself to, and leaves nothing behind.
#![expect(unsafe_code)]
// UNSAFETY: limits of the process, and mappings until there may be no more.

use crate::raw_syscall_helpers::{Memory, PAGE, pipe, reap_status, start_child};
use crate::{Outcome, take};
use omniverb_adopt::{Access, AdoptError, AdoptedPages, ReleaseError, Strategy, adopt, adopt_onto};
use omniverb_sys::{Extent, memfd};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const MIB: usize = 1 << 20;
const BYTES: usize = 13 * MIB;

/// Several steps of a release, with something in each page.
fn filled() -> Memory {
    let memory = Memory::anonymous(BYTES);
    (0..memory.words()).step_by(PAGE / 16).for_each(|index| memory.set(index, index as u64 + 1));
    memory
}

fn check(memory: Memory) {
    for index in (0..memory.words()).step_by(PAGE / 16) {
        assert_eq!(memory.get(index), index as u64 + 1);
    }
}

fn limit(what: Resource, bytes: Option<u64>) {
    setrlimit(what, Rlimit { current: bytes, ..getrlimit(what) }).unwrap();
}

/// Releases pages while another thread runs, however often that has to be tried, with this limit
/// in force.
fn release_with(what: Resource, bytes: impl FnOnce() -> usize, pages: AdoptedPages) {
    let (runs, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let before = getrlimit(what).current;
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            runs.store(true, Ordering::Relaxed);
            while !stop.load(Ordering::Relaxed) {
                thread::yield_now();
            }
        });
        while !runs.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        limit(what, Some(bytes() as u64));
        let mut outcome = pages.release();
        while let Err(ReleaseError { pages, error: AdoptError::Busy }) = outcome {
            outcome = pages.release();
        }
        limit(what, before);
        outcome.unwrap();
        stop.store(true, Ordering::Relaxed);
        other.join().unwrap();
    });
}

/// A peer that keeps a mapping has nothing of the owner's: neither its contents nor its memory.
pub fn released_file_is_empty() -> Outcome {
    let memory = filled();
    let pages = adopt(memory.address, memory.length, Access::ReadWrite).unwrap();
    let file = pages.memfd().try_clone_to_owned().unwrap();
    let ((mut ready, tell), (wait, mut go_on)) = (pipe(), pipe());
    let peer = start_child(|| {
        let peer = Memory::of_file(&file, BYTES, true).unwrap();
        assert_eq!(peer.get(0), 1);
        (&tell).write_all(&[0]).unwrap();
        (&wait).read_exact(&mut [0]).unwrap();
        assert_eq!(peer.get(0), 0);
    });
    ready.read_exact(&mut [0]).unwrap();
    crate::give_back(pages, &Strategy::ALL);
    // Blocks of 512 bytes: not a page.
    assert!(fstat(&file).unwrap().st_blocks < 8);
    check(memory);
    go_on.write_all(&[0]).unwrap();
    assert_eq!(reap_status(peer), 0);
    Ok(())
}

/// The program limits the size of its files, and is not killed for those that it knows nothing of.
pub fn refused_where_files_are_limited() -> Outcome {
    let memory = filled();
    let whole = || memfd::create_sealable("test", BYTES as u64).unwrap();
    let (file, start) = (Extent::new(whole(), 0, BYTES as u64), memory.address);
    limit(Resource::Fsize, Some(BYTES as u64 - 1));
    let own = adopt(start, BYTES, Access::ReadWrite).err();
    let onto = adopt_onto(file, start, Access::ReadWrite, &Strategy::EXACT).err();
    assert_eq!(own, Some(AdoptError::System(Errno::FBIG)));
    assert_eq!(onto, Some(AdoptError::NotPermitted));
    limit(Resource::Fsize, Some(BYTES as u64));
    crate::give_back(take(memory, Access::ReadWrite, Strategy::Stop), &Strategy::ALL);
    check(memory);
    Ok(())
}

/// All address space that the process may have is in use.
pub fn without_address_space() -> Outcome {
    let memory = filled();
    let pages = take(memory, Access::ReadWrite, Strategy::Stop);
    let used = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        PAGE * statm.split(' ').next().unwrap().parse::<usize>().unwrap()
    };
    release_with(Resource::As, used, pages);
    check(memory);
    Ok(())
}

/// New mappings are locked, and there may be no locked memory.
pub fn while_memory_locks() -> Outcome {
    let memory = filled();
    let pages = take(memory, Access::ReadWrite, Strategy::Stop);
    let lock = || {
        // SAFETY: concerns mappings that are made later.
        assert_eq!(unsafe { libc::mlockall(libc::MCL_FUTURE) }, 0);
        0
    };
    release_with(Resource::Memlock, lock, pages);
    check(memory);
    Ok(())
}
