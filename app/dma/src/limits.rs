//! Bounds nodes, transfers and messages of a program, and how long it waits for others.

use std::time::Duration;

/// Connections of a program, those included that are being made.
pub(crate) const NODES_MAX: usize = 64;
/// Of these, those that have connected to us and that the program has not accepted: there is always
/// room for those that the program connects with.
pub(crate) const STRANGERS_MAX: usize = 32;
/// How long a connecting peer may take until it has said which buffers it has.
pub(crate) const GREETING: Duration = Duration::from_secs(10);
/// Transfers under way with a node.
pub(crate) const TRANSFERS_MAX: usize = 256;
/// Bytes of a transfer: what every device takes in one request.
pub(crate) const TRANSFER_BYTES_MAX: u64 = 1 << 30;
/// Requests that are given to the device in one list, and the bytes from which on there are no
/// more: a device that copies in the call holds the node meanwhile.
pub(crate) const LIST_MAX: usize = 16;
/// See [`LIST_MAX`].
pub(crate) const LIST_BYTES: u64 = 1 << 20;
/// Messages under way to a node.
pub(crate) const LETTERS: usize = 16;
/// Messages from a node that can come before the first is taken.
pub(crate) const RECEIVES: usize = 64;
/// Messages that wait for a node; with more it does not listen, and is given up. Room for all
/// buffers twice, and for answers.
pub(crate) const WAITING_MAX: usize = 16384;
/// Messages, or completions, taken before it is another node's turn.
pub(crate) const TURN: usize = 32;
/// How long to look before sleeping.
pub(crate) const LOOK: Duration = Duration::from_micros(50);
/// How long a node may keep a buffer that was withdrawn.
pub(crate) const KEEP: Duration = Duration::from_secs(2);
/// How long an address, and a route, may be looked for, in milliseconds.
pub(crate) const RESOLVE_MS: i32 = 2000;
/// Connection requests that wait.
pub(crate) const BACKLOG: i32 = 64;
