//! Extents: parts of this process's regions that are moved onto files, where peers can map them.
//!
//! The daemon makes a file and says which pages are to go onto it. The owner decides how much of a
//! region may: a fork has to copy all of it, so that is in proportion to what peers had moved for
//! them (`omniverb_link::pace`).

use crate::keys::Key;
use crate::lock::lock;
use crate::taking::Stay;
use crate::{Client, memory};
use omniverb_adopt::{AdoptedPages, Strategy};
use omniverb_device::Qp;
use omniverb_link::pace;
use omniverb_session::body::{Adopt, Adopted, Released};
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::{Message, encode, rights};
use omniverb_sys::clock;
use omniverb_sys::socket;
use omniverb_terms::{Errno, Rkey};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Extents of one region: the daemon makes no more of a region of any size.
const EXTENTS_MAX: usize = 192;
/// How often to try to move pages back; each attempt waits for busy threads by itself.
const RELEASE_ATTEMPTS: u32 = 4;

/// How long a peer may be at pages that are taken back: an honest one copies a large message, or
/// waits for a processor.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long it takes at most until one sees what another has written.
const MOMENT: Duration = Duration::from_millis(1);

/// A part of a region that is on a file of a daemon's.
pub(crate) struct Extent {
    pub(crate) pages: AdoptedPages,
    /// Of the daemon.
    pub(crate) era: u64,
    /// Somebody can take it back.
    pub(crate) stay: Stay,
}

impl Client {
    /// A peer wants to map part of a region: moves its pages onto the file that came along.
    pub(crate) fn adopt(&self, ask: &Adopt, files: Vec<OwnedFd>) -> Adopted {
        let (errno, epoch) = match self.move_pages(ask, files) {
            Ok(epoch) => (Errno::NONE, epoch),
            Err(errno) => (errno, 0),
        };
        Adopted { token: ask.token, errno, epoch }
    }

    /// The EPOCH of the link that the pages will be reached by.
    fn move_pages(&self, ask: &Adopt, files: Vec<OwnedFd>) -> Result<u32, Errno> {
        if self.keeps_pages {
            return Err(Errno::EPERM);
        }
        let start = usize::try_from(ask.start).map_err(|_| Errno::EPROTO)?;
        let length = usize::try_from(ask.memory.length).map_err(|_| Errno::EPROTO)?;
        let end = start.checked_add(length).ok_or(Errno::EPROTO)?;
        // While others are on their way back, in another thread, none are moved.
        let Ok(_moving) = self.moving.try_lock() else { return Err(Errno::EAGAIN) };
        let era = self.bells.era();
        let qp = self.qp(ask.qpn).ok_or(Errno::EACCES)?;
        let mut keys = lock(&self.keys);
        let others =
            keys.list.iter().filter(|(rkey, key)| **rkey != ask.rkey && !key.adopted.is_empty());
        let others_free: u64 =
            others.map(|(_, key)| pace::free(key.granted(), key.region.moved.bytes())).sum();
        let key = keys.list.get_mut(&ask.rkey).ok_or(Errno::EACCES)?;
        let uses = rights::mappable(key.region.access, ask.trusted != 0);
        let (_, attributes) = qp.query();
        if key.mediated
            || uses == 0
            || attributes.access_flags & uses != uses
            || qp.pd != key.region.pd
            || !qp.lend()
        {
            return Err(Errno::EACCES);
        }
        if ask.fresh == 0 {
            let same = |p: &&AdoptedPages| p.page_start() == start && p.page_length() == length;
            key.adopted.iter().map(|extent| &extent.pages).find(same).ok_or(Errno::ENOENT)?;
        } else {
            let there = |extent: &&Extent| overlaps(&extent.pages, start, end);
            if let Some(extent) = key.adopted.iter().find(there) {
                // The daemon gave up waiting for it, has it taken back, or is another one.
                let old = extent.pages.page_start();
                drop(keys);
                self.take_back_those(0, |rkey, start, _| (rkey, start) == (ask.rkey, old));
                return Err(Errno::EAGAIN);
            }
            let granted = key.granted() + length as u64;
            if !pace::allows(granted, key.region.moved.bytes(), others_free) {
                return Err(Errno::EAGAIN);
            }
            // Before anybody is given anything: later there may be no thread to be had.
            let stay = self.taking.stay(&self.me)?;
            match key.move_onto(files, ask, (start, length)) {
                Ok(pages) => key.adopted.push(Extent { pages, era, stay }),
                Err(errno) => {
                    drop(stay);
                    self.taking.left();
                    return Err(errno);
                }
            }
        }
        // Before whoever takes the pages back moves it: the keys are locked.
        Ok(qp.epoch() as u32)
    }

    /// Takes extents back from everybody who mapped them. `kindly`: some of those may go on using
    /// the region, and lose nothing.
    ///
    /// # Errors
    /// errno: some could not be moved back, and whoever mapped them reaches them still.
    pub(crate) fn withdraw(
        &self,
        which: impl Fn(Rkey, &AdoptedPages) -> bool,
        kindly: bool,
    ) -> Result<(), Errno> {
        let _moving = lock(&self.moving);
        let mut taken = Vec::new();
        for (rkey, key) in &mut lock(&self.keys).list {
            let chosen = key.adopted.extract_if(.., |extent| which(*rkey, &extent.pages));
            taken.extend(chosen.map(|extent| (*rkey, extent)));
        }
        if taken.is_empty() {
            return Ok(());
        }
        let qps = self.qps.all();
        qps.iter().for_each(|qp| qp.revoke_grants());
        if kindly {
            await_peers(&qps);
        }
        let (mut outcome, mut released) = (Ok(()), BTreeSet::new());
        for (rkey, Extent { pages, era, stay }) in taken {
            match release(pages) {
                Ok(()) => drop((stay, released.insert(rkey))),
                Err((pages, errno)) => {
                    outcome = Err(errno);
                    if let Some(key) = lock(&self.keys).list.get_mut(&rkey) {
                        key.adopted.push(Extent { pages, era, stay });
                    }
                }
            }
        }
        self.taking.left();
        let kept = |rkey: &Rkey| {
            lock(&self.keys).list.get(rkey).is_some_and(|key| !key.adopted.is_empty())
        };
        released.iter().filter(|rkey| !kept(rkey)).for_each(|rkey| self.tell_released(*rkey));
        outcome
    }

    /// The daemon need not keep files for this key.
    fn tell_released(&self, rkey: Rkey) {
        let Some(events) = self.session.events() else { return };
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(0, &Message::from(Released { rkey, reserved: 0 }), &mut bytes);
        // If it does not get that it keeps them until the key goes.
        let _ = socket::try_send(events.as_fd(), &bytes[..length], &[]);
    }
}

/// Lets those come back who are at pages that were granted to them, so that what they do there is
/// not lost.
fn await_peers(qps: &[Arc<Qp>]) {
    let patience = clock::now() + PATIENCE.as_nanos() as u64;
    loop {
        std::thread::sleep(MOMENT);
        if !qps.iter().any(|qp| qp.peers_reach_pages()) {
            return;
        }
        if clock::now() >= patience {
            return qps.iter().for_each(|qp| qp.give_up_on_peers());
        }
    }
}

fn overlaps(pages: &AdoptedPages, start: usize, end: usize) -> bool {
    pages.page_start() < end && start < pages.page_start() + pages.page_length()
}

fn release(mut pages: AdoptedPages) -> Result<(), (AdoptedPages, Errno)> {
    // Other threads may keep the pages busy for a moment; a region must not stay exposed.
    let mut errno = Errno::EIO;
    for _ in 0..RELEASE_ATTEMPTS {
        match pages.release() {
            Ok(()) => return Ok(()),
            Err(failed) => {
                (pages, errno) = (failed.pages, crate::errno::from_raw(failed.error.errno()))
            }
        }
    }
    Err((pages, errno))
}

impl Key {
    /// Bytes of it that are on files.
    fn granted(&self) -> u64 {
        self.adopted.iter().map(|extent| extent.pages.page_length() as u64).sum()
    }

    /// Moves whole pages of the region onto a file.
    fn move_onto(
        &self,
        files: Vec<OwnedFd>,
        ask: &Adopt,
        (start, length): (usize, usize),
    ) -> Result<AdoptedPages, Errno> {
        let extent = memory::next(&mut files.into_iter(), ask.memory)?;
        let region = self.region.memory;
        let begin = start.checked_sub(region.address()).ok_or(Errno::EPROTO)?;
        region.part(begin, length).ok_or(Errno::EPROTO)?;
        if self.adopted.len() >= EXTENTS_MAX {
            return Err(Errno::ENOMEM);
        }
        let writable = rights::is_writable(self.region.access);
        let pages = omniverb_adopt::adopt_onto(extent, start, writable, &Strategy::ALL)
            .map_err(|error| crate::errno::from_raw(error.errno()))?;
        // As many whole pages as the extent has: a range that is none of these is not what the
        // daemon asked for.
        match (pages.page_start(), pages.page_length()) == (start, length) {
            true => Ok(pages),
            false => Err(Errno::EPROTO),
        }
    }
}
