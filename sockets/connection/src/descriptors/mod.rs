//! Keeps what a process knows of its descriptors: a word for each ([`DescriptorTable`]), and the
//! epoll sets that each is in ([`Members`]). The caller lends the memory, piece by piece
//! ([`Room`]), since hooks run where nothing may be allocated.

mod entry;
mod epoll_membership;
mod table;

pub use entry::{Entry, Kind, Why};
pub use epoll_membership::{Member, Members};
pub use table::DescriptorTable;

use core::sync::atomic::AtomicU64;

/// Words of a piece of memory.
pub const PIECE: usize = 1024;

/// Where tables keep their words: pieces that are zeroed, stay, and are made when they are first
/// needed.
pub trait Room {
    /// A piece that was made.
    fn piece(&self, index: usize) -> Option<&[AtomicU64; PIECE]>;
    /// A piece that is made now if it was not; `None` if there is no more memory, or no such piece.
    fn make(&self, index: usize) -> Option<&[AtomicU64; PIECE]>;
}
