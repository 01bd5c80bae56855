//! Decides what calls that wait for several descriptors ask for and answer, without any I/O.
//!
//! * [`wait_loop`]: the order of the steps of every call that waits.
//! * [`timeout`]: how long such a call waits, and what is left of that.
//! * [`select_sets`]: `select` as a list for `poll`, and back.
//! * [`poll_events`]: what `poll` says of a descriptor.
//! * [`epoll_interest`]: what an epoll set is told of a member: level, edge, one-shot.

pub mod epoll_interest;
pub mod poll_events;
pub mod select_sets;
pub mod timeout;
pub mod wait_loop;

pub use epoll_interest::Interest;
pub use timeout::{Deadline, Timeout};
pub use wait_loop::{Slept, WaitSources};
