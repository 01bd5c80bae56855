//! Wraps system calls: memfd and seals, mappings, eventfd, fd passing, pidfd, network namespaces.
//!
//! The operating system as the rest of Omniverb sees it: one file per idea, nothing about RDMA.
//! Everything runs on rustix's own system calls, because this crate is also loaded into other
//! people's processes where libc calls may be hooked. Descriptors are close-on-exec from birth.

pub mod address_assignment;
pub mod adjacent_extents;
pub mod autobind_socket;
pub mod available_memory;
pub mod clock;
pub mod datagram_trains;
mod dax_device;
pub mod deferred_close;
pub mod doorbell_listener;
pub mod doorbell_sleeper;
pub mod epoll;
pub mod eventfd;
pub mod extent;
mod extent_error;
pub mod fault_safe_copy;
pub mod fd_inheritance;
pub mod futex;
pub mod heap_trim;
pub mod helper_process;
pub mod io_uring_pin;
pub mod local_addresses;
pub mod log_rate_limit;
pub mod mapping;
pub mod mapping_as_ring_window;
pub mod memfd;
pub mod memfd_deletion;
pub mod memory_probe;
pub mod mount_namespace;
pub mod neighbour_table;
pub mod netns;
pub mod network_events;
pub mod network_interfaces;
mod outgoing_interface;
pub mod page_protection;
pub mod pidfd;
mod preadv_copy;
pub mod privileges;
pub mod proc_maps;
pub mod proc_smaps;
pub mod process_is_dead;
pub mod proxied_udp;
pub mod random;
pub mod raw_tcp_socket_proof;
pub mod record_lock_proofs;
pub mod refusal_log;
pub mod robust_futex_liveness;
pub mod sd_notify;
pub mod seqpacket;
pub mod seqpacket_deadline;
pub mod signal_fds;
mod socket_drops;
pub mod spare_fds;
pub mod tcp_connection_state;
pub mod tcp_listener_state;
#[cfg(any(test, feature = "fuzz"))]
pub mod testing;
pub mod thread_watchdog;
pub mod timer;
mod udp_from_other_hosts_only;
pub mod udp_socket;
mod udp_zero_checksum;
mod unix_socket_outq;
mod unpoisoned_lock;
pub mod unsolicited_fds;
pub mod user_and_group_check;
pub mod user_daemon_socket;

pub use adjacent_extents::SideBySide;
pub use doorbell_listener::DoorbellListener;
pub use doorbell_sleeper::DoorbellSleeper;
pub use epoll::Poller;
pub use eventfd::EventFd;
pub use extent::Extent;
pub use extent_error::VerifyError;
pub use mapping::{Access, Mapping};
pub use robust_futex_liveness::ProcessLiveness;
pub use timer::Timer;
pub use unpoisoned_lock::{lock, try_lock};
