//! The engine: plays the RNIC for links whose far end is not a local process.
//!
//! In: links (records that applications write), datagrams from UDP port 4791 of every vNIC's
//! network namespace, commands of the control plane. Out: the same in the other direction, paced.
//! The protocol is `omniverb_transport`'s; here are the threads, sockets and queues around it.
//!
//! A packet's way out: [`worker`] finds a link with news, [`connected`] turns its records into
//! requests ([`outgoing`]), the transport makes packets of them, [`train`] gathers and seals them,
//! [`port`] sends. The way in: `port` receives, `worker` finds the QP, `connected` hands the packet
//! to the transport, and [`far`] writes what comes out into the link ([`incoming`]).
#![forbid(unsafe_code)]

mod agenda;
mod backlog;
mod bell;
mod bucket;
mod budget;
mod capture;
mod command;
mod connected;
mod datagram;
mod early;
mod engine;
mod far;
mod faults;
mod flow;
pub mod fuzz;
mod granted;
mod held;
mod incoming;
mod numbering;
mod outgoing;
mod placing;
mod port;
mod queue;
mod reading;
pub mod recorder;
mod sources;
mod timers;
mod train;
#[cfg(test)]
mod trial;
mod vnic;
mod worker;

pub use bucket::Limit;
pub use capture::Intake;
pub use command::{Attach, Command, Event, Grant, QpCounters, Service, VnicId, feature};
pub use engine::{Engine, Settings};
pub use omniverb_transport::Status;
pub use omniverb_transport::faults::{Done as FaultCounters, Faults};
