//! What travels in a link, and the two ends of one.
//!
//! In: requests and responses as plain values. Out: the same, after every field that a peer wrote
//! was copied once and checked. The far end may be another process, this process, or the engine;
//! an [`Endpoint`] cannot tell.
#![forbid(unsafe_code)]

mod read_ahead;
pub mod qp_attributes;
mod credits;
pub mod endpoint;
pub mod layout;
pub mod poller_nap;
pub mod grant_pacing;
pub mod page_access;
pub mod record;
pub mod payload_source;
pub mod operation_trace;
mod peer_wakeup;

pub use read_ahead::Ahead;
pub use credits::Credit;
pub use endpoint::{Doorbell, Endpoint, EndpointParts, Sent};
pub use omniverb_ring::Broken;
pub use page_access::PeerReaches;
pub use record::{Nak, Request, Response};
pub use payload_source::{Source, Unfilled};
pub use operation_trace::{Trace, TraceReader, Tracer};
