//! Keeps a machine's pair windows, each shared with one neighbour (decision 0039).
//!
//! In: windows that an operator brings, and those that the machine's agent has found. Out: a
//! neighbour's window, or a free one that becomes the neighbour's for good: its owner is written to
//! its ledger before any of it is given away, so that the next daemon gives it to no other. Where
//! windows can be unplugged (decision 0048), an unused one is when there is no slot for another;
//! the slot then gets another file.

use crate::foreign_pair_windows::ForeignWindows;
use crate::link_memory::{Memory, Shared};
use crate::vm_supervisor::MachineSupervisor;
use crate::vm_window_allocator::{PAGE, PieceRange, Pieces};
use crate::vm_window_page_ledger::Ledger;
use omniverb_ring::DoorbellPage;
use omniverb_ring::doorbell::PAGE_BYTES;
use omniverb_ring::shared_atomics::Ordering;
use omniverb_session::body::{Extent, LinkReady};
use omniverb_session::operator::AttachPair;
use omniverb_session::pair_window::{self, BELL_BYTES, DATA_BYTES_MIN, PAIRS_MAX, PlugTrouble};
use omniverb_sys::deferred_close::CloseQueue;
use omniverb_sys::extent::FileId;
use omniverb_sys::{Access, Extent as Pages, random};
use omniverb_tenancy::{Neighbour, PairWindows, SessionId};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Neighbours that are named in a row of status: there is not room for all.
const SHOWN_MAX: usize = 8;
/// Where a window begins in a guest's device is said with its number in the top byte.
const AT_MAX: u64 = 1 << 48;

/// The owner of a window.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WindowOwner {
    Unowned,
    /// A neighbour, and the name of its vNIC, if it was connected since the daemon began.
    Of(Neighbour, Option<String>),
    /// It has an owner that is not known.
    Forgotten,
    /// It has no owner any more: it is unplugged from the machine.
    Over,
}

/// A pair window, and its owner.
#[derive(Debug)]
pub(crate) struct Pair {
    pieces: Arc<Pieces>,
    ledger: Ledger,
    pages: u64,
    owner: WindowOwner,
    /// Where in the guest's device its data part begins.
    at: u64,
    /// Its file, by which another machine that has it is known.
    file: FileId,
}

impl Pair {
    /// Bytes that a ledger has beyond those for pages: the owner of the window.
    pub(crate) const LEDGER_BYTES: u64 = 64;

    /// Whether a window can have this number, place and size.
    pub(crate) fn is_sound(asked: &AttachPair) -> bool {
        let AttachPair { number, data, at, .. } = *asked;
        let placed = at.is_multiple_of(PAGE) && at < AT_MAX;
        placed && (1..=u64::from(PAIRS_MAX)).contains(&number) && data.length >= DATA_BYTES_MIN
    }

    /// A window, which part of it its machine sees, and where; and what was noted of it.
    ///
    /// # Errors
    /// As [`Pieces::new`].
    pub(crate) fn new(
        window: OwnedFd,
        (data, at): (Extent, u64),
        ledger: Ledger,
        bin: CloseQueue,
    ) -> io::Result<Pair> {
        let pieces = Pieces::made_fresh(window, data, ledger.clone(), bin, count_anew)?;
        let (bytes, used) = pieces.sizes();
        let pages = bytes / PAGE;
        let owner = match ledger.trailer(pages)? {
            Some(bytes) => read(&bytes)
                .map_or(WindowOwner::Forgotten, |neighbour| WindowOwner::Of(neighbour, None)),
            None if used > 0 => WindowOwner::Forgotten,
            None => WindowOwner::Unowned,
        };
        let file = Pages::new(pieces.file(), 0, 0).file_id()?;
        Ok(Pair { pieces, ledger, pages, owner, at, file })
    }

    /// Where links are.
    fn links(&self) -> Extent {
        let bells = pair_window::bell_pages(self.pages * PAGE);
        let offset = bells.offset + bells.length;
        Extent { offset, length: self.pages * PAGE - offset }
    }

    /// Its owner, if known.
    fn of(&self) -> Option<&Neighbour> {
        match &self.owner {
            WindowOwner::Of(neighbour, _) => Some(neighbour),
            WindowOwner::Unowned | WindowOwner::Forgotten | WindowOwner::Over => None,
        }
    }

    /// Makes a neighbour its owner, for good.
    fn give(&mut self, neighbour: Neighbour, name: &str) -> io::Result<()> {
        self.ledger.note_trailer(self.pages, &written(&neighbour))?;
        self.owner = WindowOwner::Of(neighbour, Some(name.to_owned()));
        Ok(())
    }

    /// Where pages are: only there, so that they have half of the window at most. Links are there
    /// when there is no other place.
    fn for_pages(&self) -> Extent {
        let Extent { offset, length } = self.links();
        let half = length / 2 / PAGE * PAGE;
        Extent { offset: offset + length - half, length: half }
    }

    /// How many more links of so many bytes there is room for, if each has a doorbell of its own.
    fn room(&self, link_bytes: u64) -> usize {
        let bells = self.pieces.room(pair_window::bell_pages(self.pages * PAGE), BELL_BYTES);
        bells.min(self.pieces.room(self.links(), link_bytes))
    }
}

/// Doorbells lie at the beginning. A wake bridge knows the place of each, and may sleep on the
/// counters of an earlier one: so they begin with random numbers.
fn count_anew(piece: &Pages<&Arc<OwnedFd>>, at: u64) -> io::Result<()> {
    // All of a doorbell: where doorbells are nothing else is given away, links and pages are behind
    // them.
    if piece.length != BELL_BYTES || at >= pair_window::bell_pages(u64::MAX).length {
        return Ok(());
    }
    let pages = piece.map(Access::ReadWrite)?;
    for page in [0, PAGE_BYTES].iter().filter_map(|at| pages.part(*at, PAGE_BYTES)) {
        DoorbellPage::new(page).rung().store(random::number(), Ordering::SeqCst);
    }
    Ok(())
}

/// Bytes of the owner in a ledger.
const WHOSE_BYTES: usize = 40;

fn written(neighbour: &Neighbour) -> [u8; WHOSE_BYTES] {
    let mut bytes = [0; WHOSE_BYTES];
    for (room, word) in bytes.chunks_exact_mut(8).zip(neighbour.proof) {
        room.copy_from_slice(&word.to_le_bytes());
    }
    bytes[32..36].copy_from_slice(&neighbour.uid.to_le_bytes());
    bytes[36] = 1;
    bytes
}

/// No owner, if the bytes are malformed.
fn read(bytes: &[u8; WHOSE_BYTES]) -> Option<Neighbour> {
    let word = |at: usize| bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    let uid = u32::from_le_bytes(*bytes[32..].first_chunk()?);
    let proof = [0, 8, 16, 24].map(word);
    (bytes[36..] == [1, 0, 0, 0] && proof[3] != 0).then_some(Neighbour { proof, uid })
}

/// All of a machine's.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    windows: BTreeMap<u8, Pair>,
    /// Those that the agent has found: bit `number - 1`. Nothing, if it knows nothing of windows.
    present: Option<u64>,
    plugger: Option<MachineSupervisor>,
    /// The identity of this machine towards others, if known.
    this: Option<Neighbour>,
    /// Windows of others that it has plugged in.
    joined: ForeignWindows,
}

impl Pairs {
    /// Those of the machine that is this one to others.
    pub(crate) fn of(this: Option<Neighbour>) -> Pairs {
        Pairs { this, ..Pairs::default() }
    }

    pub(crate) fn this(&self) -> Option<Neighbour> {
        self.this
    }

    /// Whether it has a window of this number, of its own or another machine's.
    pub(crate) fn has(&self, number: u8) -> bool {
        self.windows.contains_key(&number) || self.joined.has(number)
    }

    /// Whether a vNIC of this proof has one.
    pub(crate) fn are_of(&self, proof: [u64; 4]) -> bool {
        self.windows.values().filter_map(Pair::of).any(|owner| owner.proof == proof)
    }

    /// Whether this neighbour has one.
    pub(crate) fn is_given(&self, neighbour: &Neighbour) -> bool {
        self.windows.values().filter_map(Pair::of).any(|owner| owner == neighbour)
    }

    /// The windows of a neighbour.
    pub(crate) fn given_to(&self, neighbour: Neighbour) -> Vec<(FileId, Arc<OwnedFd>)> {
        let his = self.windows.values().filter(|pair| pair.of() == Some(&neighbour));
        his.map(|pair| (pair.file, pair.pieces.file().clone())).collect()
    }

    /// The number of a window without owner that the machine has found.
    fn first_free(&self) -> Option<u8> {
        let mut all = self.windows.iter();
        let free = all
            .find(|(number, pair)| pair.owner == WindowOwner::Unowned && self.is_present(**number));
        free.map(|(number, _)| *number)
    }

    /// How many of these there are.
    pub(crate) fn free(&self) -> usize {
        let free = |(number, pair): &(&u8, &Pair)| {
            pair.owner == WindowOwner::Unowned && self.is_present(**number)
        };
        self.windows.iter().filter(free).count()
    }

    /// Gives a window without owner to another machine before it is plugged in there; false: there
    /// is none.
    ///
    /// # Errors
    /// If it cannot be noted.
    pub(crate) fn give(&mut self, machine: Neighbour, name: &str) -> io::Result<bool> {
        let number = self.first_free();
        let Some(pair) = number.and_then(|number| self.windows.get_mut(&number)) else {
            return Ok(false);
        };
        pair.give(machine, name).map(|()| true)
    }

    /// Windows of other machines' that it has plugged in.
    pub(crate) fn joined(&self) -> &ForeignWindows {
        &self.joined
    }

    /// The same, to be changed.
    pub(crate) fn joined_mut(&mut self) -> &mut ForeignWindows {
        &mut self.joined
    }

    /// Where it has a window of another machine's, if it has that and has found it.
    pub(crate) fn place_of_found(&self, file: FileId) -> Option<PieceRange> {
        self.joined.place_of(file).filter(|place| self.is_present(place.number))
    }

    /// Whether another machine's window can be plugged in: its agent looks, and its supervisor
    /// would.
    pub(crate) fn takes_others(&self) -> bool {
        let takes = |plugger: &MachineSupervisor| plugger.may_join && plugger.left > 0;
        self.present.is_some() && self.plugger.as_ref().is_some_and(takes)
    }

    /// The supervisor's call, which is to be answered now.
    pub(crate) fn take_call(&mut self) -> Option<(SessionId, u64)> {
        let plugger = self.plugger.as_mut()?;
        Some((plugger.operator, plugger.tag.take()?))
    }

    pub(crate) fn add(&mut self, number: u8, pair: Pair) {
        self.windows.insert(number, pair);
    }

    /// The agent has found these.
    pub(crate) fn found(&mut self, present: u64) {
        self.present = Some(present);
    }

    fn is_present(&self, number: u8) -> bool {
        let bit = u32::from(number).checked_sub(1).and_then(|shift| 1_u64.checked_shl(shift));
        bit.is_some_and(|bit| self.present.unwrap_or(0) & bit != 0)
    }

    /// Sets the operator that can plug in more windows; returns the earlier one.
    pub(crate) fn set_plugger(
        &mut self,
        plugger: Option<MachineSupervisor>,
    ) -> Option<MachineSupervisor> {
        std::mem::replace(&mut self.plugger, plugger)
    }

    pub(crate) fn plugger(&self) -> Option<&MachineSupervisor> {
        self.plugger.as_ref()
    }

    /// The call to answer if another window is to be plugged in: none is left for a new neighbour.
    /// A machine that does not find the last window plugged in gets no more. A window that is not
    /// found because its neighbour wrote into it keeps no other from having one.
    pub(crate) fn wanted(&mut self) -> Option<(SessionId, u64)> {
        let given = self.windows.values().all(|pair| pair.owner != WindowOwner::Unowned);
        let left = self.plugger.is_some_and(|plugger| plugger.left > 0);
        (self.present.is_some() && given && left).then(|| self.take_call()).flatten()
    }

    /// Whether there is no place for another one, but would be if one were taken out.
    pub(crate) fn is_full(&self) -> bool {
        let none = self.plugger.is_some_and(|plugger| plugger.can_take_out && plugger.left == 0);
        none && self.windows.values().all(|pair| pair.owner != WindowOwner::Unowned)
    }

    /// The call to answer, and the number of a window to unplug: there is no slot for another, and
    /// this one is unused. `is_there`: whether that machine is attached.
    pub(crate) fn over(
        &mut self,
        is_there: impl Fn(&Neighbour) -> bool,
    ) -> Option<(SessionId, u64, u8)> {
        let waits = self.plugger.is_some_and(|plugger| plugger.tag.is_some());
        if !waits
            || !self.is_full()
            || self.windows.values().any(|pair| pair.owner == WindowOwner::Over)
        {
            return None;
        }
        let unused = |pair: &Pair| {
            // A window that another machine has plugged in, too, is not unplugged there.
            let left = pair.of().is_some_and(|of| of.uid != Neighbour::ALL_USERS || !is_there(of));
            // Nor is a device of its own, which stays as long as QEMU does.
            pair.at != 0 && left && pair.pieces.sizes().1 == 0
        };
        let (number, pair) = self.windows.iter_mut().find(|(_, pair)| unused(pair))?;
        pair.owner = WindowOwner::Over;
        let number = *number;
        let (operator, tag) = self.take_call()?;
        Some((operator, tag, number))
    }

    /// A window that is over is not in the machine any more; false: there is none such.
    pub(crate) fn take_out(&mut self, number: u8) -> bool {
        let over = self.windows.get(&number).is_some_and(|pair| pair.owner == WindowOwner::Over);
        if over {
            self.windows.remove(&number);
        }
        over
    }

    /// As the tables know them. `link_bytes`: of each link. `is_in`: whether another machine has
    /// that window, too.
    pub(crate) fn known(
        &self,
        link_bytes: u64,
        is_in: impl Fn(&Neighbour, FileId) -> bool,
    ) -> PairWindows {
        let (this, may_join) = (self.this, self.takes_others());
        let mut known = PairWindows { this, may_join, ..PairWindows::default() };
        for (number, pair) in &self.windows {
            let present = self.is_present(*number);
            let room = if present { pair.room(link_bytes) } else { 0 };
            match &pair.owner {
                WindowOwner::Unowned if room > 0 => {
                    let least = if known.free == 0 { room } else { known.room.min(room) };
                    (known.free, known.room) = (known.free + 1, least);
                }
                WindowOwner::Of(machine, _)
                    if machine.uid == Neighbour::ALL_USERS && !is_in(machine, pair.file) =>
                {
                    known.coming.insert(*machine);
                }
                WindowOwner::Of(neighbour, _) => _ = known.given.insert(*neighbour, room),
                WindowOwner::Unowned | WindowOwner::Forgotten | WindowOwner::Over => {}
            }
        }
        known
    }

    /// Memory for a link with a neighbour, in its window, or in one that becomes its. `name`: of
    /// its vNIC.
    ///
    /// # Errors
    /// `Unsupported` if there is no window for it, `OutOfMemory` if that is full; the kernel's
    /// error.
    pub(crate) fn make(
        &mut self,
        neighbour: Neighbour,
        name: &str,
        ready: &LinkReady,
    ) -> io::Result<Shared> {
        let his =
            |pair: &Pair| matches!(&pair.owner, WindowOwner::Of(owner, _) if *owner == neighbour);
        let found = self.windows.iter().find(|(_, pair)| his(pair)).map(|(number, _)| *number);
        let number = found.or_else(|| self.first_free()).ok_or(io::ErrorKind::Unsupported)?;
        if !self.is_present(number) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let pair = self.windows.get_mut(&number).ok_or(io::ErrorKind::Unsupported)?;
        match found {
            None => pair.give(neighbour, name)?,
            // A window given by an earlier daemon has no name.
            Some(_) => pair.owner = WindowOwner::Of(neighbour, Some(name.to_owned())),
        }
        let bells = pair_window::bell_pages(pair.pages * PAGE);
        let place = PieceRange { number, at: pair.at };
        Shared::make_in_pair(place, &pair.pieces, (pair.links(), bells), ready)
    }

    /// Memory for pages that are granted, in the window that is this neighbour's, unless the next
    /// link of so many bytes had no place then.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub(crate) fn make_for_pages(
        &self,
        neighbour: &Neighbour,
        bytes: u64,
        link_bytes: u64,
    ) -> io::Result<Memory> {
        let mut all = self.windows.iter();
        let (number, pair) = all
            .find(|(number, pair)| pair.of() == Some(neighbour) && self.is_present(**number))
            .ok_or(io::ErrorKind::Unsupported)?;
        // Of places for links so many are gone at most.
        let taken = usize::try_from(bytes / link_bytes).map_or(usize::MAX, |taken| taken + 2);
        match pair.pieces.room(pair.links(), link_bytes) > taken {
            true => {
                let place = PieceRange { number: *number, at: pair.at };
                Memory::in_pair(place, &pair.pieces, pair.for_pages(), bytes)
            }
            false => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }

    /// The guest was booted afresh: what only its processes had comes back.
    pub(crate) fn boot(&self) {
        self.windows.values().for_each(|pair| pair.pieces.boot());
    }

    /// The machine is parted with.
    pub(crate) fn part(&self) {
        self.windows.values().for_each(|pair| pair.pieces.part());
    }

    /// The windows for the status. `links`: the number of links in them. `others`: machines whose
    /// windows it has.
    pub(crate) fn row(&self, links: usize, others: &[String]) -> Value {
        let owned = |pair: &&Pair| !matches!(pair.owner, WindowOwner::Unowned | WindowOwner::Over);
        let given = self.windows.values().filter(owned);
        let names = given.clone().filter_map(|pair| match &pair.owner {
            WindowOwner::Of(_, name) => name.as_deref(),
            _ => None,
        });
        let names = names.chain(others.iter().map(String::as_str));
        let joined = self.joined.numbers().count();
        let numbers = self.windows.keys().copied().chain(self.joined.numbers());
        let numbers = numbers.filter(|number| self.is_present(*number));
        json!({
            "windows": self.windows.len() + joined,
            "present": numbers.count(),
            "given": given.count() + joined,
            "others": joined,
            "bytes": self.windows.values().map(|pair| pair.pieces.sizes().0).sum::<u64>(),
            "used": self.windows.values().map(|pair| pair.pieces.sizes().1).sum::<u64>(),
            "links": links,
            "more": self.plugger.map_or(0, |plugger| plugger.left),
            "way": if self.plugger.is_some_and(|p| p.can_take_out) { "mapped" } else { "plugged" },
            "trouble": self.plugger.and_then(|plugger| plugger.trouble).map(PlugTrouble::phrase),
            "neighbours": names.take(SHOWN_MAX).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests;
