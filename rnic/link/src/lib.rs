//! Encodes what travels in a link, and implements the two ends of one.
//!
//! In: requests and responses as plain values. Out: the same, after every field that a peer wrote
//! was copied once and checked. The far end may be another process, this process, or the engine;
//! an [`Endpoint`] cannot tell.
#![forbid(unsafe_code)]

pub mod captured_operations_ring;
mod credits;
pub mod endpoint;
pub mod granted_page_use;
pub mod layout;
pub mod page_grant_pacing;
pub mod payload_source;
mod peer_wakeup;
pub mod poller_sleep;
pub mod qp_attributes_for_engine;
pub mod record;
mod request_ring_peek;

pub use captured_operations_ring::{Trace, TraceReader, Tracer};
pub use credits::Credit;
pub use endpoint::{Doorbell, Endpoint, EndpointParts, EndpointPositions, ResponseOutcome};
pub use granted_page_use::PeerPageAccess;
pub use omniverb_ring::Broken;
pub use payload_source::{Source, UnfilledRecord};
pub use record::{Nak, Request, Response};
pub use request_ring_peek::PeekedRequest;
