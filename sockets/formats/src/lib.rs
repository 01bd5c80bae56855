//! What the two ends of a carried socket share (docs/decisions/0046).
//!
//! * [`layout`]: where what is in the link's memory.
//! * [`bytes`]: where which byte of a ring is.
//! * [`direction`]: a stream of bytes through it, which either end can end at any instant.
//! * [`brief`]: how a short call has a link in hand meanwhile.
//! * [`message`]: what is said to the broker, who gives both the memory, and by it.
//! * [`channel`]: how large the memory of two processes is that need no socket of the kernel's.
//!   [`lane`]: the part of it that one connection has to itself while it is busy.
//!   [`mirror`]: how two of these on two hosts are kept alike. [`letter`]: what is said for that.
//! * [`range`]: between which addresses that is so, if not between all.
//! * [`instructions`]: system calls that a program makes past its libraries.
//! * [`ledger`]: which sockets have none, and why. [`show`]: what the broker shows of all.

pub mod brief;
pub mod bytes;
pub mod channel;
pub mod direction;
pub mod instructions;
pub mod lane;
pub mod layout;
pub mod ledger;
pub mod letter;
pub mod message;
pub mod mirror;
pub mod range;
pub mod show;
mod words;

pub use direction::{Broken, Direction, Head, Place};
pub use lane::Lane;
