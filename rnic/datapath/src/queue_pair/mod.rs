//! Serves a queue pair: a link on one side, the transport on the other.

pub mod application;
pub mod connected_qp;
pub mod connection_parameters;
pub mod datagram;
mod incoming_messages;
mod outgoing_requests;
mod qp_stage;
mod responder_answers;
mod unreliable_backlog;
mod unreliable_flow_control;
