//! Waits for several descriptors at a time, whatever moves their bytes.
//!
//! [`poll`] asks the kernel and the transports ([`crate::transport`]); [`select`] is that, by
//! translation; [`epoll`] waits in a set. Where no descriptor has anything to do with a transport
//! the program's own call is made as it is.

pub(crate) mod epoll;
mod fd_table_size;
pub(crate) mod poll;
pub(crate) mod select;
