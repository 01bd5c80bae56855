//! Carries RC connections of this process over a network, in place of the daemon's engine (decision
//! 0096).
//!
//! In: links that lead to an engine, both ends of which are here; ports of peers. Out: packets by
//! UDP sockets of this process. Polls and posts drive it (`poll_and_post_turns.rs`); a thread
//! serves while nothing polls (`network_thread.rs`). Nothing is open or runs before the first
//! link.

mod carried_link;
mod carried_socket;
mod doorbells;
mod network_thread;
mod network_thread_sleep;
mod poll_and_post_turns;
mod poll_precedence;
mod served_links;
#[cfg(test)]
mod tests;
mod way_to_peer;

pub(crate) use self::carried_link::{CarriedLink, EngineBell, HostingEnd, Outcome};
pub(crate) use self::carried_socket::close_in_child;
pub(crate) use self::network_thread::QueuePairServer;
pub(crate) use self::poll_and_post_turns::CarriedConnections;
