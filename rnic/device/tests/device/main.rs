//! Two devices in one process, joined by links in private memory: everything a queue pair does,
//! without daemon, clock or threads. [`pair`] is the bench; the rest are the tests.

#![expect(clippy::duplicate_mod, reason = "the tests of grants run with both kinds of memory")]

mod engine;
mod extents;
mod far;
mod guarded_buffer;
mod pair;
mod script;
mod work;
mod world;

mod attack;
mod bell;
mod completion;
mod counting;
mod datagram;
mod dying;
mod engine_arrivals;
mod engine_datagrams;
mod engine_links;
mod executing;
mod extended;
mod handing_over;
mod hostile;
mod life;
mod mapped;
#[path = "mapped.rs"]
mod mapped_within;
mod messages;
mod model;
mod page_faults;
mod receive_bounds;
mod remote_errors;
mod removal;
mod retries;
mod shared_receive;
mod sources;
mod strict;
mod traces;
mod unreliable;
