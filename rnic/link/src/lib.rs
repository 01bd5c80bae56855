//! What travels in a link, and the two ends of one.
//!
//! In: requests and responses as plain values. Out: the same, after every field that a peer wrote
//! was copied once and checked. The far end may be another process, this process, or the engine;
//! an [`Endpoint`] cannot tell.
#![forbid(unsafe_code)]

pub mod endpoint;
mod far;
pub mod layout;
pub mod nap;
pub mod pace;
pub mod reach;
pub mod record;
pub mod source;
pub mod trace;
pub mod wire;

pub use endpoint::{Doorbell, Endpoint, EndpointParts};
pub use far::Ahead;
pub use omniverb_ring::Broken;
pub use record::{Nak, Request, Response};
pub use source::{Source, Unfilled};
pub use trace::{Trace, TraceReader, Tracer};
