//! Listens for doorbells that other, untrusted processes ring.
//!
//! A doorbell is a word of the memory that two processes share anyway; the ringer counts the word
//! up and makes one system call ([`ring`]). A thread of the sleeper's sleeps on many such words at
//! once: either the one that is to be woken ([`crate::Sleeper`]), or, if that has to wait for
//! descriptors, one that tells it by what only their process has ([`DoorbellListener`]). So the two
//! share no descriptor and none of the kernel's lists of waiters: a sleeper that has millions of
//! them, or a ringer that holds a lock, keeps no other (decision 0020).
//!
//! A doorbell that is rung without end is heard [`MOST`] times a millisecond and then rests until
//! that is over, so that the others are heard meanwhile.

use crate::{clock, futex, lock};
use omniverb_ring::{DoorbellPage, Window};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Doorbells a thread hears. The kernel's limit is twice that; the cost of a sleep grows with it.
pub(crate) const GROUP: usize = 63;
/// Doorbells that have a thread each, where one thread cannot sleep on many. The others share one
/// that looks at them every [`LOOKS`].
const SINGLES: usize = 64;
const LOOKS: Duration = Duration::from_millis(1);
/// How often a single one looks whether it is over: there is nothing that wakes it for that.
const SINGLE_LOOKS: Duration = Duration::from_millis(200);
/// How often a doorbell is heard in a [`WINDOW`]. A peer that sleeps and is woken in turns, as fast
/// as two processors can, does not get there.
const MOST: u32 = 200;
/// What [`MOST`] is counted in, in nanoseconds.
const WINDOW: u64 = 1_000_000;

/// Wakes the owner of this page.
pub fn ring(page: &DoorbellPage<Window>) {
    page.count_ring();
    futex::wake(page.rung(), 1);
}

/// What starts a thread, under a name.
pub type Spawn = fn(&str, Box<dyn FnOnce() + Send>) -> io::Result<()>;

/// What is told of numbers of doorbells.
type DoorbellCallback = dyn Fn(&[u64]) + Send + Sync;

/// Hears doorbells, and tells. Its threads end soon after it is dropped.
pub struct DoorbellListener {
    tell: Arc<DoorbellCallback>,
    spawn: Spawn,
    /// Doorbells that one thread can hear.
    pub(crate) room: usize,
    groups: Mutex<Vec<Arc<DoorbellGroup>>>,
    last: AtomicU64,
}

impl DoorbellListener {
    /// Hears nothing yet. `tell` is called by its threads after a doorbell was rung; it must not
    /// block.
    pub fn new(spawn: Spawn, tell: impl Fn() + Send + Sync + 'static) -> DoorbellListener {
        DoorbellListener::naming(spawn, move |_| tell())
    }

    /// The same; `tell` is told the numbers of the doorbells that were rung, and once of each new
    /// one, which may have been.
    pub fn naming(spawn: Spawn, tell: impl Fn(&[u64]) + Send + Sync + 'static) -> DoorbellListener {
        DoorbellListener::with_room(if futex::has_wait_any() { GROUP } else { 1 }, spawn, tell)
    }

    #[cfg(test)]
    pub(crate) fn limit_room(&mut self, room: usize) {
        self.room = room;
    }

    fn with_room(
        room: usize,
        spawn: Spawn,
        tell: impl Fn(&[u64]) + Send + Sync + 'static,
    ) -> DoorbellListener {
        DoorbellListener {
            tell: Arc::new(tell),
            spawn,
            room,
            groups: Mutex::default(),
            last: AtomicU64::new(0),
        }
    }

    /// Hears the doorbell of this page from now on, and tells at least once. The number it is to be
    /// [removed](Self::remove) by; no other ever has it.
    ///
    /// # Errors
    /// `EAGAIN` if there can be no thread for it.
    pub fn add(&self, page: DoorbellPage<Window>) -> io::Result<u64> {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let mut groups = lock(&self.groups);
        groups.retain(|group| !group.over.load(Ordering::SeqCst));
        if let Some(group) = groups.iter().find(|group| group.has_room(self.room)) {
            lock(&group.bells).insert(number, page);
            group.change();
            return Ok(number);
        }
        let way = match (self.room, groups.len()) {
            (1, ..SINGLES) => SleepMode::Alone,
            (1, _) => SleepMode::Looking,
            _ => SleepMode::Many,
        };
        let group = Arc::new(DoorbellGroup { way, ..DoorbellGroup::default() });
        lock(&group.bells).insert(number, page);
        let (tell, theirs) = (self.tell.clone(), group.clone());
        (self.spawn)("omniverb-bells", Box::new(move || theirs.hear(&*tell)))?;
        groups.push(group);
        Ok(number)
    }

    /// No longer hears doorbell `number`.
    pub fn remove(&self, number: u64) {
        for group in lock(&self.groups).iter() {
            let mut bells = lock(&group.bells);
            if bells.remove(&number).is_some() {
                // A thread that hears one doorbell hears no other after it.
                group.over.fetch_or(self.room == 1 && bells.is_empty(), Ordering::SeqCst);
                drop(bells);
                group.change();
                return;
            }
        }
    }
}

impl Drop for DoorbellListener {
    fn drop(&mut self) {
        for group in lock(&self.groups).iter() {
            group.over.store(true, Ordering::SeqCst);
            group.change();
        }
    }
}

/// How a thread waits for its doorbells.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum SleepMode {
    /// It sleeps on all of them.
    #[default]
    Many,
    /// It sleeps on the only one.
    Alone,
    /// It looks at them from time to time.
    Looking,
}

/// The doorbells of one thread.
#[derive(Default)]
pub(crate) struct DoorbellGroup {
    way: SleepMode,
    pub(crate) bells: Mutex<BTreeMap<u64, DoorbellPage<Window>>>,
    /// Counted up after a change of them.
    pub(crate) changes: AtomicU64,
    over: AtomicBool,
}

impl DoorbellGroup {
    fn has_room(&self, room: usize) -> bool {
        self.way == SleepMode::Looking || lock(&self.bells).len() < room
    }

    fn change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        futex::wake(&self.changes, 1);
    }

    /// What the thread does.
    fn hear(&self, tell: &dyn Fn(&[u64])) {
        let mut known = None;
        let mut bells: Vec<WatchedDoorbell> = Vec::new();
        let mut rung = Vec::new();
        while !self.over.load(Ordering::SeqCst) {
            let changes = futex::low(&self.changes);
            let now = clock::now();
            if known != Some(changes) {
                known = Some(changes);
                // What was rung before we looked for the first time.
                let new = self.take_changes(&mut bells);
                if !new.is_empty() {
                    tell(&new);
                }
            }
            rung.clear();
            rung.extend(bells.iter_mut().filter_map(|bell| bell.look(now).then_some(bell.number)));
            if !rung.is_empty() {
                tell(&rung);
            } else {
                match (self.way, bells.first_mut()) {
                    (SleepMode::Alone, Some(bell)) => bell.sleep_alone(now),
                    (SleepMode::Looking, _) => std::thread::sleep(LOOKS),
                    _ => sleep(&mut bells, (&self.changes, changes), now, None),
                }
            }
        }
    }

    /// Brings `bells` up to date. The numbers of those that are new.
    pub(crate) fn take_changes(&self, bells: &mut Vec<WatchedDoorbell>) -> Vec<u64> {
        let present = lock(&self.bells);
        bells.retain(|bell| present.contains_key(&bell.number));
        let mut new = Vec::new();
        for (number, page) in present.iter() {
            if !bells.iter().any(|bell| bell.number == *number) {
                bells.push(WatchedDoorbell::new(*number, page.clone()));
                new.push(*number);
            }
        }
        new
    }
}

/// Sleeps until one of the doorbells is rung, one that rests may be heard again, `changes` changes,
/// or the clock says `until`.
pub(crate) fn sleep(
    bells: &mut [WatchedDoorbell],
    changes: (&AtomicU64, u32),
    now: u64,
    until: Option<u64>,
) {
    let (mut words, mut whose) = (vec![changes], Vec::new());
    let mut until = until.unwrap_or(u64::MAX);
    for (index, bell) in bells.iter().enumerate() {
        match bell.rests(now) {
            Some(end) => until = until.min(end),
            None => {
                words.push((bell.page.rung(), bell.seen));
                whose.push(index);
            }
        }
    }
    let woken = futex::wait_any(&words, (until != u64::MAX).then_some(until));
    // Woken without a change of the word that says why: that, too, is counted.
    if let Some(by) = woken.and_then(|word| word.checked_sub(1)) {
        bells[whose[by]].woken(now);
    }
}

/// A doorbell as the thread knows it.
pub(crate) struct WatchedDoorbell {
    number: u64,
    page: DoorbellPage<Window>,
    /// The word, when it was looked at last.
    seen: u32,
    /// When it was first heard in this window, and how often since.
    since: u64,
    heard: u32,
}

impl WatchedDoorbell {
    fn new(number: u64, page: DoorbellPage<Window>) -> WatchedDoorbell {
        let seen = futex::low(page.rung());
        WatchedDoorbell { number, page, seen, since: 0, heard: 0 }
    }

    /// Whether it was rung since.
    pub(crate) fn look(&mut self, now: u64) -> bool {
        if self.rests(now).is_some() {
            return false;
        }
        let before = std::mem::replace(&mut self.seen, futex::low(self.page.rung()));
        let rung = before != self.seen;
        if rung {
            self.count(now);
        }
        rung
    }

    /// A sleep on it ended. What [`look`](Self::look) will see is counted there.
    fn woken(&mut self, now: u64) {
        if futex::low(self.page.rung()) == self.seen {
            self.count(now);
        }
    }

    fn count(&mut self, now: u64) {
        if now.saturating_sub(self.since) > WINDOW {
            (self.since, self.heard) = (now, 0);
        }
        self.heard += 1;
    }

    /// When it is heard again, if not now.
    fn rests(&self, now: u64) -> Option<u64> {
        let end = self.since + WINDOW;
        (self.heard >= MOST && now <= end).then_some(end + 1)
    }

    fn sleep_alone(&mut self, now: u64) {
        match self.rests(now) {
            Some(end) => std::thread::sleep(Duration::from_nanos(end - now)),
            None => {
                futex::wait(self.page.rung(), self.seen, SINGLE_LOOKS);
                self.woken(now);
            }
        }
    }
}

#[cfg(test)]
mod tests;
