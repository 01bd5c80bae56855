//! The verbs state machine: PD, MR, CQ, QP, SRQ, AH. Work requests in, completions out.
//!
//! This crate is the RNIC. It owns send and receive queues, checks keys and rights, keeps the order
//! the InfiniBand specification asks for, and produces completions into queues that only this
//! process can write. It does no I/O, starts no thread and reads no clock: all of that comes in
//! through [`Host`].
//!
//! Follow a request: [`qp::Qp::post_send`] -> `requester` -> the link -> `responder` of the peer
//! -> [`cq::Cq`]. Follow time: `cq::poller` (the application polls), [`cq::progress`] (it does
//! not).
#![forbid(unsafe_code)]

pub mod bell;
pub mod constants;
mod counter;
pub mod cq;
mod domain;
mod fifo;
pub mod gather;
pub mod grants;
mod host;
pub mod limits;
mod lock;
mod pages;
mod peer;
pub mod qp;
pub mod queue;
mod readers;
pub mod region;
pub mod shared;
pub mod srq;
mod weaks;
mod window;
pub mod work;

pub use constants::*;
pub use counter::{COUNTER_MAX, Counter, Counts, Tally};
pub use cq::{CompletionEvents, Cq, CqOptions, Notify, Overrun, progress};
pub use domain::{DOMAIN_PARTS, DOMAIN_SRQS, Domain};
pub use gather::Sge;
pub use host::{AsyncEvent, Forgiven, Host};
pub use peer::{FarEnd, Peer};
pub use qp::attributes::{self, QpAttributes, QpMask};
pub use qp::{AttachError, Qp, QpSpec, Signaling};
pub use region::{Extras, Region, WindowType};
pub use shared::Shared;
pub use srq::{ResizeError, Srq, SrqSpec};
pub use work::{Addressee, Data, GlobalRoute, PostError, PostFault, SendWork};
