//! Waking a peer that did not ask for it.
//!
//! A peer whose application polls all the time is not woken: its polls find what we send, and its
//! progress thread takes a turn each millisecond. But a program may poll for completions of its
//! own for a moment and then wait for a WRITE by looking at memory, and there a mediated WRITE
//! would lie for that millisecond. So who polls for the completion of a request, and sees the peer
//! consume nothing for a while, wakes the peer once; and so does the progress thread of one that
//! does not poll. A peer that consumes is never woken that way, and requests that complete at once
//! never come here.

use super::patience::Look;
use crate::qp::{Inner, Qp};
use omniverb_link::Broken;
use omniverb_terms::Service;

impl Inner {
    /// A turn of the progress thread left requests unfinished. Where polls look all the time, they
    /// insist.
    pub(crate) fn insist_in_turn(&mut self, qp: &Qp) {
        if qp.service == Service::Ud || qp.send_cq.is_attended() {
            return;
        }
        let (Some(oldest), Some(link)) = (self.sends.oldest_started(), self.links.first_mut())
        else {
            return;
        };
        // What breaks the rules others find out.
        if link.peer.is_beyond_engine() {
            return;
        }
        let Ok(consumed) = link.endpoint.requests_consumed() else { return };
        let (moved, look) = self.patience.turn(oldest.order.position, consumed);
        if moved {
            link.endpoint.content();
        }
        if look == Look::Wake && consumed != link.endpoint.request_position() {
            link.endpoint.insist();
        }
    }

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
