//! RoCEv2 transport without I/O: reliable connection, unreliable connection, unreliable datagram.
//!
//! In: packets that passed the ICRC check, requests of the layer above, and the time. Out: packets
//! without ICRC, events, and the time to come back. The memory that messages come from and go to
//! belongs to the layer above and is reached through [`UpperLayer`] only, at the moment a packet is
//! made or arrives, so nothing is kept here for retransmission.
//!
//! Clause numbers are those of the InfiniBand architecture specification, volume 1. Where this
//! transport differs from it, `docs/spec/deviations.md` says why.
#![forbid(unsafe_code)]

mod congestion;
mod connection;
mod connection_config;
mod delay_notice;
pub mod fault_injection;
mod operation_rate_permit;
mod requester;
mod responder;
mod rtt;
mod segmentation;
pub mod snapshot;
pub mod splitmix64;
#[cfg(any(test, feature = "fuzz"))]
pub mod testing;
mod unreliable_connection;
pub mod unreliable_datagram;
mod unwrapped_psn;
mod upper_layer;
mod work_request;

pub use connection::{Connection, Counters, Ecn, SendParameters, Transmit};
pub use connection_config::{
    Acknowledgements, AddressedPackets, Config, ConfigError, DelayNotices, GoneReads,
};
pub use operation_rate_permit::OperationPermit;
pub use unreliable_connection::Unreliable;
pub use upper_layer::{
    AtomicOperation, AtomicRequest, Delivery, FetchOutcome, FlushRequest, GatherOutcome, Kind,
    LateAnswer, Part, PlaceOutcome, ReadRequest, RunOutcome, Ticket, UpperLayer,
};
pub use work_request::{Event, Operation, Request, RequestId, Status, SubmitError};

/// Nanoseconds since a moment that the caller chose.
pub type Time = u64;

/// Longest message (9.3.3.1.3).
pub const MESSAGE_MAX: u64 = 1 << 31;
