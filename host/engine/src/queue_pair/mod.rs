//! A queue pair as the engine plays it: a link on one side, the transport on the other.

pub(crate) mod application;
pub(crate) mod backlog;
pub(crate) mod connected;
pub(crate) mod datagram;
pub(crate) mod incoming;
pub(crate) mod message_pacing;
pub(crate) mod outgoing;
pub(crate) mod read_responses;
mod stage;
pub(crate) mod terms;
