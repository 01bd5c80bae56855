//! Room for what is kept for somebody, bytes or pieces: how much there is, and who has which part.
//!
//! What is kept holds its part of the room, and gives it back by ceasing to exist; so what is taken
//! is always what is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Room for so much, all of which may lie in a larger one. Copies are the same room.
#[derive(Clone, Debug)]
pub(crate) struct Room(Arc<Walls>);

#[derive(Debug)]
struct Walls {
    most: usize,
    taken: AtomicUsize,
    around: Option<Room>,
}

impl Room {
    /// A room for so much.
    pub(crate) fn new(most: usize) -> Room {
        Room::build(most, None)
    }

    /// A room within this one; what is taken of it is taken of both.
    pub(crate) fn within(&self, most: usize) -> Room {
        Room::build(most, Some(self.clone()))
    }

    fn build(most: usize, around: Option<Room>) -> Room {
        Room(Arc::new(Walls { most, taken: AtomicUsize::new(0), around }))
    }

    /// A part of it. `None`: so much is not left. Of two threads that ask at once both may be
    /// refused what one of them could have; they never have too much.
    pub(crate) fn part(&self, bytes: usize) -> Option<Part> {
        self.part_up_to(self.0.most, bytes)
    }

    /// The same, as long as no more than `most` of this room is taken then.
    pub(crate) fn part_up_to(&self, most: usize, bytes: usize) -> Option<Part> {
        self.take(most, bytes).then(|| Part { bytes, room: self.clone() })
    }

    /// A part of it whether or not so much is left: for what has to be kept.
    pub(crate) fn stretch(&self, bytes: usize) -> Part {
        self.overdraw(bytes);
        Part { bytes, room: self.clone() }
    }

    /// How much of it somebody has.
    pub(crate) fn taken(&self) -> usize {
        self.0.taken.load(Ordering::Relaxed)
    }

    fn take(&self, most: usize, bytes: usize) -> bool {
        let Walls { taken, around, .. } = &*self.0;
        let before = taken.fetch_add(bytes, Ordering::Relaxed);
        let fits = before.checked_add(bytes).is_some_and(|all| all <= most);
        let fits_around = |around: &Room| around.take(around.0.most, bytes);
        let taken_too = fits && around.as_ref().is_none_or(fits_around);
        if !taken_too {
            taken.fetch_sub(bytes, Ordering::Relaxed);
        }
        taken_too
    }

    fn overdraw(&self, bytes: usize) {
        self.0.taken.fetch_add(bytes, Ordering::Relaxed);
        if let Some(around) = &self.0.around {
            around.overdraw(bytes);
        }
    }

    fn give(&self, bytes: usize) {
        self.0.taken.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(around) = &self.0.around {
            around.give(bytes);
        }
    }
}

/// A part of a room, which is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Part {
    bytes: usize,
    room: Room,
}

impl Part {
    /// Takes so many bytes more. False: they are not left, and nothing is taken.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let grows = self.room.take(self.room.0.most, bytes);
        if grows {
            self.bytes += bytes;
        }
        grows
    }

    /// Takes so many bytes more whether or not they are left.
    pub(crate) fn stretch(&mut self, bytes: usize) {
        self.room.overdraw(bytes);
        self.bytes += bytes;
    }

    /// Gives so many bytes back; not more than there are.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.room.give(bytes);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.room.give(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::Room;

    #[test]
    fn what_is_taken_is_what_is_there() {
        let room = Room::new(100);
        let mut one = room.part(60).unwrap();
        assert!(room.part(41).is_none());
        let other = room.part(40).unwrap();
        assert!(room.part(1).is_none() && !one.grow(1) && room.part(0).is_some());
        one.shrink(20);
        assert!(one.grow(10) && !one.grow(11));
        one.stretch(20);
        assert_eq!(room.taken(), 110);
        one.shrink(20);
        assert_eq!(room.taken(), 90);
        drop(one);
        assert_eq!(room.taken(), 40);
        drop(other);
        assert_eq!(room.taken(), 0);
        assert!(room.part(usize::MAX).is_none());
        assert_eq!(room.taken(), 0);
    }

    #[test]
    fn rooms_within_a_room_share_it() {
        let house = Room::new(100);
        let (one, other) = (house.within(60), house.within(60));
        let held = one.part(60).unwrap();
        assert!(other.part(41).is_none());
        assert_eq!((house.taken(), other.taken()), (60, 0));
        let rest = other.part(40).unwrap();
        drop(held);
        assert_eq!((house.taken(), one.taken(), other.taken()), (40, 0, 40));
        drop((rest, other));
        assert_eq!(house.taken(), 0);
    }
}
