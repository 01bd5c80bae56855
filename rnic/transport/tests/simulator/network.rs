//! A network that does everything a network may do to a packet.

use crate::random::Random;
use omniverb_transport::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How bad it is; chances are in ten thousand.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    pub loss: u64,
    pub duplication: u64,
    pub corruption: u64,
    /// Chance to be held back behind what follows.
    pub reordering: u64,
    /// Chance of the mark "congestion experienced".
    pub marking: u64,
    /// One-way delay, least and most.
    pub delay: (Time, Time),
    /// Nothing gets through from here to there.
    pub partitions: Vec<(Time, Time)>,
    /// Picoseconds per byte, and the longest wait before packets are dropped; 0: no limit.
    pub byte_time: u64,
    pub queue: Time,
}

/// A datagram under way.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flight {
    pub time: Time,
    number: u64,
    pub to: usize,
    pub marked: bool,
    pub bytes: Vec<u8>,
}

/// The network between two hosts.
pub struct Network {
    pub faults: Faults,
    random: Random,
    flights: BinaryHeap<Reverse<Flight>>,
    number: u64,
    /// When each direction's line is free again.
    free: [Time; 2],
    /// The last arrival in each direction: delay alone does not reorder.
    last: [Time; 2],
    pub sent: u64,
}

impl Network {
    pub fn new(faults: Faults, random: Random) -> Network {
        Network {
            faults,
            random,
            flights: BinaryHeap::new(),
            number: 0,
            free: [0; 2],
            last: [0; 2],
            sent: 0,
        }
    }

    pub fn send(&mut self, now: Time, to: usize, bytes: &[u8]) {
        self.sent += 1;
        let parted =
            self.faults.partitions.iter().any(|(from, until)| (*from..*until).contains(&now));
        let line = self.free[to].max(now) + bytes.len() as u64 * self.faults.byte_time / 1000;
        let dropped = self.faults.queue > 0 && line > now + self.faults.queue;
        if !dropped {
            self.free[to] = line;
        }
        if parted || dropped || self.random.chance(self.faults.loss) {
            return;
        }
        let copies = 1 + u64::from(self.random.chance(self.faults.duplication));
        for copy in 0..copies {
            let (least, most) = self.faults.delay;
            let mut time = line + self.random.between(least, most);
            if copy > 0 || self.random.chance(self.faults.reordering) {
                time += self.random.between(0, 4 * most);
            } else {
                time = time.max(self.last[to]);
                self.last[to] = time;
            }
            let mut bytes = bytes.to_vec();
            if self.random.chance(self.faults.corruption) {
                let bit = self.random.below(bytes.len() as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
                if self.random.chance(2000) {
                    bytes.truncate(bit / 8);
                }
            }
            let marked = self.random.chance(self.faults.marking);
            self.number += 1;
            self.flights.push(Reverse(Flight { time, number: self.number, to, marked, bytes }));
        }
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
