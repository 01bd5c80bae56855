//! Multicast groups that queue pairs are attached to.
//!
//! The daemon makes a link for each, by which copies come, and joins the group before it says that
//! the link is ready. Whoever attaches waits for that: what is sent afterwards arrives. Such a link
//! may end later though nobody asked for it, with the daemon above all; nothing that is sent would
//! bring another one, so it is asked for again (`Call::Attach`), at intervals, as long as the
//! queue pair is attached.

use super::Client;
use crate::deferred_tasks::{Call, Made};
use omniverb_device::Qp;
use omniverb_device::qp_attributes::State;
use omniverb_session::Message;
use omniverb_session::body::{AttachGroup, DisconnectQp, GroupAttached, LinkReady};
use omniverb_sys::{lock, try_lock};
use omniverb_terms::{Errno, Gid, Qpn};
use std::time::{Duration, Instant};

/// How long one waits for the link of a group. The daemon may have to open the vNIC's port first,
/// which may be in use a moment longer by somebody who ends.
const LINK_WAIT: Duration = Duration::from_secs(10);

/// How long a queue pair is not destroyed because messages to a group have no link yet. The daemon
/// asks nobody for it, so it takes a moment, unless there is no daemon.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Whether messages can come to a queue pair in this state.
fn receives(state: State) -> bool {
    !matches!(state, State::Reset | State::Init | State::Err)
}

impl Client {
    /// Attaches a datagram queue pair to a group. One that cannot receive yet is attached when it
    /// can. Twice is once.
    ///
    /// # Errors
    /// errno: `ENOMEM` over a quota, `EADDRNOTAVAIL` without an address of the group's kind (IPv4
    /// or IPv6), `EHOSTUNREACH` if the daemon cannot join it, `ETIMEDOUT` if that takes too long,
    /// `EIO` in a forked child.
    pub fn attach_group(&self, qp: &Qp, group: Gid) -> Result<(), Errno> {
        if !self.is_ours() {
            return Err(Errno::EIO);
        }
        let _turn = lock(&self.attaching);
        if !self.qps.attach(qp.number, group) || !receives(qp.state()) {
            return Ok(());
        }
        let until = Instant::now() + LINK_WAIT;
        self.attach_now(qp, group, until).inspect_err(|_| {
            let _ = self.take_out(qp, group);
        })
    }

    /// Whether it is attached to some group.
    pub fn is_attached(&self, qp: &Qp) -> bool {
        self.is_ours() && self.qps.is_attached(qp.number)
    }

    /// Detaches it: when this returns nothing that is sent to the group reaches it.
    ///
    /// # Errors
    /// errno: `EINVAL` if it is not attached, `EIO` in a forked child.
    pub fn detach_group(&self, qp: &Qp, group: Gid) -> Result<(), Errno> {
        if !self.is_ours() {
            return Err(Errno::EIO);
        }
        let _turn = lock(&self.attaching);
        self.take_out(qp, group)
    }

    fn take_out(&self, qp: &Qp, group: Gid) -> Result<(), Errno> {
        let peer = self.qps.detach(qp.number, group).ok_or(Errno::EINVAL)?;
        if let Some(peer_qpn) = peer {
            self.link_ended(self.call(&DisconnectQp { qpn: qp.number, peer_qpn }.into()));
            qp.peer_closed(peer_qpn);
        }
        Ok(())
    }

    /// It can receive from now on: attaches it to all groups that it is to be attached to. What
    /// fails is tried again.
    pub(super) fn attach_all(&self, qp: &Qp) {
        // Whoever attaches it from now on sees that it can receive. Most are attached to nothing,
        // and need not wait for those that are.
        if self.qps.unlinked_groups(qp.number).is_empty() {
            return;
        }
        let _turn = lock(&self.attaching);
        let until = Instant::now() + LINK_WAIT;
        for group in self.qps.unlinked_groups(qp.number) {
            let attached = self.attach_now(qp, group, until);
            if attached.is_err() {
                self.have_called(Call::Attach { qpn: qp.number });
            }
            if attached == Err(Errno::ETIMEDOUT) {
                return; // The others would wait as long, each.
            }
        }
    }

    /// Asks for the links that are missing; they come in their own time.
    pub(super) fn attach_again(&self, qpn: Qpn) -> Made {
        let Some(_turn) = try_lock(&self.attaching) else { return Made::Again };
        if !self.qp(qpn).is_some_and(|qp| receives(qp.state())) {
            return Made::Done; // When it can receive, it is attached.
        }
        let mut made = Made::Done;
        for group in self.qps.unlinked_groups(qpn) {
            match self.ask_for_group(qpn, group) {
                Ok(()) => {}
                // What it lacks it may lack for long.
                Err(Errno::ENOMEM | Errno::EADDRNOTAVAIL) => made = Made::Later,
                Err(_) => return Made::Again,
            }
        }
        made
    }

    fn attach_now(&self, qp: &Qp, group: Gid, until: Instant) -> Result<(), Errno> {
        loop {
            self.ask_for_group(qp.number, group)?;
            match self.qps.await_group(qp.number, group, until) {
                // With the daemon. There is another, or will be.
                Err(Errno::EAGAIN) if !receives(qp.state()) => return Ok(()),
                Err(Errno::EAGAIN) if Instant::now() < until => {}
                Err(Errno::EAGAIN) => return Err(Errno::ETIMEDOUT),
                awaited => return awaited,
            }
        }
    }

    /// The daemon is told that nobody wants a link that it has made for a group.
    pub(super) fn leave_group(&self, qpn: Qpn, peer_qpn: Qpn) -> Made {
        let Some(_turn) = try_lock(&self.attaching) else { return Made::Again };
        // One that is wanted may be called the same by now: then the daemon has ended this one.
        if self.qp(qpn).is_some() && !self.qps.has_group_peer(qpn, peer_qpn) {
            self.link_ended(self.call(&DisconnectQp { qpn, peer_qpn }.into()));
        }
        Made::Done
    }

    fn ask_for_group(&self, qpn: Qpn, gid: Gid) -> Result<(), Errno> {
        self.qps.asks_for_group(qpn);
        match self.call(&AttachGroup { qpn, reserved: 0, gid }.into()) {
            Ok(Message::GroupAttached(GroupAttached { peer_qpn, .. })) => {
                self.qps.group_answered(qpn, gid, peer_qpn);
                Ok(())
            }
            Ok(_) => Err(Errno::EPROTO),
            Err(errno) => Err(errno),
        }
    }

    /// Waits until what was sent to groups has left: a program that only sends to them, and ends,
    /// has nobody to wait for.
    pub(super) fn await_last_words(&self, qp: &Qp) {
        let until = Instant::now() + LAST_WORDS;
        while qp.holds_back_for_group() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A link comes by which a queue pair is to get what is sent to a group. False: it is not to
    /// get it any more.
    pub(super) fn group_link_comes(&self, qp: &Qp, ready: &LinkReady) -> bool {
        let Some(peer) = self.qps.group_peer(qp.number, ready.dgid) else { return false };
        if let Some(older) = peer {
            qp.peer_closed(older);
        }
        true
    }

    /// It is there. False: the queue pair has been detached meanwhile.
    pub(super) fn group_link_came(&self, ready: &LinkReady) -> bool {
        self.qps.group_linked(ready.qpn, ready.dgid, ready.peer_qpn)
    }

    /// It could not be used, or nobody wants it: an attachment that was given up, say, because the
    /// daemon did not answer in time.
    pub(super) fn group_link_refused(&self, ready: &LinkReady) {
        let LinkReady { qpn, peer_qpn, dgid, .. } = *ready;
        match self.qps.group_peer(qpn, dgid) {
            Some(_) => self.group_link_gone(qpn, peer_qpn),
            None => self.have_called(Call::Leave { qpn, peer_qpn }),
        }
    }

    /// It is gone, or could not be used, though the queue pair is still attached, perhaps.
    pub(super) fn group_link_gone(&self, qpn: Qpn, peer_qpn: Qpn) {
        self.qps.group_unlinked(qpn, Some(peer_qpn));
        self.have_called(Call::Attach { qpn });
    }

    /// All of them are gone, with the daemon.
    pub(super) fn group_links_gone(&self) {
        for qpn in self.qps.attached() {
            self.qps.group_unlinked(qpn, None);
            self.have_called(Call::Attach { qpn });
        }
    }
}
