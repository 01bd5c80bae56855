//! Processes that are in the program's memory without being threads of it (`clone(CLONE_VM)`), and
//! store there while pages move.
#![expect(unsafe_code)]
// UNSAFETY: makes such processes, as sandboxes and launchers do. They share the thread-local
// storage of their maker and so do nothing but loads, stores and raw system calls.

use crate::many_descriptors::forbid_comparing;
use crate::raw_syscall_helpers::{Memory, PAGE, in_child, reap_status, start_child};
use crate::stress::cycle;
use crate::{Outcome, cycles, require};
use omniverb_adopt::{Access, AdoptError, Strategy, adopt_with};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGES: usize = 32;

/// What the processes and the test have in common.
struct SharedState {
    memory: Memory,
    stop: AtomicBool,
    rounds: AtomicU64,
    lost: AtomicU64,
    /// Of the process that stores, if it is not our child.
    process: AtomicI32,
    gone: AtomicBool,
    begin: Instant,
}

impl SharedState {
    fn new() -> &'static SharedState {
        Box::leak(Box::new(SharedState {
            memory: Memory::anonymous(PAGES * PAGE),
            stop: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            process: AtomicI32::new(0),
            gone: AtomicBool::new(false),
            begin: Instant::now(),
        }))
    }

    fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// There was a store since the last look of the writer.
    fn wait_for_rounds(&self) {
        let (begin, before) = (Instant::now(), self.rounds.load(Ordering::Relaxed));
        while self.rounds.load(Ordering::Relaxed) < before + 2 {
            assert!(begin.elapsed() < Duration::from_secs(10), "nobody stores");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn nothing_was_lost(&self) {
        assert!(self.rounds.load(Ordering::Relaxed) > 10);
        assert_eq!(self.lost.load(Ordering::Relaxed), 0, "stores were lost");
    }
}

/// Of a test that failed nothing stays.
fn end_in_time() {
    // SAFETY: of the calling process, which is one of those below.
    unsafe { libc::alarm(60) };
}

/// Counts in a word of each page.
extern "C" fn write(common: *mut libc::c_void) -> i32 {
    // SAFETY: leaked, and alive as long as the test.
    let common = unsafe { &*common.cast::<SharedState>() };
    end_in_time();
    let mut value = 0;
    while !common.stop.load(Ordering::Relaxed) {
        for page in 0..PAGES {
            let at = common.memory.address + page * PAGE;
            let word = std::ptr::with_exposed_provenance_mut::<u64>(at);
            // SAFETY: inside the memory.
            if unsafe { word.read_volatile() } != value {
                common.lost.fetch_add(1, Ordering::Relaxed);
            }
            // SAFETY: as above.
            unsafe { word.write_volatile(value + 1) };
        }
        value += 1;
        common.rounds.fetch_add(1, Ordering::Relaxed);
    }
    common.gone.store(true, Ordering::Release);
    0
}

/// Makes the writer and ends, so that it becomes another process's child.
extern "C" fn write_as_orphan(common: *mut libc::c_void) -> i32 {
    // SAFETY: as in `write`.
    let of = unsafe { &*common.cast::<SharedState>() };
    of.process.store(start(write, of, libc::CLONE_VM | libc::SIGCHLD), Ordering::Relaxed);
    0
}

/// Makes the writer as a thread, and ends as a thread does: the process goes on without its first.
extern "C" fn write_in_second_thread(common: *mut libc::c_void) -> i32 {
    // SAFETY: as in `write`.
    let of = unsafe { &*common.cast::<SharedState>() };
    start(write, of, libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD);
    // SAFETY: ends this thread alone.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    0
}

type Body = extern "C" fn(*mut libc::c_void) -> i32;

fn start(body: Body, common: &SharedState, flags: i32) -> i32 {
    let flags_of_a_stack = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a stack of its own for a process that ends before the test.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let at = libc::mmap(std::ptr::null_mut(), 1 << 18, protection, flags_of_a_stack, -1, 0);
        let common = std::ptr::from_ref(common).cast_mut().cast();
        libc::clone(body, at.byte_add(1 << 18), flags, common)
    }
}

fn reap(child: i32) {
    assert!(child > 0);
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::__WALL) }, child);
}

/// A child that stores all the time while pages move.
pub fn stores(strategy: Strategy) -> Outcome {
    require(strategy)?;
    let common = SharedState::new();
    let child = start(write, common, libc::CLONE_VM | libc::CLONE_FS | libc::SIGCHLD);
    common.wait_for_rounds();
    cycle(common.memory, strategy, cycles(400));
    common.end();
    reap(child);
    common.nothing_was_lost();
    Ok(())
}

/// As before, by a process that is no child of ours, and by one whose first thread has ended.
pub fn stores_from_afar() -> Outcome {
    require(Strategy::Stop)?;
    for (body, orphan) in [(write_as_orphan as Body, true), (write_in_second_thread, false)] {
        let common = SharedState::new();
        let child = start(body, common, libc::CLONE_VM | libc::SIGCHLD);
        if orphan {
            reap(child);
        }
        common.wait_for_rounds();
        cycle(common.memory, Strategy::Stop, cycles(150));
        common.end();
        if !orphan {
            reap(child);
        }
        let begin = Instant::now();
        while !common.gone.load(Ordering::Acquire) && begin.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        common.nothing_was_lost();
    }
    Ok(())
}

/// The numbers of processes reach their end, and begin anew, within the next ones that are made.
/// Does nothing without the right to (`CAP_CHECKPOINT_RESTORE`).
fn numbers_begin_anew_soon() {
    let end = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap_or_default();
    let last = end.trim().parse::<i32>().unwrap_or(i32::MAX) - 30;
    let _ = std::fs::write("/proc/sys/kernel/ns_last_pid", last.to_string());
}

/// Processes come and go all the time, each made by the one before it: none escapes.
pub fn come_and_go() -> Outcome {
    relays(false)
}

/// The same where a later process has a lower number.
pub fn come_and_go_anew() -> Outcome {
    relays(true)
}

fn relays(anew: bool) -> Outcome {
    /// A few rounds; then the next one does the same.
    extern "C" fn relay(common: *mut libc::c_void) -> i32 {
        // SAFETY: as in `write`.
        let of = unsafe { &*common.cast::<SharedState>() };
        end_in_time();
        let round = of.rounds.load(Ordering::Relaxed);
        for step in 0..3 {
            for page in 0..PAGES {
                let at = of.memory.address + page * PAGE;
                let word = std::ptr::with_exposed_provenance_mut::<u64>(at);
                // SAFETY: inside the memory.
                if unsafe { word.read_volatile() } != round + step {
                    of.lost.fetch_add(1, Ordering::Relaxed);
                }
                // SAFETY: as above.
                unsafe { word.write_volatile(round + step + 1) };
            }
        }
        of.rounds.store(round + 3, Ordering::Relaxed);
        // SAFETY: a pause; what the call is given lives on.
        unsafe { libc::syscall(libc::SYS_nanosleep, &raw const PAUSE, 0) };
        if of.stop.load(Ordering::Relaxed) || of.begin.elapsed() > Duration::from_secs(20) {
            of.gone.store(true, Ordering::Release);
            return 0;
        }
        let turn = of.process.fetch_add(1, Ordering::Relaxed).unsigned_abs() as usize % STACKS;
        let top = BEHIND.load(Ordering::Relaxed) as usize + ((turn + 1) << 14);
        let stack = std::ptr::with_exposed_provenance_mut::<libc::c_void>(top);
        // SAFETY: a stack that was last used by a process that lived that many generations ago.
        let next = unsafe { libc::clone(relay, stack, libc::CLONE_VM | libc::SIGCHLD, common) };
        if next < 0 {
            of.gone.store(true, Ordering::Release);
        }
        0
    }
    const STACKS: usize = 1024;
    static PAUSE: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 200_000 };
    static BEHIND: AtomicU64 = AtomicU64::new(0);
    require(Strategy::Stop)?;
    let common = SharedState::new();
    BEHIND.store(Memory::anonymous(STACKS << 14).address as u64, Ordering::Relaxed);
    // SAFETY: a child without a reaper is reaped by the kernel.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    start(relay, common, libc::CLONE_VM | libc::SIGCHLD);
    common.wait_for_rounds();
    let (begin, mut moved) = (Instant::now(), 0);
    while begin.elapsed() < Duration::from_secs(3) {
        let memory = common.memory;
        if anew {
            numbers_begin_anew_soon();
        }
        match adopt_with(memory.address, memory.length, Access::ReadWrite, &[Strategy::Stop]) {
            Ok(mut pages) => {
                moved += 1;
                while let Err(failed) = pages.release_with(&[Strategy::Stop]) {
                    assert_eq!(failed.error, AdoptError::Busy);
                    pages = failed.pages;
                }
            }
            Err(error) => assert_eq!(error, AdoptError::Busy),
        }
    }
    common.end();
    let begin = Instant::now();
    while !common.gone.load(Ordering::Acquire) && begin.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("    {moved} moves, {} rounds", common.rounds.load(Ordering::Relaxed));
    common.nothing_was_lost();
    Ok(())
}

/// A process of one thread is not alone if another one is in its memory.
pub fn one_thread_is_not_alone() -> Outcome {
    require(Strategy::SingleThread)?;
    let attempt = |memory: Memory| {
        adopt_with(memory.address, memory.length, Access::ReadWrite, &[Strategy::SingleThread])
            .map(drop)
    };
    let common = SharedState::new();
    let child = start(write, common, libc::CLONE_VM | libc::SIGCHLD);
    common.wait_for_rounds();
    assert_eq!(attempt(common.memory), Err(AdoptError::NotPermitted));
    common.end();
    reap(child);
    assert_eq!(attempt(common.memory), Ok(()));
    Ok(())
}

/// Children with memory of their own, as after `fork()`, do not keep pages from moving.
pub fn forked_children_are_not_in_the_way() -> Outcome {
    require(Strategy::Stop)?;
    let child =
        crate::raw_syscall_helpers::start_child(|| std::thread::sleep(Duration::from_secs(600)));
    let memory = Memory::anonymous(4 * PAGE);
    let begin = Instant::now();
    loop {
        match adopt_with(memory.address, memory.length, Access::ReadWrite, &[Strategy::Stop]) {
            Ok(pages) => break drop(pages),
            Err(error) => assert_eq!(error, AdoptError::Busy),
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "never");
    }
    crate::raw_syscall_helpers::kill(child);
    crate::raw_syscall_helpers::reap(child);
    Ok(())
}

/// Several processes of one program move pages at the same time. None takes another for one that
/// shares its memory, and none fails because another one's helper holds threads.
pub fn neighbours_move_pages() -> Outcome {
    require(Strategy::Stop)?;
    neighbours(|| {});
    Ok(())
}

/// The same where `kcmp` is forbidden.
pub fn neighbours_that_cannot_be_compared() -> Outcome {
    require(Strategy::Stop)?;
    neighbours(forbid_comparing);
    Ok(())
}

fn neighbours(prepare: fn()) {
    const PROCESSES: usize = 4;
    let body = || {
        let status = in_child(|| {
            prepare();
            let (sender, wait) = std::sync::mpsc::channel::<()>();
            let sleeper = std::thread::spawn(move || wait.recv().is_err());
            cycle(Memory::anonymous(2 * PAGE), Strategy::Stop, cycles(400));
            drop(sender);
            sleeper.join().unwrap();
        });
        assert_eq!(status, 0);
    };
    let children: Vec<_> = (0..PROCESSES).map(|_| start_child(body)).collect();
    // All are waited for before any is judged.
    let ends: Vec<_> = children.into_iter().map(reap_status).collect();
    assert!(ends.iter().all(|status| *status == 0), "how they ended: {ends:?}");
}
