//! Mappings of peers' regions: asked for, granted, denied.

use super::Client;
use crate::message_descriptors::Delivered;
use crate::window_loans;
use omniverb_device::page_grants::{Backing, Denied, Grant};
use omniverb_session::Message;
use omniverb_session::body::{
    self, Connected, GrantDenied, GrantEnded, Granted, LetGo, RequestGrant,
};
use omniverb_session::page_rights;
use omniverb_sys::{Access, Extent};
use omniverb_terms::{Errno, Qpn, Rkey};
use std::os::fd::OwnedFd;

impl Client {
    pub(crate) fn request_grant(&self, qpn: Qpn, peer_qpn: Qpn, rkey: Rkey, range: (u64, u64)) {
        let (address, length) = range;
        let ask = RequestGrant { qpn, peer_qpn, rkey, reserved: 0, address, length };
        let errno = match self.call(&ask.into()) {
            Ok(Message::Connected(Connected { .. })) => return,
            Ok(_) => Errno::EPROTO,
            Err(errno) => errno,
        };
        // Without a daemon, another may be asked in a while.
        let errno = if crate::daemon_session::is_lost(errno) { Errno::EAGAIN } else { errno };
        self.grant_denied(&GrantDenied { qpn, peer_qpn, rkey, errno });
    }

    /// The daemon did not grant what we asked for.
    pub(super) fn grant_denied(&self, denied: &GrantDenied) {
        // What touched no whole page says nothing of the rest of the region.
        let how = match denied.errno {
            Errno::EAGAIN | Errno::ERANGE => Denied::ForNow,
            _ => Denied::ForGood,
        };
        if let Some(qp) = self.qp(denied.qpn) {
            qp.not_granted(denied.peer_qpn, denied.rkey, how);
        }
    }

    /// What the daemon granted is not ours any more: the mapping goes now and not at the next use,
    /// so that its owner does not pay for what is in it.
    pub(super) fn grant_ended(&self, ended: &GrantEnded) {
        if let Some(qp) = self.qp(ended.qpn) {
            qp.grant_ended(ended.peer_qpn, ended.rkey, ended.page_start);
        }
    }

    /// The daemon granted what we asked for.
    pub(super) fn map(&self, delivered: Delivered<Granted>) -> Result<(), Errno> {
        let Delivered { said: granted, files: extent } = delivered;
        let piece = window_loans::piece(granted.memory, &extent);
        let mapped = self.map_extent(&granted, &extent, piece);
        if let (Err(_), Some(piece)) = (mapped, piece) {
            self.let_go((piece, self.bells.era()), 1);
        }
        mapped
    }

    fn map_extent(
        &self,
        granted: &Granted,
        extent: &Extent<OwnedFd>,
        piece: Option<body::Extent>,
    ) -> Result<(), Errno> {
        let (qp, peer) = self.qps.with_peer(granted.qpn).ok_or(Errno::ENOENT)?;
        let writable = page_rights::is_writable(granted.access);
        let how = if writable { Access::ReadWrite } else { Access::ReadOnly };
        let (me, era) = (self.me.clone(), self.bells.era());
        let let_go = move |piece, times| {
            if let Some(client) = me.upgrade() {
                client.let_go((piece, era), times);
            }
        };
        let make_room = || qp.drop_oldest_grant();
        let window = self.mapped.window(peer, (extent, piece), how, make_room, let_go)?;
        let backing = match window_loans::is_device(extent) {
            true => Backing::Device,
            false => Backing::File,
        };
        let grant = Grant {
            rkey: granted.rkey,
            access: granted.access,
            address: granted.addr,
            length: granted.length,
            page_start: granted.page_start,
            epoch: granted.epoch,
            window,
            backing,
        };
        qp.granted(granted.peer_qpn, grant);
        Ok(())
    }

    /// This process has let go of a piece of a window that it was told of so many times, by the
    /// daemon of this era. Another one does not know it, and may mean something else by it.
    pub(super) fn let_go(&self, (piece, era): (body::Extent, u64), times: u32) {
        // First the socket: an era ends before another one is listened to.
        let Some(events) = self.progress.listening().filter(|_| self.is_ours()) else { return };
        if self.bells.era() != era {
            return;
        }
        let said = LetGo { memory: piece, times, reserved: 0 };
        self.progress.answer(&events, said.into());
    }
}
