//! Locks between threads of the engine.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A panic in another thread must not make ours panic: what is behind these locks is always whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
