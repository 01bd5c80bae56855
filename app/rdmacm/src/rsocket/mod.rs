//! Sockets over RDMA: the calls of rsocket.h.
//!
//! A stream is a connection of rdma_cm with an RC queue pair. Each side has a receive buffer that
//! the other writes to, half after half, and a list where the other tells it which half comes next;
//! what was written is told by immediate data (`librdmacm/docs/rsocket` of rdma-core, whose
//! sockets are peers like ours).
//!
//! * [`calls`](mod@calls), [`data`](mod@data), [`ready`](mod@ready), [`repoll`](mod@repoll): what C
//!   programs call. [`table`](mod@table): which number is which socket.
//! * [`socket`](mod@socket): an identifier, and how far it is; [`wait`](mod@wait) and
//!   [`poll`](mod@poll) sleep until it is further, [`gate`](mod@gate) says who takes notice,
//!   [`restart`](mod@restart) whether signals end that.
//! * [`transfer`](mod@transfer): calls that wait, made of steps of [`stream`](mod@stream) that do
//!   not.
//! * [`flow`](mod@flow) and [`format`](mod@format) know what is allowed, and how it is said;
//!   nothing of memory or queues.
//! * [`memory`](mod@memory), [`queues`](mod@queues), [`maps`](mod@maps), [`vector`](mod@vector):
//!   what requests are made of.
//!
//! * [`datagram`](mod@datagram): sockets of datagrams, which have the table, the waiting and the
//!   queues in common with streams, and nothing else.
//!
//! There is no thread here: a connection is accepted within `raccept`, and credits are given within
//! whatever call comes next.

pub mod calls;
pub mod data;
mod datagram;
mod flow;
mod format;
mod gate;
mod maps;
mod memory;
mod options;
mod poll;
mod queues;
pub mod ready;
mod remembered;
pub mod repoll;
mod restart;
mod settings;
mod socket;
mod stream;
mod table;
mod transfer;
mod vector;
mod wait;

#[cfg(test)]
mod tests;
