//! Waits for queue pairs that use a region which was removed.
//!
//! A queue pair looks regions up, and uses them, with its lock held. So a removal is over when each
//! queue pair's lock has been free once. There may be thousands of them, most of which have touched
//! nothing for long: those that look something up enter a list first, once in each *generation*. A
//! removal ends the generation and waits for the list. What it costs the look-ups before it have
//! paid for, however many queue pairs there are.

use crate::spin_lock::lock;
use crate::weak_list::WeakList;
use omniverb_terms::Lkey;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Weak};

/// Uses regions with a lock held: a queue pair.
pub(crate) trait UsesRegions: Send + Sync {
    /// Returns when the lock has been free.
    fn finish_access(&self);
    /// What a local key names is another memory from now on.
    fn doubt_receives(&self, lkey: Lkey);
}

/// Looks regions up for one user, which has its lock.
pub(crate) struct Reader {
    /// The generation that the user entered last.
    generation: Cell<u64>,
    user: Weak<dyn UsesRegions>,
}

impl Reader {
    pub(crate) fn of(user: Weak<dyn UsesRegions>) -> Reader {
        Reader { generation: Cell::new(u64::MAX), user }
    }

    pub(crate) fn user(&self) -> &Weak<dyn UsesRegions> {
        &self.user
    }
}

/// Threads that may use a region of a table.
#[derive(Default)]
pub(crate) struct Readers {
    /// Moves with every removal, with the list locked: cached look-ups are void then.
    generation: AtomicU64,
    /// Users that have looked something up in this generation.
    list: Mutex<WeakList<dyn UsesRegions>>,
    /// Held until those of earlier generations have finished: a thread that is not in the list any
    /// more has.
    finishing: Mutex<()>,
}

impl Readers {
    /// Whether what a user looked up last is valid still.
    #[inline(always)]
    pub(crate) fn is_current(&self, reader: &Reader) -> bool {
        reader.generation.get() == self.generation.load(Ordering::Acquire)
    }

    /// The user is about to look something up: a removal finds the user here, or the user finds
    /// what was looked up gone.
    #[inline(always)]
    pub(crate) fn enter(&self, reader: &Reader) {
        if !self.is_current(reader) {
            self.add(reader);
        }
    }

    #[cold]
    fn add(&self, reader: &Reader) {
        let mut list = lock(&self.list);
        list.add_weak(reader.user.clone());
        reader.generation.set(self.generation.load(Ordering::Relaxed));
    }

    /// Ends the generation. When this returns no thread uses what was removed from the table
    /// before.
    pub(crate) fn finish_access(&self) {
        let _one_by_one = lock(&self.finishing);
        let users = {
            let mut list = lock(&self.list);
            self.generation.fetch_add(1, Ordering::SeqCst);
            std::mem::take(&mut *list)
        };
        users.iter().for_each(|user| user.finish_access());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct User {
        finished: AtomicUsize,
        lock: Mutex<()>,
    }

    impl UsesRegions for User {
        fn finish_access(&self) {
            drop(lock(&self.lock));
            self.finished.fetch_add(1, Ordering::Relaxed);
        }

        fn doubt_receives(&self, _: Lkey) {}
    }

    fn with_reader() -> (Arc<User>, Reader) {
        let user = Arc::new(User::default());
        let known: Weak<User> = Arc::downgrade(&user);
        (user, Reader::of(known))
    }

    #[test]
    fn a_removal_waits_once_for_each_that_looked_something_up() {
        let readers = Readers::default();
        let all: Vec<_> = (0..1000).map(|_| with_reader()).collect();
        let finished = || all.iter().map(|(user, _)| user.finished.load(Ordering::Relaxed));
        for round in 1..=100 {
            all[..3].iter().for_each(|(_, reader)| readers.enter(reader));
            all[..3].iter().for_each(|(_, reader)| readers.enter(reader));
            assert!(all[..3].iter().all(|(_, reader)| readers.is_current(reader)));
            readers.finish_access();
            readers.finish_access();
            assert!(!all.iter().any(|(_, reader)| readers.is_current(reader)));
            assert_eq!(finished().sum::<usize>(), 3 * round);
        }
        assert!(finished().take(3).all(|times| times == 100));
    }

    #[test]
    fn a_removal_waits_for_those_that_another_one_waits_for() {
        let readers = Readers::default();
        let (user, reader) = with_reader();
        readers.enter(&reader);
        let (first, second) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let busy = lock(&user.lock);
            for over in [&first, &second] {
                let readers = &readers;
                scope.spawn(move || {
                    readers.finish_access();
                    over.store(1, Ordering::SeqCst);
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert_eq!(first.load(Ordering::SeqCst) + second.load(Ordering::SeqCst), 0);
            drop(busy);
        });
        assert_eq!(user.finished.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn those_that_are_gone_leave_the_list() {
        let readers = Readers::default();
        for _ in 0..10_000 {
            let (_user, reader) = with_reader();
            readers.enter(&reader);
        }
        assert!(lock(&readers.list).length() < 1000);
    }
}
