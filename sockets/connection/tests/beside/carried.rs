//! A connection of the kernel's, and one whose bytes are carried, with a shadow of the kernel's.
//!
//! What is done here to the shadow and to the words is what a library does that carries; the
//! decisions are the crate's. Directions are switched, and given back, at random.

use std::collections::VecDeque;

use omniverb_connection::carried::{
    Closing, Direction, Events, Reset, Shut, Side, Sink, Source, closing, has_gone, readiness,
    reset,
};

use crate::pair::{Outcome, Random, Socket, pair, sequences, settles};

const CAPACITY: u64 = 1 << 16;
const OPERATIONS: usize = 50;

/// Both ends, as one process could have them.
struct Carried {
    shadows: [Socket; 2],
    sides: [Side; 2],
    /// From side 0 to side 1, and back.
    directions: [Direction; 2],
    rings: [VecDeque<u8>; 2],
    /// How much each side has had from the kernel.
    from_kernel: [u64; 2],
    /// What a side that has seen its peer gone has settled on.
    resets: [Option<Reset>; 2],
}

impl Carried {
    fn new() -> Self {
        Self {
            shadows: pair(),
            sides: [Side::default(); 2],
            directions: [Direction::default(); 2],
            rings: [VecDeque::new(), VecDeque::new()],
            from_kernel: [0; 2],
            resets: [None; 2],
        }
    }

    /// What a side knows of its peer: what that says, and that it is gone if the shadow has ended
    /// without a word.
    fn peer(&self, side: usize) -> Side {
        let said = self.sides[1 - side];
        Side { has_closed: has_gone(self.shadows[side].far_end(), said), ..said }
    }

    /// Before anything else is done. Where the kernel does not know of a reset it is made to end
    /// the connection, by a byte that nobody takes; the error is ours.
    fn settle(&mut self, side: usize) {
        let shadow = &self.shadows[side];
        let said = self.sides[1 - side];
        if self.resets[side].is_some() || !has_gone(shadow.far_end(), said) {
            return;
        }
        let events = Events::from_bits_retain(shadow.events());
        let settled = reset(events, said, &self.directions[side]);
        self.resets[side] = Some(settled);
        if settled == Reset::Pending {
            _ = shadow.send(b"?");
            settles(|| shadow.events() & Events::HANG_UP.bits() != 0);
            shadow.error();
        }
    }

    /// The error of a reset, for whoever asks first.
    fn takes_reset(&mut self, side: usize) -> Option<Outcome> {
        (self.resets[side] == Some(Reset::Pending)).then(|| {
            self.resets[side] = Some(Reset::Told);
            Err(libc::ECONNRESET)
        })
    }

    fn pump(&mut self, side: usize) {
        let sink = self.directions[side].sink(self.sides[side], self.peer(side), CAPACITY);
        if let Sink::Pump(left) = sink {
            let bytes: Vec<u8> = self.rings[side].drain(..).collect();
            if !bytes.is_empty() {
                _ = self.shadows[side].send(&bytes);
            }
            self.directions[side].end = Some(left);
        }
    }

    fn send(&mut self, side: usize, bytes: &[u8]) -> Outcome {
        self.settle(side);
        self.pump(side);
        match self.directions[side].sink(self.sides[side], self.peer(side), CAPACITY) {
            Sink::Ring(room) => {
                let fits = bytes.len().min(room as usize);
                self.rings[side].extend(&bytes[..fits]);
                self.directions[side].written += fits as u64;
                Ok(fits)
            }
            Sink::Full => Err(libc::EAGAIN),
            Sink::Kernel | Sink::Pump(_) => {
                if let Some(reset) = self.takes_reset(side) {
                    return reset;
                }
                self.shadows[side].send(bytes)
            }
        }
    }

    fn receive(&mut self, side: usize, bytes: &mut [u8], flags: i32) -> Outcome {
        self.settle(side);
        let is_peek = flags & libc::MSG_PEEK != 0;
        let direction = 1 - side;
        let mut words = self.directions[direction];
        let (mut got, mut from_kernel) = (0, self.from_kernel[side]);
        let mut peeked = 0;
        loop {
            let rest = &mut bytes[got..];
            match words.source(from_kernel) {
                Source::Kernel(Some(most)) => {
                    let end = rest.len().min(most as usize);
                    // An error is for a call that has nothing else to tell.
                    if got > 0 && self.shadows[side].readable() == 0 {
                        break;
                    }
                    let outcome = self.shadows[side].receive(&mut rest[..end], flags);
                    let count = outcome.unwrap_or(0);
                    if got == 0 && count == 0 {
                        return outcome;
                    }
                    (got, from_kernel) = (got + count, from_kernel + count as u64);
                    if count < end || got == bytes.len() {
                        break;
                    }
                }
                Source::Ring(waiting) => {
                    let count = rest.len().min(waiting as usize);
                    let ring = self.rings[direction].iter().skip(peeked);
                    rest.iter_mut().zip(ring).for_each(|(byte, is)| *byte = *is);
                    (got, peeked) = (got + count, peeked + count);
                    words.read += count as u64;
                    if count == 0 || got == bytes.len() {
                        break;
                    }
                }
                Source::Kernel(None) | Source::Nothing if got > 0 => {
                    // What the kernel has behind the ring belongs to the same call. Who only
                    // looks sees once more what it has before.
                    if words.source(from_kernel) == Source::Kernel(None) {
                        let again = from_kernel - self.from_kernel[side];
                        let again = if is_peek { again as usize } else { 0 };
                        let mut buffer = vec![0; again + bytes.len() - got];
                        if self.shadows[side].readable() <= again {
                            break;
                        }
                        let count = self.shadows[side].receive(&mut buffer, flags).unwrap_or(0);
                        let count = count.saturating_sub(again);
                        bytes[got..got + count].copy_from_slice(&buffer[again..again + count]);
                        got += count;
                    }
                    break;
                }
                Source::Kernel(None) | Source::Nothing => {
                    let outcome = self.shadows[side].receive(bytes, flags);
                    if outcome.unwrap_or(0) == 0
                        && let Some(reset) = self.takes_reset(side)
                    {
                        return reset;
                    }
                    if !is_peek && words.fence.is_none() {
                        self.from_kernel[side] += outcome.unwrap_or(0) as u64;
                    }
                    return outcome;
                }
            }
        }
        if !is_peek {
            self.from_kernel[side] = from_kernel;
            self.directions[direction].read = words.read;
            self.rings[direction].drain(..peeked);
        }
        Ok(got)
    }

    fn shut_down(&mut self, side: usize, how: i32) -> Outcome {
        self.settle(side);
        self.pump(side);
        self.sides[side].shut |= match how {
            libc::SHUT_RD => Shut::RECEIVE,
            libc::SHUT_WR => Shut::SEND,
            _ => Shut::all(),
        };
        self.shadows[side].shut_down(how)
    }

    fn close(&mut self, side: usize, how: Way) {
        self.pump(side);
        if how == Way::Known {
            if closing(&self.directions[1 - side]) == Closing::Reset {
                self.shadows[side].close_will_reset();
            }
            self.sides[side].has_closed = true;
        }
        self.shadows[side].close();
    }

    fn error(&mut self, side: usize) -> i32 {
        self.settle(side);
        match self.takes_reset(side) {
            Some(reset) => reset.unwrap_err(),
            None => self.shadows[side].error(),
        }
    }

    fn events(&mut self, side: usize) -> u32 {
        self.settle(side);
        let shadow = Events::from_bits_retain(self.shadows[side].events());
        let source = self.directions[1 - side].source(self.from_kernel[side]);
        let outward = &self.directions[side];
        let sink = outward.sink(self.sides[side], self.peer(side), CAPACITY);
        let reset = self.resets[side].unwrap_or_default();
        readiness(shadow, source, 1, sink, outward, CAPACITY, reset).bits()
    }

    /// Something that nobody outside may notice.
    fn change_way(&mut self, side: usize, random: &mut Random) -> String {
        let given = if self.shadows[side].fd() < 0 { 0 } else { self.shadows[side].given() };
        let to = self.sides[1 - side];
        let has_gone = self.shadows[1 - side].fd() < 0;
        let (from, to) = (self.sides[side], Side { has_closed: to.has_closed || has_gone, ..to });
        let words = &mut self.directions[side];
        match random.below(6) {
            0..=3 if words.fence.is_none() => words.fence = Some(given),
            4 if words.fence.is_some() && words.end.is_none() && words.left.is_none() => {
                words.end = Some(words.written);
            }
            5 if words.may_be_left(from, to) => {
                words.left = Some(words.read);
                // Whoever holds the other end does it, or the daemon.
                self.pump(side);
            }
            _ => {}
        }
        format!("{:?}", self.directions[side])
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    /// By whoever knows that it is the last descriptor.
    Known,
    /// By the kernel, when a process is killed.
    Killed,
}

struct World {
    native: [Socket; 2],
    carried: Carried,
    sent: [u8; 2],
    is_open: [bool; 2],
}

impl World {
    fn step(&mut self, random: &mut Random) -> String {
        let side = random.below(2) as usize;
        if !self.is_open[side] {
            return String::new();
        }
        match random.below(16) {
            0..=4 => {
                let length = random.below(40) as usize;
                let bytes: Vec<u8> =
                    (0..length).map(|n| self.sent[side].wrapping_add(n as u8)).collect();
                let theirs = self.native[side].send(&bytes);
                assert_eq!(self.carried.send(side, &bytes), theirs, "{side} sends {length}");
                self.sent[side] = self.sent[side].wrapping_add(theirs.unwrap_or(0) as u8);
                format!("{side} sends {length}: {theirs:?}")
            }
            5..=8 => {
                let length = random.below(60) as usize;
                let flags = if random.below(4) == 0 { libc::MSG_PEEK } else { 0 };
                let (mut theirs, mut ours) = (vec![0; length], vec![0; length]);
                let native = self.native[side].receive(&mut theirs, flags);
                let carried = self.carried.receive(side, &mut ours, flags);
                assert_eq!(carried, native, "{side} receives {length}, {flags}");
                assert_eq!(ours, theirs);
                format!("{side} receives {length}, {flags}: {native:?}")
            }
            9 if random.below(3) == 0 => {
                let how = random.below(3) as i32;
                let theirs = self.native[side].shut_down(how);
                assert_eq!(self.carried.shut_down(side, how), theirs, "{side} shuts {how}");
                format!("{side} shuts {how}: {theirs:?}")
            }
            10 if random.below(4) == 0 => {
                // Who was killed when it had shut down sending is known to be gone by the kernel's
                // next answer only, where it would have been by a reset.
                let is_half = self.carried.sides[side].shut.contains(Shut::SEND);
                let is_killed = random.below(3) == 0 && !is_half;
                let how = if is_killed { Way::Killed } else { Way::Known };
                self.native[side].close();
                self.carried.close(side, how);
                self.is_open[side] = false;
                format!("{side} closes, {how:?}")
            }
            11 => {
                let theirs = self.native[side].error();
                assert_eq!(self.carried.error(side), theirs, "error of {side}");
                format!("{side} has error {theirs}")
            }
            _ => format!("way of {side}: {}", self.carried.change_way(side, random)),
        }
    }

    fn settle(&mut self) {
        for side in 0..2 {
            if self.is_open[side] {
                let (native, carried) = (&self.native[side], &mut self.carried);
                let mut both = (0, 0);
                let same = settles(|| {
                    both = (native.events(), carried.events(side));
                    both.0 == both.1
                });
                assert!(same, "{side} shows {:#x}, not {:#x}", both.1, both.0);
            }
        }
    }
}

#[test]
fn carried_is_as_native() {
    for seed in sequences(1500) {
        let mut random = Random(seed);
        let mut world =
            World { native: pair(), carried: Carried::new(), sent: [0, 128], is_open: [true; 2] };
        let mut story = Vec::new();
        for _ in 0..OPERATIONS {
            let step = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                story.push(world.step(&mut random));
                world.settle();
            }));
            if step.is_err() {
                panic!("OMNIVERB_SEED={seed}, after\n{}", story.join("\n"));
            }
        }
    }
}

#[test]
fn the_kernel_says_how_much_it_was_given() {
    let [near, far] = pair();
    assert_eq!((near.given(), far.given()), (0, 0));
    near.send(&[0; 10]).unwrap();
    far.send(&[0; 7]).unwrap();
    let bytes = vec![0; 1 << 16];
    let mut given = 10;
    while let Ok(count) = near.send(&bytes) {
        given += count as u64;
    }
    assert_eq!((near.given(), far.given()), (given, 7));
    let mut buffer = vec![0; 1 << 20];
    let mut got = 0;
    assert!(settles(|| {
        got += far.receive(&mut buffer, 0).unwrap_or(0) as u64;
        got == given
    }));
    assert_eq!(near.given(), given);
    near.shut_down(libc::SHUT_WR).unwrap();
    assert_eq!(near.given(), given);
}
