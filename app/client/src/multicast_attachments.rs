//! Tracks the multicast groups that queue pairs are attached to, and their links.
//!
//! The answer to a call and the news of its link come by different sockets, so in any order.

use crate::multicast_groups_of_qp::{Attachment, Groups};
use crate::queue_pair_records::QueuePairs;
use omniverb_sys::lock;
use omniverb_terms::{Errno, Gid, Qpn};
use std::time::Instant;

impl QueuePairs {
    fn with_groups<R>(&self, number: Qpn, act: impl FnOnce(&mut Groups) -> R) -> Option<R> {
        let done = lock(&self.list).get_mut(&number).map(|record| act(&mut record.groups));
        self.group_news.notify_all();
        done
    }

    /// It is to be attached to a group. False: it is already.
    pub(crate) fn attach(&self, number: Qpn, group: Gid) -> bool {
        let new = Attachment { group, peer: None, is_there: false };
        let attached = self.with_groups(number, |groups| {
            let is_new = groups.find(group).is_none();
            groups.list.extend(is_new.then_some(new));
            is_new
        });
        attached.unwrap_or(false)
    }

    /// It is attached to it no longer. The far end of its link, if there is one; `None`: it was
    /// not attached.
    pub(crate) fn detach(&self, number: Qpn, group: Gid) -> Option<Option<Qpn>> {
        self.with_groups(number, |groups| {
            let at = groups.list.iter().position(|attachment| attachment.group == group)?;
            Some(groups.list.swap_remove(at).peer)
        })?
    }

    /// Whether it is attached to a group.
    pub(crate) fn is_attached(&self, number: Qpn) -> bool {
        lock(&self.list).get(&number).is_some_and(|record| !record.groups.list.is_empty())
    }

    /// Those that are attached to groups.
    pub(crate) fn attached(&self) -> Vec<Qpn> {
        let list = lock(&self.list);
        let attached = list.iter().filter(|(_, record)| !record.groups.list.is_empty());
        attached.map(|(number, _)| *number).collect()
    }

    /// Its groups by whose links nothing comes.
    pub(crate) fn unlinked_groups(&self, number: Qpn) -> Vec<Gid> {
        let list = lock(&self.list);
        let all = list.get(&number).into_iter().flat_map(|record| &record.groups.list);
        all.filter(|attachment| !attachment.is_there).map(|attachment| attachment.group).collect()
    }

    /// The far end of the link of a group that it is attached to; `None`: it is not.
    pub(crate) fn group_peer(&self, number: Qpn, group: Gid) -> Option<Option<Qpn>> {
        let mut list = lock(&self.list);
        let attachment = list.get_mut(&number)?.groups.find(group)?;
        Some(attachment.peer.filter(|_| attachment.is_there))
    }

    /// The daemon is going to be asked for a link.
    pub(crate) fn begin_group_request(&self, number: Qpn) {
        self.with_groups(number, |groups| groups.ended = None);
    }

    /// The daemon has made this link; it may be there already, or be gone again.
    pub(crate) fn group_answered(&self, number: Qpn, group: Gid, peer: Qpn) {
        self.with_groups(number, |groups| {
            let ended = groups.ended == Some(peer);
            if let Some(attachment) = groups.find(group).filter(|_| !ended) {
                attachment.peer = Some(peer);
            }
        });
    }

    /// The link is there. False: it is not attached any more.
    pub(crate) fn group_linked(&self, number: Qpn, group: Gid, by: Qpn) -> bool {
        let linked = self.with_groups(number, |groups| {
            let attachment = groups.find(group)?;
            (attachment.peer, attachment.is_there) = (Some(by), true);
            Some(())
        });
        linked.flatten().is_some()
    }

    /// Whether the link of one of its groups has this far end.
    pub(crate) fn has_group_peer(&self, number: Qpn, peer: Qpn) -> bool {
        let list = lock(&self.list);
        let all = list.get(&number).into_iter().flat_map(|record| &record.groups.list);
        all.into_iter().any(|attachment| attachment.peer == Some(peer))
    }

    /// The link with this far end is gone, or all (`None`).
    pub(crate) fn group_unlinked(&self, number: Qpn, by: Option<Qpn>) {
        self.with_groups(number, |groups| {
            groups.ended = by;
            for attachment in &mut groups.list {
                if by.is_none() || attachment.peer == by {
                    (attachment.peer, attachment.is_there) = (None, false);
                }
            }
        });
    }

    /// Waits until the link that the daemon has made for a group is there.
    ///
    /// # Errors
    /// errno: `EHOSTUNREACH` if it came to nothing, `EAGAIN` if it is gone with the daemon,
    /// `ETIMEDOUT`.
    pub(crate) fn await_group(&self, number: Qpn, group: Gid, until: Instant) -> Result<(), Errno> {
        let mut list = lock(&self.list);
        loop {
            let groups = list.get_mut(&number).map(|record| &mut record.groups);
            let groups = groups.ok_or(Errno::EHOSTUNREACH)?;
            let ended = groups.ended.is_some();
            match groups.find(group) {
                Some(attachment) if attachment.is_there => return Ok(()),
                Some(attachment) if attachment.peer.is_some() => {}
                Some(_) if !ended => return Err(Errno::EAGAIN),
                _ => return Err(Errno::EHOSTUNREACH),
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Errno::ETIMEDOUT);
            }
            let waited = self.group_news.wait_timeout(list, left);
            list = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
    }
}
