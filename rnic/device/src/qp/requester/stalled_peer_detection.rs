//! Tracks what polls see of a peer that is to consume something; see `wake_peer`.

use crate::limits::INSIST_LOOKS;

/// What our polls have seen of the peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerPolling {
    /// The oldest request that is on its way, by its number in the send queue.
    position: u64,
    /// How far the peer had consumed.
    consumed: u64,
    /// Looks since then.
    looks: u32,
}

/// What to do after a look.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PeerAction {
    /// Nothing: it is too soon.
    Nothing,
    /// The peer consumes after all: it need not be woken from now on.
    Consumes,
    /// Wake the peer.
    Wake,
}

impl PeerPolling {
    /// Our poll has seen this.
    pub(super) fn look(&mut self, position: u64, consumed: u64) -> PeerAction {
        let mut found = PeerAction::Nothing;
        if (self.position, self.consumed) != (position, consumed) {
            if self.consumed != consumed && self.looks > 0 {
                found = PeerAction::Consumes;
            }
            *self = PeerPolling { position, consumed, looks: 0 };
        }
        self.looks = self.looks.saturating_add(1);
        if self.looks == INSIST_LOOKS { PeerAction::Wake } else { found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_woken_once_for_what_it_does_not_consume() {
        let mut patience = PeerPolling::default();
        let looks = |patience: &mut PeerPolling, consumed, what| {
            (0..10 * INSIST_LOOKS).filter(|_| patience.look(1, consumed) == what).count()
        };
        assert_eq!(looks(&mut patience, 7, PeerAction::Wake), 1);
        assert_eq!(patience.look(1, 8), PeerAction::Consumes);
        assert_eq!(looks(&mut patience, 8, PeerAction::Consumes), 0);
        assert_eq!(
            patience.look(2, 8),
            PeerAction::Nothing,
            "another request, and nothing consumed"
        );
    }
}
