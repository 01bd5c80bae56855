//! Atomics: the machine's, or loom's when the model checker runs. Nothing else in the tree may
//! name `core::sync::atomic` for memory that is shared with another process.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
