//! Keeps for each descriptor its slot among the processes' shared counts
//! (`omniverb_connection::processes_per_socket`).
//!
//! A descriptor's slot is of the socket of an id (`table`), which is gone as soon as the descriptor
//! is about to be closed: so it is seen that one is being closed. The first thread that forks
//! *binds* it, and it is released once, by the thread that changes the word from that.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use omniverb_connection::descriptors::PIECE;
use omniverb_connection::processes_per_socket::{CountKey, ProcessCounts, WORDS};

use crate::anonymous_mappings::{MappedOnce, Sharing};
use crate::table_memory::Pieces;

/// Sockets that all processes of a family share at a time; what finds no place is the kernel's.
const SOCKETS: usize = 1 << 17;

/// Words of a descriptor: `id:32 | index:32` of its socket's slot, or 0; the socket's cookie; which
/// of those that were in the family's slot; the fork that it was counted by last.
const SLOT_WORDS: usize = 4;
const BOUND: usize = 0;
const COOKIE: usize = 1;
const GENERATION: usize = 2;
const FORK: usize = 3;
const _: () = assert!(PIECE.is_multiple_of(SLOT_WORDS));

static SLOTS: Pieces<{ (1 << 20) * SLOT_WORDS / PIECE }> = Pieces::new();
/// The memory that others have, too, if anything was ever shared.
static PLACE: MappedOnce<[AtomicU64; SOCKETS * WORDS]> = MappedOnce::new();

/// Something was shared once, by this process or by one that it was made of.
#[inline(always)]
pub(crate) fn are_any() -> bool {
    PLACE.is_made()
}

pub(crate) fn process_counts() -> ProcessCounts<'static> {
    ProcessCounts::new(PLACE.get().map_or(&[], |all| all.as_slice()))
}

/// The memory is there.
pub(crate) fn is_made() -> bool {
    PLACE.make(Sharing::Shared).is_some()
}

/// How this process comes to have a socket no more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// It has it no more, for sure.
    Certain,
    /// The process may still have it, or a call of it may.
    Possible,
}

/// What a descriptor's slot was at one moment.
#[derive(Clone, Copy)]
pub(crate) struct Binding {
    word: u64,
    pub(crate) name: CountKey,
}

impl Binding {
    /// The socket that it is of.
    pub(crate) fn id(self) -> u32 {
        (self.word >> 32) as u32
    }

    /// There is one, which some thread has not finished perhaps.
    pub(crate) fn is_any(self) -> bool {
        self.word != 0
    }
}

/// What a descriptor's slot says.
#[derive(Clone, Copy)]
pub(crate) struct CountSlot(&'static [AtomicU64; SLOT_WORDS]);

impl CountSlot {
    fn in_piece(piece: &'static [AtomicU64; PIECE], fd: usize) -> CountSlot {
        CountSlot(&piece.as_chunks::<SLOT_WORDS>().0[fd % (PIECE / SLOT_WORDS)])
    }

    /// The slot of a descriptor that has one.
    pub(crate) fn of(fd: c_int) -> Option<CountSlot> {
        let fd = usize::try_from(fd).ok().filter(|_| are_any())?;
        Some(CountSlot::in_piece(SLOTS.get(fd / (PIECE / SLOT_WORDS))?, fd))
    }

    pub(crate) fn make(fd: c_int) -> Option<CountSlot> {
        let fd = usize::try_from(fd).ok()?;
        Some(CountSlot::in_piece(SLOTS.make_piece(fd / (PIECE / SLOT_WORDS))?, fd))
    }

    fn get(self, word: usize) -> u64 {
        self.0[word].load(Ordering::SeqCst)
    }

    fn set(self, word: usize, value: u64) {
        self.0[word].store(value, Ordering::SeqCst);
    }

    /// Changes it from `was` to `next`, if no other thread has changed it.
    fn change(self, was: u64, next: u64) -> bool {
        self.0[BOUND].compare_exchange(was, next, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// What it is bound to. The name is written before that, and a socket is bound once: so what is
    /// read between the same two words is its.
    pub(crate) fn binding(self) -> Binding {
        loop {
            let word = self.get(BOUND);
            let (cookie, generation) = (self.get(COOKIE), self.get(GENERATION) as u32);
            if self.get(BOUND) == word {
                return Binding { word, name: CountKey { index: word as u32, generation, cookie } };
            }
        }
    }

    /// Binds it to a socket for which `claim` finds a slot of the family's, for a fork. `false` if
    /// there is none, or another thread is at it.
    pub(crate) fn bind(self, id: u32, fork: u64, claim: impl FnOnce() -> Option<CountKey>) -> bool {
        let mine = u64::from(id) << 32;
        // From here on no other thread writes the name: a binding without an index is left alone.
        if !self.change(0, mine) {
            return false;
        }
        let Some(name) = claim() else {
            self.change(mine, 0);
            return false;
        };
        self.set(COOKIE, name.cookie);
        self.set(GENERATION, u64::from(name.generation));
        self.set(FORK, fork);
        self.change(mine, mine | u64::from(name.index))
    }

    /// The fork that it was counted by last.
    pub(crate) fn fork(self) -> u64 {
        self.get(FORK)
    }

    pub(crate) fn set_fork(self, name: u64) {
        self.set(FORK, name);
    }

    /// Holders of it may be uncounted.
    pub(crate) fn mark_escaped(self) {
        process_counts().mark_unknown(self.binding().name);
    }

    /// This process is counted no more. Once for each that was counted: a thread that finds the
    /// word changed does nothing.
    pub(crate) fn release(self, binding: Binding, release: Release) {
        if binding.name.index != 0 && self.change(binding.word, 0) {
            match release {
                Release::Certain => process_counts().decrement(binding.name),
                Release::Possible => process_counts().abandon(binding.name),
            }
        }
    }
}
