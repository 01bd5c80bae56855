//! Lets two nodes of the DMA API (`app/dma`) tell each other which buffers there are, and when one
//! goes.
//!
//! In: messages from a node that may be hostile. Out: what is known of its buffers, and what is to
//! be answered. How messages travel is the user's affair; they must arrive in order, and once.
#![forbid(unsafe_code)]

mod buffer_messages;
mod peer_buffers;

pub use buffer_messages::{
    AnnouncedBuffer, BUFFER_BYTES_MAX, HELLO, Malformed, Message, READABLE, WRITABLE, is_hello,
};
pub use peer_buffers::{AnnouncementFault, BUFFERS_MAX, PeerBuffers};

/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 48;
