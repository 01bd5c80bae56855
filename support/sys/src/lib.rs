//! memfd and seals, mappings, eventfd, fd passing, pidfd, network namespaces.
//!
//! The operating system as the rest of Omniverb sees it: one file per idea, nothing about RDMA.
//! Everything runs on rustix's own system calls, because this crate is also loaded into other
//! people's processes where libc calls may be hooked. Descriptors are close-on-exec from birth.

pub mod addresses;
pub mod proxied_udp;
mod udp_zero_checksum;
pub mod helper_process;
pub mod clock;
pub mod tcp_connection;
pub mod udp_socket;
mod dax_device;
pub mod unsolicited_fds;
pub mod deferred_close;
mod socket_drops;
pub mod epoll;
pub mod eventfd;
pub mod extent;
pub mod futex;
pub mod fault_safe_copy;
pub mod heap_trim;
pub mod fd_inheritance;
pub mod memfd_deletion;
pub mod process_liveness;
pub mod socket_deadline;
pub mod log_rate_limit;
pub mod doorbell_listener;
pub mod tcp_listener;
mod lock;
pub mod sd_notify;
pub mod mapping;
pub mod proc_maps;
pub mod memfd;
pub mod memory_room;
pub mod mount_namespace;
pub mod neighbour_table;
pub mod netns;
pub mod autobind_socket;
mod outgoing_interface;
pub mod user_daemon;
pub mod users_and_groups;
pub mod pidfd;
pub mod io_uring_pin;
pub mod memory_probe;
pub mod privileges;
pub mod process_state;
pub mod page_protection;
pub mod thread_watchdog;
pub mod random;
pub mod raw_tcp_socket;
pub mod adjacent_extents;
pub mod signalfd;
pub mod doorbell_sleeper;
pub mod proc_smaps;
pub mod seqpacket;
pub mod spare_fds;
mod preadv_copy;
pub mod lock_statement;
#[cfg(any(test, feature = "fuzz"))]
pub mod testing;
pub mod timer;
mod socket_unread;
mod extent_error;
pub mod refusal_log;
pub mod mapped_window;

pub use epoll::Poller;
pub use eventfd::EventFd;
pub use extent::Extent;
pub use process_liveness::Life;
pub use doorbell_listener::Listener;
pub use lock::{lock, try_lock};
pub use mapping::{Access, Mapping};
pub use adjacent_extents::SideBySide;
pub use doorbell_sleeper::Sleeper;
pub use timer::Timer;
pub use extent_error::VerifyError;
