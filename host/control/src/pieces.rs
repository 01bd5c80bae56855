//! A machine's window, of which pieces are given away: whole pages, to whoever holds a [`Piece`],
//! until he lets go of it.
//!
//! What is free is known here only, and noted in a ledger for the next daemon; nothing in the
//! window says anything about it. A piece that comes back is emptied before it is free, by a thread
//! of the window's own: the kernel takes long for many pages, and lets whoever has the file make it
//! longer. One that somebody may still use does not come back ([`Piece::retire`]), and none does
//! when the machine is parted with: its processes go on with what they have, and the memory is the
//! machine's. So they do with what a daemon before this one gave them.

use crate::disposal::Bin;
use crate::ledger::{Ledger, State};
use omniverb_session::body;
use omniverb_sys::{Extent, lock};
use std::collections::BTreeMap;
use std::io;
use std::iter;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

/// What pieces are multiples of.
pub(crate) const PAGE: u64 = 4096;
/// Bytes of the stack of a thread that empties.
const STACK_BYTES: usize = 64 << 10;

/// The window of a machine, or one that it shares with a neighbour.
#[derive(Debug)]
pub(crate) struct Pieces {
    room: Arc<Room>,
    /// Where in the file what the guest sees begins, and how long it is.
    data: body::Extent,
    /// What is to be emptied: where it begins, how long it is.
    returned: Sender<(u64, u64)>,
    /// The same for the thread that empties, which there is once something was given away.
    to_empty: Mutex<Option<Receiver<(u64, u64)>>>,
    /// Where the file goes in the end.
    bin: Bin,
}

#[derive(Debug)]
struct Room {
    file: Arc<OwnedFd>,
    /// What is free: where it begins, how long it is. No two of them touch.
    free: Mutex<BTreeMap<u64, u64>>,
    /// The same, by pages of what the guest sees, which begins there. Changed with the lock held.
    ledger: Ledger,
    begin: u64,
    /// The machine is parted with.
    over: Mutex<bool>,
    /// What is done with pieces that were emptied.
    fresh: Fresh,
}

/// What is done with a piece once it was emptied, before somebody else gets it: by the thread that
/// empties, since whoever has the file can make that take long. It is told where in what the guest
/// sees the piece begins.
pub(crate) type Fresh = fn(&Extent<&Arc<OwnedFd>>, u64) -> io::Result<()>;

/// Some pages of a window.
#[derive(Debug)]
pub(crate) struct Piece {
    of: Arc<Pieces>,
    offset: u64,
    length: u64,
    retired: Mutex<bool>,
}

impl Pieces {
    /// All of a window but its first page, which the guest knows it by, and what `ledger` says is
    /// given away.
    ///
    /// # Errors
    /// If the file is no memory that can never be cut short, or has not these pages; if the ledger
    /// cannot be read.
    pub(crate) fn new(
        file: OwnedFd,
        data: body::Extent,
        ledger: Ledger,
        bin: Bin,
    ) -> io::Result<Arc<Pieces>> {
        Pieces::made_fresh(file, data, ledger, bin, |_, _| Ok(()))
    }

    /// The same, of which pieces are made as they are to be before they are given again.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn made_fresh(
        file: OwnedFd,
        data: body::Extent,
        ledger: Ledger,
        bin: Bin,
        fresh: Fresh,
    ) -> io::Result<Arc<Pieces>> {
        Pieces::check(&file, data)?;
        let begin = data.offset;
        let (mut free, mut next) = (BTreeMap::new(), 1);
        let pages = data.length / PAGE;
        for given in ledger.given(pages)?.into_iter().chain(iter::once(pages..pages)) {
            if given.start > next {
                free.insert(begin + next * PAGE, (given.start - next) * PAGE);
            }
            next = next.max(given.end);
        }
        let (free, over) = (Mutex::new(free), Mutex::new(false));
        let file = Arc::new(file);
        let room = Arc::new(Room { file, free, ledger, begin, over, fresh });
        let (returned, to_empty) = mpsc::channel();
        let to_empty = Mutex::new(Some(to_empty));
        Ok(Arc::new(Pieces { room, data, returned, to_empty, bin }))
    }

    /// Has a thread empty what comes back.
    fn begin(&self) -> io::Result<()> {
        let mut to_empty = lock(&self.to_empty);
        let Some(receiver) = to_empty.take() else { return Ok(()) };
        let ours = self.room.clone();
        // Ends when nobody can return anything any more.
        let work = move || receiver.into_iter().for_each(|(at, length)| ours.empty(at, length));
        let begun =
            thread::Builder::new().name("window".into()).stack_size(STACK_BYTES).spawn(work);
        if begun.is_err() {
            // It has taken the other end with it: nothing of this window comes back.
            *lock(&self.room.over) = true;
        }
        begun.map(drop)
    }

    /// Whether a file can be a window. Asks no file system.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn check(file: &OwnedFd, data: body::Extent) -> io::Result<()> {
        let extent = Extent::new(file, data.offset, data.length);
        let sound = extent.seals()?.is_for_writers();
        if !sound || !data.offset.is_multiple_of(PAGE) || data.length <= PAGE {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        extent.verify()?;
        Ok(())
    }

    /// So many bytes: zeros, if those who had them before have let go of them as they said.
    ///
    /// # Errors
    /// `OutOfMemory` if there is no such piece; `WouldBlock` if there can be no more threads.
    pub(crate) fn take(self: &Arc<Pieces>, bytes: u64) -> io::Result<Piece> {
        self.take_in(body::Extent { offset: 0, length: self.data.length }, bytes)
    }

    /// The same, of a part of what the guest sees.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(crate) fn take_in(self: &Arc<Pieces>, part: body::Extent, bytes: u64) -> io::Result<Piece> {
        let length = bytes.checked_next_multiple_of(PAGE).filter(|length| *length > 0);
        let length = length.ok_or(io::ErrorKind::InvalidInput)?;
        self.begin()?;
        let mut free = lock(&self.room.free);
        let mut fits = self.free_in(&free, part).filter(|(_, within)| within.1 >= length);
        let ((at, room), (offset, _)) = fits.next().ok_or(io::ErrorKind::OutOfMemory)?;
        drop(fits);
        self.room.note(offset, length, State::Given)?;
        free.remove(&at);
        for (start, end) in [(at, offset), (offset + length, at + room)] {
            if start < end {
                free.insert(start, end - start);
            }
        }
        drop(free);
        Ok(Piece { of: self.clone(), offset, length, retired: Mutex::new(false) })
    }

    /// How many pieces of so many bytes there are in a part of what the guest sees.
    pub(crate) fn room(&self, part: body::Extent, bytes: u64) -> usize {
        let length = bytes.max(1).next_multiple_of(PAGE);
        let free = lock(&self.room.free);
        let pieces: u64 = self.free_in(&free, part).map(|(_, within)| within.1 / length).sum();
        usize::try_from(pieces).unwrap_or(usize::MAX)
    }

    /// What is free, where it begins and how long it is; and how much of that is in a part.
    fn free_in<'a>(
        &self,
        free: &'a BTreeMap<u64, u64>,
        part: body::Extent,
    ) -> impl Iterator<Item = ((u64, u64), (u64, u64))> + use<'a> {
        let begin = self.data.offset + part.offset;
        let end = begin + part.length;
        free.iter().map(move |(at, room)| {
            let (first, last) = ((*at).max(begin), (at + room).min(end));
            ((*at, *room), (first, last.saturating_sub(first)))
        })
    }

    /// Bytes of the window, and how many of them are given away.
    pub(crate) fn sizes(&self) -> (u64, u64) {
        let free: u64 = lock(&self.room.free).values().sum();
        (self.data.length, self.data.length - PAGE - free)
    }

    /// Bytes of the largest piece that there is.
    pub(crate) fn longest(&self) -> u64 {
        lock(&self.room.free).values().copied().max().unwrap_or(0)
    }

    /// The machine is parted with: nothing is emptied any more.
    pub(crate) fn part(&self) {
        *lock(&self.room.over) = true;
    }
}

impl Room {
    fn note(&self, offset: u64, length: u64, state: State) -> io::Result<()> {
        let first = (offset - self.begin) / PAGE;
        self.ledger.note(first..first + length / PAGE, state)
    }

    fn empty(&self, offset: u64, length: u64) {
        if *lock(&self.over) {
            return;
        }
        // What cannot be emptied is nobody's.
        let piece = Extent::new(&self.file, offset, length);
        if piece.empty().and_then(|()| (self.fresh)(&piece, offset - self.begin)).is_ok() {
            self.give_back(offset, length);
        }
    }

    fn give_back(&self, mut offset: u64, mut length: u64) {
        let mut free = lock(&self.free);
        // Who cannot be told that it is free is told that it is not.
        if self.note(offset, length, State::Free).is_err() {
            return;
        }
        if let Some((at, room)) = free.range(..offset).next_back().map(|(at, room)| (*at, *room))
            && at + room == offset
        {
            free.remove(&at);
            (offset, length) = (at, room + length);
        }
        if let Some(room) = free.remove(&(offset + length)) {
            length += room;
        }
        free.insert(offset, length);
    }
}

impl Drop for Pieces {
    /// A guest may have filled all of it, so that the kernel takes long to close it: ours is not to
    /// be the last descriptor.
    fn drop(&mut self) {
        if let Ok(copy) = self.room.file.try_clone() {
            self.bin.put(copy);
        }
    }
}

impl Piece {
    pub(crate) fn extent(&self) -> Extent {
        Extent::new(self.of.room.file.clone(), self.offset, self.length)
    }

    /// Somebody who was told of it may use it for as long as he lives, which nobody hears of: it is
    /// given to nobody else.
    pub(crate) fn retire(&self) {
        *lock(&self.retired) = true;
    }

    /// Its window is over: nothing of it is given back any more.
    pub(crate) fn is_over(&self) -> bool {
        *lock(&self.of.room.over)
    }

    /// Where the guest finds it.
    pub(crate) fn in_guest(&self) -> body::Extent {
        body::Extent { offset: self.offset - self.of.data.offset, length: self.length }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if !*lock(&self.retired) {
            let _ = self.of.returned.send((self.offset, self.length));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_ring::WordMemory;
    use omniverb_ring::sync::Ordering;
    use omniverb_sys::{Access, memfd};

    fn pieces(pages: u64) -> Arc<Pieces> {
        let file = memfd::create("window", (pages + 2) * PAGE).unwrap();
        let data = body::Extent { offset: 2 * PAGE, length: pages * PAGE };
        Pieces::new(file, data, Ledger::none(), Bin::new().unwrap()).unwrap()
    }

    #[test]
    fn pieces_lie_apart_behind_the_first_page_and_come_back() {
        let pieces = pieces(10);
        let taken: Vec<Piece> = [1, 3, 2, 3].map(|n| pieces.take(n * PAGE).unwrap()).into();
        let offsets: Vec<u64> = taken.iter().map(|piece| piece.in_guest().offset / PAGE).collect();
        assert_eq!(offsets, [1, 2, 5, 7]);
        assert_eq!(pieces.sizes(), (10 * PAGE, 9 * PAGE));
        assert_eq!(pieces.take(1).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
        let mut taken: Vec<Option<Piece>> = taken.into_iter().map(Some).collect();
        // In any order they grow together again.
        for index in [1, 3, 0, 2] {
            taken[index] = None;
        }
        until(|| pieces.sizes().1 == 0);
        assert_eq!(pieces.take(9 * PAGE).unwrap().in_guest().offset, PAGE);
        for nonsense in [0, u64::MAX, 10 * PAGE] {
            assert!(pieces.take(nonsense).is_err(), "{nonsense}");
        }
    }

    /// Until the thread that empties has done so.
    fn until(what: impl Fn() -> bool) {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !what() {
            assert!(std::time::Instant::now() < end, "not in time");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    #[test]
    fn who_gets_a_piece_finds_nothing_of_those_before() {
        let pieces = pieces(3);
        let first = pieces.take(PAGE).unwrap();
        first.extent().map(Access::ReadWrite).unwrap().store(8, 1, Ordering::Relaxed);
        drop(first);
        until(|| pieces.sizes().1 == 0);
        let next = pieces.take(PAGE).unwrap();
        assert_eq!(next.in_guest().offset, PAGE);
        let found = next.extent().map(Access::ReadOnly).unwrap();
        assert_eq!(found.load(8, Ordering::Relaxed), 0);
    }

    #[test]
    fn what_somebody_may_still_use_is_neither_emptied_nor_given_to_others() {
        let pieces = pieces(4);
        let [retired, other] = [(); 2].map(|()| pieces.take(PAGE).unwrap());
        let mapped = [&retired, &other].map(|piece| piece.extent().map(Access::ReadWrite).unwrap());
        mapped.iter().for_each(|window| window.store(8, 7, Ordering::Relaxed));
        retired.retire();
        drop(retired);
        // Who comes back behind it has been emptied when this is so.
        drop(pieces.take(PAGE).unwrap());
        until(|| pieces.sizes().1 == 2 * PAGE);
        assert_eq!(pieces.take(PAGE).unwrap().in_guest().offset, 3 * PAGE);
        pieces.part();
        drop(other);
        drop(pieces);
        let found = mapped.map(|window| window.load(8, Ordering::Relaxed));
        assert_eq!(found, [7, 7]);
    }

    #[test]
    fn what_one_daemon_gave_away_the_next_one_does_not() {
        let [window, notes] = [12 * PAGE, 10].map(|bytes| memfd::create("window", bytes).unwrap());
        let attach = || {
            let [file, notes] = [&window, &notes].map(|file| file.try_clone().unwrap());
            let data = body::Extent { offset: 2 * PAGE, length: 10 * PAGE };
            Pieces::new(file, data, Ledger::of(notes), Bin::new().unwrap()).unwrap()
        };
        let offsets = |pieces: &Arc<Pieces>, many: usize| -> Vec<u64> {
            let taken: Vec<_> = (0..many).map(|_| pieces.take(2 * PAGE).unwrap()).collect();
            let offsets = taken.iter().map(|piece| piece.in_guest().offset / PAGE).collect();
            // As at the end of a daemon.
            pieces.part();
            offsets
        };
        let first = attach();
        let returned = first.take(PAGE).unwrap();
        let kept = first.take(2 * PAGE).unwrap();
        drop(returned);
        until(|| first.sizes().1 == 2 * PAGE);
        first.part();
        drop((kept, first));
        let second = attach();
        assert_eq!(second.sizes().1, 2 * PAGE);
        assert_eq!(offsets(&second, 2), [4, 6]);
        drop(second);
        let third = attach();
        assert_eq!(third.sizes().1, 6 * PAGE);
        assert!(third.take(3 * PAGE).is_err());
        assert_eq!(offsets(&third, 1), [8]);
    }

    #[test]
    fn what_is_no_window_is_refused() {
        let file = || memfd::create("window", 4 * PAGE).unwrap();
        for (offset, length) in [(0, PAGE), (0, 5 * PAGE), (1, 2 * PAGE), (0, u64::MAX)] {
            assert!(Pieces::check(&file(), body::Extent { offset, length }).is_err());
        }
        let open = memfd::unsealed("window", 4 * PAGE).unwrap();
        let data = body::Extent { offset: 0, length: 4 * PAGE };
        assert!(Pieces::check(&open, data).is_err(), "it can be cut short");
        let other = std::fs::File::open("/dev/null").unwrap();
        assert!(Pieces::check(&other.into(), data).is_err());
    }
}
