//! What a packet thread works on.

use super::bells::Bells;
use super::counted::Counters;
use super::links::Links;
use super::outbox::Outbox;
use super::timers::Timers;
use super::vnic::Vnic;
use crate::identity::VnicId;
use crate::network::faults::BadLine;
use crate::network::passages::Passages;
use crate::network::train::Train;
use crate::pages::budget::Mappings;
use crate::pages::together::Together;
use std::collections::BTreeMap;
use std::io;

/// Its parts, each of which keeps its own order.
pub(super) struct State {
    pub(super) outbox: Outbox,
    pub(super) counters: Counters,
    pub(super) bells: Bells,
    pub(super) vnics: BTreeMap<VnicId, Vnic>,
    pub(super) links: Links,
    pub(super) timers: Timers,
    /// Links whose acknowledgement waits for their application's next turn.
    pub(super) acknowledge_later: Vec<usize>,
    /// Links whose application naps and is to be woken.
    pub(super) naps: Vec<usize>,
    /// Packets of links of ours to links of ours.
    pub(super) passages: Passages,
    /// What leaves; in use while a link is served.
    pub(super) train: Option<Train>,
    /// A message of a datagram while a packet is made of it.
    pub(super) message: Vec<u8>,
    /// What all packet threads have mapped.
    pub(super) mappings: Mappings,
    /// Of them, those of this thread's links.
    pub(super) together: Together,
}

impl State {
    pub(super) fn new(outbox: Outbox, counters: Counters, mappings: Mappings) -> io::Result<State> {
        Ok(State {
            outbox,
            counters,
            bells: Bells::new()?,
            vnics: BTreeMap::new(),
            links: Links::default(),
            timers: Timers::default(),
            acknowledge_later: Vec::new(),
            naps: Vec::new(),
            passages: Passages::default(),
            train: Some(Train::new()),
            message: Vec::new(),
            mappings,
            together: Together::default(),
        })
    }

    /// The bad line in front of a vNIC, if it has one.
    pub(super) fn bad_line(&mut self, vnic: VnicId) -> Option<&mut BadLine> {
        self.vnics.get_mut(&vnic)?.bad_line.as_deref_mut()
    }
}
