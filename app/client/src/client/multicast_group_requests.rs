//! Manages the multicast groups that queue pairs are attached to.
//!
//! The daemon makes a link for each, by which copies come, and joins the group before it says that
//! the link is ready. An attach waits for that: what is sent afterwards arrives. Such a link may
//! end later unasked, with the daemon above all; nothing that is sent would bring another one, so
//! it is asked for again (`DeferredCall::Attach`), at intervals, as long as the queue pair is
//! attached.

use super::pages_granted_to_peers::GrantedPages;
use crate::daemon_caller_trait::DaemonCaller;
use crate::deferred_daemon_calls::{CallOutcome, DeferredCall};
use crate::queue_pair_records::QueuePairs;
use omniverb_device::Qp;
use omniverb_device::qp_attributes::State;
use omniverb_session::Message;
use omniverb_session::body::{AttachGroup, DisconnectQp, GroupAttached, LinkReady};
use omniverb_sys::{lock, try_lock};
use omniverb_terms::{Errno, Gid, Qpn};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long an attach waits for the link of a group. The daemon may have to open the vNIC's port
/// first, which an ending process may still hold for a moment.
const LINK_WAIT: Duration = Duration::from_secs(10);

/// How long a queue pair is not destroyed because messages to a group have no link yet. The daemon
/// asks no other host for it, so it takes a moment, unless there is no daemon.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Whether messages can come to a queue pair in this state.
fn receives(state: State) -> bool {
    !matches!(state, State::Reset | State::Init | State::Err)
}

/// Waits until what was sent to groups has left: a program that only sends to them, and ends, has
/// no answer to wait for.
pub(super) fn await_last_words(qp: &Qp) {
    let until = Instant::now() + LAST_WORDS;
    while qp.holds_back_for_group() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The groups that queue pairs of this process are attached to.
pub(crate) struct MulticastGroups {
    qps: Arc<QueuePairs>,
    pages: Arc<GrantedPages>,
    /// Held while a queue pair is attached or detached.
    pub(crate) attaching: Mutex<()>,
}

impl MulticastGroups {
    pub(super) fn new(qps: Arc<QueuePairs>, pages: Arc<GrantedPages>) -> MulticastGroups {
        MulticastGroups { qps, pages, attaching: Mutex::default() }
    }

    /// Attaches a queue pair to a group; see [`crate::Client::attach_group`].
    pub(super) fn attach(
        &self,
        daemon: &impl DaemonCaller,
        qp: &Qp,
        group: Gid,
    ) -> Result<(), Errno> {
        let _turn = lock(&self.attaching);
        if !self.qps.attach(qp.number, group) || !receives(qp.state()) {
            return Ok(());
        }
        let until = Instant::now() + LINK_WAIT;
        self.attach_now(daemon, qp, group, until).inspect_err(|_| {
            let _ = self.take_out(daemon, qp, group);
        })
    }

    /// Detaches it; see [`crate::Client::detach_group`].
    pub(super) fn detach(
        &self,
        daemon: &impl DaemonCaller,
        qp: &Qp,
        group: Gid,
    ) -> Result<(), Errno> {
        let _turn = lock(&self.attaching);
        self.take_out(daemon, qp, group)
    }

    fn take_out(&self, daemon: &impl DaemonCaller, qp: &Qp, group: Gid) -> Result<(), Errno> {
        let peer = self.qps.detach(qp.number, group).ok_or(Errno::EINVAL)?;
        if let Some(peer_qpn) = peer {
            self.pages.link_ended(daemon.call(&DisconnectQp { qpn: qp.number, peer_qpn }.into()));
            qp.peer_closed(peer_qpn);
        }
        Ok(())
    }

    /// It can receive from now on: attaches it to all groups that it is to be attached to. What
    /// fails is tried again.
    pub(super) fn attach_all(&self, daemon: &impl DaemonCaller, qp: &Qp) {
        // A thread that attaches it from now on sees that it can receive. Most are attached to
        // nothing, and need not wait for those that are.
        if self.qps.unlinked_groups(qp.number).is_empty() {
            return;
        }
        let _turn = lock(&self.attaching);
        let until = Instant::now() + LINK_WAIT;
        for group in self.qps.unlinked_groups(qp.number) {
            let attached = self.attach_now(daemon, qp, group, until);
            if attached.is_err() {
                daemon.defer(DeferredCall::Attach { qpn: qp.number });
            }
            if attached == Err(Errno::ETIMEDOUT) {
                return; // The others would wait as long, each.
            }
        }
    }

    /// Asks for the links that are missing; they come in their own time.
    pub(super) fn attach_again(&self, daemon: &impl DaemonCaller, qpn: Qpn) -> CallOutcome {
        let Some(_turn) = try_lock(&self.attaching) else { return CallOutcome::Again };
        if !self.qps.get(qpn).is_some_and(|qp| receives(qp.state())) {
            return CallOutcome::Done; // When it can receive, it is attached.
        }
        let mut made = CallOutcome::Done;
        for group in self.qps.unlinked_groups(qpn) {
            match self.ask_for_link(daemon, qpn, group) {
                Ok(()) => {}
                // What it lacks it may lack for long.
                Err(Errno::ENOMEM | Errno::EADDRNOTAVAIL) => made = CallOutcome::Later,
                Err(_) => return CallOutcome::Again,
            }
        }
        made
    }

    fn attach_now(
        &self,
        daemon: &impl DaemonCaller,
        qp: &Qp,
        group: Gid,
        until: Instant,
    ) -> Result<(), Errno> {
        loop {
            self.ask_for_link(daemon, qp.number, group)?;
            match self.qps.await_group(qp.number, group, until) {
                // With the daemon. There is another, or will be.
                Err(Errno::EAGAIN) if !receives(qp.state()) => return Ok(()),
                Err(Errno::EAGAIN) if Instant::now() < until => {}
                Err(Errno::EAGAIN) => return Err(Errno::ETIMEDOUT),
                awaited => return awaited,
            }
        }
    }

    /// Tells the daemon that a link that it has made for a group is not wanted.
    pub(super) fn leave(&self, daemon: &impl DaemonCaller, qpn: Qpn, peer_qpn: Qpn) -> CallOutcome {
        let Some(_turn) = try_lock(&self.attaching) else { return CallOutcome::Again };
        // One that is wanted may be called the same by now: then the daemon has ended this one.
        if self.qps.get(qpn).is_some() && !self.qps.has_group_peer(qpn, peer_qpn) {
            self.pages.link_ended(daemon.call(&DisconnectQp { qpn, peer_qpn }.into()));
        }
        CallOutcome::Done
    }

    fn ask_for_link(&self, daemon: &impl DaemonCaller, qpn: Qpn, gid: Gid) -> Result<(), Errno> {
        self.qps.begin_group_request(qpn);
        match daemon.call(&AttachGroup { qpn, reserved: 0, gid }.into()) {
            Ok(Message::GroupAttached(GroupAttached { peer_qpn, .. })) => {
                self.qps.group_answered(qpn, gid, peer_qpn);
                Ok(())
            }
            Ok(_) => Err(Errno::EPROTO),
            Err(errno) => Err(errno),
        }
    }

    /// A link comes by which a queue pair is to get what is sent to a group. False: it is not to
    /// get it any more.
    pub(super) fn link_comes(&self, qp: &Qp, ready: &LinkReady) -> bool {
        let Some(peer) = self.qps.group_peer(qp.number, ready.dgid) else { return false };
        if let Some(older) = peer {
            qp.peer_closed(older);
        }
        true
    }

    /// It is there. False: the queue pair has been detached meanwhile.
    pub(super) fn link_came(&self, ready: &LinkReady) -> bool {
        self.qps.group_linked(ready.qpn, ready.dgid, ready.peer_qpn)
    }

    /// It could not be used, or is not wanted: an attachment that was given up, say, because the
    /// daemon did not answer in time.
    pub(super) fn link_refused(&self, daemon: &impl DaemonCaller, ready: &LinkReady) {
        let LinkReady { qpn, peer_qpn, dgid, .. } = *ready;
        match self.qps.group_peer(qpn, dgid) {
            Some(_) => self.link_gone(daemon, qpn, peer_qpn),
            None => daemon.defer(DeferredCall::Leave { qpn, peer_qpn }),
        }
    }

    /// It is gone, or could not be used, though the queue pair is still attached, perhaps.
    pub(super) fn link_gone(&self, daemon: &impl DaemonCaller, qpn: Qpn, peer_qpn: Qpn) {
        self.qps.group_unlinked(qpn, Some(peer_qpn));
        daemon.defer(DeferredCall::Attach { qpn });
    }

    /// All of them are gone, with the daemon.
    pub(super) fn forget_links(&self, daemon: &impl DaemonCaller) {
        for qpn in self.qps.attached() {
            self.qps.group_unlinked(qpn, None);
            daemon.defer(DeferredCall::Attach { qpn });
        }
    }
}
