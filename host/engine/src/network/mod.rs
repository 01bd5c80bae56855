//! Moves packets between queue pairs and the network: sockets, trains, early packets, injected
//! faults.

pub(crate) mod early_packets;
pub(crate) mod fault_injection;
mod group_copy;
pub mod handshake_datagram;
pub(crate) mod local_forwarding;
pub(crate) mod network_places;
pub(crate) mod pending_probes;
pub(crate) mod roce_port;
pub mod tenants_by_address;
pub(crate) mod underlay_relay;
