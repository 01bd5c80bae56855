//! Brings links to rest for another host, and goes on with those of another one.

use super::{HostedLinks, LinkEnd};
use crate::handover::{Handover, HandoverError};
use crate::link_clock::Now;
use crate::pages::mapped_pages::MappedPages;
use crate::queue_pair::connected_qp::Connected;
use omniverb_terms::Qpn;

impl<P: MappedPages> HostedLinks<P> {
    /// The requests of a QP stay in its ring from now on, or do no longer. All else goes on.
    pub fn hold_requests(&mut self, qpn: Qpn, hold: bool) {
        self.change(qpn, |connected| connected.hold_requests(hold));
    }

    /// Another host is to go on with the link of a QP: nothing new is taken from either side or
    /// asked for, and what the peer has asked for is answered. [`Self::export`] is to be called
    /// after each turn from now on.
    pub fn rest(&mut self, qpn: Qpn) {
        self.change(qpn, Connected::rest);
    }

    /// The state of a link at rest, which ends here; its rings stay open. `None`: it is not at rest
    /// yet, and goes on.
    pub fn export(&mut self, qpn: Qpn, now: Now) -> Option<Handover> {
        let index = self.by_qpn.get(&qpn).copied()?;
        let handover = self.link(index)?.connected.export(now.links)?;
        self.remove(qpn);
        Some(handover)
    }

    /// As [`Self::attach`], of a link with which another host has ended in this state.
    pub fn attach_restored(
        &mut self,
        end: LinkEnd,
        handover: &Handover,
    ) -> Result<usize, HandoverError> {
        self.detach(end.qpn);
        let mut link = self.new_link(end);
        link.connected.restore(handover)?;
        Ok(self.insert(link))
    }

    fn change(&mut self, qpn: Qpn, change: impl FnOnce(&mut Connected<P>)) {
        let Some(index) = self.by_qpn.get(&qpn).copied() else { return };
        if let Some(link) = self.link(index) {
            change(&mut link.connected);
        }
        self.touch(index);
    }
}
