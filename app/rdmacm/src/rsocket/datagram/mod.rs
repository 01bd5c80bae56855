//! Datagram sockets over RDMA.
//!
//! * [`calls`](mod@calls): what the calls of rsocket.h are for these.
//! * [`datagram_socket`](mod@socket): what goes which way; [`incoming_datagrams`](mod@heard): what
//!   comes. [`kernel_socket`](mod@kernel) and [`ud_queue_pair`](mod@port) are the two ways,
//!   [`peer_table`](mod@peers) those at their ends.
//! * [`wire_format`](mod@format): headers. [`socket_address`](mod@names): addresses of C.

pub(super) mod calls;
pub(super) mod datagram_socket;
mod incoming_datagrams;
pub(super) mod kernel_socket;
mod peer_table;
mod socket_address;
mod ud_queue_pair;
mod wire_format;

#[cfg(test)]
mod tests;
