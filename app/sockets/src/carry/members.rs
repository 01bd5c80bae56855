//! Which links are in which epoll set.
//!
//! A set with such members has a row: a place for each member. What a member was put there with is
//! in its link's words, and a link is in one set at most. Whoever joins a set in which somebody
//! sleeps is the kernel's: the sleeper has not looked for him. So sleepers of all sets are counted,
//! whether those have a row by then or not.
//!
//! A set is named by its id, which no other one gets ([`crate::table`]). So a row is of no use any
//! more when no number has that id, and a place when nothing has its link.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use omniverb_stream::descriptors::{Kind, Member, PIECE, Room, Why};

use super::links::{Link, Word};
use super::{clock, waking};
use crate::room::Pieces;
use crate::table::{MEMBERS, NUMBERS};
use crate::{sole, uncounted};

/// Sets with carried members, at a time.
const SETS: usize = 64;
/// Members of one: all are looked at by each call that waits.
pub(super) const MOST: usize = 256;

/// What only the kernel keeps count of: who was told, and that others are not.
pub(super) const NOT_OURS: u32 =
    (libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP) as u32;

/// Words of a row.
const ID: usize = 0;
const VAIN: usize = 1;
const SKIP: usize = 2;
const TURN: usize = 3;
/// One more than the last place that was ever used.
const END: usize = 4;
/// When the kernel was asked for all that there is; 0: it was not.
const ASKED: usize = 5;
const PLACES: usize = 8;
/// Instead of an id: somebody makes the row.
const BUSY: u64 = 1 << 63;
/// How often a link is put where its socket is, which others change at the same time.
const TRIES: u32 = 8;

static ROWS: Pieces<SETS> = Pieces::new();
/// One more than the last row that was ever used.
static USED: AtomicU64 = AtomicU64::new(0);

/// What came of looking for a moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Looked {
    /// Something was found.
    Well,
    /// It was not looked, and something would have been found: so it is worth another look. What
    /// was in vain before still counts: where processes are many a sleep is short now and then.
    Missed,
    /// All the time was spent for nothing, or what was found came so late that the kernel would
    /// have woken us before.
    InVain,
}

/// The row of a set.
#[derive(Clone, Copy)]
pub(super) struct Row {
    words: &'static [AtomicU64],
    index: usize,
}

impl Row {
    fn made(index: usize, words: &[AtomicU64; PIECE]) -> Row {
        // SAFETY: pieces stay for good.
        let words = unsafe { core::slice::from_raw_parts(words.as_ptr(), words.len()) };
        Row { words, index }
    }

    fn at(index: usize) -> Option<Row> {
        ROWS.piece(index).map(|words| Row::made(index, words))
    }

    fn used() -> impl Iterator<Item = Row> {
        (0..USED.load(Ordering::Acquire) as usize).filter_map(Row::at)
    }

    /// The row of a set that has one.
    #[inline]
    pub(super) fn of(set: u32) -> Option<Row> {
        if set == 0 {
            return None;
        }
        Row::used().find(|row| row.words[ID].load(Ordering::Acquire) == u64::from(set))
    }

    /// The row that a link is in.
    #[inline]
    pub(super) fn with(link: Link) -> Option<Row> {
        Row::at((link.get(Word::Set) as usize).checked_sub(1)?)
    }

    pub(super) fn is(self, other: Row) -> bool {
        self.index == other.index
    }

    /// The row of a set, which gets one if there is room.
    fn claim(set: u32) -> Option<Row> {
        if let Some(row) = Row::of(set) {
            return Some(row);
        }
        let row = (0..SETS).find_map(|index| {
            let row = Row::made(index, ROWS.make(index)?);
            row.win(set).then_some(row)
        })?;
        USED.fetch_max(row.index as u64 + 1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        // Another thread may have made one at the same time, of which only one may be there.
        let is_only = Row::used().all(|other| {
            other.index == row.index || other.words[ID].load(Ordering::Acquire) != u64::from(set)
        });
        if !is_only {
            row.words[ID].store(0, Ordering::Release);
        }
        is_only.then_some(row)
    }

    /// It is free, or of a set that was closed, and this set's now.
    fn win(self, set: u32) -> bool {
        let word = &self.words[ID];
        let was = word.load(Ordering::Acquire);
        let is_free = was == 0 || was != BUSY && !is_open(was as u32);
        let (ok, err) = (Ordering::AcqRel, Ordering::Relaxed);
        if !is_free || word.compare_exchange(was, BUSY, ok, err).is_err() {
            return false;
        }
        for place in &self.words[PLACES..PLACES + MOST] {
            if let Some(link) = Link::of_tag(place.swap(0, Ordering::AcqRel)) {
                // It may be in another one by now.
                let mine = self.index as u64 + 1;
                _ = link.word(Word::Set).compare_exchange(mine, 0, ok, err);
                link.let_go();
            }
        }
        self.asked(0);
        word.store(u64::from(set), Ordering::Release);
        true
    }

    /// Calls with each member, until that says that it is enough.
    pub(super) fn each(self, mut with: impl FnMut(Link) -> bool) {
        let end = self.words[END].load(Ordering::Acquire) as usize;
        if end == 0 {
            return;
        }
        let first = self.words[TURN].load(Ordering::Relaxed) as usize % end;
        for at in (first..end).chain(0..first) {
            let place = &self.words[PLACES + at];
            let tag = place.load(Ordering::Acquire);
            if tag == 0 {
                continue;
            }
            let Some(link) = Link::of_tag(tag) else {
                _ = place.compare_exchange(tag, 0, Ordering::AcqRel, Ordering::Relaxed);
                continue;
            };
            let goes_on = with(link);
            link.let_go();
            if !goes_on {
                return;
            }
        }
    }

    /// The next call begins with another member, so that everybody is told of.
    pub(super) fn turn(self) -> u64 {
        self.words[TURN].fetch_add(1, Ordering::Relaxed)
    }

    /// Somebody sleeps in the set, or is about to.
    #[inline]
    pub(super) fn has_sleepers(self) -> bool {
        uncounted::is_slept_in(self.words[ID].load(Ordering::Acquire) as u32)
    }

    /// The kernel was asked not long ago, and has told all.
    pub(super) fn was_asked(self) -> bool {
        !clock::is_over(self.words[ASKED].load(Ordering::Relaxed), clock::MOMENT)
    }

    /// It was asked then; 0: and may have more.
    pub(super) fn asked(self, then: u64) {
        self.words[ASKED].store(then, Ordering::Relaxed);
    }

    /// This call is one that looks; those after some in vain do not.
    pub(super) fn is_worth_looking(self) -> bool {
        let left = self.words[SKIP].load(Ordering::Relaxed);
        self.words[SKIP].store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    /// How looking went.
    pub(super) fn looked(self, how: Looked) {
        let (vain, skip) = match how {
            Looked::Well => (0, 0),
            Looked::Missed => (self.words[VAIN].load(Ordering::Relaxed), 0),
            Looked::InVain => waking::in_vain(self.words[VAIN].load(Ordering::Relaxed)),
        };
        self.words[VAIN].store(vain, Ordering::Relaxed);
        self.words[SKIP].store(skip, Ordering::Relaxed);
    }
}

/// Looking would have been worth it for who waits in the set that a link is in.
pub(super) fn looks_again(link: Link) {
    if let Some(row) = Row::with(link) {
        row.looked(Looked::Missed);
    }
}

/// Some number is for the set of this id.
pub(super) fn is_open(set: u32) -> bool {
    NUMBERS.numbers_of(set).next().is_some()
}

/// A link is in a set, with these events; or it was, and they have changed. `false`: it is in none.
pub(super) fn put(link: Link, member: &Member) -> bool {
    let Some(row) = Row::claim(member.set) else { return false };
    let mine = row.index as u64 + 1;
    let word = link.word(Word::Set);
    if let Some(other) = Row::with(link)
        && other.index != row.index
    {
        if is_open(other.words[ID].load(Ordering::Acquire) as u32) {
            return false;
        }
        take_out(link);
    }
    link.set(Word::Data, member.data);
    link.set(Word::Events, u64::from(member.events));
    // What there is now is news.
    link.set(Word::Told, 0);
    match word.compare_exchange(0, mine, Ordering::SeqCst, Ordering::Acquire) {
        Err(now) if now != mine => return false,
        Err(_) => {}
        Ok(_) => {
            let (ok, err) = (Ordering::SeqCst, Ordering::Relaxed);
            let places = &row.words[PLACES..PLACES + MOST];
            let free = |place: &AtomicU64| place.compare_exchange(0, link.tag(), ok, err).is_ok();
            let Some(at) = places.iter().position(free) else {
                word.store(0, Ordering::Release);
                return false;
            };
            row.words[END].fetch_max(at as u64 + 1, Ordering::SeqCst);
        }
    }
    fence(Ordering::SeqCst);
    // Who sleeps has not looked for it, or not for these events.
    if row.has_sleepers() {
        take_out(link);
        return false;
    }
    true
}

/// A link is in the set that its socket is in, as the table says, and alone there as far as others
/// that wait are concerned. `false`: it cannot be carried where it is.
pub(super) fn join(link: Link, number: c_int, id: u32) -> bool {
    // What is read may be old by the time it is written: so it is read again until it is the same.
    // Whoever changes the table does that first, and looks for the link then.
    let mut found = membership(number, id);
    for _ in 0..TRIES {
        match found {
            Err(_) => return false,
            Ok(None) => take_out(link),
            Ok(Some(member)) if !put(link, &member) => return false,
            Ok(Some(_)) => {}
        }
        fence(Ordering::SeqCst);
        let now = membership(number, id);
        if now == found {
            return true;
        }
        found = now;
    }
    false
}

/// It is in none any more.
pub(super) fn take_out(link: Link) {
    let Some(row) = Row::with(link) else { return };
    let (ok, err) = (Ordering::AcqRel, Ordering::Relaxed);
    for place in &row.words[PLACES..PLACES + MOST] {
        if place.compare_exchange(link.tag(), 0, ok, err).is_ok() {
            break;
        }
    }
    link.set(Word::Set, 0);
}

/// Why what is open at a number cannot be carried while it is a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Apart {
    /// Others have the set, too, for the time being.
    Now,
    /// It never can be.
    Ever,
}

/// Whether what is open at a number may be carried while it is a member: alone in one set, which
/// only this process has, and in nothing else that waits.
pub(super) fn may_be_member(member: &Member) -> Result<(), Apart> {
    let number = NUMBERS.numbers_of(member.set).next();
    let set = number.map(|number| (number, NUMBERS.look(number)));
    let is_known = set.is_some_and(|(_, set)| {
        set.kind() == Kind::Set && !set.was_found() && set.why() == Why::Free
    });
    let mut is_alone = true;
    MEMBERS.of_number(member.number, member.id, |other| {
        is_alone &= other.set == member.set || !is_open(other.set);
    });
    if !is_known || !is_alone || member.events & NOT_OURS != 0 {
        return Err(Apart::Ever);
    }
    let is_ours = set.is_some_and(|(number, set)| sole::is_alone(number, set, None));
    if is_ours { Ok(()) } else { Err(Apart::Now) }
}

/// The set that what is open at a number is in; `Err` if it cannot be carried there.
pub(super) fn membership(number: c_int, id: u32) -> Result<Option<Member>, Apart> {
    let mut found = None;
    MEMBERS.of_number(number, id, |member| {
        if is_open(member.set) {
            found = Some(member);
        }
    });
    match found {
        Some(member) => may_be_member(&member).map(|()| found),
        None => Ok(None),
    }
}
