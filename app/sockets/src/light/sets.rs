//! Sets of epoll that light connections are in. For the kernel they are in none: what is ready of
//! them is in a list here.

use core::ffi::c_int;

use omniverb_stream::light::List;

/// Sets at a time that have such members.
const MOST: usize = 64;

/// One of them.
#[derive(Clone, Copy)]
pub(super) struct Set {
    /// Its number; -1: none.
    pub number: c_int,
    /// Members that may be ready.
    pub ready: List,
    pub members: u32,
}

/// All of them.
pub(super) struct Sets {
    all: [Set; MOST],
    count: u32,
}

const NONE: Set = Set { number: -1, ready: List::new(), members: 0 };

impl Sets {
    pub(super) const fn new() -> Self {
        Self { all: [NONE; MOST], count: 0 }
    }

    /// The place of a set that has members, or had some.
    pub(super) fn find(&self, number: c_int) -> Option<usize> {
        if self.count == 0 || number < 0 {
            return None;
        }
        self.all.iter().position(|one| one.number == number)
    }

    /// The same, of a set that has none so far.
    pub(super) fn find_or_add(&mut self, number: c_int) -> Option<usize> {
        if let Some(found) = self.find(number) {
            return Some(found);
        }
        let free = self.all.iter().position(|one| one.number == -1)?;
        self.all[free] = Set { number, ..NONE };
        self.count += 1;
        Some(free)
    }

    pub(super) fn at(&mut self, place: usize) -> &mut Set {
        &mut self.all[place]
    }

    /// It is closed.
    pub(super) fn remove(&mut self, place: usize) {
        self.all[place] = NONE;
        self.count -= 1;
    }
}
