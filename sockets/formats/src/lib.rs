//! Defines the memory and messages that the two ends of a carried socket share
//! (docs/decisions/0046).
//!
//! * [`link_layout`] lays out a link's memory; [`byte_ring`] copies into and out of its rings;
//!   [`carried_direction`] is a stream of bytes through it, which either end can end at any
//!   instant.
//! * [`private_link_slot`] lays out what one process keeps of a link.
//! * [`try_guard`] guards a link for a short call.
//! * [`broker_message`] encodes what processes and the broker say to each other, and
//!   [`broker_daemon_messages`] what the broker and the daemon do; all messages are made of the
//!   fields of [`message_codec`].
//! * [`channel_layout`] lays out the memory of two processes whose connections need no kernel
//!   socket; [`lane`] is the part of it that one busy connection has to itself. [`channel_mirror`]
//!   keeps two of these on two hosts alike, by [`gateway_message`].
//! * [`address_range`] says for which addresses that is done.
//! * [`syscall_instructions`] finds system calls that a program makes by its own instructions.
//! * [`fallback_ledger`] tells which sockets have no link, and why; [`socket_status_rows`] is what
//!   the broker shows of all.

pub mod address_range;
pub mod broker_daemon_messages;
pub mod broker_message;
pub mod byte_ring;
pub mod carried_direction;
pub mod channel_layout;
pub mod channel_mirror;
pub mod fallback_ledger;
pub mod gateway_message;
pub mod lane;
pub mod link_layout;
pub mod message_codec;
pub mod private_link_slot;
pub mod socket_status_rows;
pub mod syscall_instructions;
pub mod try_guard;

pub use carried_direction::{Broken, Direction, Head, Place};
pub use lane::Lane;
