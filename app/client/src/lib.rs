//! What runs inside an application besides the device itself: the session with `omniverbd`, the
//! progress thread, memory keys and page grants.
//!
//! In: control verbs from the C edge (`app/ibverbs`). Out: daemon calls, and device objects that
//! then work without either. There is one [`Client`] per process, made when the program first
//! asks for devices; nothing runs or is open before that.

mod event_answers;
mod datagram_destinations;
mod multicast_links;
mod multicast_attachments;
mod event_subscribers;
mod doorbells;
mod deferred_tasks;
mod client;
mod daemon_choice;
mod message_descriptors;
mod daemon_listener;
mod environment;
mod errno_conversion;
mod region_extent;
mod fork;
mod device_platform;
mod device_import;
mod memory_keys;
mod window_loans;
mod peer_mappings;
mod daemon_memory;
mod vnic_facts;
pub mod fd_queue;
mod shared_qp;
mod xrc_directory;
mod progress_state;
mod queue_pair_records;
mod daemon_session;
mod statistics;
mod page_revocation;
#[cfg(any(test, feature = "fuzz"))]
pub mod testing;
mod service_thread;
mod trace_ring;
mod call_turns;
mod watched_fds;
mod registered_memory;

pub use event_subscribers::Listener;
pub use client::{Answer, Client, Membership, Offer, OpenedQp, REGIONS_MAX, Wish, is_command_file};
pub use fork::generation;
pub use device_platform::{AsyncEventSink, Besides, ExplanationSink, FailureSink, StrictSink};
pub use device_platform::{be_strict, on_async_event, on_failure};
pub use device_import::{Exported, Import, ImportedMemory, ImportedRegion};
pub use vnic_facts::{NoDevice, VirtualNic};
pub use fd_queue::{Channel, Doorbell, Notifier};
pub use omniverb_session::body::GidEntry;
pub use omniverb_sys::epoll::Interest;
pub use omniverb_sys::lock;
pub use shared_qp::Receivers;
pub use xrc_directory::Part;
pub use queue_pair_records::Connection;
