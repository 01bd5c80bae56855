//! Attaching links that the daemon made.

use crate::doorbell::{BellRecord, PeerBell};
use crate::lock::lock;
use crate::{BellName, Client, memory};
use omniverb_device::Peer;
use omniverb_device::poller::Bell;
use omniverb_link::{Endpoint, EndpointParts, layout};
use omniverb_ring::BellPage;
use omniverb_session::body::LinkReady;
use omniverb_sys::Extent;
use omniverb_terms::Errno;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

/// Most bytes of one ring that we map at a daemon's word.
const RING_BYTES_MAX: u32 = 64 << 20;
const BELL_BYTES: usize = 2 * omniverb_ring::bell::PAGE_BYTES;

impl Client {
    /// A link is there.
    pub(crate) fn link_ready(&self, ready: &LinkReady, files: Vec<OwnedFd>) -> Result<(), Errno> {
        let mut files = files.into_iter();
        let link = memory::next(&mut files, ready.memory)?;
        // A link within this process tells of its bell twice, once for each end.
        let name = self.bell_name(ready.bell);
        let known = lock(&self.bells).contains_key(&name);
        if ready.bell_new != 0 && !known {
            self.add_bell(ready, &memory::next(&mut files, ready.bell_memory)?)?;
        }
        let (bell, doorbell) = {
            let bells = lock(&self.bells);
            let record = bells.get(&name).ok_or(Errno::EPROTO)?;
            (record.bell.clone(), record.peer.clone())
        };
        if ready.request_bytes > RING_BYTES_MAX || ready.response_bytes > RING_BYTES_MAX {
            return Err(Errno::EPROTO);
        }
        let (request_bytes, response_bytes) =
            (ready.request_bytes as usize, ready.response_bytes as usize);
        let bytes = layout::link_bytes(request_bytes, response_bytes);
        let parts = EndpointParts {
            memory: memory::map(&link, bytes)?,
            side: ready.side as usize,
            request_bytes,
            response_bytes,
            doorbell,
            peer_slot: ready.peer_slot,
        };
        let mut endpoint = Endpoint::new(parts).ok_or(Errno::EPROTO)?;
        let Some(qp) = self.qp(ready.qpn) else {
            endpoint.close();
            return Err(Errno::ENOENT);
        };
        if let Some(record) = lock(&self.qps).get_mut(&ready.qpn) {
            record.bell = Some(name);
        }
        let peer = Peer {
            qpn: ready.peer_qpn,
            dgid: ready.dgid,
            sgid: ready.sgid,
            wire: ready.engine != 0,
        };
        let tracer = if ready.traced != 0 { lock(&self.tracer).clone() } else { None };
        if let Some(index) = qp.attach_traced(peer, endpoint, tracer.as_ref()) {
            bell.bind(ready.local_slot, &qp, index);
            if let Some(record) = lock(&self.bells).get_mut(&name) {
                self.hear(record);
            }
            // News that came before the bit had a meaning.
            qp.pump();
        }
        Ok(())
    }

    fn add_bell(&self, ready: &LinkReady, memory: &Extent<OwnedFd>) -> Result<(), Errno> {
        let memory = memory::map(memory, BELL_BYTES)?;
        let page = |side: u32| {
            let bytes = BELL_BYTES / 2;
            memory.part(side as usize * bytes, bytes).map(BellPage::new).ok_or(Errno::EPROTO)
        };
        let peer_side = if ready.loopback != 0 { ready.bell_side } else { ready.bell_side ^ 1 };
        let bell = Bell::new(page(ready.bell_side)?);
        let peer = PeerBell::new(page(peer_side)?);
        self.shared.bells.add(bell.clone());
        let record = BellRecord { bell, peer, heard_as: None, engine: ready.engine != 0 };
        lock(&self.bells).insert(self.bell_name(ready.bell), record);
        Ok(())
    }

    /// Bells with links are to wake us, those without no more. Those of a daemon that is gone and
    /// that have none are given up: nobody will tell us of their peers' end.
    pub(crate) fn hear_bells(&self) {
        let era = self.era.load(Ordering::Acquire);
        let mut over = Vec::new();
        lock(&self.bells).retain(|(of, _), record| {
            let unused = record.bell.is_unused();
            match unused {
                true => self.hear_no_more(record),
                // Where there was no thread for it, there may be one now.
                false => self.hear(record),
            }
            if unused && *of != era {
                over.push(record.bell.clone());
            }
            !unused || *of == era
        });
        over.iter().for_each(|bell| self.shared.bells.remove(bell));
    }

    fn hear(&self, record: &mut BellRecord) {
        if record.heard_as.is_none() {
            record.heard_as = self.progress.sleep.add(record.bell.page.clone()).ok();
            record.bell.page.want_kick();
        }
    }

    fn hear_no_more(&self, record: &mut BellRecord) {
        if let Some(number) = record.heard_as.take() {
            self.progress.sleep.remove(number);
        }
    }

    /// The peer process of a bell is gone.
    pub(crate) fn bell_closed(&self, bell: u64) {
        let record = lock(&self.bells).remove(&self.bell_name(bell));
        record.into_iter().for_each(|record| self.drop_bell(record));
    }

    /// What the present daemon's bell `number` is called here.
    fn bell_name(&self, number: u64) -> BellName {
        (self.era.load(Ordering::Acquire), number)
    }

    fn drop_bell(&self, mut record: BellRecord) {
        self.hear_no_more(&mut record);
        self.shared.bells.remove(&record.bell);
    }

    /// The daemon whose events were read until now is gone. Links between processes need none; the
    /// engine's links, and the bells it rang, died with it.
    pub(crate) fn daemon_lost(&self) {
        self.era.fetch_add(1, Ordering::AcqRel);
        self.trace_end();
        let qps: Vec<_> = lock(&self.qps).values().map(|record| record.qp.clone()).collect();
        qps.iter().for_each(|qp| qp.engine_died());
        let dead: Vec<_> = {
            let mut bells = lock(&self.bells);
            bells.extract_if(|_, record| record.engine).map(|(_, record)| record).collect()
        };
        dead.into_iter().for_each(|record| self.drop_bell(record));
    }
}
