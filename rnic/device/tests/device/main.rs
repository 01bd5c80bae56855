//! Two devices in one process, joined by links in private memory: everything a queue pair does,
//! without daemon, clock or threads. [`two_device_fixture`] is the bench; the rest are the tests.

#![expect(clippy::duplicate_mod, reason = "the tests of grants run with both kinds of memory")]

mod engine_link_fixture;
mod fake_engine;
mod fake_platform;
mod fuzz_input;
mod granted_extents;
mod guarded_buffer;
mod two_device_fixture;
mod work_request_helpers;

mod atomic_write_and_flush;
mod completion_counters;
mod completion_queues;
mod doorbell_notification;
mod ended_peer;
mod engine_arrivals;
mod engine_datagrams;
mod engine_links;
mod hostile_peer_input;
mod hostile_peers;
mod mapped_operations;
#[path = "mapped_operations.rs"]
mod mapped_within;
mod operation_traces;
mod operations_by_size;
mod payload_sources;
mod qp_lifecycle;
mod random_operations;
mod receive_unreached_entries;
mod region_removal;
mod remote_errors;
mod retries;
mod shared_receive_queues;
mod strict_mode;
mod unreachable_pages;
mod unreliable_connection;
mod unreliable_datagram;
mod xrc;
mod xrc_relay;
