//! Unreliable messages that find the application's ring full, and when to slow their sender down.
//!
//! UC and UD may lose messages, but programs take it badly, so between a fast sender and a slow
//! receiver some are kept, and the sender is told: by a congestion notification packet (A17.9.3),
//! which says for these services what lost acknowledgements say for RC.

use omniverb_link::{Broken, Endpoint, Request};
use omniverb_ring::UserMemory;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that one link may keep.
const LINK_BYTES: usize = 8 << 20;
/// Bytes that all links of a vNIC may keep.
const VNIC_BYTES: usize = 64 << 20;
/// From so many bytes on the sender is asked to slow down.
const HIGH_BYTES: usize = 64 << 10;
/// What a kept message takes beside its bytes.
const OVERHEAD: usize = 64;
/// A sender is asked at most this often, in nanoseconds.
const ASK_EVERY: u64 = 100_000;

/// What all links of a vNIC keep together, in bytes.
#[derive(Clone, Default)]
pub(crate) struct Allowance(Arc<AtomicUsize>);

/// Messages for which there was no room, oldest first.
pub(crate) struct Backlog {
    records: VecDeque<(Request, Box<[u8]>)>,
    bytes: usize,
    allowance: Allowance,
    asked: u64,
}

impl Backlog {
    pub(crate) fn new(allowance: Allowance) -> Backlog {
        Backlog { records: VecDeque::new(), bytes: 0, allowance, asked: 0 }
    }

    /// One whose sender is to be asked to slow down.
    #[cfg(test)]
    pub(crate) fn full() -> Backlog {
        let allowance = Allowance(Arc::new(AtomicUsize::new(LINK_BYTES)));
        Backlog { records: VecDeque::new(), bytes: LINK_BYTES, allowance, asked: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Writes a record into the ring, or keeps it. False: it is lost.
    pub(crate) fn send(
        &mut self,
        endpoint: &mut Endpoint,
        request: &Request,
        data: &[u8],
    ) -> Result<bool, Broken> {
        if self.flush(endpoint)? && write(endpoint, request, data)? {
            return Ok(true);
        }
        let bytes = data.len() + OVERHEAD;
        // Exact accounting is not needed: one thread serves all links of a vNIC.
        let kept = self.allowance.0.load(Ordering::Relaxed);
        if self.bytes + bytes > LINK_BYTES || kept + bytes > VNIC_BYTES {
            return Ok(false);
        }
        self.bytes += bytes;
        self.allowance.0.fetch_add(bytes, Ordering::Relaxed);
        self.records.push_back((*request, data.into()));
        Ok(true)
    }

    /// Writes what was kept; true if nothing is left.
    pub(crate) fn flush(&mut self, endpoint: &mut Endpoint) -> Result<bool, Broken> {
        while let Some((request, data)) = self.records.front() {
            if !write(endpoint, request, data)? {
                return Ok(false);
            }
            let bytes = data.len() + OVERHEAD;
            self.records.pop_front();
            self.release(bytes);
        }
        Ok(true)
    }

    fn release(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.allowance.0.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether the sender is to be asked to slow down, now.
    pub(crate) fn asks(&mut self, now: u64) -> bool {
        let asks = self.bytes >= HIGH_BYTES && now.saturating_sub(self.asked) >= ASK_EVERY;
        if asks {
            self.asked = now;
        }
        asks
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        let bytes = self.bytes;
        self.release(bytes);
    }
}

fn write(endpoint: &mut Endpoint, request: &Request, data: &[u8]) -> Result<bool, Broken> {
    UserMemory::lend(data, |memory| endpoint.send_request(request, data.len(), [&memory]))
}
