//! Tracks what is under way on one link, seen from the responder.

use crate::memory_region::Region;
use crate::receive_ring::Receive;
use std::sync::Arc;

/// What is under way on one link, seen from the responder.
pub(crate) enum InboundState {
    /// The next record begins a message.
    Idle,
    /// Inside a SEND.
    Send { receive: Receive, placed: u64, capacity: u64 },
    /// Inside a WRITE.
    Write { region: Option<Arc<Region>>, address: u64, left: u64, total: u64 },
    /// Answering a READ: so many bytes are out.
    Read { sent: u64 },
    /// An atomic was executed; its answer waits for room.
    Answer { original: u64 },
    /// Dropping the rest of a UC message.
    Skip,
    /// The link failed: no record is taken any more.
    Deaf,
}

impl InboundState {
    /// Whether some records of a message were taken, and others are to follow.
    pub(crate) fn is_inside_message(&self) -> bool {
        matches!(self, InboundState::Send { .. } | InboundState::Write { .. })
    }
}
