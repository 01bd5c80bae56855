//! Mappings of peers' regions: asked for, granted, denied.

use super::Client;
use super::pages_granted_to_peers::GrantedPages;
use crate::daemon_caller_trait::DaemonCaller;
use crate::daemon_messages_with_fds::MessageWithFiles;
use crate::peer_mappings::PeerMappings;
use crate::queue_pair_records::QueuePairs;
use crate::vm_window_loans;
use omniverb_device::granted_peer_pages::{Backing, Denial, Grant};
use omniverb_session::Message;
use omniverb_session::body::{self, Connected, GrantDenied, GrantEnded, Granted, RequestGrant};
use omniverb_session::page_rights;
use omniverb_sys::{Access, Extent};
use omniverb_terms::{Errno, Qpn, Rkey};
use std::os::fd::OwnedFd;
use std::sync::Arc;

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
        self.qps.grant_denied(&GrantDenied { qpn, peer_qpn, rkey, errno });
    }
}

impl QueuePairs {
    /// The daemon did not grant what we asked for.
    pub(super) fn grant_denied(&self, denied: &GrantDenied) {
        if let Some(qp) = self.get(denied.qpn) {
            qp.not_granted(denied.peer_qpn, denied.rkey, Denial::of(denied.errno));
        }
    }

    /// What the daemon granted is not ours any more: the mapping goes now and not at the next use,
    /// so that its owner does not pay for what is in it.
    pub(super) fn grant_ended(&self, ended: &GrantEnded) {
        if let Some(qp) = self.get(ended.qpn) {
            qp.grant_ended(ended.peer_qpn, ended.rkey, ended.page_start);
        }
    }
}

impl PeerMappings {
    /// The daemon granted what we asked for.
    pub(super) fn map(
        &self,
        qps: &QueuePairs,
        pages: &Arc<GrantedPages>,
        delivered: MessageWithFiles<Granted>,
    ) -> Result<(), Errno> {
        let MessageWithFiles { said: granted, files: extent } = delivered;
        let piece = vm_window_loans::piece(granted.memory, &extent);
        let mapped = self.map_extent((qps, pages), &granted, &extent, piece);
        if let (Err(_), Some(piece)) = (mapped, piece) {
            pages.let_go((piece, pages.bells.era()), 1);
        }
        mapped
    }

    fn map_extent(
        &self,
        (qps, pages): (&QueuePairs, &Arc<GrantedPages>),
        granted: &Granted,
        extent: &Extent<OwnedFd>,
        piece: Option<body::Extent>,
    ) -> Result<(), Errno> {
        let (qp, peer) = qps.with_peer(granted.qpn).ok_or(Errno::ENOENT)?;
        let writable = page_rights::is_writable(granted.access);
        let how = if writable { Access::ReadWrite } else { Access::ReadOnly };
        let (weak, era) = (Arc::downgrade(pages), pages.bells.era());
        let let_go = move |piece, times| {
            if let Some(pages) = weak.upgrade() {
                pages.let_go((piece, era), times);
            }
        };
        let make_room = || qp.drop_oldest_grant();
        let window = self.window(peer, (extent, piece), how, make_room, let_go)?;
        let backing = match vm_window_loans::is_device(extent) {
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
}
