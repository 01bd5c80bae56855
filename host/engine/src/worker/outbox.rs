//! The way from a packet thread to the control plane.

use crate::command::Event;
use omniverb_sys::EventFd;
use std::sync::{Arc, mpsc};

/// Where events go.
pub(crate) struct Outbox {
    events: mpsc::SyncSender<Event>,
    ready: Arc<EventFd>,
}

/// Whether an event is on its way, or nobody will hear of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Posted {
    Sent,
    /// There is too much to be told.
    Lost,
}

impl Outbox {
    pub(crate) fn new(events: mpsc::SyncSender<Event>, ready: Arc<EventFd>) -> Outbox {
        Outbox { events, ready }
    }

    /// Tells of something.
    pub(super) fn post(&self, event: Event) -> Posted {
        if self.events.try_send(event).is_err() {
            return Posted::Lost;
        }
        self.ready.signal();
        Posted::Sent
    }
}
