//! Encodes why the helper refused: an errno, which is positive, or one of these.
//!
//! Numbers, since the two processes share memory and no allocator.

/// A thread may not be stopped.
pub(super) const NOT_PERMITTED: i32 = -1;
/// Not all threads stood still in time.
pub(super) const BUSY: i32 = -2;
/// The mappings are not those that were looked at.
pub(super) const CHANGED: i32 = -3;
/// A thread's stack lies in the pages.
pub(super) const STACK: i32 = -4;
