//! Bounds kept bytes or pieces: accounts for the room and the parts that are taken.
//!
//! What is kept holds its part of the room, and gives it back by ceasing to exist; so what is taken
//! is always what is there. A room may lie in a larger one, so an object's lies in its vNIC's, that
//! one in its holder's, and that one in the host's.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// Room for so much, all of which may lie in a larger one. Copies are the same room.
#[derive(Clone, Debug)]
pub struct Room(Arc<Walls>);

/// A room that may be gone.
#[derive(Clone, Debug)]
pub struct WeakRoom(Weak<Walls>);

#[derive(Debug)]
struct Walls {
    most: usize,
    /// Less than `most` while what is kept here is to yield.
    allowed: AtomicUsize,
    taken: AtomicUsize,
    around: Option<Around>,
    /// Is set when hardly anything is left.
    alarm: Option<Arc<AtomicBool>>,
}

/// The larger room, of which so much is taken as a whole number of steps is.
#[derive(Debug)]
struct Around {
    room: Room,
    share: Share,
    step: usize,
    taken: AtomicUsize,
}

/// How much of a larger room one within may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    /// Whatever there is.
    Any,
    /// No more than is left for others: however many there are, there is some for one more.
    Fair,
}

impl Room {
    /// A room for so much.
    pub fn new(most: usize) -> Room {
        Room::build(most, None, None)
    }

    /// A room for so much that sets `alarm` when less than an eighth of it is left.
    pub fn with_alarm(most: usize, alarm: Arc<AtomicBool>) -> Room {
        Room::build(most, None, Some(alarm))
    }

    /// A room within this one; what is taken of it is taken of both.
    pub fn within(&self, most: usize) -> Room {
        Room::build(most, Some(self.around(Share::Any, 1)), None)
    }

    /// A room within this one that has no more of it than is left for others, and sets its alarm.
    pub fn share(&self, most: usize) -> Room {
        Room::build(most, Some(self.around(Share::Fair, 1)), self.0.alarm.clone())
    }

    /// Like `share`, without the alarm, taking so much of this one at a time: it is shared by
    /// threads, and the room within is not.
    pub fn share_by_steps(&self, most: usize, step: usize) -> Room {
        Room::build(most, Some(self.around(Share::Fair, step)), None)
    }

    fn around(&self, share: Share, step: usize) -> Around {
        Around { room: self.clone(), share, step, taken: AtomicUsize::new(0) }
    }

    fn build(most: usize, around: Option<Around>, alarm: Option<Arc<AtomicBool>>) -> Room {
        let (allowed, taken) = (AtomicUsize::new(most), AtomicUsize::new(0));
        Room(Arc::new(Walls { most, allowed, taken, around, alarm }))
    }

    /// Names the room without keeping it.
    #[must_use]
    pub fn downgrade(&self) -> WeakRoom {
        WeakRoom(Arc::downgrade(&self.0))
    }

    /// A part of it. `None`: so much is not left. Of two threads that ask at once both may be
    /// refused what one of them could have; they never have too much.
    pub fn part(&self, bytes: usize) -> Option<RoomPart> {
        self.part_up_to(self.0.most, bytes)
    }

    /// Like `part`, as long as no more than `most` of this room is taken then.
    pub fn part_up_to(&self, most: usize, bytes: usize) -> Option<RoomPart> {
        self.take(most, bytes).then(|| RoomPart { bytes, room: self.clone() })
    }

    /// A part of it whether or not so much is left: for what has to be kept.
    pub fn stretch(&self, bytes: usize) -> RoomPart {
        self.overdraw(bytes);
        RoomPart { bytes, room: self.clone() }
    }

    /// How much of it is taken.
    pub fn taken(&self) -> usize {
        self.0.taken.load(Ordering::Relaxed)
    }

    /// How much it is in all.
    pub fn most(&self) -> usize {
        self.0.most
    }

    /// How much is left of it.
    pub fn left(&self) -> usize {
        self.0.most.saturating_sub(self.taken())
    }

    /// Whether hardly anything is left.
    pub fn is_tight(&self) -> bool {
        self.left() < self.0.most / 8
    }

    /// No more than so much is to be kept here, until [`Room::restore`].
    pub fn reduce_to(&self, bytes: usize) {
        self.0.allowed.store(bytes.min(self.0.most), Ordering::Relaxed);
    }

    /// As much may be kept here as in the beginning.
    pub fn restore(&self) {
        self.0.allowed.store(self.0.most, Ordering::Relaxed);
    }

    /// Whether more is kept than may be.
    pub fn is_over(&self) -> bool {
        self.taken() > self.0.allowed.load(Ordering::Relaxed)
    }

    fn take(&self, most: usize, bytes: usize) -> bool {
        let Walls { allowed, taken, .. } = &*self.0;
        let most = most.min(allowed.load(Ordering::Relaxed));
        let before = taken.fetch_add(bytes, Ordering::Relaxed);
        let all = before.checked_add(bytes).filter(|all| *all <= most);
        let taken_too = all.is_some() && self.take_around();
        if !taken_too {
            taken.fetch_sub(bytes, Ordering::Relaxed);
        }
        if self.is_tight() {
            self.sound_alarm();
        }
        taken_too
    }

    fn sound_alarm(&self) {
        if let Some(alarm) = &self.0.alarm
            && !alarm.load(Ordering::Relaxed)
        {
            alarm.store(true, Ordering::Relaxed);
        }
    }

    /// Takes of the larger room what is taken here and not there.
    fn take_around(&self) -> bool {
        let Some(around) = &self.0.around else { return true };
        loop {
            let needed = self.taken().div_ceil(around.step).saturating_mul(around.step);
            let have = around.taken.load(Ordering::Relaxed);
            let Some(more) = needed.checked_sub(have).filter(|more| *more > 0) else { return true };
            if around.share == Share::Fair && needed > around.room.left().saturating_sub(more) {
                around.room.sound_alarm();
                return false;
            }
            if !around.room.take(around.room.0.most, more) {
                return false;
            }
            if around.change(have, needed) {
                return true;
            }
            around.room.give(more);
        }
    }

    fn overdraw(&self, bytes: usize) {
        self.0.taken.fetch_add(bytes, Ordering::Relaxed);
        let Some(around) = &self.0.around else { return };
        loop {
            let needed = self.taken().div_ceil(around.step).saturating_mul(around.step);
            let have = around.taken.load(Ordering::Relaxed);
            let Some(more) = needed.checked_sub(have).filter(|more| *more > 0) else { return };
            if around.change(have, needed) {
                return around.room.overdraw(more);
            }
        }
    }

    fn give(&self, bytes: usize) {
        self.0.taken.fetch_sub(bytes, Ordering::Relaxed);
        let Some(around) = &self.0.around else { return };
        loop {
            let needed = self.taken().div_ceil(around.step).saturating_mul(around.step);
            let have = around.taken.load(Ordering::Relaxed);
            // One step too much is kept: the next part may need it.
            let spare = if needed == 0 { 0 } else { around.step - 1 };
            let Some(less) = have.checked_sub(needed).filter(|less| *less > spare) else { return };
            if around.change(have, needed) {
                return around.room.give(less);
            }
        }
    }
}

impl Around {
    fn change(&self, from: usize, to: usize) -> bool {
        self.taken.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl WeakRoom {
    /// Whether something has it still.
    pub fn is_there(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// The room, if something has it still.
    pub fn upgrade(&self) -> Option<Room> {
        self.0.upgrade().map(Room)
    }
}

/// A part of a room, which is given back when this is dropped.
#[derive(Debug)]
pub struct RoomPart {
    bytes: usize,
    room: Room,
}

impl RoomPart {
    /// Takes so many bytes more. False: they are not left, and nothing is taken.
    pub fn grow(&mut self, bytes: usize) -> bool {
        let grows = self.room.take(self.room.0.most, bytes);
        if grows {
            self.bytes += bytes;
        }
        grows
    }

    /// Takes so many bytes more whether or not they are left.
    pub fn stretch(&mut self, bytes: usize) {
        self.room.overdraw(bytes);
        self.bytes += bytes;
    }

    /// Gives so many bytes back; not more than there are.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.room.give(bytes);
    }

    /// Gives back what is more than so many bytes.
    pub fn shrink_to(&mut self, bytes: usize) {
        self.shrink(self.bytes.saturating_sub(bytes));
    }
}

impl Drop for RoomPart {
    fn drop(&mut self) {
        self.room.give(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::Room;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn taken_bytes_are_counted() {
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

    #[test]
    fn an_inner_room_takes_and_returns_steps_of_the_outer_one() {
        let house = Room::new(1000);
        let room = house.share_by_steps(400, 100);
        let mut parts = Vec::new();
        for count in 1..=400_usize {
            parts.push(room.part(1).unwrap());
            assert_eq!(house.taken(), count.next_multiple_of(100));
        }
        assert!(room.part(1).is_none());
        while parts.pop().is_some() {
            let spare = house.taken() - parts.len();
            assert!(spare < 200 && (!parts.is_empty() || spare == 0), "{spare}");
        }
        let _stretched = room.stretch(950);
        assert_eq!(house.taken(), 1000);
        assert!(house.part(1).is_none());
    }

    #[test]
    fn a_sharing_room_takes_no_more_than_it_leaves() {
        let house = Room::new(1024);
        let rooms: Vec<Room> = (0..20).map(|_| house.share(1024)).collect();
        let mut parts = Vec::new();
        for room in &rooms[..9] {
            while let Some(part) = room.part(1) {
                parts.push(part);
            }
        }
        assert_eq!([rooms[0].taken(), rooms[1].taken(), rooms[8].taken()], [512, 256, 2]);
        let mut equal = Vec::new();
        parts.clear();
        for _ in 0..1024 {
            equal.extend(rooms.iter().filter_map(|room| room.part(1)));
        }
        let taken: Vec<usize> = rooms.iter().map(Room::taken).collect();
        assert!(taken.iter().all(|taken| (48..=50).contains(taken)), "{taken:?}");
        assert!(house.left() >= 48);
    }

    #[test]
    fn a_yielding_room_grants_nothing_until_it_has_yielded() {
        let alarm = Arc::new(AtomicBool::new(false));
        let house = Room::with_alarm(100, alarm.clone());
        let room = house.within(100);
        let mut part = room.part(80).unwrap();
        assert!(!alarm.load(Ordering::Relaxed));
        assert!(part.grow(10) && alarm.load(Ordering::Relaxed) && house.is_tight());
        room.reduce_to(40);
        assert!(room.is_over() && !part.grow(1) && room.part(0).is_none());
        part.shrink_to(30);
        assert!(!room.is_over() && part.grow(10) && !part.grow(1));
        room.restore();
        assert!(part.grow(60));
    }
}
