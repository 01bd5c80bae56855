//! Messages of the communication manager (InfiniBand specification, volume 1, chapter 12) and what
//! RDMA-CM adds to them for IP addresses (annex A11).
//!
//! In: 256 bytes of a management datagram from QP 1. Out: a [`Message`], and back. Messages go to
//! QP 1 of the other side and always fill 256 bytes.
#![forbid(unsafe_code)]

mod bytes;
pub mod fuzz;
mod ip;
mod mad;
mod message;
mod path;
mod reply;
mod request;

pub use ip::{IpHeader, PortSpace, ServiceId};
pub use mad::{MAD_BYTES, Mad, Malformed};
pub use message::{
    Disconnect, Disconnected, Message, Received, Reject, Rejected, Resolve, Resolved, Wait,
    reject_reason,
};
pub use path::Path;
pub use reply::Reply;
pub use request::{Request, Transport};

/// Private data as applications see it: always as long as the message allows.
pub type Private<const N: usize> = [u8; N];
