//! Implements the packet engine: the RNIC of links whose far end is on another host.
//!
//! In: links (records that applications write), datagrams from UDP port 4791 of every vNIC's
//! network namespace, commands of the control plane. Out: the same in the other direction, paced.
//! The protocol is `omniverb_transport`'s; here are the threads, sockets and queues around it.
//!
//! A packet's way out: [`worker`] finds a link with news, `omniverb_datapath` turns its records
//! into packets and gathers them, [`network::roce_port`] sends. The way in: `port` receives,
//! `worker` finds the QP, and `omniverb_datapath` hands the packet to the transport and what comes
//! out to the link, or to its place ([`pages`]).
#![forbid(unsafe_code)]

pub mod capture_recorder;
mod command;
mod engine_handle;
mod event_outbox;
mod event_queues;
mod kept_memory_limits;
mod network;
mod pacing;
mod pages;
#[cfg(any(test, feature = "fuzz"))]
pub mod testing;
mod worker;

pub use capture_recorder::packet_queue::PacketQueue;
pub use command::{
    Attach, Command, Encryption, Event, Grant, LimitGroup, LimitUnit, Memory, Pages, PerUnit,
    QpCounters, Recipient, Row,
};
pub use engine_handle::{Engine, Settings};
pub use kept_memory_limits::HolderPath;
pub use network::handshake_datagram;
pub use network::tenants_by_address::TenantsByAddress;
pub use network::underlay_relay::{Seat, UnderlayRelay};
pub use network::virtual_network_senders::NetworkPlaces;
pub use omniverb_datapath::peer_features;
pub use omniverb_link::page_grant_pacing::Denial;
pub use omniverb_pacer::{Limit, SharedLimiter};
pub use omniverb_psp::tunnel::{OVERHEAD_BYTES as ENCRYPTION_BYTES, Refusal};
pub use omniverb_psp::{PORT as PSP_PORT, TenantKey};
pub use omniverb_transport::Status;
pub use omniverb_transport::fault_injection::{FaultCounts as FaultCounters, Faults};
pub use omniverb_wire::{PORT, PortNotice};
