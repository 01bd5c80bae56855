//! memfd and seals, mappings, eventfd, fd passing, pidfd, network namespaces.
//!
//! The operating system as the rest of Omniverb sees it: one file per idea, nothing about RDMA.
//! Everything runs on rustix's own system calls, because this crate is also loaded into other
//! people's processes where libc calls may be hooked. Descriptors are close-on-exec from birth.

pub mod addresses;
pub mod carried;
mod checksum;
pub mod child;
pub mod clock;
pub mod connection;
pub mod datagram;
mod dax;
pub mod descriptors;
pub mod disposal;
mod drops;
pub mod epoll;
pub mod event;
pub mod extent;
pub mod futex;
pub mod guarded;
pub mod heap;
pub mod inherit;
pub mod last_holder;
pub mod life;
pub mod limited;
pub mod lines;
pub mod listener;
pub mod listening;
mod lock;
pub mod manager;
pub mod mapping;
pub mod maps;
pub mod memfd;
pub mod memory_room;
pub mod mounts;
pub mod neighbour;
pub mod netns;
pub mod numbered;
mod outgoing;
pub mod own;
pub mod people;
pub mod pidfd;
pub mod pinned;
pub mod presence;
pub mod privileges;
pub mod process;
pub mod protection;
pub mod pulse;
pub mod random;
pub mod raw;
pub mod row;
pub mod signals;
pub mod sleeper;
pub mod smaps;
pub mod socket;
pub mod spare;
mod staged;
pub mod statement;
#[cfg(any(test, feature = "fuzz"))]
pub mod testing;
pub mod timer;
mod unread;
mod verify;
pub mod why;
pub mod window;

pub use epoll::Poller;
pub use event::EventFd;
pub use extent::Extent;
pub use life::Life;
pub use listener::Listener;
pub use lock::{lock, try_lock};
pub use mapping::{Access, Mapping};
pub use row::SideBySide;
pub use sleeper::Sleeper;
pub use timer::Timer;
pub use verify::VerifyError;
