//! What travels in a link, and the two ends of one.
//!
//! In: requests and responses as plain values. Out: the same, after every field that a peer wrote
//! was copied once and checked. The far end may be another process, this process, or the engine;
//! an [`Endpoint`] cannot tell.
#![forbid(unsafe_code)]

mod ahead;
pub mod attributes;
mod credits;
pub mod endpoint;
pub mod layout;
pub mod nap;
pub mod pace;
pub mod reach;
pub mod record;
pub mod source;
pub mod trace;
mod waking;

pub use ahead::Ahead;
pub use credits::Credit;
pub use endpoint::{Doorbell, Endpoint, EndpointParts, Sent};
pub use omniverb_ring::Broken;
pub use reach::PeerReaches;
pub use record::{Nak, Request, Response};
pub use source::{Source, Unfilled};
pub use trace::{Trace, TraceReader, Tracer};
