//! Paces senders by a tree of rate limits (DESIGN, section 9).
//!
//! * [`Limiter`] is one limit: the time from which on more may be sent.
//! * [`Pacer`] is a tree of them: the line, groups within it, and leaves that send. A leaf sends
//!   when every limit above it allows that, and takes turns with its siblings.
//! * [`Limit::of_operations`] is a limit of a tree that counts operations instead of bytes. A
//!   sender with limits of both is in two trees: it waits for an operation, then for its bytes.
//! * [`SharedLimiter`] is a limit of a group that is in several trees, one for each thread.
//!
//! Time is an argument, in nanoseconds. A byte takes no whole number of them, nor of picoseconds:
//! the remainder is kept with the limit, so nothing is rounded away. A limit is exact over any time
//! that its senders have something to send. The error is one packet, however long that lasts.
#![forbid(unsafe_code)]

mod limiter;
mod node_limit;
mod node_lists;
mod pacer;
mod shared_limiter;
mod timing_wheel;

pub use limiter::{Limit, Limiter, OPERATION};
pub use pacer::{NodeId, Pacer, Refused};
pub use shared_limiter::SharedLimiter;
