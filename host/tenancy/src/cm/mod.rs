//! The connection manager: ids of processes, the ports of each vNIC, and what is said at queue
//! pair 1.
//!
//! How a connection goes is `rnic/cm`'s to know; here is whose it is. `id.rs`, `ports.rs` and
//! `table.rs` have the rows; `addresses.rs` gives ids addresses, `connecting.rs` does what their
//! users want, `arriving.rs` takes messages in, `early.rs` has those that are early and
//! `keeping.rs` says what becomes of them, `telling.rs` carries out what follows: messages to the
//! peer and events to the user, `farewells.rs` has what ids that are gone said last, and
//! `parting.rs` says it again; `ends.rs`: from whom a message is, and to whom. What goes from one
//! id of a vNIC to another never leaves the tables; everything else travels through the vNIC's own
//! network, which decides so who may talk to whom, to another vNIC of this host as well.

mod addresses;
mod arriving;
mod connecting;
mod early;
mod ends;
mod farewells;
mod id;
mod keeping;
mod parting;
mod ports;
pub(crate) mod table;
mod telling;

use crate::context::Context;
use crate::network::Network;
use crate::queue_pairs::table::QueuePairs;
use crate::tenants::Tenants;
use table::Connections;

/// Serves ids of processes, and what comes to queue pair 1: with the tables that this needs.
pub(crate) struct ConnectionManager<'a> {
    pub(crate) context: &'a mut Context,
    pub(crate) tenants: &'a mut Tenants,
    pub(crate) network: &'a Network,
    pub(crate) queue_pairs: &'a QueuePairs,
    pub(crate) connections: &'a mut Connections,
}
