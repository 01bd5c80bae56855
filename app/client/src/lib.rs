//! What runs inside an application besides the device itself: the session with `omniverbd`, the
//! progress thread, memory keys and page grants.
//!
//! In: control verbs from the C edge (`app/ibverbs`). Out: daemon calls, and device objects that
//! then work without either. There is one [`Client`] per process, made when the program first
//! asks for devices; nothing runs or is open before that.

mod carried_connections;
mod client;
mod daemon_call_lock;
mod daemon_caller_trait;
mod daemon_choice;
mod daemon_messages_with_fds;
mod daemon_session;
mod deferred_daemon_calls;
mod device_import;
mod device_platform;
mod errno_conversion;
mod fd_readiness_thread;
mod fork;
mod link_trace_writer;
mod memory_from_daemon;
mod moved_or_pinned_extent;
mod multicast_attachments;
mod multicast_groups_of_qp;
mod page_adoption_opt_out;
mod page_take_back_thread;
mod peer_doorbells;
mod peer_mappings;
mod pending_datagram_links;
pub mod pollable_event_queue;
mod progress_thread_state;
mod qp_statistics_area;
mod queue_pair_records;
mod region_extents_by_rkey;
mod retry_until;
mod shared_qp;
mod sibling_library_event_subscribers;
mod sibling_library_fds;
mod signal_free_thread;
#[cfg(any(test, feature = "fuzz"))]
pub mod testing;
mod unsent_event_replies;
mod user_memory_constructors;
mod vm_window_loans;
mod vnic_description;
mod xrc_domain_discovery;

pub use client::{
    Client, DaemonAnswer, ExportOffer, Membership, OpenedQp, REGIONS_MAX, RegistrationRequest,
    is_command_file,
};
pub use device_import::{ExportedObjects, Import, ImportedMemory, ImportedRegion};
pub use device_platform::{
    AsyncEventSink, ExplanationSink, FailureDetail, FailureSink, StrictSink,
};
pub use device_platform::{be_strict, on_async_event, on_failure};
pub use fork::generation;
pub use omniverb_session::body::GidEntry;
pub use omniverb_sys::epoll::Interest;
pub use omniverb_sys::lock;
pub use pollable_event_queue::{Channel, Doorbell, Notifier};
pub use queue_pair_records::Connection;
pub use shared_qp::SharedQueuePairs;
pub use sibling_library_event_subscribers::Listener;
pub use vnic_description::{NoDevice, VirtualNic};
pub use xrc_domain_discovery::DomainPart;
