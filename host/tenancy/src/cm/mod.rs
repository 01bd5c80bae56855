//! Runs the connection manager: ids of processes, ports of each vNIC, and messages at queue pair 1.
//!
//! `rnic/cm` has the protocol of a connection; this module has the owners. `cm_id.rs`,
//! `port_binding.rs` and `id_table.rs` have the rows; `address_resolution.rs` gives ids addresses;
//! `connection_calls.rs` serves calls of users; `received_messages.rs` takes messages in;
//! `early_requests.rs` keeps early requests and `early_request_timer.rs` ends them;
//! `execute_connection_steps.rs` sends messages to the peer and events to the user;
//! `dreq_retransmission.rs` keeps the last messages of destroyed ids, and `dreq_timer.rs` repeats
//! them; `message_ends.rs` names the sender and receiver of a message; `connected_ports.rs` keeps
//! the ports that links were made with, for rules. Messages from one id of a vNIC to another never
//! leave the tables; all others travel through the vNIC's own network, which so decides
//! reachability, to another vNIC of this host as well.

mod address_resolution;
pub(crate) mod cm_id;
pub(crate) mod connected_ports;
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

use crate::decision_context::Context;
use crate::link_observers::Observers;
use crate::network::Network;
use crate::queue_pairs::queue_pair_table::QueuePairs;
use crate::vnics_and_policies::Tenants;
use id_table::Connections;

/// Serves ids of processes, and what comes to queue pair 1: with the tables that this needs.
pub(crate) struct ConnectionManager<'a> {
    pub(crate) context: &'a mut Context,
    pub(crate) tenants: &'a mut Tenants,
    pub(crate) network: &'a Network,
    pub(crate) queue_pairs: &'a QueuePairs,
    pub(crate) connections: &'a mut Connections,
    pub(crate) observers: &'a Observers,
}
