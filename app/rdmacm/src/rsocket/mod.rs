//! Sockets over RDMA: the calls of rsocket.h.
//!
//! A stream is a connection of rdma_cm with an RC queue pair. Each side has a receive buffer that
//! the other writes to, half after half, and a list where the other tells it which half comes next;
//! what was written is told by immediate data (`librdmacm/docs/rsocket` of rdma-core, whose
//! sockets are peers like ours).
//!
//! * [`socket_calls`](mod@calls), [`send_recv_calls`](mod@data), [`poll_calls`](mod@ready),
//!   [`repoll`](mod@repoll): what C programs call. [`fd_table`](mod@table): which number is which
//!   socket.
//! * [`stream_socket`](mod@socket): an identifier, and how far it is; [`readiness_wait`](mod@wait)
//!   and [`poll`](mod@poll) sleep until it is further, [`waiter_election`](mod@gate) says who takes
//!   notice, [`eintr_restart`](mod@restart) whether signals end that.
//! * [`send_recv`](mod@transfer): calls that wait, made of steps of
//!   [`stream_connection`](mod@stream) that do not.
//! * [`flow_control`](mod@flow) and [`wire_format`](mod@format) know what is allowed, and how it is
//!   said; nothing of memory or queues.
//! * [`registered_memory`](mod@memory), [`queue_pair`](mod@queues), [`iomap`](mod@maps),
//!   [`iovec`](mod@vector): what requests are made of.
//!
//! * [`datagram`](mod@datagram): sockets of datagrams, which have the table, the waiting and the
//!   queues in common with streams, and nothing else.
//!
//! There is no thread here: a connection is accepted within `raccept`, and credits are given within
//! whatever call comes next.

mod buffer_settings;
mod datagram;
mod eintr_restart;
mod fd_table;
mod flow_control;
mod iomap;
mod iovec;
mod poll;
pub mod poll_calls;
mod queue_pair;
mod readiness_wait;
mod registered_memory;
pub mod repoll;
mod send_recv;
pub mod send_recv_calls;
pub mod socket_calls;
mod socket_options;
mod stored_options;
mod stream_connection;
mod stream_socket;
mod waiter_election;
mod wire_format;

#[cfg(test)]
mod tests;
