//! The table of descriptor numbers.
//!
//! In: what calls have made of descriptors. Out: what is open at a number. No lock: threads, signal
//! handlers and a `fork` at any instant find whole entries. What keeps them right is the order: who
//! closes or replaces a number forgets it *before* the kernel does, since another thread may be
//! given the number at once; who was given one writes it afterwards.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Entry, Kind, PIECE, Room, Why};

/// Numbers are smaller than this; those beyond are not known. It is what Linux allows a process
/// unless an operator says otherwise (`fs.nr_open`).
pub const END: usize = 1 << 20;

/// A word for each number.
pub struct Numbers<R> {
    room: R,
    /// The id last given.
    ids: AtomicU32,
    /// One more than the highest number ever written.
    end: AtomicU32,
}

impl<R: Room> Numbers<R> {
    /// Nothing is known.
    pub const fn new(room: R) -> Self {
        Self { room, ids: AtomicU32::new(0), end: AtomicU32::new(0) }
    }

    /// What is known of a number. What cannot be one is [`Kind::Other`].
    #[inline]
    pub fn look(&self, number: i32) -> Entry {
        match self.place(number) {
            Some(word) => Entry(word.load(Ordering::Acquire)),
            None if usize::try_from(number).is_ok_and(|number| number < END) => Entry::default(),
            None => Entry::new(Kind::Other, 0),
        }
    }

    /// The same for who is about to find out what is open, and to say it with [`Self::guess`].
    pub fn watch(&self, number: i32) -> Entry {
        self.make(number)
            .map_or_else(|| self.look(number), |word| Entry(word.load(Ordering::Acquire)))
    }

    /// The number is about to be closed or replaced. Returns what was known.
    pub fn forget(&self, number: i32) -> Entry {
        let Some(word) = self.place(number) else { return Entry::default() };
        // Where nothing is known, too: who has just found something out must not write it.
        let next = |was: u64| {
            let generation = Entry(was).generation().wrapping_add(1);
            Some(Entry::default().with_generation(generation).0)
        };
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).map_or(Entry::default(), Entry)
    }

    /// Something new was made.
    pub fn put(&self, number: i32, kind: Kind) {
        self.write(number, Entry::new(kind, self.id()));
    }

    /// What was found open at a number of which `seen` was known; not if that is no longer all.
    pub fn guess(&self, number: i32, seen: Entry, kind: Kind) {
        let Some(word) = self.make(number) else { return };
        let entry = Entry::new(kind, self.id()).found().with_generation(seen.generation());
        _ = word.compare_exchange(seen.0, entry.0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// What was forgotten is still open after all, unless somebody has written since. It counts as
    /// given: who has looked through all numbers meanwhile has not seen it.
    pub fn restore(&self, number: i32, was: Entry) {
        let Some(word) = self.place(number) else { return };
        _ = self.id();
        let generation = was.generation().wrapping_add(1);
        let now = Entry::default().with_generation(generation);
        let again = was.with_generation(generation);
        _ = word.compare_exchange(now.0, again.0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// `to` is a duplicate of `from`.
    pub fn copy(&self, from: i32, to: i32) {
        let entry = self.look(from);
        if entry.kind() == Kind::Unknown {
            self.forget(to);
            return;
        }
        _ = self.change(from, entry.id(), Entry::duplicated);
        self.write(to, self.look_as(from, entry).duplicated());
    }

    /// What is open there is something else now.
    pub fn turn(&self, number: i32, kind: Kind) {
        if self.look(number).kind().is_stream() {
            self.change_all(number, |entry| entry.with_kind(kind));
        }
    }

    /// It is not to be carried; of a set: no member of it is. The first reason stays.
    pub fn keep(&self, number: i32, why: Why) {
        let kind = self.look(number).kind();
        if kind.is_stream() || kind == Kind::Set {
            self.change_all(number, |entry| match entry.why() {
                Why::Free => entry.with_why(why),
                _ => entry,
            });
        }
    }

    /// Another process is about to have it, too, and is counted. Whether this is the first time,
    /// which it is for one of those who say so at the same time.
    #[must_use]
    pub fn share(&self, number: i32, id: u32) -> bool {
        self.change(number, id, Entry::shared).is_some_and(|was| !was.is_shared())
    }

    /// Somebody who is not counted may have it, or is about to be at it.
    pub fn loosen(&self, number: i32) {
        let entry = self.look(number);
        let is_known = entry.kind().is_stream() || entry.kind() == Kind::Set;
        if is_known && !entry.is_loose() {
            self.change_all(number, Entry::loose);
        }
    }

    /// How many were ever made or found: nothing is new as long as it is the same.
    pub fn given(&self) -> u32 {
        self.ids.load(Ordering::SeqCst)
    }

    /// Some number but this one is for `id`.
    pub fn has_another(&self, id: u32, number: i32) -> bool {
        self.numbers_of(id).any(|other| other != number)
    }

    /// The numbers that are for `id`.
    pub fn numbers_of(&self, id: u32) -> impl Iterator<Item = i32> {
        let end = self.end.load(Ordering::Acquire) as i32;
        (0..end).filter(move |number| id != 0 && self.look(*number).id() == id)
    }

    /// One more than the highest number of which anything was ever known.
    pub fn end(&self) -> i32 {
        self.end.load(Ordering::Acquire) as i32
    }

    /// `entry`, or what became of it while it was the same thing.
    fn look_as(&self, number: i32, entry: Entry) -> Entry {
        let now = self.look(number);
        if now.id() == entry.id() { now } else { entry }
    }

    /// Changes a number's entry, and those of its duplicates.
    fn change_all(&self, number: i32, to: impl Fn(Entry) -> Entry + Copy) {
        let entry = self.look(number);
        // What is not known has no id, and nothing is known of it then either.
        if entry.id() == 0 {
            return;
        }
        _ = self.change(number, entry.id(), to);
        // By the time that was done it may have got a duplicate: look again.
        if self.look(number).is_duplicated() || entry.is_duplicated() {
            self.numbers_of(entry.id()).for_each(|other| _ = self.change(other, entry.id(), to));
        }
    }

    /// What it was, if that was changed.
    fn change(&self, number: i32, id: u32, to: impl Fn(Entry) -> Entry) -> Option<Entry> {
        let next = |was: u64| (Entry(was).id() == id).then(|| to(Entry(was)).0);
        let word = self.place(number)?;
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok().map(Entry)
    }

    fn write(&self, number: i32, entry: Entry) {
        let Some(word) = self.make(number) else { return };
        let next =
            |was: u64| Some(entry.with_generation(Entry(was).generation().wrapping_add(1)).0);
        _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }

    /// Never 0, and not one that is in use unless four thousand million have been given.
    fn id(&self) -> u32 {
        match self.ids.fetch_add(1, Ordering::Relaxed).wrapping_add(1) {
            0 => self.id(),
            id => id,
        }
    }

    #[inline]
    fn place(&self, number: i32) -> Option<&AtomicU64> {
        let number = usize::try_from(number).ok().filter(|number| *number < END)?;
        self.room.piece(number / PIECE)?.get(number % PIECE)
    }

    fn make(&self, number: i32) -> Option<&AtomicU64> {
        let number = usize::try_from(number).ok().filter(|number| *number < END)?;
        let word = self.room.make(number / PIECE)?.get(number % PIECE)?;
        self.end.fetch_max(number as u32 + 1, Ordering::AcqRel);
        Some(word)
    }
}
