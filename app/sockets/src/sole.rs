//! Which sockets this process has alone, of those that it has had together with others by `fork`.
//!
//! In: forks, before and behind them; closes; whatever may give a socket to somebody unseen. Out:
//! whether nobody else has a socket, for sure. How many have one is counted in memory that the
//! processes share (`omniverb_stream::holders`), and this process keeps for each number which row
//! is its socket's there. A number's row is of the socket of an id (`table`), which is gone as soon
//! as the number is about to be closed: so it is seen that one is being closed.
//!
//! A fork is counted before it is made, and looked at again behind it: what has come meanwhile, by
//! other threads or by handlers of signals, was not counted, and is shared with nobody knows whom.

use core::ffi::{c_char, c_int};
use core::ptr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::os::fd::BorrowedFd;

use omniverb_stream::descriptors::{Entry, Kind, PIECE, Room, Why};
use omniverb_stream::holders::{Holders, WORDS};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::net::sockopt;
use rustix::process::getpid;

use crate::room::Pieces;
use crate::table::NUMBERS;
use crate::{place, uncounted};

/// Sockets that all processes of a family share at a time; what finds no place is the kernel's.
const SOCKETS: usize = 1 << 17;
const BYTES: usize = SOCKETS * WORDS * size_of::<AtomicU64>();

/// Words of a number: `id:32 | index:32` of its socket's row, or 0; the socket's cookie; the fork
/// that it was counted by last.
const ROW: usize = 4;
const TIED: usize = 0;
const COOKIE: usize = 1;
const FORK: usize = 2;
const _: () = assert!(PIECE.is_multiple_of(ROW));

static ROWS: Pieces<{ (1 << 20) * ROW / PIECE }> = Pieces::new();
/// Where the memory is that others have, too; 0: nothing was ever shared.
static PLACE: AtomicUsize = AtomicUsize::new(0);
/// Forks of this process.
static FORKS: AtomicU64 = AtomicU64::new(0);
/// How often it was a new one: another thread of control may come out of any call as a copy.
static COPIES: AtomicU64 = AtomicU64::new(0);
/// The C library's word that says that there is one thread.
static IS_SINGLE: AtomicUsize = AtomicUsize::new(0);

/// At the start.
pub(crate) fn begin() {
    // SAFETY: a string; the C library may allocate here.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    IS_SINGLE.store(found as usize, Ordering::Relaxed);
}

fn is_single() -> bool {
    let place = IS_SINGLE.load(Ordering::Relaxed) as *const c_char;
    // SAFETY: the C library's variable, which only it writes.
    !place.is_null() && unsafe { place.read_volatile() } != 0
}

fn holders() -> Holders<'static> {
    let place = PLACE.load(Ordering::Acquire) as *const AtomicU64;
    if place.is_null() {
        return Holders::new(&[]);
    }
    // SAFETY: a mapping of this size, which stays, of atomics only.
    Holders::new(unsafe { core::slice::from_raw_parts(place, SOCKETS * WORDS) })
}

/// The memory is there.
fn is_made() -> bool {
    PLACE.load(Ordering::Relaxed) != 0 || {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, wherever the kernel likes.
        let new = unsafe { mmap_anonymous(ptr::null_mut(), BYTES, access, MapFlags::SHARED) };
        let Ok(new) = new else { return false };
        let (ok, err) = (Ordering::AcqRel, Ordering::Relaxed);
        if PLACE.compare_exchange(0, new as usize, ok, err).is_err() {
            // SAFETY: our own mapping, which nobody else has seen.
            _ = unsafe { munmap(new, BYTES) };
        }
        true
    }
}

/// What a number's row says.
#[derive(Clone, Copy)]
struct Row(&'static [AtomicU64; ROW]);

impl Row {
    fn in_piece(piece: &[AtomicU64; PIECE], number: usize) -> Row {
        let row = &piece.as_chunks::<ROW>().0[number % (PIECE / ROW)];
        // SAFETY: pieces stay for good.
        Row(unsafe { &*ptr::from_ref(row) })
    }

    /// The row of a number that has one.
    fn of(number: c_int) -> Option<Row> {
        let number = usize::try_from(number).ok().filter(|_| PLACE.load(Ordering::Relaxed) != 0)?;
        Some(Row::in_piece(ROWS.piece(number / (PIECE / ROW))?, number))
    }

    fn make(number: c_int) -> Option<Row> {
        let number = usize::try_from(number).ok()?;
        Some(Row::in_piece(ROWS.make(number / (PIECE / ROW))?, number))
    }

    fn get(self, word: usize) -> u64 {
        self.0[word].load(Ordering::SeqCst)
    }

    fn set(self, word: usize, value: u64) {
        self.0[word].store(value, Ordering::SeqCst);
    }

    /// From `was` on to `next`, if nobody else has changed it.
    fn change(self, was: u64, next: u64) -> bool {
        self.0[TIED].compare_exchange(was, next, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Whoever may have it is not counted.
    fn spread(self) {
        let (tied, cookie) = (self.get(TIED), self.get(COOKIE));
        holders().spread(tied as u32, cookie);
    }

    /// This process has it no more. Once for each that was counted: whoever finds the word changed
    /// leaves it at that.
    fn retire(self, tied: u64, is_sure: bool) {
        let cookie = self.get(COOKIE);
        if tied != 0 && self.change(tied, 0) {
            if !is_sure {
                holders().spread(tied as u32, cookie);
            }
            holders().less(tied as u32, cookie);
        }
    }
}

fn id(tied: u64) -> u32 {
    (tied >> 32) as u32
}

/// A fork that is being made.
#[derive(Clone, Copy)]
pub(crate) struct Fork {
    name: u64,
    given: u32,
    copies: u64,
}

impl Fork {
    /// Before the sockets are looked through.
    pub(crate) fn begin() -> Fork {
        let copies = COPIES.load(Ordering::SeqCst);
        Fork { name: FORKS.fetch_add(1, Ordering::SeqCst) + 1, given: NUMBERS.given(), copies }
    }

    /// Counts who is about to have the socket of a number. `false` if that cannot be.
    pub(crate) fn count(self, number: c_int, entry: Entry) -> bool {
        let is_there = entry.id() != 0 && is_made();
        let Some(row) = is_there.then(|| Row::make(number)).flatten() else { return false };
        // Who looks whether it is alone, after it has said that it offers, sees this.
        NUMBERS.share(number, entry.id());
        let tied = row.get(TIED);
        if id(tied) == entry.id() {
            // Without a row of the family's somebody else is at it at this moment, and will see
            // that it is kept.
            let is_counted = holders().more(tied as u32, row.get(COOKIE));
            if is_counted {
                row.set(FORK, self.name);
            }
            return is_counted;
        }
        row.retire(tied, false);
        let mine = u64::from(entry.id()) << 32;
        if !row.change(0, mine) {
            return false;
        }
        row.set(FORK, self.name);
        let index = name(number, entry).and_then(|cookie| {
            row.set(COOKIE, cookie);
            holders().claim(cookie, 2)
        });
        let Some(index) = index else { return false };
        let is_tied = row.change(mine, mine | u64::from(index));
        if !is_tied || NUMBERS.look(number).why() != Why::Free {
            holders().spread(index, row.get(COOKIE));
        }
        is_tied
    }

    /// It was counted by this fork, as what it is now.
    pub(crate) fn has(self, number: c_int, entry: Entry) -> bool {
        Row::of(number)
            .is_some_and(|row| row.get(FORK) == self.name && id(row.get(TIED)) == entry.id())
    }

    /// Everything that there is was looked at, by this process.
    pub(crate) fn is_whole(self) -> bool {
        self.is_one_process() && NUMBERS.given() == self.given
    }

    /// This process is the one that has begun: it was not made in the middle, by a handler.
    pub(crate) fn is_one_process(self) -> bool {
        COPIES.load(Ordering::SeqCst) == self.copies
    }

    /// It has failed: nobody has got anything.
    pub(crate) fn undo(self) {
        each(|row| {
            if row.get(FORK) == self.name {
                row.set(FORK, 0);
                holders().less(row.get(TIED) as u32, row.get(COOKIE));
            }
        });
    }
}

/// In a child.
pub(crate) fn is_copy() {
    COPIES.fetch_add(1, Ordering::SeqCst);
}

/// What names a socket, or a set, for those who share it.
fn name(number: c_int, entry: Entry) -> Option<u64> {
    if entry.kind() == Kind::Set {
        let process = getpid().as_raw_nonzero().get().unsigned_abs();
        return Some(1 << 63 | u64::from(process) << 32 | u64::from(entry.id()));
    }
    // SAFETY: the program's socket, for this call, which fails if there is none.
    let file = unsafe { BorrowedFd::borrow_raw(number.max(0)) };
    sockopt::socket_cookie(file).ok()
}

fn each(mut with: impl FnMut(Row)) {
    if PLACE.load(Ordering::Relaxed) != 0 {
        (0..NUMBERS.end()).filter_map(Row::of).for_each(|row| {
            if row.get(TIED) != 0 {
                with(row);
            }
        });
    }
}

/// Nobody else has the socket, by what is counted; if the `cookie` is known, for sure.
pub(crate) fn has(number: c_int, entry: Entry, cookie: Option<u64>) -> bool {
    Row::of(number).is_some_and(|row| {
        let (tied, its) = (row.get(TIED), row.get(COOKIE));
        id(tied) == entry.id()
            && cookie.is_none_or(|cookie| cookie == its)
            && holders().is_one(tied as u32, its)
    })
}

/// Somebody may have it, or do something with it, of whom nobody knows.
pub(crate) fn spread(number: c_int) {
    if let Some(row) = Row::of(number) {
        row.spread();
    }
}

/// The same for all.
pub(crate) fn spread_all() {
    if place::is_ours() {
        each(Row::spread);
    }
}

/// A number was closed, or given to something else. Who sleeps in a call of the kernel's may have
/// the socket still.
pub(crate) fn closed(number: c_int) {
    let Some(row) = Row::of(number) else { return };
    let tied = row.get(TIED);
    if tied != 0 && id(tied) != NUMBERS.look(number).id() {
        row.retire(tied, !uncounted::is_any_of(number));
    }
}

/// The same for all from `first` to `last`.
pub(crate) fn closed_range(first: u32, last: u32) {
    if PLACE.load(Ordering::Relaxed) != 0 {
        let end = NUMBERS.end().unsigned_abs();
        (first..=last)
            .take_while(|number| *number < end)
            .for_each(|number| closed(number as c_int));
    }
}

/// How a process is about to end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Nothing of the program runs after this.
    Now,
    /// Behind what other libraries do last.
    Later,
}

/// The process is about to end.
pub(crate) fn ends(end: End) {
    let is_sure = end == End::Now || is_single() && !uncounted::is_any();
    each(|row| row.retire(row.get(TIED), is_sure));
}
