//! Keeps the grants of one link, and its pending requests for grants.
//!
//! In: keys and ranges that a peer names; grants of the control plane. Out: bytes copied to and
//! from the pages themselves, and keys to ask the control plane for. The rules are those of a peer
//! on this host ("Mapped operations" in docs/architecture.md), and two more, because the memory is
//! a tenant's and the process that touches it is the daemon: what is mapped is bounded for each
//! vNIC, and only pages that are in memory are touched.

use crate::command::Row;
use crate::pages::grant::Grant;
use omniverb_datapath::pages::mapped_pages::{MappedPages, REMOTE_READ, REMOTE_WRITE, Target};
use omniverb_datapath::queue_pair::application::Application;
use omniverb_datapath::queue_pair::connected_qp;
use omniverb_link::Endpoint;
use omniverb_link::page_grant_pacing::{Advice, Denial, KeyMoves};
use omniverb_ring::{UserMemory, Window, WordMemory};
use omniverb_terms::Rkey;
use omniverb_wire::{PacketPosition, WriteRun};
use std::ops::Range;

/// Keys that one link may ask for until something is revoked; as many as a peer on this host.
const KEYS_PER_LINK: usize = 64;

/// A queue pair whose application's pages are mapped here.
pub(crate) type Connected = connected_qp::Connected<Grants>;

/// The control plane granted pages of a queue pair's application; `epoch`: see [`crate::Grant`].
pub(crate) fn insert(application: &mut Application<Grants>, grant: Grant, epoch: u32) {
    let (grants, endpoint) = application.pages();
    grants.insert(endpoint, grant, epoch);
}

/// Bytes of a region from an address on; `u64::MAX`: to its end.
pub(crate) type Stretch = (u64, u64);

/// The side that gains by mapping a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ForWhom {
    /// The peer, which has named it.
    Peer,
    /// The application alone, which wants to send from it.
    Owner,
}

/// A key that was asked for.
struct KeyRequest {
    key: Rkey,
    pace: KeyMoves,
    for_whom: ForWhom,
}

/// A link's grants, and its requests for them.
#[derive(Default)]
pub(crate) struct Grants {
    epoch: u64,
    list: Vec<Grant>,
    asked: Vec<KeyRequest>,
    /// Requests that the control plane has not got yet.
    wanted: Vec<(Rkey, Stretch)>,
}

/// Bytes that a check for the application's own region counts as moved, so that a refused question
/// is asked again in a while.
const LOOK_BYTES: u64 = 1024;

impl Grants {
    /// Whether all of it is in whole pages of its region, as far as that is known.
    fn is_whole(&self, target: Target) -> bool {
        let known = self.list.iter().find(|grant| grant.key() == target.key);
        known.is_none_or(|grant| {
            let region = grant.region();
            let end = target.address.checked_add(target.length);
            target.address >= region.start && end.is_some_and(|end| end <= region.end)
        })
    }

    /// The part of so many bytes of a key that is not mapped, from the first such byte on.
    fn missing(&self, key: Rkey, (address, length): Stretch) -> Option<Stretch> {
        let (mut at, mut left) = (address, length);
        while left > 0 {
            let mut ranges = self.list.iter().filter(|grant| grant.key() == key).map(Grant::range);
            let Some(range) = ranges.find(|range| range.contains(&at)) else {
                return Some((at, left));
            };
            let step = (range.end - at).min(left);
            (at, left) = (at + step, left - step);
        }
        None
    }

    /// Whether only the application itself wants this one to be mapped.
    pub(crate) fn is_own(&self, key: Rkey) -> bool {
        self.asked.iter().any(|asked| asked.key == key && asked.for_whom == ForWhom::Owner)
    }

    fn ask(&mut self, key: Rkey, part: Stretch, (moves, for_whom): (u64, ForWhom)) {
        let asked = match self.asked.iter_mut().position(|asked| asked.key == key) {
            Some(index) => self.asked.get_mut(index),
            None if self.asked.len() < KEYS_PER_LINK => {
                self.asked.push(KeyRequest { key, pace: KeyMoves::default(), for_whom });
                self.asked.last_mut()
            }
            None => None,
        };
        if asked.is_some_and(|asked| asked.pace.moves(moves) == Advice::Ask) {
            self.wanted.push((key, part));
        }
    }

    /// Lets go of these, whatever EPOCH says.
    pub(crate) fn withdraw(&mut self, row: &Row) {
        self.list.retain(|grant| !grant.is_of(row));
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
        self.list.iter_mut().filter(|grant| grant.key() == target.key).find_map(|grant| {
            let offset = grant.offset_of(target.address, target.length)?;
            grant.allows(access).then_some((grant, offset))
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
        // Pages of a dead process are not reached; but data that it had sent before leave.
        if access != 0 && endpoint.peer_has_died() {
            return false;
        }
        let Target { key, address, .. } = target;
        let Some(address) = address.checked_add(offset) else { return false };
        let stretch = Target { key, address, length: length as u64 };
        // A message that crosses from one extent to the next goes the other way.
        let Some((grant, at)) = self.find(stretch, access) else { return false };
        let stays = grant.is_in_place();
        let Some(window) = grant.at_hand(at, length, now) else { return false };
        if stays && !endpoint.enter_pages_that_stay(epoch) {
            return false;
        }
        act(window, at);
        if stays {
            endpoint.leave_pages(epoch);
        }
        // If the pages went back meanwhile, it may have missed them.
        endpoint.peer_epoch_afterwards() == epoch
    }

    /// Something to ask the control plane for.
    pub(crate) fn take_wanted(&mut self) -> Option<(Rkey, Stretch)> {
        self.wanted.pop()
    }

    /// The control plane could not be asked; another time.
    pub(crate) fn not_asked(&mut self, key: Rkey) {
        self.waits_for(key).into_iter().for_each(|asked| asked.pace.not_asked());
    }

    /// The control plane refused.
    pub(crate) fn refused(&mut self, key: Rkey, denied: Denial) {
        self.waits_for(key).into_iter().for_each(|asked| asked.pace.refused(denied));
    }

    fn waits_for(&mut self, key: Rkey) -> Option<&mut KeyRequest> {
        self.asked.iter_mut().find(|asked| asked.key == key && asked.pace.is_waiting())
    }

    /// The control plane granted. Ignored unless it was asked for since the last revocation.
    pub(crate) fn insert(&mut self, endpoint: &Endpoint, grant: Grant, epoch: u32) {
        self.follow(endpoint.peer_epoch());
        let (key, range) = (grant.key(), grant.range());
        if self.epoch as u32 != epoch {
            return;
        }
        let Some(asked) = self.waits_for(key) else { return };
        asked.pace.granted(range.end - range.start);
        let apart = |other: &Range<u64>| other.end <= range.start || range.end <= other.start;
        self.list.retain(|other| other.key() != key || apart(&other.range()));
        self.list.push(grant);
    }
}

impl MappedPages for Grants {
    /// Whether a whole message can be executed here. Missing pages are requested, seldom.
    fn reach(&mut self, endpoint: &Endpoint, target: Target, access: u32) -> bool {
        self.follow(endpoint.peer_epoch());
        let Target { key, address, length } = target;
        if let Some(asked) = self.asked.iter_mut().find(|asked| asked.key == key) {
            asked.for_whom = ForWhom::Peer;
        }
        match self.missing(key, (address, length)) {
            None => self.list.iter().all(|grant| grant.key() != key || grant.allows(access)),
            Some(part) => {
                if self.is_whole(target) {
                    self.ask(key, part, (length, ForWhom::Peer));
                }
                false
            }
        }
    }

    /// Whether the application's own region is mapped, all of it, for it to send from. Missing
    /// pages are requested, seldom.
    fn has(&mut self, endpoint: &Endpoint, key: Rkey) -> bool {
        self.follow(endpoint.peer_epoch());
        let region = self.list.iter().find(|grant| grant.key() == key).map(Grant::region);
        let part = match region {
            Some(region) => {
                let all = (region.start, region.end.saturating_sub(region.start));
                let Some((at, _)) = self.missing(key, all) else { return true };
                (at, u64::MAX)
            }
            None => (0, u64::MAX),
        };
        self.ask(key, part, (LOOK_BYTES, ForWhom::Owner));
        false
    }

    /// Writes the part of a message that `stands` there in it, `offset` bytes behind its beginning;
    /// its last bytes, if they are the message's, become visible last. False: it has to take the
    /// other way, and nothing that counts was written.
    fn write(
        &mut self,
        endpoint: &Endpoint,
        (target, offset): (Target, u64),
        data: &[u8],
        stands: PacketPosition,
        now: u64,
    ) -> bool {
        self.access(endpoint, (target, offset), REMOTE_WRITE, data.len(), now, |window, at| {
            UserMemory::lend(data, |memory| match stands.ends() {
                true => window.fill_last_byte_last(at, memory),
                false => window.fill(at, memory),
            });
        })
    }

    /// Writes a run, likewise; the message goes on behind it.
    fn write_run(
        &mut self,
        endpoint: &Endpoint,
        place: (Target, u64),
        run: &WriteRun<'_>,
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
    fn read(
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
    fn gather<'a>(
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
}

#[cfg(test)]
mod tests;
