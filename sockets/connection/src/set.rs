//! Which events an epoll set tells, in which order, and when again.
//!
//! The kernel keeps a list of members that *may* be ready. News puts a member at its end: something
//! happened that it is there for. Asking for events goes through the list once and looks at each
//! member as it is now: one that is not ready leaves the list, one that is level-triggered goes to
//! the end again, one that is edge-triggered leaves it until there is news, and a one-shot is
//! disarmed. So an edge is news, not a difference between two states.
//!
//! In: members, news, and what they show when they are looked at. Out: events. Memory is lent; a
//! member is its index there.

/// Bits of `epoll_ctl` that are not events.
pub const EXCLUSIVE: u32 = 1 << 28;
/// It wakes the machine, which we leave to the kernel.
pub const WAKE_UP: u32 = 1 << 29;
/// Disarmed when it was told.
pub const ONE_SHOT: u32 = 1 << 30;
/// Told once for each piece of news.
pub const EDGE: u32 = 1 << 31;

const PRIVATE: u32 = EXCLUSIVE | WAKE_UP | ONE_SHOT | EDGE;
/// `EPOLLERR` and `EPOLLHUP`, which nobody has to ask for.
const ALWAYS: u32 = 0x18;
const NONE: u32 = u32::MAX;

/// A place for a member.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    is_used: bool,
    is_listed: bool,
    events: u32,
    data: u64,
    before: u32,
    behind: u32,
}

impl Place {
    /// Where no member is.
    pub const FREE: Self =
        Self { is_used: false, is_listed: false, events: 0, data: 0, before: NONE, behind: NONE };
}

/// Why a member cannot be added, changed or taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// `EEXIST`.
    Exists,
    /// `ENOENT`.
    Missing,
    /// `EINVAL`: what is exclusive cannot be changed, and may be only so much.
    Invalid,
}

/// The members of one set.
#[derive(Debug)]
pub struct Set<'a> {
    places: &'a mut [Place],
    first: u32,
    last: u32,
}

impl<'a> Set<'a> {
    /// With as many members as there are places.
    pub fn new(places: &'a mut [Place]) -> Self {
        places.fill(Place::FREE);
        Self { places, first: NONE, last: NONE }
    }

    /// A new member, which shows `now`.
    ///
    /// # Errors
    /// It is one, or cannot be exclusive with such events.
    pub fn add(&mut self, index: usize, events: u32, data: u64, now: u32) -> Result<(), Refused> {
        const WITH_EXCLUSIVE: u32 = EXCLUSIVE | WAKE_UP | EDGE | ALWAYS | 0x1 | 0x4;
        if events & EXCLUSIVE != 0 && events & !WITH_EXCLUSIVE != 0 {
            return Err(Refused::Invalid);
        }
        let place = self.places.get_mut(index).ok_or(Refused::Missing)?;
        if place.is_used {
            return Err(Refused::Exists);
        }
        *place = Place { is_used: true, events: events | ALWAYS, data, ..Place::FREE };
        self.look(index, now);
        Ok(())
    }

    /// Other events for a member, which is armed again.
    ///
    /// # Errors
    /// It is none, or one of the two is exclusive.
    pub fn modify(
        &mut self,
        index: usize,
        events: u32,
        data: u64,
        now: u32,
    ) -> Result<(), Refused> {
        if events & EXCLUSIVE != 0 {
            return Err(Refused::Invalid);
        }
        let place = self.used(index)?;
        if place.events & EXCLUSIVE != 0 {
            return Err(Refused::Invalid);
        }
        (place.events, place.data) = (events | ALWAYS, data);
        self.look(index, now);
        Ok(())
    }

    /// No member any more.
    ///
    /// # Errors
    /// It was none.
    pub fn remove(&mut self, index: usize) -> Result<(), Refused> {
        self.used(index)?;
        self.unlist(index);
        self.places[index] = Place::FREE;
        Ok(())
    }

    /// Something happened to a member: these events, or any of them if it is not said which.
    pub fn news(&mut self, index: usize, events: u32) {
        let Ok(place) = self.used(index) else { return };
        let is_armed = place.events & !PRIVATE != 0;
        if is_armed && (events == 0 || events & place.events != 0) {
            self.list(index);
        }
    }

    /// The events of at most so many members; `shows` says what one shows now. Returns how many.
    pub fn collect(
        &mut self,
        most: usize,
        mut shows: impl FnMut(usize) -> u32,
        mut tell: impl FnMut(u32, u64),
    ) -> usize {
        let mut told = 0;
        // Who is listed again meanwhile is not looked at again.
        let last = self.last;
        let mut is_through = self.first == NONE;
        while !is_through && told < most {
            let index = self.first;
            is_through = index == last;
            self.unlist(index as usize);
            let place = &mut self.places[index as usize];
            let events = shows(index as usize) & place.events & !PRIVATE;
            if events == 0 {
                continue;
            }
            tell(events, place.data);
            told += 1;
            if place.events & ONE_SHOT != 0 {
                place.events &= PRIVATE;
            } else if place.events & EDGE == 0 {
                self.list(index as usize);
            }
        }
        told
    }

    /// Whether [`Self::collect`] would tell anything: what an outer set sees of this one.
    pub fn is_ready(&self, mut shows: impl FnMut(usize) -> u32) -> bool {
        let mut index = self.first;
        while let Some(place) = self.places.get(index as usize) {
            if shows(index as usize) & place.events & !PRIVATE != 0 {
                return true;
            }
            index = place.behind;
        }
        false
    }

    fn used(&mut self, index: usize) -> Result<&mut Place, Refused> {
        self.places.get_mut(index).filter(|place| place.is_used).ok_or(Refused::Missing)
    }

    /// It was added or changed: if it is ready, it may be told.
    fn look(&mut self, index: usize, now: u32) {
        if now & self.places[index].events & !PRIVATE != 0 {
            self.list(index);
        }
    }

    fn list(&mut self, index: usize) {
        if self.places[index].is_listed {
            return;
        }
        let last = self.last;
        let place = &mut self.places[index];
        (place.is_listed, place.before, place.behind) = (true, last, NONE);
        match self.places.get_mut(last as usize) {
            Some(before) => before.behind = index as u32,
            None => self.first = index as u32,
        }
        self.last = index as u32;
    }

    fn unlist(&mut self, index: usize) {
        let Place { is_listed, before, behind, .. } = self.places[index];
        if !is_listed {
            return;
        }
        match self.places.get_mut(before as usize) {
            Some(place) => place.behind = behind,
            None => self.first = behind,
        }
        match self.places.get_mut(behind as usize) {
            Some(place) => place.before = before,
            None => self.last = before,
        }
        let place = &mut self.places[index];
        (place.is_listed, place.before, place.behind) = (false, NONE, NONE);
    }
}
