//! Keeps parts of this process's regions in place, in a virtual machine's memory, where the host's
//! engine reaches them (decision 0045).
//!
//! In: the daemon's question for pages. Out: a ring that keeps them, which the machine's agent
//! takes a copy of; it says where they are. They are the process's own memory all the time: so when
//! they are taken back, the engine has left them before any process is told so.

use super::adopt_and_withdraw_pages::{GrantRefusal, check_may_lend, has_room};
use super::pages_granted_to_peers::GrantedPages;
use crate::region_extents_by_rkey::{Key, OtherKeysBytes};
use omniverb_device::Qp;
use omniverb_session::Message;
use omniverb_session::body::{Adopted, Pin, Pinned};
use omniverb_session::page_rights::{PeerTrust, mappable};
use omniverb_sys::clock;
use omniverb_terms::Errno;
use std::sync::Arc;
use std::time::Duration;

/// How long the engine may be at pages that are taken back: it copies a few packets there, or waits
/// for a processor.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long until it is looked at again.
const LOOK: Duration = Duration::from_micros(20);

impl GrantedPages {
    /// The answer to a question for pages that are to stay where they are.
    pub(super) fn pin(&self, ask: &Pin) -> Message {
        let Pin { token, start, length, .. } = *ask;
        match self.keep_pages(ask) {
            Ok((ring, epoch)) => Pinned { token, epoch, ring, start, length }.into(),
            Err(errno) => Adopted { token, errno, epoch: 0 }.into(),
        }
    }

    /// The number of the ring that keeps them, and the EPOCH of the link that they are reached by.
    fn keep_pages(&self, ask: &Pin) -> Result<(u32, u32), Errno> {
        self.check_may_grant()?;
        let start = usize::try_from(ask.start).map_err(|_| Errno::EPROTO)?;
        let length = usize::try_from(ask.length).map_err(|_| Errno::EPROTO)?;
        start.checked_add(length).ok_or(Errno::EPROTO)?;
        // While others are on their way back, in another thread, none are lent.
        let Some(_moving) = self.keys.try_move_pages() else { return Err(Errno::EAGAIN) };
        let era = self.bells.era();
        let qp = self.qps.get(ask.qpn).ok_or(Errno::EACCES)?;
        let kept = self.keys.with(ask.rkey, |key, others| {
            let ring = self.keep(&qp, key, (start, length), (era, others))?;
            // Before a thread that takes the pages back moves it: the keys are locked.
            Ok((ring, qp.epoch() as u32))
        });
        match kept.ok_or(Errno::EACCES)? {
            Ok(kept) => Ok(kept),
            Err(GrantRefusal::Errno(errno)) => Err(errno),
            Err(GrantRefusal::InTheWay(old)) => {
                self.keys.with(ask.rkey, |key, _| key.region().own.close());
                self.take_back_those(0, |rkey, extent| (rkey, extent.start()) == (ask.rkey, old));
                Err(Errno::EAGAIN)
            }
        }
    }

    fn keep(
        &self,
        qp: &Qp,
        key: &mut Key,
        place: (usize, usize),
        (era, others): (u64, OtherKeysBytes),
    ) -> Result<u32, GrantRefusal> {
        // The engine keeps to the flags.
        check_may_lend(qp, key, mappable(key.region().access, PeerTrust::Trusting))?;
        has_room(key, place, others)?;
        // Before anybody is given anything: later there may be no thread to be had.
        let stay = self.taking.stay(&self.me)?;
        key.keep(place, (era, stay)).map_err(|errno| {
            self.taking.left();
            GrantRefusal::Errno(errno)
        })
    }

    /// Returns when the engine is at none of this process's pages by what it was granted before
    /// these queue pairs voided that; false: it did not leave, and as far as is known it is there.
    /// In a virtual machine the agent's end is not the daemon's: only another daemon shows that.
    pub(super) fn await_engine(&self, qps: &[Arc<Qp>]) -> bool {
        let until = clock::now() + PATIENCE.as_nanos() as u64;
        loop {
            let here = qps.iter().any(|qp| qp.engine_reaches_pages());
            if !here && !self.shared.engine_is_late() {
                return true;
            }
            if clock::now() >= until {
                return false;
            }
            std::thread::sleep(LOOK);
        }
    }
}
