//! Paces senders of unreliable messages.

pub mod sender_throttle;
pub mod unreliable_message_window;
