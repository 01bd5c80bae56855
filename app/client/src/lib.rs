//! What runs inside an application besides the device itself: the session with `omniverbd`, the
//! progress thread, memory keys and page grants.
//!
//! In: control verbs from the C edge (`app/ibverbs`). Out: daemon calls, and device objects that
//! then work without either. There is one [`Client`] per process, made when the program first
//! asks for devices; nothing runs or is open before that.

mod answers;
mod asking;
mod attaching;
mod attachments;
mod audience;
mod bells;
mod calls;
mod client;
mod daemon;
mod delivered;
mod ears;
mod environment;
mod errno;
mod extent;
mod fork;
mod host;
mod imports;
mod keys;
mod lent;
mod mapped;
mod memory;
mod nic;
pub mod notify;
mod opened;
mod places;
mod progress;
mod queue_pairs;
mod session;
mod statistics;
mod taking;
#[cfg(any(test, feature = "fuzz"))]
pub mod testing;
mod thread;
mod tracing;
mod turns;
mod watches;
mod window;

pub use audience::Listener;
pub use client::{Answer, Client, Membership, Offer, OpenedQp, REGIONS_MAX, Wish, is_command_file};
pub use fork::generation;
pub use host::{AsyncEventSink, Besides, ExplanationSink, FailureSink, StrictSink};
pub use host::{be_strict, on_async_event, on_failure};
pub use imports::{Exported, Import, ImportedMemory, ImportedRegion};
pub use nic::{NoDevice, VirtualNic};
pub use notify::{Channel, Doorbell, Notifier};
pub use omniverb_session::body::GidEntry;
pub use omniverb_sys::epoll::Interest;
pub use omniverb_sys::lock;
pub use opened::Receivers;
pub use places::Part;
pub use queue_pairs::Connection;
