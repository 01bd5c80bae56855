//! Implements a line that does everything a network may do to a datagram, from a seed.
//!
//! In: datagrams, each with a note of the caller's, and the time. Out: those that are left, some
//! twice, some damaged, when they arrive. The simulator joins two hosts with two of these; the
//! engine puts one in front of the sockets of a vNIC that is to see a bad network.

use crate::splitmix64::Random;
use crate::{Ecn, Time};
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Places that a line without datagrams keeps.
const SPARE: usize = 1024;

/// How bad it is; chances are in a million.
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
    /// For how long at most; so is the second one of two.
    pub reorder_delay: Time,
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
    /// Datagrams under way at most, others are dropped; 0: no limit.
    pub limit: usize,
}

/// What was done to datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Put in, whatever became of them.
    pub sent: u64,
    /// Lost by chance, to a partition or to the line's own queue.
    pub lost: u64,
    /// Put in once, to arrive twice.
    pub duplicated: u64,
    /// Copies with a flipped bit, some of them cut off there.
    pub corrupted: u64,
    /// Copies that may arrive behind what was put in later.
    pub reordered: u64,
    /// Copies with the mark "congestion experienced".
    pub marked: u64,
    /// Dropped because of [`Faults::limit`].
    pub dropped: u64,
}

impl FaultCounts {
    /// Adds what was done to others.
    pub fn add(&mut self, other: &FaultCounts) {
        self.sent += other.sent;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.corrupted += other.corrupted;
        self.reordered += other.reordered;
        self.marked += other.marked;
        self.dropped += other.dropped;
    }
}

/// A datagram under way.
#[derive(Debug)]
pub struct DatagramInFlight<T> {
    /// When it arrives, by the clock of whoever calls.
    pub time: Time,
    number: u64,
    /// What the line made of its mark.
    pub ecn: Ecn,
    /// What was noted when it was put in.
    pub note: T,
    /// What is left of it.
    pub bytes: Vec<u8>,
}

/// The one that arrives first is the greatest.
impl<T> Ord for DatagramInFlight<T> {
    fn cmp(&self, other: &DatagramInFlight<T>) -> Ordering {
        (other.time, other.number).cmp(&(self.time, self.number))
    }
}

impl<T> PartialOrd for DatagramInFlight<T> {
    fn partial_cmp(&self, other: &DatagramInFlight<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for DatagramInFlight<T> {
    fn eq(&self, other: &DatagramInFlight<T>) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for DatagramInFlight<T> {}

/// Of a datagram that arrives twice; one that arrives once is the first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CopyNumber {
    First,
    Second,
}

/// One direction of a line.
#[derive(Debug)]
pub struct FaultyLine<T = ()> {
    faults: Faults,
    random: Random,
    flights: BinaryHeap<DatagramInFlight<T>>,
    /// Bytes of what they hold.
    bytes: usize,
    /// Bytes that they may hold; what is beyond is dropped.
    bytes_max: usize,
    number: u64,
    /// When the line is free again.
    free: Time,
    /// The last arrival: delay alone does not reorder.
    last: Time,
    done: FaultCounts,
}

impl<T: Copy> FaultyLine<T> {
    /// A line with these faults; the same seed, the same faults.
    pub fn new(faults: Faults, seed: u64) -> FaultyLine<T> {
        FaultyLine {
            faults,
            random: Random::new(seed),
            flights: BinaryHeap::new(),
            bytes: 0,
            bytes_max: usize::MAX,
            number: 0,
            free: 0,
            last: 0,
            done: FaultCounts::default(),
        }
    }

    /// What was done to datagrams so far.
    pub fn done(&self) -> FaultCounts {
        self.done
    }

    /// Datagrams under way, and their bytes.
    pub fn under_way(&self) -> (usize, usize) {
        (self.flights.len(), self.bytes)
    }

    /// No more bytes than these are under way from now on; what is too much for that is dropped.
    pub fn set_bytes_max(&mut self, bytes: usize) {
        self.bytes_max = bytes;
    }

    /// Drops all datagrams under way.
    pub fn drop_all(&mut self) {
        self.done.dropped += self.flights.len() as u64;
        (self.flights, self.bytes) = (BinaryHeap::new(), 0);
    }

    /// Puts a datagram in.
    pub fn send(&mut self, now: Time, note: T, bytes: &[u8]) {
        self.done.sent += 1;
        let faults = &self.faults;
        let parted = faults.partitions.iter().any(|(from, until)| (*from..*until).contains(&now));
        let line = self.free.max(now) + bytes.len() as u64 * faults.byte_time / 1000;
        let dropped = faults.queue > 0 && line > now + faults.queue;
        if !dropped {
            self.free = line;
        }
        if parted || dropped || self.random.rarely(faults.loss) {
            self.done.lost += 1;
            return;
        }
        let twice = self.random.rarely(faults.duplication);
        self.copy(line, note, bytes, CopyNumber::First);
        if twice {
            self.done.duplicated += 1;
            self.copy(line, note, bytes, CopyNumber::Second);
        }
    }

    fn copy(&mut self, line: Time, note: T, bytes: &[u8], which: CopyNumber) {
        let faults = &self.faults;
        let (least, most) = faults.delay;
        let mut time = line + self.random.between(least, most);
        let again = which == CopyNumber::Second;
        if again || self.random.rarely(faults.reordering) {
            time += self.random.between(0, faults.reorder_delay);
            self.done.reordered += u64::from(!again);
        } else {
            time = time.max(self.last);
            self.last = time;
        }
        let mut bytes = bytes.to_vec();
        if !bytes.is_empty() && self.random.rarely(faults.corruption) {
            let bit = self.random.below(bytes.len() as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
            if self.random.rarely(200_000) {
                bytes.truncate(bit / 8);
            }
            self.done.corrupted += 1;
        }
        let ecn = match self.random.rarely(faults.marking) {
            true => Ecn::CongestionExperienced,
            false => Ecn::Unmarked,
        };
        self.done.marked += u64::from(ecn == Ecn::CongestionExperienced);
        // Chance has been asked as often as without a limit: what it says of the next datagram does
        // not depend on how fast they are taken out.
        let is_full = faults.limit > 0 && self.flights.len() >= faults.limit;
        if is_full || self.bytes.saturating_add(bytes.len()) > self.bytes_max {
            self.done.dropped += 1;
            return;
        }
        self.number += 1;
        self.bytes += bytes.len();
        self.flights.push(DatagramInFlight { time, number: self.number, ecn, note, bytes });
    }

    /// When the next datagram arrives.
    pub fn next_time(&self) -> Option<Time> {
        self.flights.peek().map(|flight| flight.time)
    }

    /// A datagram that has arrived by now.
    pub fn arrival(&mut self, now: Time) -> Option<DatagramInFlight<T>> {
        self.flights.peek().filter(|flight| flight.time <= now)?;
        let flight = self.flights.pop()?;
        self.bytes -= flight.bytes.len();
        if self.flights.is_empty() && self.flights.capacity() > SPARE {
            self.flights = BinaryHeap::new();
        }
        Some(flight)
    }
}

#[cfg(test)]
mod tests {
    use super::{FaultCounts, Faults, FaultyLine};
    use crate::Ecn;

    const BAD: Faults = Faults {
        loss: 100_000,
        duplication: 50_000,
        corruption: 20_000,
        reordering: 100_000,
        reorder_delay: 50_000,
        marking: 10_000,
        delay: (1000, 3000),
        partitions: Vec::new(),
        byte_time: 0,
        queue: 0,
        limit: 0,
    };

    /// What becomes of datagrams that are put in 1 us apart; they are taken out every `step`.
    fn arrivals(faults: &Faults, seed: u64, step: u64) -> (Vec<(u32, Ecn, Vec<u8>)>, FaultCounts) {
        let mut line = FaultyLine::new(faults.clone(), seed);
        let mut seen = Vec::new();
        for number in 0..20_000_u32 {
            let now = u64::from(number) * 1000;
            line.send(now, number, &number.to_be_bytes());
            if now.is_multiple_of(step) {
                while let Some(flight) = line.arrival(now) {
                    seen.push((flight.note, flight.ecn, flight.bytes));
                }
            }
        }
        while let Some(flight) = line.arrival(u64::MAX) {
            seen.push((flight.note, flight.ecn, flight.bytes));
        }
        (seen, line.done())
    }

    #[test]
    fn the_same_seed_decides_the_same_however_often_one_looks() {
        let (seen, done) = arrivals(&BAD, 7, 1000);
        assert_eq!((seen.clone(), done), arrivals(&BAD, 7, 50_000));
        assert_ne!(done, arrivals(&BAD, 8, 1000).1);
        let near =
            |count: u64, chance: u64| (chance * 15 / 1000..=chance * 25 / 1000).contains(&count);
        assert!(near(done.lost, 100_000) && near(done.duplicated, 50_000), "{done:?}");
        assert!(near(done.corrupted, 20_000) && near(done.marked, 10_000), "{done:?}");
        assert!(near(done.reordered, 100_000) && done.dropped == 0, "{done:?}");
        assert_eq!(seen.len() as u64, done.sent - done.lost + done.duplicated);
        let damaged = seen.iter().filter(|(note, _, bytes)| *bytes != note.to_be_bytes()).count();
        assert_eq!(damaged as u64, done.corrupted);
        assert!(!seen.is_sorted_by_key(|(note, ..)| *note));
    }

    #[test]
    fn a_line_without_faults_is_a_line() {
        let (seen, done) = arrivals(&Faults { delay: (1000, 9000), ..Faults::default() }, 7, 1000);
        assert!(seen.is_sorted_by_key(|(note, ..)| *note) && seen.len() == 20_000);
        assert_eq!(done, FaultCounts { sent: 20_000, ..FaultCounts::default() });
    }

    #[test]
    fn no_more_than_the_limit_is_under_way_and_decisions_stay_the_same() {
        let limited = Faults { limit: 100, delay: (1_000_000, 1_000_000), reorder_delay: 0, ..BAD };
        let (seen, done) = arrivals(&limited, 7, 1000);
        let (all, free) = arrivals(&Faults { limit: 0, ..limited.clone() }, 7, 1000);
        assert_eq!(FaultCounts { dropped: 0, ..done }, free);
        assert!(done.dropped > 10_000 && seen.len() as u64 + done.dropped == all.len() as u64);
        let mut line = FaultyLine::new(limited, 7);
        for _ in 0..1000 {
            line.send(0, (), &[1, 2, 3]);
            assert!(line.flights.len() <= 100);
        }
    }
}
