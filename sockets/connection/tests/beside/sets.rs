//! An epoll set of the kernel's, and [`Set`].

use std::ffi::c_int;

use omniverb_connection::set::{EDGE, EXCLUSIVE, ONE_SHOT, Place, Refused, Set};

use crate::pair::{Random, Socket, pair, sequences, settles};

const MEMBERS: usize = 4;
const OPERATIONS: usize = 40;
const IN: u32 = 0x1;
const OUT: u32 = 0x4;
const READ_HANG_UP: u32 = 0x2000;
/// What the kernel says when bytes have come.
const CAME: u32 = 0x1 | 0x40 | 0x80;

struct Epoll(c_int);

impl Epoll {
    fn new() -> Self {
        // SAFETY: no memory is involved.
        Self(unsafe { libc::epoll_create1(0) })
    }

    fn control(&self, operation: c_int, fd: c_int, events: u32, data: u64) -> c_int {
        let mut event = libc::epoll_event { events, u64: data };
        // SAFETY: the structure lives across the call.
        match unsafe { libc::epoll_ctl(self.0, operation, fd, &raw mut event) } {
            0 => 0,
            _ => std::io::Error::last_os_error().raw_os_error().unwrap_or(0),
        }
    }

    fn wait(&self, most: usize) -> Vec<(u32, u64)> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MEMBERS];
        // SAFETY: there is room for so many.
        let count = unsafe { libc::epoll_wait(self.0, events.as_mut_ptr(), most as c_int, 0) };
        events[..count as usize].iter().map(|event| (event.events, event.u64)).collect()
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours, and not used again.
        unsafe { libc::close(self.0) };
    }
}

fn fd(result: Result<(), Refused>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(Refused::Exists) => libc::EEXIST,
        Err(Refused::Missing) => libc::ENOENT,
        Err(Refused::Invalid) => libc::EINVAL,
    }
}

fn interest(random: &mut Random) -> u32 {
    let mut events = 0;
    for (bit, one_in) in [(IN, 2), (OUT, 3), (READ_HANG_UP, 4), (EDGE, 2), (ONE_SHOT, 4)] {
        events |= if random.below(one_in) == 0 { bit } else { 0 };
    }
    if random.below(12) == 0 {
        events = events & !ONE_SHOT | EXCLUSIVE;
    }
    events
}

struct World {
    pairs: [[Socket; 2]; MEMBERS],
    epoll: Epoll,
    bytes: [usize; MEMBERS],
    has_ended: [bool; MEMBERS],
}

impl World {
    /// What a member shows.
    fn shows(&self, index: usize) -> u32 {
        let readable = self.bytes[index] > 0 || self.has_ended[index];
        let ended = if self.has_ended[index] { READ_HANG_UP } else { 0 };
        OUT | ended | if readable { IN } else { 0 }
    }

    fn step(&mut self, random: &mut Random, set: &mut Set<'_>) -> String {
        let index = random.below(MEMBERS as u64) as usize;
        let (data, now) = (random.below(1 << 40), self.shows(index));
        let member = self.pairs[index][0].fd();
        match random.below(8) {
            0 | 1 => {
                let events = interest(random);
                let theirs = self.epoll.control(libc::EPOLL_CTL_ADD, member, events, data);
                assert_eq!(fd(set.add(index, events, data, now)), theirs, "add {events:#x}");
                format!("add {index} {events:#x} {data:#x}: {theirs}")
            }
            2 => {
                let events = interest(random);
                let theirs = self.epoll.control(libc::EPOLL_CTL_MOD, member, events, data);
                assert_eq!(fd(set.modify(index, events, data, now)), theirs, "{events:#x}");
                format!("modify {index} {events:#x} {data:#x}: {theirs}")
            }
            3 if random.below(2) == 0 => {
                let theirs = self.epoll.control(libc::EPOLL_CTL_DEL, member, 0, 0);
                assert_eq!(fd(set.remove(index)), theirs, "remove");
                format!("remove {index}: {theirs}")
            }
            3 if random.below(4) == 0 && !self.has_ended[index] => {
                self.pairs[index][1].shut_down(libc::SHUT_WR).unwrap();
                self.has_ended[index] = true;
                let pair = &self.pairs[index];
                assert!(settles(|| pair[0].events() & READ_HANG_UP != 0));
                set.news(index, 0);
                format!("end {index}")
            }
            4 | 5 if !self.has_ended[index] => {
                self.pairs[index][1].send(b"abc").unwrap();
                self.bytes[index] += 3;
                let pair = &self.pairs[index];
                assert!(settles(|| pair[1].unsent() == 0));
                set.news(index, CAME);
                format!("bytes for {index}")
            }
            6 => {
                let mut bytes = [0; 5];
                let got = self.pairs[index][0].receive(&mut bytes, 0).unwrap_or(0);
                self.bytes[index] -= got;
                format!("read {got} of {index}")
            }
            _ => {
                let most = 1 + random.below(MEMBERS as u64) as usize;
                let theirs = self.epoll.wait(most);
                let mut ours = Vec::new();
                set.collect(
                    most,
                    |index| self.shows(index),
                    |events, data| {
                        ours.push((events, data));
                    },
                );
                assert_eq!(ours, theirs, "wait for {most}");
                format!("wait for {most}: {theirs:x?}")
            }
        }
    }
}

#[test]
fn a_set_tells_what_the_kernels_tells() {
    for seed in sequences(300) {
        let mut random = Random(seed);
        let mut places = [Place::FREE; MEMBERS];
        let mut set = Set::new(&mut places);
        let mut world = World {
            pairs: std::array::from_fn(|_| pair()),
            epoll: Epoll::new(),
            bytes: [0; MEMBERS],
            has_ended: [false; MEMBERS],
        };
        let mut story = Vec::new();
        for _ in 0..OPERATIONS {
            let step = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                world.step(&mut random, &mut set)
            }));
            match step {
                Ok(step) => story.push(step),
                Err(_) => panic!("OMNIVERB_SEED={seed}, after\n{}", story.join("\n")),
            }
        }
    }
}

#[test]
fn an_inner_set_is_ready_while_it_has_something_to_tell() {
    let [near, far] = pair();
    let (outer, inner) = (Epoll::new(), Epoll::new());
    inner.control(libc::EPOLL_CTL_ADD, near.fd(), IN, 7);
    outer.control(libc::EPOLL_CTL_ADD, inner.0, IN, 9);
    let mut places = [Place::FREE; 1];
    let mut set = Set::new(&mut places);
    set.add(0, IN, 7, 0).unwrap();
    assert_eq!((outer.wait(4).len(), set.is_ready(|_| 0)), (0, false));
    far.send(b"x").unwrap();
    set.news(0, CAME);
    assert!(settles(|| !outer.wait(4).is_empty()) && set.is_ready(|_| IN));
    near.receive(&mut [0; 4], 0).unwrap();
    assert_eq!((outer.wait(4).len(), set.is_ready(|_| 0)), (0, false));
}
