//! Lays out the memory of a channel, which carries the light connections of two processes.
//!
//! The broker makes the memory, and reads only what listings show.
//!
//! ```text
//! 0x00000   words: of side 0, and of side 1 behind [`SIDE`]
//! 0x01000   ring of frames, side 0 to side 1
//! 0x41000   ring of frames, side 1 to side 0
//! 0x81000   connections and what each side has sent by them ([`ConnectionTable`])
//! 0x85000   words of lanes ([`crate::lane`]): those by which side 0 sends, then those of side 1
//! 0x89000   rings of lanes, in the same order
//! ```

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use omniverb_ring::WordMemory;
use omniverb_ring::shared_atomics::Ordering;

/// Bytes of the words of both sides.
pub const WORDS: usize = 4096;
/// Bytes between the words of one side and those of the other.
pub const SIDE: usize = 1024;
/// Of a side, each in a line of its own: how far it has written.
pub const HEAD: usize = 0;
/// How far it has read.
pub const TAIL: usize = 128;
/// What it is to be woken for.
pub const SLEEPS: usize = 256;
/// Of that: frames that come.
pub const WANTS_FRAMES: u64 = 1;
/// Of that: room for frames.
pub const WANTS_ROOM: u64 = 2;
/// Whether the broker has ended the channel.
pub const IS_CUT: usize = 384;
/// How many listeners it has closed: a client of one of them asks the broker anew.
pub const LEFT: usize = 512;
/// It is about to open connections; read by a side that has closed a listener meanwhile.
pub const OPENS: usize = 640;
/// How many connections it has refused because the listener's queue was full: their clients ask
/// again.
pub const FULL: usize = 768;
/// Bytes of a ring.
pub const RING: usize = 256 << 10;
/// Lanes by which a side may send at a time.
pub const LANES: usize = 16;
/// Bytes of a lane's ring, a power of two.
pub const LANE: usize = 64 << 10;
/// Of a lane, each in a line of its own: how far its writer is.
pub const LANE_HEAD: usize = 0;
/// How far its reader is.
pub const LANE_TAIL: usize = 128;
/// Whether a thread of the reader's sleeps that waits for bytes.
pub const LANE_IS_AWAITED: usize = 256;
/// How many connections have given it back, as far as its reader has read.
pub const LANE_LEFT: usize = 384;
/// Bytes of its file. Of the rings of lanes that were never used the kernel has given none.
pub const BYTES: usize = LANE_RINGS + 2 * LANES * LANE;

/// Where names are, and where the counts of each side.
const TABLE: usize = WORDS + 2 * RING;
const NAMES: usize = 40;
const COUNTS: usize = TABLE + SHOWN as usize * NAMES;
const _: () = assert!(COUNTS.is_multiple_of(128) && COUNTS + 2 * 8 * SHOWN as usize <= LANE_WORDS);
const LANE_WORDS: usize = TABLE + (16 << 10);
/// Bytes between the words of a lane and those of the next.
const LANE_LINES: usize = 512;
const LANE_RINGS: usize = LANE_WORDS + 2 * LANES * LANE_LINES;
/// Says that there is a connection of that id.
const THERE: u64 = 1 << 32;
/// Of a count: bytes, and behind them one more than the lane by which those go now.
const SENT: u64 = (1 << LANE_OF) - 1;
const LANE_OF: u32 = 56;

/// Listings show the connections of a channel that have smaller ids than this.
pub const SHOWN: u32 = 256;
/// For how long one connection that the network has brought allows more of them by a channel
/// between two network namespaces, in nanoseconds.
pub const PORT_ALLOWED_FOR: u64 = 10_000_000_000;
/// Ports of a process that are allowed to the other one by such a channel at a time.
pub const PORTS_ALLOWED: usize = 16;

/// Where the ring of what a side sends begins.
#[must_use]
pub const fn ring(side: usize) -> usize {
    WORDS + (side & 1) * RING
}

/// Where the words of a lane are by which a side sends.
#[must_use]
pub const fn lane_words(side: usize, number: usize) -> usize {
    LANE_WORDS + ((side & 1) * LANES + number % LANES) * LANE_LINES
}

/// Where its ring begins.
#[must_use]
pub const fn lane_ring(side: usize, number: usize) -> usize {
    LANE_RINGS + ((side & 1) * LANES + number % LANES) * LANE
}

/// The addresses and ports of a connection: client first, server second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// IPv6 addresses; IPv4 in its IPv6-mapped form.
    pub addresses: [[u8; 16]; 2],
    /// In host byte order.
    pub ports: [u16; 2],
}

impl Names {
    /// The names of a connection from one end to the other.
    #[must_use]
    pub fn between(ends: [SocketAddr; 2]) -> Self {
        let bytes = |end: SocketAddr| match end.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        Self { addresses: ends.map(bytes), ports: ends.map(|end| end.port()) }
    }

    /// Both ends, the client's first.
    #[must_use]
    pub fn ends(&self) -> [SocketAddr; 2] {
        [0, 1].map(|end| {
            let address = Ipv6Addr::from(self.addresses[end]).to_canonical();
            SocketAddr::new(address, self.ports[end])
        })
    }
}

/// A table of the connections of a channel, for listings. The opening side writes addresses, both
/// sides write how many bytes they have sent. Nothing else reads it: a wrong entry is shown
/// wrongly.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionTable<M>(M);

impl<M: WordMemory> ConnectionTable<M> {
    /// The table in a channel's memory.
    pub fn new(memory: M) -> Self {
        Self(memory)
    }

    fn name(id: u32) -> Option<usize> {
        (id < SHOWN).then_some(TABLE + id as usize * NAMES)
    }

    fn count(side: usize, id: u32) -> Option<usize> {
        (id < SHOWN).then_some(COUNTS + ((side & 1) * SHOWN as usize + id as usize) * 8)
    }

    /// Enters a connection that this side opens.
    pub fn opens(&self, id: u32, names: &Names) {
        let Some(at) = Self::name(id) else { return };
        for side in [0, 1] {
            self.store(Self::count(side, id), 0);
        }
        let bytes = names.addresses.as_flattened();
        for (word, bytes) in bytes.as_chunks().0.iter().enumerate() {
            self.store(Some(at + 8 + word * 8), u64::from_ne_bytes(*bytes));
        }
        let [from, to] = names.ports.map(u64::from);
        self.0.word(at).store(THERE | from | to << 16, Ordering::Release);
    }

    /// Removes a connection that this side has opened.
    pub fn ends(&self, id: u32) {
        self.store(Self::name(id), 0);
    }

    /// Counts bytes that a side has sent.
    #[inline]
    pub fn sends(&self, side: usize, id: u32, bytes: u64) {
        self.counts(side, id, |word| word & !SENT | word.wrapping_add(bytes) & SENT);
    }

    /// Enters the lane by which a side sends from now on; `None`: by the channel.
    pub fn goes_by(&self, side: usize, id: u32, lane: Option<usize>) {
        let lane = lane.map_or(0, |lane| lane as u64 + 1);
        self.counts(side, id, |word| word & SENT | lane << LANE_OF);
    }

    #[inline]
    fn counts(&self, side: usize, id: u32, to: impl Fn(u64) -> u64) {
        if let Some(at) = Self::count(side, id) {
            let word = self.0.word(at);
            word.store(to(word.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }

    fn store(&self, at: Option<usize>, value: u64) {
        if let Some(at) = at {
            self.0.word(at).store(value, Ordering::Relaxed);
        }
    }

    /// The connection of an id, and how many bytes each side has sent.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<(Names, [u64; 2])> {
        let at = Self::name(id)?;
        let ports = self.0.load(at, Ordering::Acquire);
        if ports & THERE == 0 {
            return None;
        }
        let mut names =
            Names { addresses: [[0; 16]; 2], ports: [0, 16].map(|by| (ports >> by) as u16) };
        for (word, bytes) in names.addresses.as_flattened_mut().chunks_exact_mut(8).enumerate() {
            let value = self.0.load(at + 8 + word * 8, Ordering::Relaxed);
            bytes.copy_from_slice(&value.to_ne_bytes());
        }
        let sent = [0, 1].map(|side| {
            let at = Self::count(side, id).unwrap_or(COUNTS);
            self.0.load(at, Ordering::Relaxed) & SENT
        });
        Some((names, sent))
    }

    /// Bytes that a side has put into the ring by which a connection goes, all connections of the
    /// channel's or its own, and the other one has not taken out. All words may be anything.
    #[must_use]
    pub fn unread(&self, side: usize, id: u32) -> u32 {
        let lane = Self::count(side, id).map_or(0, |at| self.0.load(at, Ordering::Relaxed));
        let lane = (lane >> LANE_OF) as usize;
        let (head, tail, most) = match lane.checked_sub(1) {
            Some(lane) => {
                let words = lane_words(side, lane);
                (words + LANE_HEAD, words + LANE_TAIL, LANE)
            }
            None => ((side & 1) * SIDE + HEAD, (1 - (side & 1)) * SIDE + TAIL, RING),
        };
        let [head, tail] = [head, tail].map(|word| self.0.load(word, Ordering::Relaxed));
        let bytes = head.wrapping_sub(tail);
        if bytes <= most as u64 { bytes as u32 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_ring::UserMemory;
    use omniverb_ring::shared_atomics::AtomicU64;

    struct Memory(Vec<AtomicU64>);

    impl WordMemory for &Memory {
        fn word(&self, offset: usize) -> &AtomicU64 {
            assert!(offset.is_multiple_of(8));
            &self.0[offset / 8]
        }

        fn length(&self) -> usize {
            BYTES
        }

        fn fill(&self, _: usize, _: UserMemory) {}
        fn drain(&self, _: usize, _: UserMemory) {}
        fn prefetch(&self, _: core::ops::Range<usize>) {}
    }

    fn names(last: u8) -> Names {
        Names { addresses: [[last; 16], [7; 16]], ports: [u16::MAX, u16::from(last)] }
    }

    #[test]
    fn what_is_written_of_a_connection_is_shown_until_it_ends() {
        let memory = Memory((0..BYTES / 8).map(|_| AtomicU64::new(0)).collect());
        let shown = ConnectionTable::new(&memory);
        assert!((0..SHOWN + 9).all(|id| shown.get(id).is_none()));
        for id in 0..SHOWN + 9 {
            shown.opens(id, &names(id as u8));
            shown.sends(0, id, u64::from(id));
            shown.sends(1, id, 3);
            shown.sends(1, id, 4);
        }
        for id in 0..SHOWN {
            assert_eq!(shown.get(id), Some((names(id as u8), [u64::from(id), 7])));
        }
        assert_eq!(shown.get(SHOWN), None);
        shown.ends(5);
        shown.ends(SHOWN + 5);
        assert_eq!(shown.get(5), None);
        shown.opens(5, &names(9));
        assert_eq!(shown.get(5), Some((names(9), [0; 2])), "another one");
        let used = memory.0.iter().take(TABLE / 8);
        assert!(used.into_iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn names_are_those_of_both_ends() {
        for text in ["10.1.2.3:65535", "[fd77::1]:1", "0.0.0.0:0"] {
            let ends = [text, "[::1]:80"].map(|end| end.parse().unwrap());
            assert_eq!(Names::between(ends).ends(), ends);
        }
        let mapped = Names::between(["[::ffff:10.1.2.3]:7".parse().unwrap(); 2]);
        assert_eq!(mapped.ends()[0], "10.1.2.3:7".parse().unwrap(), "that is the same");
    }

    #[test]
    fn what_makes_no_sense_is_nothing() {
        let memory = Memory((0..BYTES / 8).map(|_| AtomicU64::new(0)).collect());
        let shown = ConnectionTable::new(&memory);
        assert_eq!([0, 1].map(|side| shown.unread(side, 2)), [0; 2]);
        memory.0[SIDE / 8].store(1000, Ordering::Relaxed);
        memory.0[TAIL / 8].store(900, Ordering::Relaxed);
        assert_eq!([0, 1].map(|side| shown.unread(side, 2)), [0, 100]);
        memory.0[TAIL / 8].store(1001, Ordering::Relaxed);
        assert_eq!(shown.unread(1, 2), 0);
        memory.0[COUNTS / 8].store(u64::MAX, Ordering::Relaxed);
        assert_eq!(shown.unread(0, 0), 0);
    }

    #[test]
    fn what_is_unread_is_that_of_the_ring_it_goes_by() {
        let memory = Memory((0..BYTES / 8).map(|_| AtomicU64::new(0)).collect());
        let shown = ConnectionTable::new(&memory);
        shown.opens(4, &names(4));
        shown.sends(1, 4, 7);
        shown.goes_by(1, 4, Some(LANES - 1));
        shown.sends(1, 4, 70);
        memory.0[(lane_words(1, LANES - 1) + LANE_HEAD) / 8].store(70, Ordering::Relaxed);
        assert_eq!([0, 1].map(|side| shown.unread(side, 4)), [0, 70]);
        assert_eq!(shown.get(4), Some((names(4), [0, 77])));
        shown.goes_by(1, 4, None);
        assert_eq!((shown.unread(1, 4), shown.get(4)), (0, Some((names(4), [0, 77]))));
    }
}
