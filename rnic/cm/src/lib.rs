//! Messages of the communication manager (InfiniBand specification, volume 1, chapter 12) and what
//! RDMA-CM adds to them for IP addresses (annex A11).
//!
//! In: 256 bytes of a management datagram from QP 1. Out: a [`Message`], and back. Messages go to
//! QP 1 of the other side and always fill 256 bytes.
//!
//! And what is said when: a [`Connection`], and a [`Resolution`] for datagrams. They do no I/O and
//! know no clock: whoever has them hands in messages and the time, and sends what comes out.
#![forbid(unsafe_code)]

mod big_endian_fields;
mod connection;
mod connection_kind;
mod ip_service;
mod mad;
mod message;
mod negotiated_parameters;
mod reply;
mod request;
mod request_path;
mod retransmit;
pub mod sidr;
#[cfg(any(test, feature = "fuzz"))]
pub mod testing;

pub use connection::{CmAction, Connection, Event, State};
pub use connection_kind::Kind;
pub use ip_service::{IpHeader, PortSpace, ServiceId};
pub use mad::{MAD_BYTES, Mad, Malformed};
pub use message::{
    Disconnect, Disconnected, Message, Received, Reject, Rejected, Resolve, Resolved, Wait,
    reject_reason,
};
pub use negotiated_parameters::NegotiatedParameters;
pub use reply::Reply;
pub use request::{Request, Transport};
pub use request_path::Path;
pub use sidr::{Resolution, SidrOutcome};

/// Private data as applications see it: always as long as the message allows.
pub type Private<const N: usize> = [u8; N];

/// What a user wants does not go with how far the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not in this state")]
pub struct WrongState;
