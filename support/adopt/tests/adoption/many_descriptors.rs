//! Tests a program with many threads and descriptors, where it is not known which threads have the
//! same descriptors. To look at them all takes long, and a thread that stores into pages that are
//! protected meanwhile waits for that.
#![expect(unsafe_code)]
// UNSAFETY: descriptors by number, as a C program has them; a filter of system calls.

use crate::raw_syscall_helpers::{Memory, PAGE};
use crate::{Outcome, require};
use omniverb_adopt::{Access, AdoptError, Strategy, adopt, adopt_with};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

const DESCRIPTORS: u64 = 3000;
const THREADS: usize = 32;
const PAGES: usize = 16;

/// As in a container: `kcmp` fails, in this thread and those that it starts.
pub fn forbid_comparing() {
    const fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
        libc::sock_filter { code: code as u16, jt, jf, k }
    }
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_kcmp as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program =
        libc::sock_fprog { len: steps.len() as libc::c_ushort, filter: steps.as_mut_ptr() };
    // SAFETY: the kernel copies the filter; it concerns a process that is only made for this.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
    }
}

/// They end with the process.
fn open_many() -> Outcome {
    // SAFETY: a limit and descriptors of a process that is only made for this.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max.min(2 * DESCRIPTORS);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        for _ in 0..DESCRIPTORS {
            if libc::eventfd(0, libc::EFD_CLOEXEC) < 0 {
                return Err(format!("no {DESCRIPTORS} descriptors here"));
            }
        }
    }
    Ok(())
}

/// Threads that do nothing until the sender is dropped.
fn start_many() -> Vec<Sender<()>> {
    let start = |_| {
        let (sender, wait) = channel();
        thread::spawn(move || wait.recv());
        sender
    };
    (0..THREADS).map(start).collect()
}

/// Does something while another thread counts in the first word; nothing of that may be lost.
fn nothing_is_lost(memory: Memory, act: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    memory.fill(0x5A);
    memory.set(0, 0);
    let counted = thread::scope(|scope| {
        let counter = scope.spawn(|| {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                count += 1;
                memory.set(0, memory.get(0) + 1);
            }
            count
        });
        let outcome = catch_unwind(AssertUnwindSafe(act));
        stop.store(true, Ordering::Relaxed);
        let counted = counter.join().unwrap();
        outcome.map(|()| counted).unwrap()
    });
    assert_eq!(memory.get(0), counted);
    assert!((1..memory.words()).all(|word| memory.get(word) == u64::from_ne_bytes([0x5A; 8])));
}

/// No pages are protected while it is not known how long that would be.
pub fn too_many_to_look_at() -> Outcome {
    require(Strategy::Userfault)?;
    forbid_comparing();
    let memory = Memory::anonymous(PAGES * PAGE);
    open_many()?;
    let threads = start_many();
    nothing_is_lost(memory, || {
        let refused =
            adopt_with(memory.address, memory.length, Access::ReadWrite, &[Strategy::Userfault]);
        assert_eq!(refused.err(), Some(AdoptError::Busy));
        // A stopped thread is in no request, and need not be looked at.
        match adopt(memory.address, memory.length, Access::ReadWrite) {
            Ok(pages) => crate::give_back(pages, &Strategy::ALL),
            Err(error) => assert_eq!(error, AdoptError::Busy),
        }
    });
    drop(threads);
    Ok(())
}

/// What is adopted when so many come is released, although no thread may be stopped.
pub fn released_all_the_same() -> Outcome {
    require(Strategy::Userfault)?;
    forbid_comparing();
    let memory = Memory::anonymous(PAGES * PAGE);
    let pages =
        adopt_with(memory.address, memory.length, Access::ReadWrite, &[Strategy::Userfault]);
    open_many()?;
    let threads = start_many();
    nothing_is_lost(memory, || pages.unwrap().release_with(&[Strategy::Userfault]).unwrap());
    drop(threads);
    Ok(())
}
