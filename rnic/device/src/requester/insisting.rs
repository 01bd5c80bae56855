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

/// What to do after a look.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// Nothing.
    Nothing,
    /// The peer consumes after all: it need not be woken from now on.
    Consumes,
    /// Wake the peer.
    Wake,
}

impl Patience {
    /// Our poll has seen this.
    fn look(&mut self, position: u64, consumed: u64) -> Look {
        let mut found = Look::Nothing;
        if (self.position, self.consumed) != (position, consumed) {
            if self.consumed != consumed && self.looks > 0 {
                found = Look::Consumes;
            }
            *self = Patience { position, consumed, looks: 0 };
        }
        self.looks = self.looks.saturating_add(1);
        if self.looks == INSIST_LOOKS { Look::Wake } else { found }
    }
}

impl Inner {
    /// A look of a poll found nothing, and there are unfinished requests.
    pub(crate) fn insist(&mut self, qp: &Qp) {
        let (Some(oldest), Some(link)) = (self.sends.oldest_started(), self.links.first_mut())
        else {
            return;
        };
        // The engine polls for nothing: who finds it asleep is asked to wake it.
        if link.peer.is_beyond_engine() {
            return;
        }
        match link.endpoint.requests_consumed() {
            Ok(consumed) => match self.patience.look(oldest.order.position, consumed) {
                Look::Nothing => {}
                Look::Consumes => link.endpoint.content(),
                Look::Wake => link.endpoint.insist(),
            },
            Err(Broken) => self.broken(qp, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_woken_once_for_what_it_does_not_consume() {
        let mut patience = Patience::default();
        let looks = |patience: &mut Patience, consumed, what| {
            (0..10 * INSIST_LOOKS).filter(|_| patience.look(1, consumed) == what).count()
        };
        assert_eq!(looks(&mut patience, 7, Look::Wake), 1);
        assert_eq!(patience.look(1, 8), Look::Consumes);
        assert_eq!(looks(&mut patience, 8, Look::Consumes), 0);
        assert_eq!(patience.look(2, 8), Look::Nothing, "another request, and nothing consumed");
    }
}
