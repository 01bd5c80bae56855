//! The locks of this crate, poisoned or not: what is behind them is valid at every step, and the
//! application goes on.

use std::sync::{Mutex, MutexGuard};

/// Locks.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
