//! Wakes a peer that did not ask for it.
//!
//! A peer whose application polls is not woken: its polls find what we send, and its progress
//! thread takes a turn each millisecond. But a program may poll for completions of its own for a
//! moment and then wait for a WRITE by looking at memory, and there a mediated WRITE would lie for
//! that millisecond. So a thread that polls for the completion of a request, and sees the peer
//! consume nothing for a while, wakes the peer once. A peer that consumes is never woken that way,
//! and requests that complete at once never come here.

use super::stalled_peer_detection::PeerAction;
use crate::qp::{Inner, Qp};
use omniverb_link::Broken;

impl Inner {
    /// A look of a poll found nothing, and there are unfinished requests.
    pub(crate) fn insist(&mut self, qp: &Qp) {
        let (Some(oldest), Some(link)) = (self.sends.oldest_started(), self.links.first_mut())
        else {
            return;
        };
        // The engine polls for nothing: a requester that finds it asleep is asked to wake it.
        if link.peer.is_beyond_engine() {
            return;
        }
        match link.endpoint.requests_consumed() {
            Ok(consumed) => match self.patience.look(oldest.order.position, consumed) {
                PeerAction::Nothing => {}
                PeerAction::Consumes => link.endpoint.content(),
                PeerAction::Wake => link.endpoint.insist(),
            },
            Err(Broken) => self.broken(qp, 0),
        }
    }
}
