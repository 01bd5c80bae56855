//! Sends events of a thread of the engine to the control plane.

use crate::command::Event;
use crate::event_queues::{Events, Posted};
use omniverb_sys::EventFd;
use omniverb_terms::VnicId;
use std::sync::Arc;

/// Where events go.
pub(crate) struct Outbox {
    events: Events,
    ready: Arc<EventFd>,
}

impl Outbox {
    pub(crate) fn new(events: Events, ready: Arc<EventFd>) -> Outbox {
        Outbox { events, ready }
    }

    /// Tells of something, on account of this vNIC.
    pub(crate) fn post(&self, vnic: VnicId, event: Event) -> Posted {
        let posted = self.events.post(vnic, event);
        if posted == Posted::Sent {
            self.ready.signal();
        }
        posted
    }
}
