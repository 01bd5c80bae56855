//! The verbs state machine: PD, MR, CQ, QP, SRQ, AH. Work requests in, completions out.
//!
//! This crate is the RNIC. It owns send and receive queues, checks keys and rights, keeps the order
//! the InfiniBand specification asks for, and produces completions into queues that only this
//! process can write. It does no I/O, starts no thread and reads no clock: all of that comes in
//! through [`Host`].
//!
//! Follow a request: [`qp::Qp::post_send`] -> `requester` -> the link -> `responder` of the peer
//! -> [`cq::Cq`]. Follow time: [`cq::poller`] (the application polls), [`cq::progress`] (it does
//! not).
#![forbid(unsafe_code)]

pub mod constants;
pub mod cq;
pub mod gather;
pub mod grants;
pub mod limits;
mod lock;
mod pages;
pub mod qp;
pub mod queue;
pub mod region;
mod requester;
mod responder;
pub mod shared;
pub mod srq;
pub mod work;

pub use constants::*;
pub use cq::{CompletionEvents, Cq, poller, progress};
pub use gather::Sge;
pub use qp::attributes::{self, QpAttributes, QpMask};
pub use qp::{FarEnd, Peer, Qp, QpSpec};
pub use region::Region;
pub use shared::{AsyncEvent, Host, Shared};
pub use srq::Srq;
pub use work::{Addressee, Data, PostError, Route, SendWork};
