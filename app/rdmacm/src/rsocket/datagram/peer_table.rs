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

/// Budget: how long it is between two resolutions of senders' addresses by one socket, in
/// nanoseconds. A sender can make up datagrams, and each resolution is a call of the daemon, for
/// which the program's call waits.
const RESOLVE_PERIOD: u64 = 20_000_000;

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
    /// When it was sent something last; never: 0.
    sent: u64,
}

type Key = (IpAddr, u16);

fn key(address: SocketAddr) -> Key {
    (address.ip(), address.port())
}

#[derive(Default)]
pub(crate) struct Peers {
    all: BTreeMap<Key, Peer>,
    now: u64,
    /// When the address of a sender may be resolved again, in nanoseconds.
    resolves_at: u64,
}

impl Peers {
    /// Whether a datagram from this queue pair is of the peer with this address, in a virtual
    /// network. A GID does not contain the address there. So it is compared with the GID that the
    /// address leads to, as `resolve` says, which is asked for within a budget. A peer that is not
    /// known becomes known if that is its GID.
    pub(crate) fn is_from(
        &mut self,
        address: SocketAddr,
        (gid, qpn): (Gid, u32),
        now: u64,
        source: impl FnOnce() -> Result<SocketAddr, Errno>,
        resolve: impl FnOnce(SocketAddr, SocketAddr) -> Option<PeerRoute>,
    ) -> bool {
        let known = self.find(address);
        if known.is_some_and(|peer| peer.qpn.is_some_and(|known| known != qpn)) {
            return false;
        }
        if known.and_then(|peer| peer.way.as_ref()).is_some_and(|way| way.gid == gid) {
            return true;
        }
        let known = known.map(|peer| (peer.address, peer.source));
        if now < self.resolves_at {
            return false;
        }
        self.resolves_at = now + RESOLVE_PERIOD;
        let (known, source) = match known {
            Some((known, source)) => (known, Ok(source)),
            None => (address, source()),
        };
        let Ok(source) = source else { return false };
        // With a new key the same peer has another GID.
        let Some(way) = resolve(source, known).filter(|way| way.gid == gid) else { return false };
        self.of(address, || Ok(source)).map(|peer| peer.way = Some(way)).is_ok()
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
            let peer = Peer { address, source, qpn: None, way: None, sent: 0 };
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
        let (one, two, now) = (Gid::new([1; 16]), Gid::new([2; 16]), RESOLVE_PERIOD);
        let source = || Ok(address(99));
        let early = |_, _| panic!("too early to resolve, or for nothing");
        let mut peers = Peers::default();
        // Not known yet, or not any more: its address tells.
        assert!(!peers.is_from(address(1), (two, 7), now, source, |_, _| Some(route(1))));
        assert!(peers.find(address(1)).is_none(), "a sender that is not believed is not kept");
        assert!(!peers.is_from(address(1), (one, 7), now, source, early));
        let now = now + RESOLVE_PERIOD;
        assert!(peers.is_from(address(1), (one, 7), now, source, |from, to| {
            assert_eq!((from, to), (address(99), address(1)));
            Some(route(1))
        }));
        assert!(peers.is_from(address(1), (one, 7), now, source, early));
        peers.of(address(1), source).unwrap().qpn = Some(7);
        assert!(!peers.is_from(address(1), (one, 8), now, source, early), "another queue pair");
        // The budget is the socket's: other ports do not get more of it.
        assert!(!peers.is_from(address(2), (two, 7), now, source, early));
        let now = now + RESOLVE_PERIOD;
        assert!(!peers.is_from(address(1), (two, 7), now, source, |_, _| None));
        assert!(peers.is_from(address(1), (one, 7), now, source, early), "the route is kept");
        // Another key: the same address has another GID.
        let now = now + RESOLVE_PERIOD;
        assert!(peers.is_from(address(1), (two, 7), now, source, |_, _| Some(route(2))));
        assert!(!peers.is_from(address(1), (one, 7), now, source, early));
        // The queue pair is made anew: peers are believed as before.
        peers.forget_queues();
        let now = now + RESOLVE_PERIOD;
        assert!(peers.is_from(address(1), (two, 9), now, source, |_, _| Some(route(2))));
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
