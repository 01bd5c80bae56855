//! The field's terms as types. See `README.md`.
#![forbid(unsafe_code)]
#![no_std]

mod errno;
mod flush;
mod gid;
mod key;
mod name;
mod psn;
mod qpn;
mod refusal;
mod service;
mod underlay;
mod vnic;

pub use errno::Errno;
pub use flush::{Placement, Selectivity};
pub use gid::Gid;
pub use key::{Lkey, Qkey, Rkey};
pub use psn::Psn;
pub use qpn::Qpn;
pub use refusal::Refusal;
pub use service::Service;
pub use underlay::{RouteKey, Underlay};
pub use vnic::VnicId;
