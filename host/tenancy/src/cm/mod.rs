//! The connection manager: ids of processes, the ports of each vNIC, and what is said at queue
//! pair 1.
//!
//! How a connection goes is `rnic/cm`'s to know; here is whose it is. `cm_id.rs`, `port_binding.rs`
//! and `id_table.rs` have the rows; `address_resolution.rs` gives ids addresses,
//! `connection_calls.rs` does what their users want, `received_messages.rs` takes messages in,
//! `early_requests.rs` has those that are early and `early_request_timer.rs` says what becomes of
//! them, `execute_connection_steps.rs` carries out what follows: messages to the peer and events to
//! the user, `dreq_retransmission.rs` has what ids that are gone said last, and `dreq_timer.rs`
//! says it again; `message_ends.rs`: from whom a message is, and to whom. What goes from one id of
//! a vNIC to another never leaves the tables; everything else travels through the vNIC's own
//! network, which decides so who may talk to whom, to another vNIC of this host as well.

mod address_resolution;
mod cm_id;
mod connection_calls;
mod dreq_retransmission;
mod dreq_timer;
mod early_request_timer;
mod early_requests;
mod execute_connection_steps;
pub(crate) mod id_table;
mod message_ends;
mod port_binding;
mod received_messages;

use crate::context::Context;
use crate::network::Network;
use crate::queue_pairs::queue_pair_table::QueuePairs;
use crate::tenants::Tenants;
use id_table::Connections;

/// Serves ids of processes, and what comes to queue pair 1: with the tables that this needs.
pub(crate) struct ConnectionManager<'a> {
    pub(crate) context: &'a mut Context,
    pub(crate) tenants: &'a mut Tenants,
    pub(crate) network: &'a Network,
    pub(crate) queue_pairs: &'a QueuePairs,
    pub(crate) connections: &'a mut Connections,
}
