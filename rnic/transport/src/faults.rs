//! A line that does everything a network may do to a datagram, from a seed.
//!
//! In: datagrams and the time. Out: those that are left, some twice, some damaged, when they
//! arrive. The simulator joins two hosts with two of these; a daemon under test can put one in
//! front of a socket.

use crate::Time;
use crate::random::Random;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How bad it is; chances are in ten thousand.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Chance to be lost.
    pub loss: u64,
    /// Chance to arrive twice.
    pub duplication: u64,
    /// Chance of a flipped bit, sometimes with the rest cut off.
    pub corruption: u64,
    /// Chance to be held back behind what follows.
    pub reordering: u64,
    /// Chance of the mark "congestion experienced".
    pub marking: u64,
    /// One-way delay, least and most.
    pub delay: (Time, Time),
    /// Nothing gets through from here to there.
    pub partitions: Vec<(Time, Time)>,
    /// Picoseconds per byte; 0: no limit.
    pub byte_time: u64,
    /// Longest wait for the line before datagrams are dropped; 0: no limit.
    pub queue: Time,
}

/// A datagram under way.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flight {
    /// When it arrives.
    pub time: Time,
    number: u64,
    /// "Congestion experienced".
    pub marked: bool,
    /// What is left of it.
    pub bytes: Vec<u8>,
}

/// One direction of a line.
#[derive(Debug)]
pub struct FaultyLine {
    faults: Faults,
    random: Random,
    flights: BinaryHeap<Reverse<Flight>>,
    number: u64,
    /// When the line is free again.
    free: Time,
    /// The last arrival: delay alone does not reorder.
    last: Time,
    /// Datagrams put in.
    pub sent: u64,
}

impl FaultyLine {
    /// A line with these faults; the same seed, the same faults.
    pub fn new(faults: Faults, seed: u64) -> FaultyLine {
        FaultyLine {
            faults,
            random: Random::new(seed),
            flights: BinaryHeap::new(),
            number: 0,
            free: 0,
            last: 0,
            sent: 0,
        }
    }

    /// Puts a datagram in.
    pub fn send(&mut self, now: Time, bytes: &[u8]) {
        self.sent += 1;
        let faults = &self.faults;
        let parted = faults.partitions.iter().any(|(from, until)| (*from..*until).contains(&now));
        let line = self.free.max(now) + bytes.len() as u64 * faults.byte_time / 1000;
        let dropped = faults.queue > 0 && line > now + faults.queue;
        if !dropped {
            self.free = line;
        }
        if parted || dropped || self.random.chance(faults.loss) {
            return;
        }
        let copies = 1 + u64::from(self.random.chance(faults.duplication));
        for copy in 0..copies {
            self.copy(line, bytes, copy > 0);
        }
    }

    fn copy(&mut self, line: Time, bytes: &[u8], again: bool) {
        let faults = &self.faults;
        let (least, most) = faults.delay;
        let mut time = line + self.random.between(least, most);
        if again || self.random.chance(faults.reordering) {
            time += self.random.between(0, 4 * most);
        } else {
            time = time.max(self.last);
            self.last = time;
        }
        let mut bytes = bytes.to_vec();
        if !bytes.is_empty() && self.random.chance(faults.corruption) {
            let bit = self.random.below(bytes.len() as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
            if self.random.chance(2000) {
                bytes.truncate(bit / 8);
            }
        }
        let marked = self.random.chance(faults.marking);
        self.number += 1;
        self.flights.push(Reverse(Flight { time, number: self.number, marked, bytes }));
    }

    /// When the next datagram arrives.
    pub fn next_time(&self) -> Option<Time> {
        self.flights.peek().map(|flight| flight.0.time)
    }

    /// A datagram that has arrived by now.
    pub fn arrival(&mut self, now: Time) -> Option<Flight> {
        self.flights.peek().filter(|flight| flight.0.time <= now)?;
        self.flights.pop().map(|flight| flight.0)
    }
}
