//! Allocates pieces of a machine's window: whole pages, held by a [`Piece`] until it is dropped.
//!
//! The list of free ranges is kept here only, and noted in a ledger for the next daemon; the window
//! itself has no record of it. A piece that comes back is emptied before it is free, by a thread of
//! the window's own: the kernel takes long for many pages, and a holder of the file can make it
//! take longer. A piece that a process may still use does not come back
//! (`leaked_vm_window_pieces.rs`), and none does when the machine is disconnected: its processes go
//! on with their pieces, and the memory is the machine's. The same holds for pieces of an earlier
//! daemon, until the guest is booted afresh.

use crate::leaked_vm_window_pieces::{LeakedPieces, Retired};
use crate::vm_window_page_ledger::{Ledger, State};
use omniverb_session::body;
use omniverb_sys::deferred_close::CloseQueue;
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

/// Where a guest has a pair window: which of its windows that is, and where in the device that it
/// has it by the window's data part begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PieceRange {
    pub(crate) number: u8,
    pub(crate) at: u64,
}

/// The window of a machine, or one that it shares with a neighbour.
#[derive(Debug)]
pub(crate) struct Pieces {
    room: Arc<Room>,
    /// The part of the file that the guest sees.
    data: body::Extent,
    /// Ranges to empty: offset, length.
    returned: Sender<(u64, u64)>,
    /// The other end, for the thread that empties: it starts once a range was given away.
    to_empty: Mutex<Option<Receiver<(u64, u64)>>>,
    /// Where the file goes in the end.
    bin: CloseQueue,
}

#[derive(Debug)]
struct Room {
    file: Arc<OwnedFd>,
    /// Free ranges: length by offset. No two of them touch.
    free: Mutex<BTreeMap<u64, u64>>,
    /// Free and given pages of the guest's part, from `begin` on. Changed with `free` locked.
    ledger: Ledger,
    begin: u64,
    /// Pieces that do not come back.
    left: Mutex<LeakedPieces>,
    /// The machine is parted with.
    over: Mutex<bool>,
    /// Prepares pieces that were emptied.
    fresh: Fresh,
}

/// Prepares an emptied piece for its next holder, on the thread that empties, since a holder of the
/// file can make that take long. The second argument is the piece's offset in the guest's part.
pub(crate) type Fresh = fn(&Extent<&Arc<OwnedFd>>, u64) -> io::Result<()>;

/// Some pages of a window.
#[derive(Debug)]
pub(crate) struct Piece {
    of: Arc<Pieces>,
    offset: u64,
    length: u64,
    retired: Mutex<Retired>,
}

impl Pieces {
    /// All of a window but its first page, which the guest knows it by, and what `ledger` says is
    /// given away: to processes of the guest, which may be there until it is booted afresh.
    ///
    /// # Errors
    /// If the file is no memory that can never be cut short, or has not these pages; if the ledger
    /// cannot be read.
    pub(crate) fn new(
        file: OwnedFd,
        data: body::Extent,
        ledger: Ledger,
        bin: CloseQueue,
    ) -> io::Result<Arc<Pieces>> {
        let pieces = Pieces::made_fresh(file, data, ledger, bin, |_, _| Ok(()))?;
        let given = pieces.given();
        *lock(&pieces.room.left) = LeakedPieces::with(given);
        Ok(pieces)
    }

    /// Like [`new`](Self::new), with a function that prepares each piece before it is given again.
    /// Processes outside the guest may use pieces that are given now; they never come back.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn made_fresh(
        file: OwnedFd,
        data: body::Extent,
        ledger: Ledger,
        bin: CloseQueue,
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
        let (free, over, left) = (Mutex::new(free), Mutex::new(false), Mutex::default());
        let file = Arc::new(file);
        let room = Arc::new(Room { file, free, ledger, begin, left, over, fresh });
        let (returned, to_empty) = mpsc::channel();
        let to_empty = Mutex::new(Some(to_empty));
        Ok(Arc::new(Pieces { room, data, returned, to_empty, bin }))
    }

    /// Has a thread empty what comes back.
    fn begin(&self) -> io::Result<()> {
        let mut to_empty = lock(&self.to_empty);
        let Some(receiver) = to_empty.take() else { return Ok(()) };
        let ours = self.room.clone();
        // Ends when no piece can be returned any more.
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

    /// A piece of so many bytes: zeros, if its earlier holders have released it as they said.
    ///
    /// # Errors
    /// `OutOfMemory` if there is no such piece; `WouldBlock` if there can be no more threads.
    pub(crate) fn take(self: &Arc<Pieces>, bytes: u64) -> io::Result<Piece> {
        self.take_in(body::Extent { offset: 0, length: self.data.length }, bytes)
    }

    /// Like [`take`](Self::take), from a part of what the guest sees.
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
        Ok(Piece { of: self.clone(), offset, length, retired: Mutex::default() })
    }

    /// Takes a piece for pages of a process, as long as half of the window is left for all else.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(crate) fn take_for_pages(self: &Arc<Pieces>, bytes: u64) -> io::Result<Piece> {
        let (all, given) = self.sizes();
        match given.checked_add(bytes).is_some_and(|given| given <= all / 2) {
            true => self.take(bytes),
            false => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }

    /// Ranges that are not free, without the first page: offset, length.
    fn given(&self) -> Vec<(u64, u64)> {
        let (mut given, mut next) = (Vec::new(), self.data.offset + PAGE);
        let end = self.data.offset + self.data.length;
        for (at, length) in lock(&self.room.free).iter().chain(iter::once((&end, &0))) {
            if next < *at {
                given.push((next, at - next));
            }
            next = at + length;
        }
        given
    }

    /// The guest was booted afresh: pieces of its earlier processes come back if no other process
    /// has them.
    pub(crate) fn boot(&self) {
        let left = lock(&self.room.left).boot();
        // If there can be no thread nothing comes back, as ever.
        if !left.is_empty() && self.begin().is_ok() {
            left.into_iter().for_each(|piece| _ = self.returned.send(piece));
        }
    }

    /// The window's file.
    pub(crate) fn file(&self) -> &Arc<OwnedFd> {
        &self.room.file
    }

    /// The number of pieces of so many bytes in a part of what the guest sees.
    pub(crate) fn room(&self, part: body::Extent, bytes: u64) -> usize {
        let length = bytes.max(1).next_multiple_of(PAGE);
        let free = lock(&self.room.free);
        let pieces: u64 = self.free_in(&free, part).map(|(_, within)| within.1 / length).sum();
        usize::try_from(pieces).unwrap_or(usize::MAX)
    }

    /// Free ranges, offset and length; and how much of each is in a part.
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
        // A piece that cannot be emptied is never given again.
        let piece = Extent::new(&self.file, offset, length);
        if piece.empty().and_then(|()| (self.fresh)(&piece, offset - self.begin)).is_ok() {
            self.give_back(offset, length);
        }
    }

    fn give_back(&self, mut offset: u64, mut length: u64) {
        // The next owner of the window goes by the notes made until then.
        let over = lock(&self.over);
        if *over {
            return;
        }
        let mut free = lock(&self.free);
        // If the ledger cannot be told that it is free, it stays given.
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
        self.bin.put_copy(&self.room.file);
    }
}

impl Piece {
    pub(crate) fn extent(&self) -> Extent {
        Extent::new(self.of.room.file.clone(), self.offset, self.length)
    }

    /// A process of the guest that was told of it may use it for as long as it lives, and its end
    /// cannot be seen: no other gets it until the guest is booted afresh.
    pub(crate) fn retire(&self) {
        let left = lock(&self.of.room.left);
        let mut retired = lock(&self.retired);
        *retired = left.in_this_boot(*retired);
    }

    /// Like [`retire`](Self::retire), of a process outside the guest: no other ever gets it.
    pub(crate) fn retire_for_good(&self) {
        *lock(&self.retired) = Retired::ForGood;
    }

    /// Which window it is of.
    pub(crate) fn window(&self) -> &Arc<Pieces> {
        &self.of
    }

    /// Its window is over: nothing of it is given back any more.
    pub(crate) fn is_over(&self) -> bool {
        *lock(&self.of.room.over)
    }

    /// Its place in the part of the window that the guest sees.
    pub(crate) fn in_guest(&self) -> body::Extent {
        body::Extent { offset: self.offset - self.of.data.offset, length: self.length }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let (retired, piece) = (*lock(&self.retired), (self.offset, self.length));
        if lock(&self.of.room.left).comes_back(retired, piece) {
            let _ = self.of.returned.send(piece);
        }
    }
}

#[cfg(test)]
mod tests;
