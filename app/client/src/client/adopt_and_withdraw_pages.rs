//! Moves pages of this process onto files when a peer asks to map them, and takes them back.
//!
//! The daemon makes a file and says which pages are to go onto it. The owner decides how much of a
//! region may: a fork has to copy all of it, so that is in proportion to what peers had moved for
//! them (`omniverb_link::page_grant_pacing`).

use super::pages_granted_to_peers::{GrantedPages, RevocationMode};
use crate::daemon_messages_with_fds::MessageWithFiles;
use crate::moved_or_pinned_extent::{Extent, Release};
use crate::region_extents_by_rkey::{Key, Keys, OtherKeysBytes};
use crate::retry_until::retry_until;
use crate::vm_window_loans;
use omniverb_device::Qp;
use omniverb_link::page_grant_pacing;
use omniverb_session::body::{Adopt, Adopted, Released};
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::{Message, encode, page_rights};
use omniverb_sys::available_memory;
use omniverb_sys::clock;
use omniverb_sys::seqpacket;
use omniverb_terms::{Errno, Rkey, Service};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a file that the daemon gave, for pages to go to.
type TargetFile = omniverb_sys::Extent<OwnedFd>;

/// How long a peer may be at pages that are taken back: an honest one copies a large message, or
/// waits for a processor.
const PATIENCE: Duration = Duration::from_millis(200);
/// Budget: how long a fork waits for peers that use pages which are taken back. A peer that is not
/// done by then repeats its operation.
const PATIENCE_BEFORE_FORK: Duration = Duration::from_millis(20);
/// How long a fork waits for other threads that move pages.
const MOVES_BEFORE_FORK: Duration = Duration::from_secs(2);
/// How long a fork waits for copies and requests that are under way, before the child gets copies
/// of pages instead. A signal handler that forks may have interrupted one of its own thread.
const REQUESTS_BEFORE_FORK: Duration = Duration::from_millis(50);
/// How long it takes at most until one sees what another has written.
const MOMENT: Duration = Duration::from_millis(1);

/// Why pages were not moved of which some may be where they were to go: what has no other name.
const STUCK: Errno = Errno::EIO;

/// Why a question for pages is not answered with them.
pub(super) enum GrantRefusal {
    /// An extent is in the way, with this first page: the daemon gave up waiting for it, has it
    /// taken back, or is another one.
    InTheWay(usize),
    Errno(Errno),
}

/// What bounds how much more may be moved.
#[derive(Clone, Copy)]
struct MoveLimits {
    others: OtherKeysBytes,
    /// Bytes that this process can be given, if that was asked.
    memory: Option<u64>,
}

impl From<Errno> for GrantRefusal {
    fn from(errno: Errno) -> GrantRefusal {
        GrantRefusal::Errno(errno)
    }
}

impl GrantedPages {
    /// A peer wants to map part of a region: moves its pages onto the file that came along.
    pub(super) fn adopt(&self, ask: MessageWithFiles<Adopt>) -> Adopted {
        let (token, era) = (ask.said.token, self.bells.era());
        let piece =
            ask.files.as_ref().and_then(|onto| vm_window_loans::piece(ask.said.memory, onto));
        let (errno, epoch) = match self.move_pages(ask) {
            Ok(epoch) => (Errno::NONE, epoch),
            Err(errno) => (errno, 0),
        };
        // Of what failed otherwise nothing is there.
        let unused = errno != Errno::NONE && errno != STUCK;
        if let Some(piece) = piece.filter(|_| unused) {
            self.let_go((piece, era), 1);
        }
        Adopted { token, errno, epoch }
    }

    /// The EPOCH of the link that the pages will be reached by.
    fn move_pages(&self, delivered: MessageWithFiles<Adopt>) -> Result<u32, Errno> {
        let MessageWithFiles { said: ask, files: onto } = delivered;
        self.check_may_grant()?;
        let start = usize::try_from(ask.start).map_err(|_| Errno::EPROTO)?;
        let length = usize::try_from(ask.memory.length).map_err(|_| Errno::EPROTO)?;
        start.checked_add(length).ok_or(Errno::EPROTO)?;
        // While others are on their way back, in another thread, none are moved.
        let Some(_moving) = self.keys.try_move_pages() else { return Err(Errno::EAGAIN) };
        let era = self.bells.era();
        let qp = self.qps.get(ask.qpn).ok_or(Errno::EACCES)?;
        // Files are read for that: not while the keys are locked.
        let is_sealed = self.keys.with(ask.rkey, |key, _| key.is_sealed()).ok_or(Errno::EACCES)?;
        let room = is_sealed.then(available_memory::bytes);
        let lent = self.keys.with(ask.rkey, |key, others| {
            let room = MoveLimits { others, memory: room };
            self.lend((&ask, onto), &qp, key, (start, length), (era, room))?;
            // Before a thread that takes the pages back moves it: the keys are locked.
            Ok(qp.epoch() as u32)
        });
        match lent.ok_or(Errno::EACCES)? {
            Ok(epoch) => Ok(epoch),
            Err(GrantRefusal::Errno(errno)) => Err(errno),
            Err(GrantRefusal::InTheWay(old)) => {
                // Where peers map the region there is no need of a mapping of our own.
                self.keys.with(ask.rkey, |key, _| key.region().own.close());
                self.take_back_those(0, |rkey, extent| (rkey, extent.start()) == (ask.rkey, old));
                Err(Errno::EAGAIN)
            }
        }
    }

    /// Has pages of a key on the file that came along, if they may be.
    fn lend(
        &self,
        (ask, onto): (&Adopt, Option<TargetFile>),
        qp: &Qp,
        key: &mut Key,
        place @ (_, length): (usize, usize),
        (era, room): (u64, MoveLimits),
    ) -> Result<(), GrantRefusal> {
        let piece = onto.as_ref().and_then(|onto| vm_window_loans::piece(ask.memory, onto));
        let mappable = match piece {
            Some(_) => page_rights::mappable_in_window,
            None => page_rights::mappable,
        };
        let uses = mappable(key.region().access, ask.trust());
        check_may_lend(qp, key, uses)?;
        let Some(onto) = onto else {
            return if key.has_extent(place) { Ok(()) } else { Err(Errno::ENOENT.into()) };
        };
        has_room(key, place, room.others)?;
        check_room_twice(key, length, room)?;
        // Before any peer is given anything: later there may be no thread to be had.
        let stay = self.taking.stay(&self.me)?;
        key.adopt((onto, piece), place, (era, stay)).map_err(|errno| {
            self.taking.left();
            GrantRefusal::Errno(errno)
        })
    }

    /// Takes extents back from all peers that mapped them.
    ///
    /// # Errors
    /// errno: some could not be moved back, and peers that mapped them reach them still.
    pub(super) fn withdraw(
        &self,
        which: impl Fn(Rkey, &Extent) -> bool,
        manner: RevocationMode,
    ) -> Result<(), Errno> {
        self.withdraw_those(|keys| keys.take_out(which), manner)
    }

    /// Withdraws the extents that `take` removes from the table of keys.
    ///
    /// # Errors
    /// As [`Self::withdraw`].
    pub(super) fn withdraw_those(
        &self,
        take: impl FnOnce(&Keys) -> Vec<(Rkey, Extent)>,
        manner: RevocationMode,
    ) -> Result<(), Errno> {
        let _moving = self.keys.move_pages();
        self.withdraw_while_moving(take, manner)
    }

    fn withdraw_while_moving(
        &self,
        take: impl FnOnce(&Keys) -> Vec<(Rkey, Extent)>,
        manner: RevocationMode,
    ) -> Result<(), Errno> {
        let taken = take(&self.keys);
        if taken.is_empty() {
            return Ok(());
        }
        let qps = self.qps.those(&self.keys.lent_by(taken.iter().map(|(rkey, _)| *rkey)));
        match manner {
            RevocationMode::BeforeFork(until) if !revoke_grants_until(&qps, until) => {
                taken.into_iter().for_each(|(rkey, extent)| self.keys.put_back(rkey, extent));
                return Err(Errno::EBUSY);
            }
            RevocationMode::BeforeFork(_) => {}
            RevocationMode::Kindly | RevocationMode::AtOnce => {
                qps.iter().for_each(|qp| qp.revoke_grants());
            }
        }
        match manner {
            RevocationMode::Kindly => await_peers(&qps, PATIENCE),
            RevocationMode::BeforeFork(_) => await_peers(&qps, PATIENCE_BEFORE_FORK),
            // No peer is waited for, so a peer that uses the pages is told to redo its operation.
            RevocationMode::AtOnce => qps.iter().for_each(|qp| qp.revoke_grants()),
        }
        let by = match manner {
            RevocationMode::BeforeFork(until) => Release::BeforeFork(until),
            RevocationMode::Kindly | RevocationMode::AtOnce => Release::Waiting,
        };
        // Where pages stay, a late peer would be at what they are for next.
        let keeps = taken.iter().any(|(_, extent)| extent.is_kept());
        let is_left = !keeps || self.await_engine(&qps);
        let (mut outcome, mut released) = (Ok(()), BTreeSet::new());
        for (rkey, extent) in taken {
            if extent.is_kept() && !is_left {
                outcome = Err(Errno::EBUSY);
                self.keys.put_back(rkey, extent);
                continue;
            }
            let era = extent.era();
            match extent.release(by) {
                Ok(piece) => {
                    released.insert(rkey);
                    piece.into_iter().for_each(|piece| self.let_go((piece, era), 1));
                }
                Err((extent, errno)) => {
                    outcome = Err(errno);
                    self.keys.put_back(rkey, extent);
                }
            }
        }
        self.taking.left();
        let gone = released.into_iter().filter(|rkey| self.keys.forget_loans(*rkey));
        gone.for_each(|rkey| self.tell_released(rkey));
        outcome
    }

    /// Has all pages back that are on files, before a fork. What could not be moved the child gets
    /// copies of (`omniverb_adopt`). Nothing is moved where the kernel may be storing: a program
    /// that deregisters ends its requests before, one that forks need not.
    pub(super) fn withdraw_before_fork(&self) {
        let within = |patience: Duration| clock::now() + patience.as_nanos() as u64;
        // Others may be moving some still, which began before this thread was about to fork. One
        // that waits for a copy which this thread is in the middle of never ends.
        let Some(_moving) = self.keys.move_pages_until(within(MOVES_BEFORE_FORK)) else { return };
        let moved = |_, extent: &Extent| !extent.is_kept();
        if !self.keys.extents(moved).is_empty() && !omniverb_adopt::kernel_may_store() {
            let manner = RevocationMode::BeforeFork(within(REQUESTS_BEFORE_FORK));
            let _ = self.withdraw_while_moving(|keys| keys.take_out(moved), manner);
            // What peers had moved until now buys them no pages: a process that forks often moves
            // as much as they need in between.
            self.keys.regions().iter().for_each(|region| region.moved.forget());
        }
    }

    /// The daemon need not keep files for this key.
    fn tell_released(&self, rkey: Rkey) {
        let Some(events) = self.session.events() else { return };
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(0, &Message::from(Released { rkey, reserved: 0 }), &mut bytes);
        // If it does not get that it keeps them until the key goes.
        let _ = seqpacket::try_send(events.as_fd(), &bytes[..length], &[]);
    }
}

/// Whether what the peer of a queue pair may do with a key allows that it has pages of it, for
/// these uses; it is to be told from now on when they are taken back.
pub(super) fn check_may_lend(qp: &Qp, key: &mut Key, uses: u32) -> Result<(), Errno> {
    let (_, attributes) = qp.query();
    let may = !key.is_mediated()
        && may_map(qp.service, attributes.access_flags, uses)
        && qp.pd == key.region().pd
        && qp.lend();
    if !may {
        return Err(Errno::EACCES);
    }
    key.lend_by(qp.number);
    Ok(())
}

/// Whether so much more of a key may be lent, and nothing of it is.
pub(super) fn has_room(
    key: &Key,
    (start, length): (usize, usize),
    others: OtherKeysBytes,
) -> Result<(), GrantRefusal> {
    if let Some(old) = key.extent_within(start, start + length) {
        return Err(GrantRefusal::InTheWay(old));
    }
    let granted = key.granted() + length as u64;
    match page_grant_pacing::allows(granted, key.region().moved.bytes(), others.free) {
        true => Ok(()),
        false => Err(Errno::EAGAIN.into()),
    }
}

/// Whether there is memory for what is on sealed files, and for so many bytes more, to be there
/// once more when it goes back: peers may keep such files for as long as they like. Half of what is
/// free is left to the program.
fn check_room_twice(key: &Key, length: usize, room: MoveLimits) -> Result<(), GrantRefusal> {
    let sealed = room.others.sealed + key.sealed() + length as u64;
    match key.is_sealed() && room.memory.is_none_or(|memory| sealed > memory / 2) {
        true => Err(Errno::EAGAIN.into()),
        false => Ok(()),
    }
}

/// Whether the peer of such a queue pair may use pages so. The daemon asks for none that XRC
/// reaches; should it: one end serves no peer, and what the other serves is its SRQs' (decision
/// 0032).
fn may_map(service: Service, allowed: u32, uses: u32) -> bool {
    let serves = matches!(service, Service::Rc | Service::Uc);
    serves && uses != 0 && allowed & uses == uses
}

/// Revokes what was granted by queue pairs. False: one of them is at a request still at this time
/// of the clock, perhaps in this very thread, and none but some others have revoked anything.
fn revoke_grants_until(qps: &[Arc<Qp>], until: u64) -> bool {
    qps.iter().all(|qp| retry_until(until, || qp.try_revoke_grants().then_some(())).is_some())
}

/// Lets peers come back that are at pages that were granted to them, so that what they do there is
/// not lost.
fn await_peers(qps: &[Arc<Qp>], patience: Duration) {
    let patience = clock::now() + patience.as_nanos() as u64;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_with_rights_of_its_own_lends() {
        let (all, read) = (page_rights::REMOTE, page_rights::REMOTE_READ);
        for service in Service::ALL {
            let lends = matches!(service, Service::Rc | Service::Uc);
            assert_eq!(may_map(service, all, read), lends, "{service}");
            assert!(!may_map(service, all & !read, read) && !may_map(service, all, 0));
        }
    }
}
