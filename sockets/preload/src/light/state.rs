//! Holds what a process knows of its light connections, behind one lock.
//!
//! The holder of the lock makes no call that waits, so it is soon free again. A signal handler that
//! interrupts its own thread there is refused, and its call says `EAGAIN`. (A handler that leaves
//! by `longjmp` from there has it locked for good: then all calls with light connections are
//! refused. A thread that leaves a lane so, which it holds for some instructions, is refused by
//! all, and others that come to that lane wait in vain.)

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicUsize, Ordering};

use omniverb_connection::light::budgets::BLOCKS;
use omniverb_connection::light::connection_slot::Flag;
use omniverb_connection::light::{Block, BlockPool, Slot, SlotTable};
use omniverb_connection::peer_wait_budget::TimeSpent;
use rustix::mm::munmap;

use super::channel::{Channel, IDS_BYTES as IDS, MEMORY_BYTES as MEMORY};
use super::connections_without_channel::Unaccepted;
use super::descriptors::Token;
use super::epoll_sets::Sets;
use super::lanes;
use super::listeners::Listeners;
use super::local_addresses::Addresses;
use super::mmap_buffers::{CHANNELS, SLOTS, zeros};
use super::option_profiles::Profiles;
use super::signal_safe_lock::Lock;
use crate::anonymous_mappings::wipe;
use crate::vfork_check;

/// How often the broker was told that this process listens somewhere no more.
#[derive(Default)]
pub(super) struct ListenerRemovals {
    pub said: u64,
    /// And has said that it has heard it, or was waited for in vain.
    pub heard: u64,
    /// The connection by which that was in vain; 0: none.
    pub late: u64,
}

/// All of it.
pub(super) struct State {
    pub slots: SlotTable<'static>,
    pub pool: BlockPool<'static>,
    pub channels: [Option<Channel>; CHANNELS],
    /// Frames are being taken out of this one.
    pub takes_frames: Option<usize>,
    /// No place from here on ever had one.
    pub channels_end: usize,
    pub listeners: Listeners,
    /// Addresses of this host.
    pub local: Addresses,
    pub sets: Sets,
    /// Options of connections.
    pub profiles: Profiles,
    /// Something has become ready since that was asked last.
    pub has_news: bool,
    /// Connections that were refused and have no channel: another process with the socket is looked
    /// for.
    pub unaccepted: Unaccepted,
    /// Of sockets that listen no more.
    pub unheard: ListenerRemovals,
    /// Channels of which the broker is to be told that they have ended, and how many.
    pub gone: ([u64; CHANNELS], usize),
    /// What calls have waited for peers that open connections, in microseconds.
    pub waited: TimeSpent,
    /// Connections that there were, and bytes that were sent by them: for reports.
    pub carried: (u64, u64),
}

struct Place(UnsafeCell<MaybeUninit<State>>);
// SAFETY: touched only with the lock.
unsafe impl Sync for Place {}
static STATE: Place = Place(UnsafeCell::new(MaybeUninit::uninit()));
static OWNER: Lock = Lock::new();
/// Where slots, blocks and the numbers of free blocks are.
static TABLES: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
/// Bytes of each.
const BYTES: [usize; 3] =
    [SLOTS * size_of::<Slot>(), BLOCKS * size_of::<Block>(), BLOCKS * size_of::<u32>()];

/// At the start of the program. `false`: there is no room for what may be.
pub(super) fn begin() -> bool {
    for (table, bytes) in TABLES.iter().zip(BYTES) {
        let Some(memory) = zeros::<u8>(bytes) else { return false };
        table.store(memory.as_mut_ptr() as usize, Ordering::Relaxed);
    }
    // SAFETY: there was none before, and one thread is here.
    unsafe { fill(|_| true) }
}

/// What `begin` has made, all zeros at first.
type Tables = (&'static mut [Slot], &'static mut [Block], &'static mut [u32]);

/// Begins with a state that knows nothing, once `prepare` has seen to its tables; `false`: it has
/// not.
///
/// # Safety
/// No other thread is in here, and the state that was before, if any, is no more.
unsafe fn fill(prepare: impl FnOnce(&mut Tables) -> bool) -> bool {
    let [slots, blocks, free] = [0, 1, 2].map(|table: usize| TABLES[table].load(Ordering::Relaxed));
    // SAFETY: as `begin` has made them; otherwise as the caller says.
    let mut tables: Tables = unsafe {
        (
            core::slice::from_raw_parts_mut(slots as *mut Slot, SLOTS),
            core::slice::from_raw_parts_mut(blocks as *mut Block, BLOCKS),
            core::slice::from_raw_parts_mut(free as *mut u32, BLOCKS),
        )
    };
    if !prepare(&mut tables) {
        return false;
    }
    let (slots, blocks, free) = tables;
    let state = State {
        slots: SlotTable::new(slots),
        pool: BlockPool::new(blocks, free, release),
        channels: [const { None }; CHANNELS],
        takes_frames: None,
        channels_end: 0,
        listeners: Listeners::new(),
        local: Addresses::new(),
        sets: Sets::new(),
        profiles: Profiles::new(),
        has_news: false,
        unaccepted: Unaccepted::new(),
        unheard: ListenerRemovals::default(),
        gone: ([0; CHANNELS], 0),
        waited: TimeSpent::default(),
        carried: (0, 0),
    };
    // SAFETY: as the caller says.
    unsafe { (*STATE.0.get()).write(state) };
    true
}

/// The kernel gets the memory of blocks back that are not in use.
fn release(blocks: &mut [Block]) {
    wipe(blocks);
}

/// What channels have mapped, by their places: for children, which may find a state that another
/// thread of the parent was in the middle of.
static MAPPED: [[AtomicUsize; 2]; CHANNELS] =
    [const { [const { AtomicUsize::new(0) }; 2] }; CHANNELS];

/// A channel has mapped this, or nothing any more.
pub(super) fn has_mapped(place: usize, bases: [usize; 2]) {
    for (word, base) in MAPPED[place].iter().zip(bases) {
        word.store(base, Ordering::Relaxed);
    }
}

/// In a child of `fork`, before any other thread comes: the old state is the parent's.
pub(super) fn begin_anew() -> bool {
    OWNER.begin_anew();
    lanes::begin_anew();
    for [memory, ids] in &MAPPED {
        for (base, bytes) in [(memory, MEMORY), (ids, IDS)] {
            let base = base.swap(0, Ordering::Relaxed);
            if base != 0 {
                // SAFETY: the parent's mappings, of which these are unused copies.
                _ = unsafe { munmap(base as *mut c_void, bytes) };
            }
        }
    }
    // SAFETY: this process's own copies, which no other thread knows of.
    unsafe { fill(|(slots, blocks, free)| wipe(slots) && wipe(blocks) && wipe(free)) }
}

/// Does something with the state. `None`: this very thread is at it, and was interrupted.
#[inline]
pub(super) fn with<R>(act: impl FnOnce(&mut State) -> R) -> Option<R> {
    // The owner of this lock would wait for a thread with a lane; and this thread has one.
    if vfork_check::is_in_lane_call() {
        return None;
    }
    let _held = OWNER.take()?;
    // SAFETY: the owner of the lock is alone; it was written before the switch was on, without
    // which no call comes here.
    let state = unsafe { (*STATE.0.get()).assume_init_mut() };
    let result = act(state);
    if state.unaccepted.are_any() {
        state.retry_unaccepted();
    }
    state.tell();
    Some(result)
}

impl State {
    /// The slot of a connection, if it is still that, and no thread has closed it meanwhile.
    #[inline(always)]
    pub(super) fn slot(&mut self, token: Token) -> Option<u32> {
        let slot = self.slots.at(token.slot());
        let is_open = slot.has(Flag::Used) && !slot.has(Flag::Closed);
        (slot.generation == token.generation() && is_open).then_some(token.slot())
    }

    /// What descriptors are to say of a slot.
    pub(super) fn token(&mut self, at: u32) -> Token {
        Token::new(at, self.slots.at(at).generation)
    }
}
