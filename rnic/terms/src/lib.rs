//! The field's terms as types. See `README.md`.
#![forbid(unsafe_code)]
#![no_std]

mod errno;
mod flush;
mod gid;
mod key;
mod newtype;
mod psn;
mod qpn;
mod nak_code;
mod transport_service;
mod underlay_route;
mod vnic;

pub use errno::Errno;
pub use flush::{Placement, Selectivity};
pub use gid::Gid;
pub use key::{Lkey, Qkey, Rkey};
pub use psn::Psn;
pub use qpn::Qpn;
pub use nak_code::Refusal;
pub use transport_service::Service;
pub use underlay_route::{RouteKey, Underlay};
pub use vnic::VnicId;
