//! Mappings of peers' regions: asked for, granted, denied.

use super::Client;
use crate::delivered::Delivered;
use crate::lent;
use omniverb_device::grants::{Backing, Denied, Grant};
use omniverb_session::Message;
use omniverb_session::body::{self, Connected, GrantDenied, Granted, LetGo, RequestGrant};
use omniverb_session::rights;
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
        let errno = if crate::session::is_lost(errno) { Errno::EAGAIN } else { errno };
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

    /// The daemon granted what we asked for.
    pub(super) fn map(&self, delivered: Delivered<Granted>) -> Result<(), Errno> {
        let Delivered { said: granted, files: extent } = delivered;
        let mapped = self.map_extent(&granted, &extent);
        if let (Err(_), Some(piece)) = (mapped, lent::piece(&extent)) {
            self.let_go(piece, 1);
        }
        mapped
    }

    fn map_extent(&self, granted: &Granted, extent: &Extent<OwnedFd>) -> Result<(), Errno> {
        let (qp, peer) = self.qps.with_peer(granted.qpn).ok_or(Errno::ENOENT)?;
        let writable = rights::is_writable(granted.access);
        let how = if writable { Access::ReadWrite } else { Access::ReadOnly };
        let me = self.me.clone();
        let let_go = move |piece, times| {
            if let Some(client) = me.upgrade() {
                client.let_go(piece, times);
            }
        };
        let window = self.mapped.window(peer, extent, how, || qp.drop_oldest_grant(), let_go)?;
        let backing = match lent::piece(extent) {
            Some(_) => Backing::Device,
            None => Backing::File,
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

    /// This process has let go of a piece of a window that it was told of so many times. Another
    /// daemon than the one that told of it does not know it.
    pub(super) fn let_go(&self, piece: body::Extent, times: u32) {
        let Some(events) = self.progress.listening().filter(|_| self.is_ours()) else { return };
        let said = LetGo { memory: piece, times, reserved: 0 };
        self.progress.answer(&events, said.into());
    }
}
