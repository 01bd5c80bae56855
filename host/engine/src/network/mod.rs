//! Moves packets between queue pairs and the network: sockets, trains, early packets, injected
//! faults.

pub(crate) mod early_packets;
pub(crate) mod fault_injection;
pub mod handshake_datagram;
pub(crate) mod local_forwarding;
mod multicast_copy_codec;
pub(crate) mod pending_probes;
pub(crate) mod roce_port;
pub mod tenants_by_address;
pub(crate) mod underlay_relay;
pub(crate) mod virtual_network_senders;
