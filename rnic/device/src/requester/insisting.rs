//! Waking a peer that did not ask for it.
//!
//! A peer whose application polls is not woken: its polls find what we send, and its progress
//! thread takes a turn each millisecond. But a program may poll for completions of its own for a
//! moment and then wait for a WRITE by looking at memory, and there a mediated WRITE would lie for
//! that millisecond. So who polls for the completion of a request, and sees the peer consume
//! nothing for a while, wakes the peer once. A peer that consumes is never woken that way, and
//! requests that complete at once never come here.

use crate::limits::INSIST_LOOKS;
use crate::qp::{Inner, Qp};
use omniverb_link::Broken;

/// What our polls have seen of the peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience {
    /// The oldest request that is on its way, by its number in the send queue.
    position: u64,
    /// How far the peer had consumed.
    consumed: u64,
    /// Looks since then.
    looks: u32,
}

impl Inner {
    /// A look of a poll found nothing, and there are unfinished requests.
    pub(crate) fn insist(&mut self, qp: &Qp) {
        let (Some(oldest), Some(link)) = (self.sends.oldest_started(), self.links.first_mut())
        else {
            return;
        };
        // The engine polls for nothing: who finds it asleep is asked to wake it.
        if link.peer.wire {
            return;
        }
        match link.endpoint.requests_consumed() {
            Ok(consumed) => {
                let seen = (self.patience.position, self.patience.consumed);
                if seen != (oldest.order.position, consumed) {
                    if self.patience.consumed != consumed && self.patience.looks > 0 {
                        link.endpoint.content();
                    }
                    let position = oldest.order.position;
                    self.patience = Patience { position, consumed, looks: 0 };
                }
                self.patience.looks = self.patience.looks.saturating_add(1);
                if self.patience.looks == INSIST_LOOKS {
                    link.endpoint.insist();
                }
            }
            Err(Broken) => self.broken(qp, 0),
        }
    }
}
