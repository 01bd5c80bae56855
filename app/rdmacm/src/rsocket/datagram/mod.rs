//! Datagram sockets over RDMA.
//!
//! * [`calls`](mod@calls): what the calls of rsocket.h are for these.
//! * [`socket`](mod@socket): what goes which way; [`heard`](mod@heard): what comes.
//!   [`kernel`](mod@kernel) and [`port`](mod@port) are the two ways, [`peers`](mod@peers) those at
//!   their ends.
//! * [`format`](mod@format): headers. [`names`](mod@names): addresses of C.

pub(super) mod calls;
mod format;
mod heard;
pub(super) mod kernel;
mod names;
mod peers;
mod port;
pub(super) mod socket;

#[cfg(test)]
mod tests;
