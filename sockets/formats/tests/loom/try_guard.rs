//! Model-checks short calls beside the end of their object: one caller at a time, and the end
//! alone.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use omniverb_formats::try_guard;
use std::sync::Arc;

/// A place for links, one after the other, with two numbers by which one may be found.
struct Place {
    numbers: [AtomicU64; 2],
    turns: [AtomicU64; 2],
    memory: [UnsafeCell<()>; 2],
}

const IS_HERE: u64 = 7;

impl Place {
    fn new() -> Arc<Place> {
        let two = || [AtomicU64::new(0), AtomicU64::new(0)];
        let place = Place {
            numbers: two(),
            turns: two(),
            memory: [UnsafeCell::new(()), UnsafeCell::new(())],
        };
        place.numbers[0].store(IS_HERE, Ordering::Relaxed);
        Arc::new(place)
    }

    /// A short call by a number, of this end.
    fn calls(&self, number: usize, end: usize, thread: u64) -> bool {
        if self.numbers[number].load(Ordering::Acquire) != IS_HERE {
            return false;
        }
        let is_its = || self.numbers[number].load(Ordering::SeqCst) == IS_HERE;
        let has_come = try_guard::try_lock(&self.turns[end], thread, is_its);
        if has_come {
            self.memory[end].with_mut(|_| ());
            try_guard::unlock(&self.turns[end]);
        }
        has_come
    }

    /// The number is for nothing any more. Whether the link could be ended.
    fn ends(&self) -> bool {
        self.numbers[0].swap(0, Ordering::SeqCst);
        let is_over = try_guard::owners(self.turns.each_ref()) == [0; 2];
        if is_over {
            self.memory.iter().for_each(|memory| memory.with_mut(|_| ()));
        }
        is_over
    }
}

/// Both ends are in a call while it is ended.
#[test]
fn the_end_of_an_object_is_alone() {
    loom::model(|| {
        let place = Place::new();
        let others = [0, 1].map(|end| {
            let place = Arc::clone(&place);
            thread::spawn(move || place.calls(0, end, 1 + end as u64))
        });
        place.ends();
        others.into_iter().for_each(|other| _ = other.join().unwrap());
    });
}

/// The place has another link by the time that a caller comes, too late, to the first one: two
/// callers of the new link still come one after the other.
#[test]
fn a_late_caller_disturbs_no_other() {
    loom::model(|| {
        let place = Place::new();
        let late = {
            let place = Arc::clone(&place);
            thread::spawn(move || place.calls(0, 0, 1))
        };
        if place.ends() {
            place.numbers[1].store(IS_HERE, Ordering::Release);
            let other = {
                let place = Arc::clone(&place);
                thread::spawn(move || place.calls(1, 0, 2))
            };
            place.calls(1, 0, 3);
            other.join().unwrap();
        }
        late.join().unwrap();
    });
}
