//! Serves queue pairs whose peers are on other hosts: a link on one side, packets on the other.
//!
//! In: records of an application, packets whose ICRC was checked, time. Out: packets in trains,
//! records for the application, and when to be called again. The protocol is
//! `omniverb_transport`'s. Sockets, threads, limits and what is common to all queue pairs of a vNIC
//! are the host's: today the daemon's engine.
//!
//! A packet's way out: [`queue_pair::connected_qp`] turns records into requests
//! (`outgoing_requests.rs`), the transport makes packets of them, [`packet_train`] gathers and
//! seals them. The way in: [`train_numbering`] checks a packet, `connected_qp` hands it to the
//! transport, and [`queue_pair::application`] writes what comes out into the link
//! (`incoming_messages.rs`), or to its place ([`pages`]).
#![forbid(unsafe_code)]

pub mod handover;
pub mod hosted_links;
pub mod link_clock;
pub mod memory_accounts;
pub mod missed_doorbell_poll;
pub mod pacing;
pub mod packet_train;
pub mod pages;
pub mod peer_features;
pub mod queue_pair;
mod request_records;
#[cfg(any(test, feature = "fuzz"))]
pub mod testing;
pub mod train_numbering;
pub mod vnic_memory_allowance;
pub mod way_trial;

pub use vnic_memory_allowance::Allowance;
