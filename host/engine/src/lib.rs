//! The engine: plays the RNIC for links whose far end is not a local process.
//!
//! In: links (records that applications write), datagrams from UDP port 4791 of every vNIC's
//! network namespace, commands of the control plane. Out: the same in the other direction, paced.
//! The protocol is `omniverb_transport`'s; here are the threads, sockets and queues around it.
//!
//! A packet's way out: [`worker`] finds a link with news, [`queue_pair::connected`] turns its
//! records into requests ([`queue_pair::outgoing`]), the transport makes packets of them,
//! [`network::train`] gathers and seals them, [`network::port`] sends. The way in: `port` receives,
//! `worker` finds the QP, `connected` hands the packet to the transport, and
//! [`queue_pair::application`] writes what comes out into the link ([`queue_pair::incoming`]), or
//! to its place ([`pages`]).
#![forbid(unsafe_code)]

mod command;
mod engine;
mod events;
mod memory;
mod network;
mod pacing;
mod pages;
mod queue_pair;
pub mod recorder;
mod records;
mod room;
#[cfg(any(test, feature = "fuzz"))]
pub mod testing;
mod worker;

pub use command::{
    Attach, Command, Event, Grant, Memory, Pages, QpCounters, Recipient, Row, feature,
};
pub use engine::{Engine, Settings};
pub use memory::HolderPath;
pub use network::handshake;
pub use omniverb_link::grant_pacing::Denied;
pub use omniverb_transport::Status;
pub use omniverb_transport::fault_injection::{Done as FaultCounters, Faults};
pub use pacing::bucket::Limit;
pub use recorder::queue::PacketQueue;
