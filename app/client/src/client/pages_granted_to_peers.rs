//! Holds the pages of this process that peers may be granted, and takes them back.

use crate::fork;
use crate::page_take_back_thread::PageRevocation;
use crate::peer_doorbells::PeerDoorbells;
use crate::progress_thread_state::Progress;
use crate::queue_pair_records::QueuePairs;
use crate::region_extents_by_rkey::Keys;
use crate::{daemon_session::Session, page_adoption_opt_out};
use omniverb_device::Shared;
use omniverb_session::body::{self, LetGo};
use omniverb_terms::{Errno, Rkey};
use std::sync::{Arc, Weak};

/// How extents are taken back from peers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RevocationMode {
    /// Some peers may go on using the region, and lose nothing: operations on the pages are waited
    /// for.
    Kindly,
    /// As [`RevocationMode::Kindly`], for a shorter time, since the program waits in `fork`; and
    /// for requests that are under way until then, a time of the clock.
    BeforeFork(u64),
    /// A peer at the pages reaches a region that is gone: it does so again, and finds none.
    AtOnce,
}

/// What peers may reach, and what of it lies on files of a daemon's.
pub(crate) struct GrantedPages {
    pub(super) keys: Keys,
    /// Extents that are being taken back from peers.
    pub(super) taking: Arc<PageRevocation>,
    pub(super) shared: Arc<Shared>,
    pub(super) session: Arc<Session>,
    pub(super) qps: Arc<QueuePairs>,
    pub(super) bells: Arc<PeerDoorbells>,
    pub(super) progress: Arc<Progress>,
    /// Itself, for the thread that takes pages back.
    pub(super) me: Weak<GrantedPages>,
    /// Which process made it; see [`fork::generation`].
    generation: u64,
    /// The environment says that no pages of this process are to be granted.
    keeps_pages: bool,
}

impl GrantedPages {
    /// Those of a process that has granted none.
    pub(super) fn new(
        shared: Arc<Shared>,
        session: Arc<Session>,
        qps: Arc<QueuePairs>,
        bells: Arc<PeerDoorbells>,
        progress: Arc<Progress>,
    ) -> Arc<GrantedPages> {
        Arc::new_cyclic(|me: &Weak<GrantedPages>| GrantedPages {
            keys: Keys::default(),
            taking: Arc::default(),
            shared,
            session,
            qps,
            bells,
            progress,
            me: me.clone(),
            generation: fork::generation(),
            keeps_pages: page_adoption_opt_out::keeps_pages(),
        })
    }

    /// Whether pages of this process may be granted at all.
    ///
    /// # Errors
    /// `EPERM`.
    pub(super) fn check_may_grant(&self) -> Result<(), Errno> {
        if self.keeps_pages { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// Takes a key's pages back from all peers that mapped them, for good. The right ends first,
    /// before anything that may fail or take long: peers are told by EPOCH, and by the daemon,
    /// which has them let go of their mappings.
    ///
    /// # Errors
    /// errno: the pages could not be moved back: a peer that keeps a mapping reaches them still.
    pub(super) fn revoke(&self, rkey: Rkey, tell_daemon: impl FnOnce()) -> Result<(), Errno> {
        self.keys.mediate_one(rkey);
        if self.keys.has_extents(rkey) {
            let lenders = self.keys.lent_by(std::iter::once(rkey));
            self.qps.those(&lenders).iter().for_each(|qp| qp.revoke_grants());
        }
        tell_daemon();
        // A peer that is at them at this moment reaches a region that is gone.
        self.withdraw_those(|keys| keys.take_out_of(rkey), RevocationMode::AtOnce)
    }

    /// A QP lost access rights: no mapping may outlive them.
    ///
    /// # Errors
    /// errno: as when pages cannot be taken back at deregistration. It is tried again, but peers
    /// that mapped them reach them until that succeeds.
    pub(super) fn revoke_all(&self) -> Result<(), Errno> {
        self.keys.mediate(|_| true);
        self.withdraw(|_, _| true, RevocationMode::Kindly).inspect_err(|_| self.take_all_back())
    }

    /// This process has let go of a piece of a window that it was told of so many times, by the
    /// daemon of this era. Another one does not know it, and may mean something else by it.
    pub(super) fn let_go(&self, (piece, era): (body::Extent, u64), times: u32) {
        // First the socket: an era ends before another one is listened to.
        let is_ours = self.generation == fork::generation();
        let Some(events) = self.progress.listening().filter(|_| is_ours) else { return };
        if self.bells.era() != era {
            return;
        }
        let said = LetGo { memory: piece, times, reserved: 0 };
        self.progress.answer(&events, said.into());
    }
}
