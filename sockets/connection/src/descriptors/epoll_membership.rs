//! Keeps which descriptors are in which epoll set, with their events and data.
//!
//! The kernel's set is authoritative; this is a copy for carried connections. A member is a node of
//! four words in the chain of its descriptor. The first node of each descriptor has its place; more
//! are taken from behind those, and stay in that descriptor's chain for good: there are as many as
//! sets ever had the descriptor at the same time. A node is written by the thread that has marked
//! it busy. So a `fork` in the middle costs the child that node, and no thread waits.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{PIECE, Room};

const WORDS: usize = 4;
const IN_PIECE: usize = PIECE / WORDS;
/// First nodes: one for each descriptor.
const FIRST: usize = 1 << 20;
/// Those, and as many more.
pub const NODES: usize = 1 << 21;

/// Words of a node: `set id:32 | busy:1 | version:31`, all zero when it is free;
/// `socket id:32 | events:32`; data; the next node of the chain.
const TAG: usize = 0;
const WHAT: usize = 1;
const DATA: usize = 2;
const NEXT: usize = 3;

const BUSY: u64 = 1 << 31;
const VERSION: u64 = BUSY - 1;
const SET_SHIFT: u32 = 32;

type Node = [AtomicU64];

/// A descriptor in a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The set's id.
    pub set: u32,
    /// The descriptor it was put there by, which may be closed by now.
    pub fd: i32,
    /// The id of what was open there.
    pub id: u32,
    /// As `epoll_ctl` was told.
    pub events: u32,
    /// What the program wants to be told with its events.
    pub data: u64,
}

/// All members of all sets of a process.
pub struct Members<R> {
    room: R,
    /// Nodes taken from behind the first ones.
    taken: AtomicU32,
}

impl<R: Room> Members<R> {
    /// No set has any.
    pub const fn new(room: R) -> Self {
        Self { room, taken: AtomicU32::new(0) }
    }

    /// Puts a member into its set. `is_open` says whether a set is; nodes of others are free.
    pub fn add(&self, member: Member, is_open: impl Fn(u32) -> bool) {
        let Some(mut node) = self.first(member.fd) else { return };
        loop {
            let tag = node[TAG].load(Ordering::Acquire);
            let set = (tag >> SET_SHIFT) as u32;
            if tag & BUSY == 0 && (set == 0 || !is_open(set)) && fill(node, tag, member) {
                return;
            }
            node = match node[NEXT].load(Ordering::Acquire) {
                0 => match self.another(node) {
                    Some(next) => next,
                    None => return,
                },
                next => match self.node(next as usize) {
                    Some(next) => next,
                    None => return,
                },
            };
        }
    }

    /// Changes a member that is there.
    pub fn modify(&self, member: Member) {
        self.each_of(member.fd, |node, tag, found| {
            if found.set == member.set && found.id == member.id {
                fill(node, tag, member);
            }
        });
    }

    /// Takes a member out.
    pub fn remove(&self, set: u32, fd: i32, id: u32) {
        self.remove_where(fd, |found| found.set == set && found.id == id);
    }

    /// Takes out of all sets what is open at a descriptor: its last descriptor was closed.
    pub fn remove_all(&self, fd: i32, id: u32) {
        self.remove_where(fd, |found| found.id == id);
    }

    /// The sets that have what is open at a descriptor, by this descriptor.
    pub fn of_fd(&self, fd: i32, id: u32, mut each: impl FnMut(Member)) {
        self.each_of(fd, |_, _, found| {
            if found.id == id {
                each(found);
            }
        });
    }

    fn remove_where(&self, fd: i32, which: impl Fn(&Member) -> bool) {
        self.each_of(fd, |node, tag, found| {
            if which(&found) {
                let free = tag.wrapping_add(1) & VERSION;
                _ = node[TAG].compare_exchange(tag, free, Ordering::AcqRel, Ordering::Relaxed);
            }
        });
    }

    fn each_of(&self, fd: i32, mut each: impl FnMut(&Node, u64, Member)) {
        let mut next = usize::try_from(fd).ok().filter(|fd| *fd < FIRST);
        while let Some(node) = next.and_then(|index| self.there(index)) {
            if let Some((tag, found)) = read(node, fd) {
                each(node, tag, found);
            }
            next = match node[NEXT].load(Ordering::Acquire) {
                0 => None,
                index => Some(index as usize),
            };
        }
    }

    fn first(&self, fd: i32) -> Option<&Node> {
        self.node(usize::try_from(fd).ok().filter(|fd| *fd < FIRST)?)
    }

    /// Appends a node to a chain, or gives the one that another thread has appended.
    fn another(&self, last: &Node) -> Option<&Node> {
        let index = FIRST + self.taken.fetch_add(1, Ordering::Relaxed) as usize;
        let new = self.node(index)?;
        match last[NEXT].compare_exchange(0, index as u64, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(new),
            // The new one is lost, which costs as little as it is rare.
            Err(there) => self.node(there as usize),
        }
    }

    fn node(&self, index: usize) -> Option<&Node> {
        let at = index % IN_PIECE * WORDS;
        (index < NODES).then(|| self.room.make(index / IN_PIECE))??.get(at..at + WORDS)
    }

    fn there(&self, index: usize) -> Option<&Node> {
        let at = index % IN_PIECE * WORDS;
        self.room.piece(index / IN_PIECE)?.get(at..at + WORDS)
    }
}

/// Writes a node that has this tag; not if another thread was faster.
fn fill(node: &Node, tag: u64, member: Member) -> bool {
    let busy = u64::from(member.set) << SET_SHIFT | BUSY | tag & VERSION;
    if node[TAG].compare_exchange(tag, busy, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return false;
    }
    let what = u64::from(member.id) << SET_SHIFT | u64::from(member.events);
    node[WHAT].store(what, Ordering::Relaxed);
    node[DATA].store(member.data, Ordering::Relaxed);
    let done = u64::from(member.set) << SET_SHIFT | tag.wrapping_add(1) & VERSION;
    node[TAG].store(done, Ordering::Release);
    true
}

/// A node's member, if it has one and no thread is writing it.
fn read(node: &Node, fd: i32) -> Option<(u64, Member)> {
    let tag = node[TAG].load(Ordering::Acquire);
    let set = (tag >> SET_SHIFT) as u32;
    if set == 0 || tag & BUSY != 0 {
        return None;
    }
    let what = node[WHAT].load(Ordering::Acquire);
    let data = node[DATA].load(Ordering::Acquire);
    if node[TAG].load(Ordering::Relaxed) != tag {
        return None;
    }
    let (id, events) = ((what >> SET_SHIFT) as u32, what as u32);
    Some((tag, Member { set, fd, id, events, data }))
}
