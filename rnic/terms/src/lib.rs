//! The field's terms as types. See `README.md`.
#![forbid(unsafe_code)]
#![no_std]

mod errno;
mod gid;
mod key;
mod qpn;
mod refusal;
mod service;

pub use errno::Errno;
pub use gid::Gid;
pub use key::{Lkey, Rkey};
pub use qpn::Qpn;
pub use refusal::Refusal;
pub use service::Service;
