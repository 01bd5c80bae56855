//! What the two ends of a carried socket share (docs/decisions/0046).
//!
//! * [`link_layout`]: where what is in the link's memory.
//! * [`byte_ring`]: where which byte of a ring is.
//! * [`direction`]: a stream of bytes through it, which either end can end at any instant.
//! * [`try_guard`]: how a short call has a link in hand meanwhile.
//! * [`broker_message`]: what is said to the broker, who gives both the memory, and by it.
//! * [`channel`]: how large the memory of two processes is that need no socket of the kernel's.
//!   [`lane`]: the part of it that one connection has to itself while it is busy.
//!   [`mirror`]: how two of these on two hosts are kept alike. [`gateway_message`]: what is said for that.
//! * [`address_range`]: between which addresses that is so, if not between all.
//! * [`syscall_instructions`]: system calls that a program makes past its libraries.
//! * [`fallback_ledger`]: which sockets have none, and why. [`listing`]: what the broker shows of all.

pub mod address_range;
pub mod broker_message;
pub mod byte_ring;
pub mod channel;
pub mod direction;
pub mod fallback_ledger;
pub mod gateway_message;
pub mod lane;
pub mod link_layout;
pub mod listing;
mod message_words;
pub mod mirror;
pub mod syscall_instructions;
pub mod try_guard;

pub use direction::{Broken, Direction, Head, Place};
pub use lane::Lane;
