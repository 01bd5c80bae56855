//! Few bytes lie beside the head as well as in the ring.
//!
//! Who waits for a message looks at the head. If the bytes are in the same cache line he has them
//! with the look that finds them; otherwise he would wait for another line of the other processor.
//! They are in the ring, too, whose line its writer then keeps: so nothing else changes, and who
//! takes them back, or comes too late, finds them there.
//!
//! **Ordering.** A sequence lock whose number is the position: the writer says that nothing is
//! there (SYNC: cleared), puts the bytes, and says with release which they are (SYNC: put). The
//! reader loads that with acquire (SYNC: put), copies, and looks with an acquire fence in between
//! (SYNC: cleared) whether it is so still. A position comes once, so it is the same bytes then. What
//! is published without being put here is cleared before; so whoever sees that head sees this, too.
//! The writer is one at a time, as it is of the ring.

use crate::direction::{Direction, Place};
use crate::layout::NEAR_BYTES;
use omniverb_ring::sync::{Ordering, fence};
use omniverb_ring::{UserMemory, WordMemory};

impl<M: WordMemory> Direction<M> {
    /// Of the writer, before it publishes bytes that it does not put there, and before it puts
    /// some.
    #[inline(always)]
    pub fn clear_near(&self) {
        if self.was_near() {
            // SYNC: cleared
            self.memory.store(self.near_at, 0, Ordering::Relaxed);
            fence(Ordering::Release);
        }
    }

    /// Of the writer, which has cleared it: some of at most [`NEAR_BYTES`] bytes, `offset` behind
    /// the first.
    #[inline(always)]
    pub fn fill_near(&self, offset: usize, source: UserMemory) {
        let source = source.first(NEAR_BYTES.saturating_sub(offset));
        self.memory.fill(self.near + offset.min(NEAR_BYTES), source);
    }

    /// All those of a message that begins at this position are there.
    #[inline(always)]
    pub fn set_near(&self, position: u64) {
        // SYNC: put
        self.memory.store(self.near_at, position + 1, Ordering::Release);
    }

    /// The last message was put there: likely the next one will be, too.
    #[inline(always)]
    pub fn was_near(&self) -> bool {
        self.memory.load(self.near_at, Ordering::Relaxed) != 0
    }

    /// Of the reader, which has just seen so many bytes from `place` on: calls `copy`, which
    /// copies by [`Self::drain_near`], if they are there. Whether it has got them.
    #[inline(always)]
    pub fn reads_near(&self, place: Place, bytes: usize, copy: impl FnOnce()) -> bool {
        let wanted = place.position() + 1;
        // SYNC: put
        if bytes > NEAR_BYTES || self.memory.load(self.near_at, Ordering::Acquire) != wanted {
            return false;
        }
        copy();
        // SYNC: cleared
        fence(Ordering::Acquire);
        self.memory.load(self.near_at, Ordering::Relaxed) == wanted
    }

    /// Copies bytes out, from `offset` on.
    #[inline(always)]
    pub fn drain_near(&self, offset: usize, target: UserMemory) {
        let target = target.first(NEAR_BYTES.saturating_sub(offset));
        self.memory.drain(self.near + offset.min(NEAR_BYTES), target);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::layout;
    use omniverb_ring::Window;
    use proptest::prelude::*;

    proptest! {
        /// What is read there is what is in the ring, whatever was put or published before.
        #[test]
        fn what_is_near_is_what_is_in_the_ring(
            steps in prop::collection::vec((0_u8..4, 1_usize..80), 1..60),
        ) {
            let direction = Direction::new(Window::private(layout::BYTES), 0);
            let mut next = 0_u8;
            for (what, count) in steps {
                let (place, waiting) = direction.waiting().unwrap();
                if what < 2 {
                    let head = direction.head();
                    let bytes: Vec<u8> = (0..count).map(|at| next.wrapping_add(at as u8)).collect();
                    next = next.wrapping_add(count as u8);
                    UserMemory::lend(&bytes, |bytes| {
                        direction.fill(head.position(), 0, bytes);
                        direction.clear_near();
                        if count <= NEAR_BYTES && what == 0 {
                            direction.fill_near(0, bytes);
                            direction.set_near(head.position());
                        }
                    });
                    direction.publish(head, count).unwrap();
                    continue;
                }
                let length = waiting.min(count);
                let (mut near, mut far) = (vec![0; length], vec![0; length]);
                let has_read = direction.reads_near(place, waiting, || {
                    UserMemory::lend_mut(&mut near, |to| direction.drain_near(0, to));
                });
                UserMemory::lend_mut(&mut far, |to| direction.drain(place.position(), 0, to));
                prop_assert!(!has_read || near == far);
                prop_assert!(direction.take(place, length));
            }
        }

        /// Whatever the other end has written there, nothing outside is touched.
        #[test]
        fn nonsense_near_harms_nobody(at in any::<u64>(), bytes in 0_usize..200) {
            let memory = Window::private(layout::BYTES);
            memory.store(layout::word(0, layout::NEAR_AT), at, Ordering::Relaxed);
            let direction = Direction::new(memory, 0);
            let mut got = vec![0; bytes];
            let place = direction.place();
            _ = direction.reads_near(place, bytes, || {
                UserMemory::lend_mut(&mut got, |to| direction.drain_near(0, to));
            });
            UserMemory::lend_mut(&mut got, |to| direction.drain_near(bytes, to));
        }
    }
}
