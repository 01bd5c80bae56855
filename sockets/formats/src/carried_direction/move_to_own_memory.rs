//! Moves a direction from shared memory to memory of one side's own.
//!
//! The other side may write into the shared memory for ever. So words are read once, bytes are
//! copied, and the process reads or sends on from the copy.

use super::{Broken, Direction, OWN, POSITION, Place, STOPPED, Stretch, TAKEN};
use omniverb_ring::shared_atomics::Ordering;
use omniverb_ring::{UserMemory, WordMemory};

/// Changes of the place by others while all that is unread is copied: more than correct ends make.
const COPIES: u32 = 1 << 4;

/// Whether a reader that goes on by itself keeps what its writer has to send by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inherits {
    /// It does, until that has come.
    Yes,
    /// It is the writer's alone.
    No,
}

impl<M: WordMemory> Direction<M> {
    /// Of the reader, which continues in memory of its own, `own`, whatever is written here later.
    /// The first `most(place, unread)` of the unread bytes are there then, and count as read here;
    /// the others are the writer's again. Returns how many the former are. Head and fence are read
    /// once. A process that inherits taken bytes, should the writer be gone ([`Self::inherit`]),
    /// claims all of them or none.
    ///
    /// # Errors
    /// [`Broken`], if the place changes all the time; then nothing is unread in `own`.
    pub fn detach_reader<N: WordMemory>(
        &self,
        own: &Direction<N>,
        inherits: Inherits,
        most: impl Fn(Place, usize) -> usize,
    ) -> Result<usize, Broken> {
        let (head, fence) = (self.head(), self.fence());
        let begin = |place: Place, unread, taken| {
            own.begin(OWN | taken | place.position(), unread, fence);
        };
        let word = self.memory.word(self.place);
        let mut was = word.load(Ordering::Acquire);
        for _ in 0..COPIES {
            let place = Place(was);
            // Another thread may have read more than there was: then the writer looks after it.
            let (unread, is_behind) = head.since(place).map_or((0, true), |bytes| (bytes, false));
            let claimed = match most(place, unread) {
                _ if place.is_taken() => 0,
                most => most.min(unread),
            };
            let has_others = is_behind || claimed < unread;
            let kept = if inherits == Inherits::Yes { unread } else { claimed };
            self.copy_to(own, Stretch { from: place.position(), bytes: kept });
            let next = place.position().wrapping_add(claimed as u64) & POSITION;
            let taken = if has_others { TAKEN } else { 0 };
            // SYNC: read
            match word.compare_exchange(was, next | taken, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => {
                    begin(place, kept, if kept > claimed { TAKEN } else { 0 });
                    return Ok(claimed);
                }
                Err(now) => was = now,
            }
        }
        begin(Place(was), 0, 0);
        Err(Broken)
    }

    /// Of the writer, which has stopped, and has taken back what was not read: what the kernel has
    /// not had of it is in memory of its own from now on, and never the reader's again here.
    pub fn detach_writer<N: WordMemory>(&self, own: &Direction<N>, rest: Option<Stretch>) {
        let none = Stretch { from: self.head().position(), bytes: 0 };
        let rest = rest.unwrap_or(none);
        self.copy_to(own, rest);
        own.begin(OWN | rest.from, rest.bytes, self.fence());
    }

    /// Copies a stretch to the same place of another ring, by parts that any stack has room for.
    fn copy_to<N: WordMemory>(&self, other: &Direction<N>, stretch: Stretch) {
        let mut part = [0; 512];
        let mut done = 0;
        while done < stretch.bytes {
            let length = (stretch.bytes - done).min(part.len());
            let part = &mut part[..length];
            UserMemory::lend_mut(part, |part| self.drain(stretch.from, done, part));
            UserMemory::lend(part, |part| other.fill(stretch.from, done, part));
            done += length;
        }
    }

    /// Of private memory: so many bytes are unread from a place on, and no more come.
    fn begin(&self, place: u64, unread: usize, fence: u64) {
        self.set_fence(fence);
        self.memory.store(self.polling, 0, Ordering::Relaxed);
        let head = Place(place).position().wrapping_add(unread as u64) & POSITION | STOPPED;
        self.memory.store(self.place, place, Ordering::Relaxed);
        self.memory.store(self.head, head, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::{bytes, direction};
    use super::*;
    use crate::link_layout::RING;
    use proptest::prelude::*;

    proptest! {
        /// A side that continues in memory of its own reads what it has settled on, whatever the
        /// words and bytes of the shared one become; a writer's rest is there, too.
        #[test]
        fn what_is_detached_stays_as_it_is(
            (start, count, most) in (any::<u64>(), 0..=RING, 0..=RING + 1),
            (place, head, fence) in any::<(u64, u64, u64)>(),
            passed in 0..=RING,
        ) {
            let start = start & POSITION;
            let (shared, own) = (direction(), direction());
            shared.set_fence(7);
            let [_, at] = [shared.place, shared.head].map(|at| {
                shared.memory.store(at, start, Ordering::Relaxed);
                at
            });
            let sent = bytes(start, count);
            UserMemory::lend(&sent, |sent| shared.fill(start, 0, sent));
            shared.publish(shared.head(), count).unwrap();
            let found = shared.detach_reader(&own, Inherits::No, |_, unread| most.min(unread));
            let kept = most.min(count);
            prop_assert_eq!(found, Ok(kept));
            // The writer has the rest, if there is any, and nothing else.
            let rest = shared.reclaim().unwrap();
            let from = (start + kept as u64) & POSITION;
            let wanted = (kept < count).then_some(Stretch { from, bytes: count - kept });
            prop_assert_eq!(rest, wanted);
            if let Some(rest) = rest {
                let others = direction();
                let passed = passed.min(rest.bytes);
                let left = rest.behind(passed);
                shared.detach_writer(&others, Some(left));
                let mut got = vec![0; left.bytes];
                UserMemory::lend_mut(&mut got, |to| others.drain(left.from, 0, to));
                prop_assert_eq!(&got, &sent[kept + passed..]);
                prop_assert_eq!(others.waiting().unwrap().1, left.bytes);
                prop_assert!(others.head().is_stopped());
            }
            shared.memory.store(shared.place, place, Ordering::Relaxed);
            shared.memory.store(at, head, Ordering::Relaxed);
            shared.set_fence(fence);
            UserMemory::lend(&vec![0xaa; RING], |junk| shared.fill(0, 0, junk));
            let (now, unread) = own.waiting().unwrap();
            prop_assert_eq!((now.position(), unread, own.fence()), (start, kept, 7));
            prop_assert!(own.head().is_stopped() && !own.is_polling());
            // A thread that has looked before takes nothing: its compare-and-swap fails.
            prop_assert!(!own.take(Place(start), unread));
            let mut seen = start.wrapping_add(RING as u64);
            prop_assert_eq!(own.waiting_by(&mut seen, 1).unwrap(), (now, kept));
            let mut got = vec![0; unread];
            UserMemory::lend_mut(&mut got, |to| own.drain(now.position(), 0, to));
            prop_assert_eq!(&got, &sent[..kept]);
            let part = unread / 2;
            prop_assert!(own.take(now, part));
            let mut seen = start.wrapping_add(RING as u64);
            prop_assert_eq!(own.waiting_by(&mut seen, 1).unwrap().1, unread - part);
        }

        /// What a writer is to send by the kernel, and dies before, its reader has, whatever became
        /// of the memory that they shared.
        #[test]
        fn what_is_given_back_can_be_inherited(
            (start, count, passed) in (any::<u64>(), 1..=RING, 0..=RING),
            (place, head) in any::<(u64, u64)>(),
        ) {
            let (shared, own) = (direction(), direction());
            let start = start & POSITION;
            for at in [shared.place, shared.head] {
                shared.memory.store(at, start, Ordering::Relaxed);
            }
            let sent = bytes(start, count);
            UserMemory::lend(&sent, |sent| shared.fill(start, 0, sent));
            shared.publish(shared.head(), count).unwrap();
            prop_assert_eq!(shared.detach_reader(&own, Inherits::Yes, |_, _| 0), Ok(0));
            let stretch = Stretch { from: start, bytes: count };
            prop_assert_eq!(shared.reclaim(), Ok(Some(stretch)));
            shared.memory.store(shared.place, place, Ordering::Relaxed);
            shared.memory.store(shared.head, head, Ordering::Relaxed);
            UserMemory::lend(&vec![0xaa; RING], |junk| shared.fill(0, 0, junk));
            prop_assert_eq!(own.waiting().unwrap().1, 0);
            let passed = passed.min(count);
            own.inherit(passed).unwrap();
            let (now, unread) = own.waiting().unwrap();
            prop_assert_eq!(unread, count - passed);
            let mut got = vec![0; unread];
            UserMemory::lend_mut(&mut got, |to| own.drain(now.position(), 0, to));
            prop_assert_eq!(&got, &sent[passed..]);
        }
    }
}
