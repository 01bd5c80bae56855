//! Unreliable messages that find the application's ring full, and when to slow their sender down.
//!
//! UC and UD may lose messages, but programs take it badly, so between a fast sender and a slow
//! receiver some are kept, and the sender is told: by a congestion notification packet (A17.9.3),
//! which says for these services what lost acknowledgements say for RC.

use crate::room::{Part, Room};
use omniverb_link::{Broken, Endpoint, Request};
use omniverb_ring::UserMemory;
use std::collections::VecDeque;

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

/// Room for what all links of a vNIC keep together.
#[derive(Clone)]
pub(crate) struct Allowance(Room);

impl Default for Allowance {
    fn default() -> Allowance {
        Allowance(Room::new(VNIC_BYTES))
    }
}

/// A message for which there was no room.
struct Kept {
    request: Request,
    data: Box<[u8]>,
    _part: Part,
}

/// Messages for which there was no room, oldest first.
pub(crate) struct Backlog {
    records: VecDeque<Kept>,
    room: Room,
    asked: u64,
}

impl Backlog {
    pub(crate) fn new(allowance: Allowance) -> Backlog {
        Backlog { records: VecDeque::new(), room: allowance.0.within(LINK_BYTES), asked: 0 }
    }

    /// One whose sender is to be asked to slow down.
    #[cfg(test)]
    pub(crate) fn full() -> Backlog {
        let mut full = Backlog::new(Allowance::default());
        let _part = full.room.part(LINK_BYTES).expect("nobody has any of it");
        let request = Request::Send { flags: 0, immediate: 0 };
        full.records.push_back(Kept { request, data: Box::default(), _part });
        full
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
        let Some(_part) = self.room.part(data.len() + OVERHEAD) else { return Ok(false) };
        self.records.push_back(Kept { request: *request, data: data.into(), _part });
        Ok(true)
    }

    /// Writes what was kept; true if nothing is left.
    pub(crate) fn flush(&mut self, endpoint: &mut Endpoint) -> Result<bool, Broken> {
        while let Some(Kept { request, data, .. }) = self.records.front() {
            if !write(endpoint, request, data)? {
                return Ok(false);
            }
            self.records.pop_front();
        }
        Ok(true)
    }

    /// Whether the sender is to be asked to slow down, now.
    pub(crate) fn asks(&mut self, now: u64) -> bool {
        let asks = self.room.taken() >= HIGH_BYTES && now.saturating_sub(self.asked) >= ASK_EVERY;
        if asks {
            self.asked = now;
        }
        asks
    }
}

fn write(endpoint: &mut Endpoint, request: &Request, data: &[u8]) -> Result<bool, Broken> {
    UserMemory::lend(data, |memory| endpoint.send_request(request, data.len(), [&memory]))
}
