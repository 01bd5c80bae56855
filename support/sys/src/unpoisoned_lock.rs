//! Locks a mutex even if a thread panicked while it held it.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Locks a mutex, poisoned or not: a thread that panicked must not make others panic, the
/// application's among them. What is behind our locks is whole at every step.
#[inline]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes it without waiting; `None` if another thread has it.
#[inline]
pub fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{lock, try_lock};
    use std::sync::Mutex;

    #[test]
    fn a_panic_elsewhere_is_no_concern_of_ours() {
        let mutex = Mutex::new(1);
        let panicked = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let mut held = lock(&mutex);
                *held = 2;
                std::panic::resume_unwind(Box::new(()));
            });
            holder.join().is_err()
        });
        assert!(panicked && mutex.is_poisoned());
        assert_eq!(*lock(&mutex), 2);
        let held = try_lock(&mutex).unwrap();
        assert!(*held == 2 && try_lock(&mutex).is_none());
    }
}
