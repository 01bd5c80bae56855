//! Keeps the known peers of a datagram socket: bounded, since every host can make itself known.

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;

use omniverb_abi::{ibv_ah, ibv_ah_attr, ibv_pd};
use omniverb_terms::{Errno, Gid};

use crate::errno::{made, verb};
use crate::ibverbs_imports;

/// Budget: the most; a peer that was not sent anything goes first then, and then the one that was
/// not for longest.
pub(crate) const PEERS_MAX: usize = 1024;

/// Budget: how soon the route to a peer is resolved again because of a datagram that its route does
/// not explain. A sender can make up datagrams, and each resolution is a call of the daemon.
const RESOLVE_AGAIN: u64 = 1_000_000_000;

/// The way to a peer's queue pair.
pub(crate) struct PeerRoute {
    ah: *mut ibv_ah,
    /// The peer's GID.
    gid: Gid,
    /// Bytes of the longest message.
    pub(crate) longest: usize,
}

// SAFETY: an address handle is for any thread.
unsafe impl Send for PeerRoute {}

impl PeerRoute {
    /// Makes it.
    ///
    /// # Safety
    /// `pd` is live, and outlives this.
    pub(crate) unsafe fn new(
        pd: *mut ibv_pd,
        attr: &mut ibv_ah_attr,
        longest: usize,
    ) -> Result<PeerRoute, Errno> {
        let gid = Gid::new(attr.grh.dgid.raw);
        // SAFETY: the caller's promise.
        let ah = made(unsafe { ibverbs_imports::ibv_create_ah(pd, attr) })?;
        Ok(PeerRoute { ah, gid, longest })
    }

    pub(crate) fn handle(&self) -> *mut ibv_ah {
        self.ah
    }
}

impl Drop for PeerRoute {
    fn drop(&mut self) {
        // SAFETY: ours, and not used any more: requests have taken what it says.
        let _ = verb(unsafe { ibverbs_imports::ibv_destroy_ah(self.ah) });
    }
}

/// A peer that we send to, or that has sent.
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// Our address, as it sees us.
    pub(crate) source: SocketAddr,
    /// Its queue pair, once it has said.
    pub(crate) qpn: Option<u32>,
    pub(crate) way: Option<PeerRoute>,
    /// When a datagram of it had its route resolved last, in nanoseconds.
    resolved: Option<u64>,
    /// When it was sent something last; never: 0.
    sent: u64,
}

impl Peer {
    /// Whether a datagram from this queue pair is the peer's. In a virtual network a GID does not
    /// contain the address. So it is compared with the GID that the peer's address leads to, as
    /// `resolve` says, which is asked at most once a second.
    ///
    /// The peer has told its queue pair number through the kernel before, as its protocol demands.
    pub(crate) fn is_from(
        &mut self,
        gid: Gid,
        qpn: u32,
        now: u64,
        resolve: impl FnOnce() -> Option<PeerRoute>,
    ) -> bool {
        if self.qpn != Some(qpn) {
            return false;
        }
        let leads_there = |way: &Option<PeerRoute>| way.as_ref().is_some_and(|way| way.gid == gid);
        let may_resolve =
            self.resolved.is_none_or(|then| now.saturating_sub(then) >= RESOLVE_AGAIN);
        if !leads_there(&self.way) && may_resolve {
            self.resolved = Some(now);
            // With a new key the same peer has another GID.
            self.way = resolve().or(self.way.take());
        }
        leads_there(&self.way)
    }
}

type Key = (IpAddr, u16);

fn key(address: SocketAddr) -> Key {
    (address.ip(), address.port())
}

#[derive(Default)]
pub(crate) struct Peers {
    all: BTreeMap<Key, Peer>,
    now: u64,
}

impl Peers {
    pub(crate) fn find_mut(&mut self, address: SocketAddr) -> Option<&mut Peer> {
        self.all.get_mut(&key(address))
    }

    pub(crate) fn find(&self, address: SocketAddr) -> Option<&Peer> {
        self.all.get(&key(address))
    }

    /// The peer that has this address, made with what `source` says if it is not known.
    pub(crate) fn of(
        &mut self,
        address: SocketAddr,
        source: impl FnOnce() -> Result<SocketAddr, Errno>,
    ) -> Result<&mut Peer, Errno> {
        let key = key(address);
        if !self.all.contains_key(&key) {
            let source = source()?;
            self.make_room();
            let peer = Peer { address, source, qpn: None, way: None, resolved: None, sent: 0 };
            self.all.insert(key, peer);
        }
        self.all.get_mut(&key).ok_or(Errno::ENOMEM)
    }

    /// Something is sent to it.
    pub(crate) fn mark_sent_to(&mut self, address: SocketAddr) {
        self.now += 1;
        if let Some(peer) = self.all.get_mut(&key(address)) {
            peer.sent = self.now;
        }
    }

    fn make_room(&mut self) {
        if self.all.len() >= PEERS_MAX
            && let Some((&key, _)) = self.all.iter().min_by_key(|(_, peer)| peer.sent)
        {
            self.all.remove(&key);
        }
    }

    /// Our queue pair is no more: each peer is asked for its own once more. Returns peers that may
    /// know ours, and our address as each sees it.
    pub(crate) fn forget_queues(&mut self) -> Vec<(SocketAddr, SocketAddr)> {
        let mut known = Vec::new();
        for peer in self.all.values_mut() {
            peer.way = None;
            if peer.qpn.take().is_some() {
                known.push((peer.address, peer.source));
            }
        }
        known
    }

    /// Our address has changed.
    pub(crate) fn forget(&mut self) {
        self.all.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: usize) -> SocketAddr {
        ([10, 0, (number >> 8) as u8, number as u8], 7).into()
    }

    fn route(last: u8) -> PeerRoute {
        let mut attr = ibv_ah_attr { is_global: 1, ..ibv_ah_attr::default() };
        (attr.grh.dgid.raw, attr.grh.sgid_index) = ([last; 16], 1);
        // SAFETY: nothing of the protection domain is used here.
        unsafe { PeerRoute::new(core::ptr::null_mut(), &mut attr, 0) }.unwrap()
    }

    #[test]
    fn a_virtual_sender_is_who_its_address_leads_to() {
        let (gid, now) = (Gid::new([1; 16]), 1);
        let mut peers = Peers::default();
        let peer = peers.of(address(1), || Ok(address(99))).unwrap();
        assert!(!peer.is_from(gid, 7, now, || panic!("its queue pair is not known")));
        peer.qpn = Some(7);
        assert!(!peer.is_from(gid, 8, now, || panic!("another queue pair")));
        assert!(peer.is_from(gid, 7, now, || Some(route(1))));
        assert!(peer.is_from(gid, 7, now, || panic!("the route is known")));
        assert!(!peer.is_from(Gid::new([2; 16]), 7, now, || panic!("too early to resolve")));
        let later = now + RESOLVE_AGAIN;
        assert!(!peer.is_from(Gid::new([3; 16]), 7, later, || None));
        assert!(peer.is_from(gid, 7, later, || panic!("the old route is kept")));
        // Another key: the same address has another GID.
        assert!(peer.is_from(Gid::new([2; 16]), 7, later + RESOLVE_AGAIN, || Some(route(2))));
        assert!(!peer.is_from(gid, 7, later + RESOLVE_AGAIN, || panic!("too early to resolve")));
    }

    #[test]
    fn unknown_senders_do_not_evict_peers_that_we_send_to() {
        let mut peers = Peers::default();
        for number in 0..10 {
            peers.of(address(number), || Ok(address(99))).unwrap().qpn = Some(1);
            peers.mark_sent_to(address(number));
        }
        for number in 10..10 + 2 * PEERS_MAX {
            peers.of(address(number), || Ok(address(99))).unwrap();
        }
        assert_eq!(peers.all.len(), PEERS_MAX);
        assert!((0..10).all(|number| peers.find(address(number)).is_some()));
        assert_eq!(peers.forget_queues().len(), 10);
        assert!(peers.forget_queues().is_empty());
        assert!(peers.find(address(3)).is_some_and(|peer| peer.qpn.is_none()));
        assert_eq!(peers.of(address(0x7777), || Err(Errno::ENODEV)).err(), Some(Errno::ENODEV));
    }
}
