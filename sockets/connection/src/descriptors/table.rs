//! Keeps a word for each descriptor of the process.
//!
//! In: what calls have made of descriptors. Out: what is open at a descriptor. No lock: threads,
//! signal handlers and a `fork` at any instant find whole entries. The order keeps them right. A
//! call that closes or replaces a descriptor forgets it *before* the kernel closes it, since
//! another thread may be given the descriptor at once. A call that was given one writes it
//! afterwards.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Entry, Kind, PIECE, Room, Why};

/// Descriptors are smaller than this; those beyond are not known. It is what Linux allows a process
/// unless an operator says otherwise (`fs.nr_open`).
pub const END: usize = 1 << 20;

/// A word for each descriptor.
pub struct DescriptorTable<R> {
    room: R,
    /// The id last given.
    ids: AtomicU32,
    /// One more than the highest descriptor ever written.
    end: AtomicU32,
}

impl<R: Room> DescriptorTable<R> {
    /// Nothing is known.
    pub const fn new(room: R) -> Self {
        Self { room, ids: AtomicU32::new(0), end: AtomicU32::new(0) }
    }

    /// What is known of a descriptor. What cannot be one is [`Kind::Other`].
    #[inline]
    pub fn look(&self, fd: i32) -> Entry {
        match self.place(fd) {
            Some(word) => Entry(word.load(Ordering::Acquire)),
            None if usize::try_from(fd).is_ok_and(|fd| fd < END) => Entry::default(),
            None => Entry::new(Kind::Other, 0),
        }
    }

    /// Reads an entry for a caller that is about to find out what is open, and then calls
    /// [`Self::guess`].
    pub fn watch(&self, fd: i32) -> Entry {
        self.make(fd).map_or_else(|| self.look(fd), |word| Entry(word.load(Ordering::Acquire)))
    }

    /// The descriptor is about to be closed or replaced. Returns what was known.
    pub fn forget(&self, fd: i32) -> Entry {
        let Some(word) = self.place(fd) else { return Entry::default() };
        // Also where nothing is known: a caller that has just found something out must not write
        // it.
        let next = |was: u64| {
            let generation = Entry(was).generation().wrapping_add(1);
            Some(Entry::default().with_generation(generation).0)
        };
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).map_or(Entry::default(), Entry)
    }

    /// Something new was made.
    pub fn put(&self, fd: i32, kind: Kind) {
        self.write(fd, Entry::new(kind, self.id()));
    }

    /// What was found open at a descriptor of which `seen` was known; not if that is no longer all.
    pub fn guess(&self, fd: i32, seen: Entry, kind: Kind) {
        let Some(word) = self.make(fd) else { return };
        let entry = Entry::new(kind, self.id()).found().with_generation(seen.generation());
        _ = word.compare_exchange(seen.0, entry.0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Restores an entry that was forgotten although its descriptor is still open, unless it was
    /// written since. It counts as given: a scan of all descriptors meanwhile has not seen it.
    pub fn restore(&self, fd: i32, was: Entry) {
        let Some(word) = self.place(fd) else { return };
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
    pub fn turn(&self, fd: i32, kind: Kind) {
        if self.look(fd).kind().is_stream() {
            self.change_all(fd, |entry| entry.with_kind(kind));
        }
    }

    /// It is not to be carried; of a set: no member of it is. The first reason stays.
    pub fn keep(&self, fd: i32, why: Why) {
        let kind = self.look(fd).kind();
        if kind.is_stream() || kind == Kind::Set {
            self.change_all(fd, |entry| match entry.why() {
                Why::Free => entry.with_why(why),
                _ => entry,
            });
        }
    }

    /// Another process is about to have it, too, and is counted. Whether this is the first time; of
    /// several concurrent callers exactly one is told so.
    #[must_use]
    pub fn share(&self, fd: i32, id: u32) -> bool {
        self.change(fd, id, Entry::shared).is_some_and(|was| !was.is_shared())
    }

    /// A holder that is not counted may have it, or is about to use it.
    pub fn loosen(&self, fd: i32) {
        let entry = self.look(fd);
        let is_known = entry.kind().is_stream() || entry.kind() == Kind::Set;
        if is_known && !entry.is_loose() {
            self.change_all(fd, Entry::loose);
        }
    }

    /// How many were ever made or found: nothing is new as long as it is the same.
    pub fn given(&self) -> u32 {
        self.ids.load(Ordering::SeqCst)
    }

    /// Some descriptor but this one is for `id`.
    pub fn has_another(&self, id: u32, fd: i32) -> bool {
        self.fds_of(id).any(|other| other != fd)
    }

    /// The descriptors that are for `id`.
    pub fn fds_of(&self, id: u32) -> impl Iterator<Item = i32> {
        let end = self.end.load(Ordering::Acquire) as i32;
        (0..end).filter(move |fd| id != 0 && self.look(*fd).id() == id)
    }

    /// One more than the highest descriptor of which anything was ever known.
    pub fn end(&self) -> i32 {
        self.end.load(Ordering::Acquire) as i32
    }

    /// `entry`, or what became of it while it was the same thing.
    fn look_as(&self, fd: i32, entry: Entry) -> Entry {
        let now = self.look(fd);
        if now.id() == entry.id() { now } else { entry }
    }

    /// Changes a descriptor's entry, and those of its duplicates.
    fn change_all(&self, fd: i32, to: impl Fn(Entry) -> Entry + Copy) {
        let entry = self.look(fd);
        // What is not known has no id, and nothing is known of it then either.
        if entry.id() == 0 {
            return;
        }
        _ = self.change(fd, entry.id(), to);
        // By the time that was done it may have got a duplicate: look again.
        if self.look(fd).is_duplicated() || entry.is_duplicated() {
            self.fds_of(entry.id()).for_each(|other| _ = self.change(other, entry.id(), to));
        }
    }

    /// What it was, if that was changed.
    fn change(&self, fd: i32, id: u32, to: impl Fn(Entry) -> Entry) -> Option<Entry> {
        let next = |was: u64| (Entry(was).id() == id).then(|| to(Entry(was)).0);
        let word = self.place(fd)?;
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok().map(Entry)
    }

    fn write(&self, fd: i32, entry: Entry) {
        let Some(word) = self.make(fd) else { return };
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
    fn place(&self, fd: i32) -> Option<&AtomicU64> {
        let fd = usize::try_from(fd).ok().filter(|fd| *fd < END)?;
        self.room.piece(fd / PIECE)?.get(fd % PIECE)
    }

    fn make(&self, fd: i32) -> Option<&AtomicU64> {
        let fd = usize::try_from(fd).ok().filter(|fd| *fd < END)?;
        let word = self.room.make(fd / PIECE)?.get(fd % PIECE)?;
        self.end.fetch_max(fd as u32 + 1, Ordering::AcqRel);
        Some(word)
    }
}
