//! Serves a queue pair: a link on one side, the transport on the other.

pub(crate) mod application;
pub(crate) mod connected_qp;
pub(crate) mod connection_parameters;
pub(crate) mod datagram;
pub(crate) mod incoming_messages;
pub(crate) mod outgoing_requests;
mod qp_stage;
pub(crate) mod responder_answers;
pub(crate) mod unreliable_backlog;
pub(crate) mod unreliable_flow_control;
