//! Attaching links that the daemon made.

use super::Client;
use crate::daemon_messages_with_fds::{LinkFiles, MessageWithFiles};
use crate::memory_from_daemon;
use crate::peer_doorbells::{BELL_BYTES, PeerBell, PeerDoorbells};
use omniverb_device::peer_doorbells::PeerDoorbell;
use omniverb_device::{FarEnd, Peer, Qp, Shared};
use omniverb_link::{Endpoint, EndpointParts, layout};
use omniverb_ring::DoorbellPage;
use omniverb_session::body::LinkReady;
use omniverb_sys::{DoorbellSleeper, Extent};
use omniverb_terms::{Errno, Operations};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Most bytes of one ring that we map at a daemon's word.
const RING_BYTES_MAX: u32 = 64 << 20;

/// The far end of a link, and of its doorbell.
fn far_end(ready: &LinkReady) -> FarEnd {
    if ready.engine != 0 { FarEnd::Engine } else { FarEnd::Process }
}

impl Client {
    /// The daemon made a link for a queue pair of ours, and says what it is made of.
    pub(super) fn link_ready(&self, delivered: MessageWithFiles<LinkReady>) -> Result<(), Errno> {
        let MessageWithFiles { said: ready, files: LinkFiles { link, bell } } = delivered;
        let ready = &ready;
        // A link within this process tells of its bell twice, once for each end.
        let name = self.bells.name(ready.bell);
        if let Some(memory) = bell.filter(|_| self.bells.get(name).is_none()) {
            self.bells.add_delivered(ready, &memory, &self.shared)?;
        }
        let (bell, doorbell) = self.bells.get(name).ok_or(Errno::EPROTO)?;
        // If it is destroyed by now the daemon has told the peer, and another link may have the
        // memory.
        let qp = self.qps.get(ready.qpn).ok_or(Errno::ENOENT)?;
        if ready.request_bytes > RING_BYTES_MAX || ready.response_bytes > RING_BYTES_MAX {
            return Err(Errno::EPROTO);
        }
        let (request_bytes, response_bytes) =
            (ready.request_bytes as usize, ready.response_bytes as usize);
        let bytes = layout::link_bytes(request_bytes, response_bytes);
        let memory = memory_from_daemon::map(&link, bytes)?;
        let bells = self.link_bells(ready, bell.page.clone(), doorbell)?;
        let parts = EndpointParts {
            memory: memory.clone(),
            side: ready.side as usize,
            request_bytes,
            response_bytes,
            doorbell: bells.doorbell.clone(),
            peer_slot: bells.slot,
        };
        let mut endpoint = Endpoint::new(parts).ok_or(Errno::EPROTO)?;
        let of_group = ready.peer_qpn.is_group();
        if of_group && !self.groups.link_comes(&qp, ready) {
            self.qps.while_there(ready.qpn, || endpoint.close());
            return Err(Errno::ENOENT);
        }
        self.qps.linked(ready.qpn, name);
        let peer = Peer {
            qpn: ready.peer_qpn,
            dgid: ready.dgid,
            sgid: ready.sgid,
            far_end: far_end(ready),
        };
        let tracer = if ready.traced != 0 { self.tracing.tracer() } else { None };
        let refused = Operations::from_bits(ready.refused);
        if let Some(index) = qp.attach_limited(peer, endpoint, refused, tracer.as_ref()) {
            let front = qp.front().flatten().map(|(front, _)| front);
            let served = front.as_ref().unwrap_or(&qp);
            bell.bind(ready.local_slot, served, index);
            self.bells.hear(name, &self.progress.sleep);
            self.carry(ready, memory, bells);
            // News that came before the bit had a meaning.
            served.pump();
        } else if of_group {
            return Err(Errno::EINVAL);
        }
        if of_group && !self.groups.link_came(ready) {
            qp.peer_closed(ready.peer_qpn);
            return Err(Errno::ENOENT);
        }
        Ok(())
    }

    /// The daemon whose events were read until now is gone. Links between processes need none, nor
    /// do those that this process carries; the engine's links, and the bells it rang, died with it.
    pub(crate) fn daemon_lost(&self) {
        self.bells.begin_era();
        self.tracing.end(&self.qps);
        let carried = self.carried.qpns();
        let died = |qp: &&Arc<Qp>| !carried.contains(&qp.number);
        self.qps.all().iter().filter(died).for_each(|qp| qp.engine_died());
        self.groups.forget_links(self);
        let kept = self.qps.bells(&carried);
        let dead = self.bells.remove_engines(&kept, &self.progress.sleep);
        dead.iter().for_each(|bell| self.shared.bells.remove(bell));
    }
}

impl PeerDoorbells {
    /// Adds the bell that a link came with.
    fn add_delivered(
        &self,
        ready: &LinkReady,
        memory: &Extent<OwnedFd>,
        shared: &Shared,
    ) -> Result<(), Errno> {
        let both = memory_from_daemon::map(memory, BELL_BYTES)?;
        let page = |side: u32| {
            let bytes = BELL_BYTES / 2;
            both.part(side as usize * bytes, bytes).map(DoorbellPage::new).ok_or(Errno::EPROTO)
        };
        let peer_side = if ready.loopback != 0 { ready.bell_side } else { ready.bell_side ^ 1 };
        let bell = PeerDoorbell::new(page(ready.bell_side)?);
        let peer = PeerBell::new(page(peer_side)?);
        shared.bells.add(bell.clone());
        let ours = (memory, ready.bell_side as usize);
        self.add(self.name(ready.bell), ours, bell, peer, far_end(ready));
        Ok(())
    }

    /// Bells with links are to wake us, those without no more.
    pub(crate) fn hear_all(&self, shared: &Shared, sleep: &DoorbellSleeper) {
        let over = self.review(sleep);
        over.iter().for_each(|bell| shared.bells.remove(bell));
    }

    /// The peer process of a bell is gone.
    pub(super) fn close(&self, bell: u64, shared: &Shared, sleep: &DoorbellSleeper) {
        let over = self.remove(self.name(bell), sleep);
        over.iter().for_each(|bell| shared.bells.remove(bell));
    }
}
