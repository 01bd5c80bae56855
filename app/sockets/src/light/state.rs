//! What a process knows of its light connections, and the one lock before it.
//!
//! Whoever has the lock makes no call that waits, so it is soon free again. A signal's handler that
//! interrupts its own thread there finds nobody who would give it up: it is refused, and its call
//! says `EAGAIN`. (A handler that leaves by `longjmp` from there has it locked for good: then all
//! calls with light connections are refused.)

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use omniverb_stream::light::{Block, Pool, Row, Rows};
use rustix::mm::Advice;
use rustix::thread::sched_yield;

use super::listeners::Listeners;
use super::room::zeros;
use super::sets::Sets;
use super::trunk::Trunk;
use crate::place;

/// Connections of a process, and blocks of 4 KiB for what they have not received. Memory is taken
/// when they are used.
const ROWS: usize = 1 << 21;
const BLOCKS: usize = 1 << 20;
/// Other processes that one has connections with.
pub(super) const TRUNKS: usize = 64;

/// How often the lock is looked at before the processor is given away.
const LOOKS: u32 = 64;

/// All of it.
pub(super) struct State {
    pub rows: Rows<'static>,
    pub pool: Pool<'static>,
    pub trunks: [Option<Trunk>; TRUNKS],
    /// No place from here on ever had one.
    pub trunks_end: usize,
    pub listeners: Listeners,
    pub sets: Sets,
    /// Something has become ready since that was asked last.
    pub has_news: bool,
    /// Connections that there were, and bytes that were sent by them: for reports.
    pub carried: (u64, u64),
}

struct Place(UnsafeCell<MaybeUninit<State>>);
// SAFETY: touched by who has the lock only.
unsafe impl Sync for Place {}
static STATE: Place = Place(UnsafeCell::new(MaybeUninit::uninit()));
/// The thread that has the lock.
static OWNER: AtomicU64 = AtomicU64::new(0);
static IS_ON: AtomicBool = AtomicBool::new(false);

/// There may be light connections in this process.
#[inline(always)]
pub(super) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Where rows and blocks are.
static TABLES: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// At the start of the program. `false`: there is no room for what may be.
pub(super) fn begin() -> bool {
    let (Some(rows), Some(blocks)) = (zeros::<Row>(ROWS), zeros::<Block>(BLOCKS)) else {
        return false;
    };
    TABLES[0].store(rows.as_mut_ptr() as usize, Ordering::Relaxed);
    TABLES[1].store(blocks.as_mut_ptr() as usize, Ordering::Relaxed);
    fill();
    IS_ON.store(true, Ordering::Release);
    true
}

/// Nothing is known.
fn fill() {
    let [rows, blocks] = [0, 1].map(|which: usize| TABLES[which].load(Ordering::Relaxed));
    // SAFETY: as `begin` has made them, all zeros, and whoever had them has them no more.
    let (rows, blocks) = unsafe {
        (
            core::slice::from_raw_parts_mut(rows as *mut Row, ROWS),
            core::slice::from_raw_parts_mut(blocks as *mut Block, BLOCKS),
        )
    };
    let state = State {
        rows: Rows::new(rows),
        pool: Pool::new(blocks),
        trunks: [const { None }; TRUNKS],
        trunks_end: 0,
        listeners: Listeners::new(),
        sets: Sets::new(),
        has_news: false,
        carried: (0, 0),
    };
    // SAFETY: nobody else is in here.
    unsafe { (*STATE.0.get()).write(state) };
}

/// In a child of `fork`, for who has had the lock since before: what there is is the parent's.
fn begin_anew() {
    // SAFETY: as in `with`.
    let state = unsafe { (*STATE.0.get()).assume_init_mut() };
    for mut trunk in state.trunks.iter_mut().filter_map(Option::take) {
        trunk.end();
    }
    for (table, bytes) in TABLES.iter().zip([ROWS * size_of::<Row>(), BLOCKS * size_of::<Block>()])
    {
        let base = table.load(Ordering::Relaxed) as *mut c_void;
        // SAFETY: this process's own copies, which nobody needs: they are zeros from now on.
        if unsafe { rustix::mm::madvise(base, bytes, Advice::LinuxDontNeed) }.is_err() {
            IS_ON.store(false, Ordering::Release);
        }
    }
    fill();
}

/// The lock, for as long as a process is made: then nobody is in the middle of anything.
pub(crate) struct Forking(Option<Held>);

/// Takes the lock, before a process is made.
pub(super) fn forks() -> Forking {
    Forking(if is_on() { lock() } else { None })
}

impl Forking {
    /// In the child. `false`: there is nothing to begin anew.
    pub(super) fn begin_anew(self) -> bool {
        if self.0.is_some() {
            begin_anew();
        } else {
            // A handler has interrupted who has the lock, and forks.
            IS_ON.store(false, Ordering::Release);
        }
        self.0.is_some()
    }
}

/// The lock is given up when this is dropped.
struct Held;

impl Drop for Held {
    fn drop(&mut self) {
        OWNER.store(0, Ordering::Release);
    }
}

fn lock() -> Option<Held> {
    let me = place::this_thread();
    let mut looks = 0_u32;
    while let Err(owner) = OWNER.compare_exchange_weak(0, me, Ordering::Acquire, Ordering::Relaxed)
    {
        if owner == me {
            return None;
        }
        looks += 1;
        if looks.is_multiple_of(LOOKS) {
            sched_yield();
        } else {
            core::hint::spin_loop();
        }
    }
    Some(Held)
}

/// Does something with the state. `None`: this very thread is at it, and was interrupted.
#[inline]
pub(super) fn with<R>(act: impl FnOnce(&mut State) -> R) -> Option<R> {
    let _held = lock()?;
    // SAFETY: who has the lock is alone; it was written before the switch was on, without which
    // nobody comes here.
    Some(act(unsafe { (*STATE.0.get()).assume_init_mut() }))
}
