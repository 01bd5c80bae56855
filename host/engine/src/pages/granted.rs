//! Pages of an application's regions that were granted to one link, mapped here.
//!
//! In: keys and ranges that a peer names; grants of the control plane. Out: bytes copied to and
//! from the pages themselves, and keys to ask the control plane for. The rules are those of a peer
//! on this host ("Mapped operations" in docs/architecture.md), and two more, because the memory is
//! a tenant's and the process that touches it is the daemon: what is mapped is bounded for each
//! vNIC, and only pages that are in memory are touched.

use crate::pages::together::Hold;
use omniverb_link::Endpoint;
use omniverb_link::pace::Pace;
use omniverb_ring::{UserMemory, Window, WordMemory};
use omniverb_sys::window::residency;
use omniverb_wire::Run;
use std::ops::Range;

/// `IBV_ACCESS_REMOTE_WRITE`.
pub(crate) const REMOTE_WRITE: u32 = 1 << 1;
/// `IBV_ACCESS_REMOTE_READ`.
pub(crate) const REMOTE_READ: u32 = 1 << 2;
/// Keys that one link may ask for until something is revoked; as many as a peer on this host.
const KEYS_PER_LINK: usize = 64;
const PAGE_BYTES: usize = 4096;
/// Pages that the kernel is asked about at a time.
const PAGES_AT_ONCE: usize = 32;
/// How long its answer is taken for true, in nanoseconds.
const RESIDENT_TIME: u64 = 1_000_000;

/// One grant: an extent, some of the whole pages of a region.
pub(crate) struct Grant {
    key: u32,
    access: u32,
    /// All whole pages of the region.
    region: Range<u64>,
    /// First address that is mapped.
    start: u64,
    mapped: Option<Hold>,
    /// These bytes are in memory, or were a moment ago.
    resident: Range<usize>,
    /// Until when that is believed.
    until: u64,
}

impl Grant {
    pub(crate) fn new(key: u32, access: u32, start: u64, hold: Hold) -> Grant {
        let region = start..start.saturating_add(hold.window().len() as u64);
        Grant { key, access, region, start, mapped: Some(hold), resident: 0..0, until: 0 }
    }

    /// There is more of the region, which begins at `address` and has `length` bytes.
    pub(crate) fn of_region(mut self, (address, length): (u64, u64)) -> Grant {
        let page = PAGE_BYTES as u64;
        let end = address.saturating_add(length);
        self.region = address.checked_next_multiple_of(page).unwrap_or(end)..end - end % page;
        self
    }

    fn allows(&self, access: u32) -> bool {
        self.access & access == access
    }

    /// The addresses that are mapped.
    fn range(&self) -> Range<u64> {
        let length = self.mapped.as_ref().map_or(0, |hold| hold.window().len());
        self.start..self.start.saturating_add(length as u64)
    }

    /// The window, if touching these bytes neither waits for a disk nor makes pages.
    fn at_hand(&mut self, offset: usize, length: usize, now: u64) -> Option<&Window> {
        let window = self.mapped.as_ref()?.window();
        let end = offset.checked_add(length).filter(|end| *end <= window.len())?;
        if now >= self.until || offset < self.resident.start || end > self.resident.end {
            let first = offset - offset % PAGE_BYTES;
            let needed = (end - first).div_ceil(PAGE_BYTES);
            let count = needed.max(PAGES_AT_ONCE).min((window.len() - first) / PAGE_BYTES);
            let mut pages = [0; PAGES_AT_ONCE];
            let pages = pages.get_mut(..count)?;
            residency(window, first, pages).ok()?;
            let there = pages.iter().take_while(|page| **page & 1 != 0).count();
            self.resident = first..first + there * PAGE_BYTES;
            self.until = now + RESIDENT_TIME;
        }
        (end <= self.resident.end).then_some(window)
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(hold) = self.mapped.take() {
            hold.release();
        }
    }
}

/// What a peer wants to reach.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) key: u32,
    pub(crate) address: u64,
    pub(crate) length: u64,
}

/// Bytes of a region from an address on; `u64::MAX`: to its end.
pub(crate) type Stretch = (u64, u64);

/// A key that was asked for.
struct Asked {
    key: u32,
    pace: Pace,
    /// The application wants to send from it, and no peer has named it.
    own: bool,
}

/// What a link was granted, and what it asked for.
#[derive(Default)]
pub(crate) struct Grants {
    epoch: u64,
    list: Vec<Grant>,
    asked: Vec<Asked>,
    /// What of them the control plane has not been told.
    wanted: Vec<(u32, Stretch)>,
}

/// What a look for one's own region counts as moved, so that a question which was refused is asked
/// again in a while.
const LOOK_BYTES: u64 = 1024;

impl Grants {
    /// Whether a whole message can be executed here. What is not there is asked for, seldom.
    pub(crate) fn reach(&mut self, endpoint: &Endpoint, target: Target, access: u32) -> bool {
        self.follow(endpoint.peer_epoch());
        let Target { key, address, length } = target;
        if let Some(asked) = self.asked.iter_mut().find(|asked| asked.key == key) {
            asked.own = false;
        }
        match self.missing(key, (address, length)) {
            None => self.list.iter().all(|grant| grant.key != key || grant.allows(access)),
            Some(part) => {
                if self.is_whole(target) {
                    self.ask(key, part, (length, false));
                }
                false
            }
        }
    }

    /// Whether all of it is in whole pages of its region, as far as that is known.
    fn is_whole(&self, target: Target) -> bool {
        let known = self.list.iter().find(|grant| grant.key == target.key);
        known.is_none_or(|Grant { region, .. }| {
            let end = target.address.checked_add(target.length);
            target.address >= region.start && end.is_some_and(|end| end <= region.end)
        })
    }

    /// What is not mapped of so many bytes of a key, from the first such byte on.
    fn missing(&self, key: u32, (address, length): Stretch) -> Option<Stretch> {
        let (mut at, mut left) = (address, length);
        while left > 0 {
            let mut ranges = self.list.iter().filter(|grant| grant.key == key).map(Grant::range);
            let Some(range) = ranges.find(|range| range.contains(&at)) else {
                return Some((at, left));
            };
            let step = (range.end - at).min(left);
            (at, left) = (at + step, left - step);
        }
        None
    }

    /// Whether the application's own region is mapped, all of it, for it to send from. What is not
    /// there is asked for, seldom.
    pub(crate) fn has(&mut self, endpoint: &Endpoint, key: u32) -> bool {
        self.follow(endpoint.peer_epoch());
        let region = self.list.iter().find(|grant| grant.key == key).map(|g| g.region.clone());
        let part = match region {
            Some(region) => {
                let all = (region.start, region.end.saturating_sub(region.start));
                let Some((at, _)) = self.missing(key, all) else { return true };
                (at, u64::MAX)
            }
            None => (0, u64::MAX),
        };
        self.ask(key, part, (LOOK_BYTES, true));
        false
    }

    /// Whether nobody but the application itself wants this one to be mapped.
    pub(crate) fn is_own(&self, key: u32) -> bool {
        self.asked.iter().any(|asked| asked.key == key && asked.own)
    }

    fn ask(&mut self, key: u32, part: Stretch, (moves, own): (u64, bool)) {
        let asked = match self.asked.iter_mut().position(|asked| asked.key == key) {
            Some(index) => self.asked.get_mut(index),
            None if self.asked.len() < KEYS_PER_LINK => {
                self.asked.push(Asked { key, pace: Pace::default(), own });
                self.asked.last_mut()
            }
            None => None,
        };
        if asked.is_some_and(|asked| asked.pace.moves(moves)) {
            self.wanted.push((key, part));
        }
    }

    /// When the application takes something back, everything is void.
    fn follow(&mut self, epoch: u64) {
        if epoch != self.epoch {
            self.epoch = epoch;
            self.list.clear();
            self.asked.clear();
            self.wanted.clear();
        }
    }

    /// The extent that all of this is in.
    fn find(&mut self, target: Target, access: u32) -> Option<(&mut Grant, usize)> {
        self.list.iter_mut().filter(|grant| grant.key == target.key).find_map(|grant| {
            let mapped = grant.mapped.as_ref()?.window().len() as u64;
            let offset = target.address.checked_sub(grant.start)?;
            let inside = offset <= mapped && target.length <= mapped - offset;
            (inside && grant.allows(access)).then_some((grant, offset as usize))
        })
    }

    /// Writes a part of a message, `offset` bytes behind its beginning; its last bytes, if they are
    /// the message's, become visible last. False: it has to take the other way, and nothing that
    /// counts was written.
    pub(crate) fn write(
        &mut self,
        endpoint: &Endpoint,
        (target, offset): (Target, u64),
        data: &[u8],
        ends: bool,
        now: u64,
    ) -> bool {
        self.access(endpoint, (target, offset), REMOTE_WRITE, data.len(), now, |window, at| {
            UserMemory::lend(data, |memory| match ends {
                true => window.fill_last_byte_last(at, memory),
                false => window.fill(at, memory),
            });
        })
    }

    /// Writes a run, likewise; the message goes on behind it.
    pub(crate) fn write_run(
        &mut self,
        endpoint: &Endpoint,
        place: (Target, u64),
        run: &Run<'_>,
        now: u64,
    ) -> bool {
        self.access(endpoint, place, REMOTE_WRITE, run.bytes(), now, |window, mut at| {
            for payload in run.payloads() {
                UserMemory::lend(payload, |memory| window.fill(at, memory));
                at += payload.len();
            }
        })
    }

    /// Reads, likewise. False: what is in `bytes` now does not count.
    pub(crate) fn read(
        &mut self,
        endpoint: &Endpoint,
        (target, offset): (Target, u64),
        bytes: &mut [u8],
        now: u64,
    ) -> bool {
        self.access(endpoint, (target, offset), REMOTE_READ, bytes.len(), now, |window, at| {
            UserMemory::lend_mut(bytes, |memory| window.drain(at, memory));
        })
    }

    /// Reads what the application sends from its own region, `bytes` in all, into pieces that
    /// follow each other. False: what is in them does not count.
    pub(crate) fn gather<'a>(
        &mut self,
        endpoint: &Endpoint,
        place: (Target, u64),
        pieces: impl Iterator<Item = &'a mut [u8]>,
        bytes: usize,
        now: u64,
    ) -> bool {
        self.access(endpoint, place, 0, bytes, now, |window, mut at| {
            for piece in pieces {
                let length = piece.len();
                UserMemory::lend_mut(piece, |memory| window.drain(at, memory));
                at += length;
            }
        })
    }

    fn access(
        &mut self,
        endpoint: &Endpoint,
        (target, offset): (Target, u64),
        access: u32,
        length: usize,
        now: u64,
        act: impl FnOnce(&Window, usize),
    ) -> bool {
        let epoch = endpoint.peer_epoch();
        self.follow(epoch);
        if !endpoint.peer_is_open() || offset + length as u64 > target.length {
            return false;
        }
        let Target { key, address, .. } = target;
        let Some(address) = address.checked_add(offset) else { return false };
        let stretch = Target { key, address, length: length as u64 };
        // What crosses from one extent to the next goes the other way.
        let Some((grant, at)) = self.find(stretch, access) else { return false };
        let Some(window) = grant.at_hand(at, length, now) else { return false };
        act(window, at);
        // If the pages went back meanwhile, it may have missed them.
        endpoint.peer_epoch_afterwards() == epoch
    }

    /// Something to ask the control plane for.
    pub(crate) fn take_wanted(&mut self) -> Option<(u32, Stretch)> {
        self.wanted.pop()
    }

    /// The control plane could not be asked; another time.
    pub(crate) fn not_asked(&mut self, key: u32) {
        self.waits_for(key).into_iter().for_each(|asked| asked.pace.not_asked());
    }

    /// The control plane refused. `again`: for now.
    pub(crate) fn refused(&mut self, key: u32, again: bool) {
        self.waits_for(key).into_iter().for_each(|asked| asked.pace.refused(again));
    }

    fn waits_for(&mut self, key: u32) -> Option<&mut Asked> {
        self.asked.iter_mut().find(|asked| asked.key == key && asked.pace.is_waiting())
    }

    /// The control plane granted. Ignored unless it was asked for since the last revocation.
    pub(crate) fn insert(&mut self, endpoint: &Endpoint, grant: Grant, epoch: u32) {
        self.follow(endpoint.peer_epoch());
        let (key, range) = (grant.key, grant.range());
        if self.epoch as u32 != epoch {
            return;
        }
        let Some(asked) = self.waits_for(key) else { return };
        asked.pace.granted(range.end - range.start);
        let apart = |other: &Range<u64>| other.end <= range.start || range.end <= other.start;
        self.list.retain(|other| other.key != key || apart(&other.range()));
        self.list.push(grant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::budget::{Budget, Mappings};
    use crate::testing::fuzz::end;
    use omniverb_link::layout::{REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN, link_bytes};
    use omniverb_sys::{Access, Extent, memfd};

    const START: u64 = 0x7000_0000;

    struct Case {
        application: Endpoint,
        far: Endpoint,
        grants: Grants,
        pages: Window,
        budget: Budget,
    }

    /// The same for both kinds of extents: a file of its own, and a part of a larger one.
    fn both(access: u32, test: impl Fn(Case)) {
        [0, 5 * 4096].into_iter().for_each(|offset| test(case(access, offset)));
    }

    /// Two pages with something in them, then a hole.
    fn case(access: u32, offset: u64) -> Case {
        let memory = Window::private(link_bytes(REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN));
        let (mut application, far) = (end(&memory, 0).unwrap(), end(&memory, 1).unwrap());
        application.open(0);
        let file = memfd::create("test", 3 * 4096 + 2 * offset).unwrap();
        let map = || Extent::new(&file, offset, 3 * 4096).map(Access::ReadWrite).unwrap();
        let (pages, theirs, mut grants) = (map(), map(), Grants::default());
        UserMemory::lend(&[3; 8192], |bytes| pages.fill(0, bytes));
        assert!(!grants.reach(&far, target(0, 8), access), "not granted yet");
        let wanted = Some((9, (START, 8)));
        assert_eq!((grants.take_wanted(), grants.take_wanted()), (wanted, None));
        assert!(!grants.reach(&far, target(0, 8), access) && grants.take_wanted().is_none());
        let budget = Mappings::default().budget();
        let share = budget.share(3 * 4096).unwrap();
        grants.insert(&far, Grant::new(9, access, START, Hold::alone(theirs, share)), 0);
        Case { application, far, grants, pages, budget }
    }

    fn target(offset: i64, length: u64) -> Target {
        Target { key: 9, address: START.wrapping_add_signed(offset), length }
    }

    impl Case {
        fn writes(&mut self, offset: i64, length: usize) -> bool {
            let target = target(offset, length as u64);
            self.grants.write(&self.far, (target, 0), &vec![5; length], true, 1)
        }

        fn reads(&mut self, offset: i64, length: usize) -> bool {
            let target = target(offset, length as u64);
            self.grants.read(&self.far, (target, 0), &mut vec![0; length], 1)
        }

        fn byte(&self, at: usize) -> u8 {
            let mut byte = [0];
            UserMemory::lend_mut(&mut byte, |to| self.pages.drain(at, to));
            byte[0]
        }
    }

    #[test]
    fn what_was_granted_is_reached_and_nothing_else() {
        both(REMOTE_WRITE, |mut case| {
            assert!(case.writes(0, 4096) && case.writes(4095, 4097));
            assert_eq!((case.byte(0), case.byte(8191)), (5, 5));
            for (offset, length) in [(-1, 1), (-1, 8192), (3 * 4096, 1), (3 * 4096 - 1, 2)] {
                assert!(!case.writes(offset, length), "{offset} {length}");
            }
            assert!(!case.grants.reach(&case.far, target(0, u64::MAX), REMOTE_WRITE));
            assert!(!case.reads(0, 8), "no right to read");
            assert!(!case.grants.write(&case.far, (target(0, 8), 4), &[1; 8], true, 1), "too long");
            let other = Target { key: 8, ..target(0, 8) };
            assert!(!case.grants.write(&case.far, (other, 0), &[1; 8], true, 1), "another key");
            case.application.close();
            assert!(!case.writes(0, 8), "the queue pair is gone");
        });
    }

    #[test]
    fn holes_are_left_to_the_application() {
        both(REMOTE_WRITE | REMOTE_READ, |mut case| {
            assert!(case.reads(4096, 4096) && !case.reads(8192, 1) && !case.reads(8191, 2));
            assert!(!case.writes(8192, 1) && !case.writes(8191, 2));
            let mut there = [1];
            residency(&case.pages, 8192, &mut there).unwrap();
            assert_eq!(there[0] & 1, 0, "nothing was put there");
            UserMemory::lend(&[1], |byte| case.pages.fill(8192, byte));
            case.grants.list[0].until = 0; // a millisecond later
            assert!(case.writes(8191, 2));
        });
    }

    #[test]
    fn a_revocation_voids_and_lets_ask_anew() {
        both(REMOTE_WRITE, |mut case| {
            assert!(case.writes(0, 8));
            case.application.advance_epoch();
            assert!(!case.writes(0, 8), "void");
            assert!(!case.grants.reach(&case.far, target(0, 8), REMOTE_WRITE));
            let share = case.budget.share(3 * 4096).unwrap();
            let grant = Grant::new(9, REMOTE_WRITE, START, Hold::alone(case.pages.clone(), share));
            case.grants.insert(&case.far, grant, 1);
            let Case { application, far, grants, .. } = &mut case;
            let place = (target(0, 8), 0);
            assert!(grants.access(far, place, REMOTE_WRITE, 8, 1, |_, _| {}));
            let meanwhile = |_: &Window, _| application.advance_epoch();
            assert!(!grants.access(far, place, REMOTE_WRITE, 8, 1, meanwhile), "perhaps too late");
            assert!(!case.writes(0, 8), "void");
            assert_eq!(case.budget.mappings(), 0, "given back");
            case.grants.take_wanted();
            assert!(!case.grants.reach(&case.far, target(0, 8), REMOTE_WRITE));
            assert_eq!(case.grants.take_wanted(), Some((9, (START, 8))));
            // What was given before everything was taken back does not count, even if it was asked
            // for again since; nor does what nobody asked for.
            let share = case.budget.share(3 * 4096).unwrap();
            let stale = Grant::new(9, REMOTE_WRITE, START, Hold::alone(case.pages.clone(), share));
            case.grants.insert(&case.far, stale, 0);
            assert!(!case.writes(0, 8), "the pages may have gone back since");
            case.application.advance_epoch();
            let share = case.budget.share(3 * 4096).unwrap();
            let late = Grant::new(9, REMOTE_WRITE, START, Hold::alone(case.pages.clone(), share));
            case.grants.insert(&case.far, late, 2);
            assert!(!case.writes(0, 8));
        });
    }
}
