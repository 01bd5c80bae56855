//! Datagram sockets over RDMA.
//!
//! * [`calls`](mod@calls): what the calls of rsocket.h are for these.
//! * [`datagram_socket`](mod@socket): what goes which way; [`incoming`](mod@heard): what comes.
//!   [`kernel_socket`](mod@kernel) and [`ud_queue_pair`](mod@port) are the two ways, [`peer_table`](mod@peers) those at
//!   their ends.
//! * [`wire_format`](mod@format): headers. [`socket_address`](mod@names): addresses of C.

pub(super) mod calls;
mod wire_format;
mod incoming;
pub(super) mod kernel_socket;
mod socket_address;
mod peer_table;
mod ud_queue_pair;
pub(super) mod datagram_socket;

#[cfg(test)]
mod tests;
