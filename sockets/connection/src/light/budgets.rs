//! Bounds what a peer can make a process keep of its light connections (docs/budgets.md).

/// Budget: bytes that may be sent to a connection before it is accepted. The client keeps a copy of
/// them, too; the first request of most protocols fits.
pub const FIRST_WINDOW: u32 = 64 << 10;
/// Budget: bytes that may be sent to one that was accepted before any were received.
pub const WINDOW: u32 = 1 << 20;
/// Budget: blocks of 4 KiB, of a process, for what has come to its connections: 1 GiB. One peer has
/// as many as are left to all others, so half of them at most.
pub const BLOCKS: usize = 1 << 18;
/// Budget: blocks of those for connections that were not accepted: 64 MiB, which peers share in the
/// same way.
pub const UNACCEPTED_BLOCKS: usize = 16 << 10;
/// Budget: free blocks whose memory is kept for the next ones; as many more as are in use.
pub const SPARE: usize = 1024;
/// Budget: connections of a process. One peer has as many as are left to all others. Memory is
/// taken when they are used.
pub const SLOTS: usize = 1 << 21;
/// Budget: other processes that one has connections with.
pub const CHANNELS: usize = 64;
