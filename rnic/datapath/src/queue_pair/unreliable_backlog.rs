//! Keeps unreliable messages while the application's ring is full, and slows their sender.
//!
//! UC and UD may lose messages, but programs take it badly, so between a fast sender and a slow
//! receiver some are kept, and the sender is told: by a congestion notification packet (A17.9.3),
//! which says for these services what lost acknowledgements say for RC.

use crate::memory_accounts::{Room, RoomPart};
use crate::vnic_memory_allowance::Allowance;
use omniverb_link::{Broken, Endpoint, Request};
use omniverb_ring::UserMemory;
use omniverb_wire::PacketPosition;
use std::collections::VecDeque;

/// Budget: bytes that one link keeps, within its vNIC's.
const LINK_BYTES: usize = 8 << 20;
/// Budget: how long an application may take nothing of it, in nanoseconds. A receiver that stands
/// still for longer loses what it could not receive, as it would with an RNIC at once.
const KEPT: u64 = 3_000_000_000;
/// From so many bytes on the sender is asked to slow down.
const HIGH_BYTES: usize = 64 << 10;
/// Bytes that a kept message takes beside its own: its place in the queue and the allocator's
/// overhead.
const OVERHEAD: usize = size_of::<QueuedMessage>() + 32;
/// Places that an empty queue keeps.
const QUEUE_SPARE: usize = 64;
/// A sender is asked at most this often, in nanoseconds.
const ASK_EVERY: u64 = 100_000;

/// A message for which there was no room.
struct QueuedMessage {
    request: Request,
    data: Box<[u8]>,
    _part: RoomPart,
}

/// Messages for which there was no room, oldest first.
pub struct Backlog {
    records: VecDeque<QueuedMessage>,
    room: Room,
    asked: u64,
    /// When the application took something last, or the first came.
    progress: u64,
    /// Something that was kept was dropped, perhaps in the middle of a message.
    has_dropped: bool,
}

impl Backlog {
    pub fn new(allowance: &Allowance) -> Backlog {
        let room = allowance.kept.within(LINK_BYTES);
        Backlog { records: VecDeque::new(), room, asked: 0, progress: 0, has_dropped: false }
    }

    /// One whose sender is to be asked to slow down.
    #[cfg(test)]
    pub fn full() -> Backlog {
        let mut full = Backlog::new(&Allowance::default());
        let _part = full.room.part(LINK_BYTES).expect("none of it is taken");
        let request = Request::Send { flags: 0, immediate: 0 };
        full.records.push_back(QueuedMessage { request, data: Box::default(), _part });
        full
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Writes a record into the ring, or keeps it. False: it is lost.
    pub fn send(
        &mut self,
        endpoint: &mut Endpoint,
        request: &Request,
        data: &[u8],
        now: u64,
    ) -> Result<bool, Broken> {
        if self.flush(endpoint, now)? && write(endpoint, request, data)? {
            return Ok(true);
        }
        let Some(_part) = self.room.part(data.len() + OVERHEAD) else { return Ok(false) };
        if self.records.is_empty() {
            self.progress = now;
        }
        self.records.push_back(QueuedMessage { request: *request, data: data.into(), _part });
        Ok(true)
    }

    /// Writes what was kept; true if nothing is left.
    pub fn flush(&mut self, endpoint: &mut Endpoint, now: u64) -> Result<bool, Broken> {
        while let Some(QueuedMessage { request, data, .. }) = self.records.front() {
            if !write(endpoint, request, data)? {
                return Ok(false);
            }
            self.records.pop_front();
            self.progress = now;
            self.let_go_of_queue();
        }
        Ok(true)
    }

    /// When what is kept is too old, if nothing of it is taken until then.
    pub fn due(&self) -> Option<u64> {
        (!self.is_empty()).then(|| self.progress.saturating_add(KEPT))
    }

    /// Drops what is too old by now.
    pub fn expire(&mut self, now: u64) {
        if self.due().is_some_and(|due| due <= now) {
            self.records = VecDeque::new();
            self.has_dropped = true;
        }
    }

    /// Whether a part of a message may come here, and not because it is behind one that was
    /// dropped. That is said once: the rest of the message is not offered then.
    pub fn takes_up(&mut self, place: PacketPosition) -> bool {
        !std::mem::take(&mut self.has_dropped) || place.begins()
    }

    /// Drops the latest messages while their vNIC keeps more than it may.
    pub fn give_way(&mut self, allowance: &Allowance) {
        while allowance.kept.is_over() && self.records.pop_back().is_some() {
            self.has_dropped = true;
        }
        self.let_go_of_queue();
    }

    /// An empty queue keeps no memory for a long one.
    fn let_go_of_queue(&mut self) {
        if self.records.is_empty() && self.records.capacity() > QUEUE_SPARE {
            self.records = VecDeque::new();
        }
    }

    /// Whether the sender is to be asked to slow down, now.
    pub fn asks(&mut self, now: u64) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::end;
    use omniverb_link::layout::{REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN, link_bytes};
    use omniverb_ring::Window;

    const MIDDLE: PacketPosition = PacketPosition::Middle;
    const REQUEST: Request = Request::Send { flags: 0, immediate: 0 };

    /// A backlog to which so many messages of 1 KiB were sent at time 0, its ring, and how many of
    /// them were lost.
    fn filled(allowance: &Allowance, count: usize) -> (Backlog, Endpoint, usize) {
        let memory = Window::private(link_bytes(REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN));
        let (mut backlog, mut endpoint) = (Backlog::new(allowance), end(&memory, 1).unwrap());
        let sent = |_: &usize| !backlog.send(&mut endpoint, &REQUEST, &[1; 1024], 0).unwrap();
        let lost = (0..count).filter(sent).count();
        (backlog, endpoint, lost)
    }

    #[test]
    fn an_untaken_backlog_is_dropped_after_a_while() {
        let allowance = Allowance::default();
        let (mut backlog, mut endpoint, lost) = filled(&allowance, 1000);
        assert!(lost == 0 && allowance.kept.taken() > 900 << 10);
        assert_eq!(backlog.due(), Some(KEPT));
        backlog.expire(KEPT - 1);
        assert!(!backlog.is_empty() && backlog.takes_up(MIDDLE));
        backlog.expire(KEPT);
        assert_eq!((backlog.due(), allowance.kept.taken()), (None, 0));
        assert_eq!(backlog.records.capacity(), 0);
        assert!(!backlog.takes_up(MIDDLE), "the rest of a message has no receiver");
        assert!(backlog.takes_up(MIDDLE), "but what follows is");
        assert!(backlog.send(&mut endpoint, &REQUEST, &[1; 1024], KEPT).unwrap());
        assert_eq!(backlog.due(), Some(2 * KEPT));
    }

    #[test]
    fn packets_over_the_vnics_share_are_dropped_and_others_stay() {
        let kept = Room::new(6 << 20);
        let allowance = Allowance { kept, ..Allowance::default() };
        let (mut backlog, _, lost) = filled(&allowance, 20_000);
        let kept = allowance.kept.taken();
        assert!(lost > 0 && kept <= 6 << 20, "{kept}");
        allowance.kept.reduce_to(kept / 2);
        backlog.give_way(&allowance);
        assert!(!allowance.kept.is_over() && allowance.kept.taken() > kept / 3);
        assert!(!backlog.takes_up(MIDDLE));
        drop(backlog);
        assert_eq!(allowance.kept.taken(), 0);
    }
}
