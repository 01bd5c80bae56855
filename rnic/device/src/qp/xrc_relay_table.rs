//! Keeps the relays of an XRC queue pair: the processes of its domain that it hands requests over
//! to, and the one that it receives them for.
//!
//! The queue pair whose connection it is (the *front*) has a [`Relay`] for each part of the domain
//! that was named. The daemon, which makes links between queue pairs, knows that by a hidden queue
//! pair, whose link is the front's from the beginning; in the other process there is a hidden one
//! that receives, for the front.

use super::xrc_relay::Relay;
use crate::limits::RELAYS_MAX;
use crate::link_peer::Peer;
use crate::verbs_constants::Wc;
use omniverb_terms::Qpn;
use std::sync::{OnceLock, Weak};

/// The index of all relays' links: what has news there is what waits at the head of our own.
pub(crate) const RELAYED: usize = usize::MAX;

/// A way to another part.
pub(super) enum RelayState {
    /// It is being looked for.
    Asked,
    Open(Box<Relay>),
    /// There is none, or no more, and a request waits for it.
    Gone,
}

/// What is known of the way to a part.
pub(super) enum RelayLookup<'r> {
    /// Nothing: it is to be looked for from now on.
    New,
    /// It is being looked for.
    Asked,
    Open(&'r mut Relay),
    /// There is none.
    Gone,
}

/// The ways to other parts of the domain, by their numbers.
#[derive(Default)]
pub(super) struct Relays(pub(super) Vec<(u32, RelayState)>);

impl Relays {
    /// Where in the list the way to a part is.
    pub(super) fn position(&self, part: u32) -> Option<usize> {
        self.0.iter().position(|(of, _)| *of == part)
    }

    /// The way to a part.
    pub(super) fn to(&mut self, part: u32) -> RelayLookup<'_> {
        let Some(at) = self.position(part) else {
            if self.0.len() >= RELAYS_MAX {
                return RelayLookup::Gone;
            }
            self.0.push((part, RelayState::Asked));
            return RelayLookup::New;
        };
        match &mut self.0[at].1 {
            RelayState::Asked => RelayLookup::Asked,
            RelayState::Gone => RelayLookup::Gone,
            RelayState::Open(relay) => RelayLookup::Open(relay),
        }
    }

    /// The peer at the other end of the link that a hidden queue pair of this number stands for.
    pub(super) fn peer(&self, by: Qpn) -> Option<Peer> {
        self.0.iter().find_map(|(_, way)| match way {
            RelayState::Open(relay) if relay.by == by => Some(relay.peer),
            _ => None,
        })
    }

    pub(super) fn are_some(&self) -> bool {
        !self.0.is_empty()
    }
}

/// What a hidden queue pair stands for. `F`: what a front is.
pub(super) struct HiddenQp<F> {
    /// The front, and the part that its link leads to.
    pub(super) front: OnceLock<(Weak<F>, u32)>,
    /// The queue pair of another process that it receives for, and the sender to that.
    pub(super) receives_for: OnceLock<(Qpn, Qpn)>,
}

impl<F> Default for HiddenQp<F> {
    fn default() -> Self {
        HiddenQp { front: OnceLock::new(), receives_for: OnceLock::new() }
    }
}

impl<F> HiddenQp<F> {
    /// What a completion says of the connection that a message came by.
    pub(super) fn told(&self, wc: Wc) -> Wc {
        match self.receives_for.get() {
            None => wc,
            Some((front, sender)) => Wc { qp_num: front.0, src_qp: sender.0, ..wc },
        }
    }
}
