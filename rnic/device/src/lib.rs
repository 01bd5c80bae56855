//! The verbs state machine: PD, MR, CQ, QP, SRQ, AH. Work requests in, completions out.
//!
//! This crate is the RNIC. It owns send and receive queues, checks keys and rights, keeps the order
//! the InfiniBand specification asks for, and produces completions into queues that only this
//! process can write. It does no I/O, starts no thread and reads no clock: all of that comes in
//! through [`Host`].
//!
//! Follow a request: [`qp::Qp::post_send`] -> `requester` -> the link -> `responder` of the peer
//! -> [`cq::Cq`]. Follow time: `cq::empty_poll` (the application polls),
//! [`cq::background_progress`] (it does not).
#![forbid(unsafe_code)]

mod completion_counter;
pub mod cq;
mod cq_entry_fifo;
pub mod device_shared;
pub mod granted_peer_pages;
mod library_mapping_of_region;
pub mod limits;
mod link_peer;
pub mod memory_region;
mod memory_window;
pub mod peer_doorbells;
mod platform;
pub mod qp;
mod qps_receiving_into_region;
pub mod receive_ring;
mod region_removal_wait;
mod resident_peer_pages;
pub mod scatter_gather;
pub mod send_work_request;
pub mod shared_receive_queue;
mod spin_lock;
pub mod verbs_constants;
mod weak_list;
mod xrc_domain;

pub use completion_counter::{COUNTER_MAX, CountedUnit, Counter, CounterValue};
pub use cq::{CompletionEvents, Cq, CqOptions, Notify, Overrun, background_progress};
pub use device_shared::Shared;
pub use library_mapping_of_region::OwnMapping;
pub use link_peer::{FarEnd, Peer};
pub use memory_region::{Region, RegionKind, WindowType};
pub use platform::{AsyncEvent, Host, ToleratedMismatch};
pub use qp::qp_attributes::{self, QpAttributes, QpMask};
pub use qp::{AttachError, Qp, QpSpec, Signaling};
pub use scatter_gather::Sge;
pub use send_work_request::{Data, DatagramAddress, GlobalRoute, PostError, PostFault, SendWork};
pub use shared_receive_queue::{ResizeError, Srq, SrqSpec};
pub use verbs_constants::*;
pub use xrc_domain::{DOMAIN_PARTS, DOMAIN_SRQS, Domain};
