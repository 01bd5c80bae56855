//! The field's terms as types. See `README.md`.
#![forbid(unsafe_code)]
#![no_std]

mod errno;
mod flush;
mod gid;
mod memory_keys;
mod nak_code;
mod newtype;
mod operation_set;
mod psn;
mod qpn;
mod transport_service;
mod underlay_route;
mod vnic;

pub use errno::Errno;
pub use flush::{Placement, Selectivity};
pub use gid::Gid;
pub use memory_keys::{Lkey, Qkey, Rkey};
pub use nak_code::Refusal;
pub use operation_set::Operations;
pub use psn::Psn;
pub use qpn::Qpn;
pub use transport_service::Service;
pub use underlay_route::{RouteKey, UnderlayRoute, group_at, group_of_programs};
pub use vnic::VnicId;
