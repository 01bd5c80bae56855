//! Gives out keys and opens what was sealed with them.
//!
//! A key is derived from its number, so what is received before it was authenticated leaves
//! nothing behind. Each number belongs to one owner, a tenant: its packets are of no other. Numbers
//! are never given twice under a master key, and two master keys are valid while one takes the
//! other's place.

use crate::header::{HEADER_BYTES, Header};
use crate::key_handshake::REQUEST_BYTES;
use crate::packet_keys::{MasterKey, PacketKey, Spi};
use crate::replay_window::ReplayWindow;
use crate::sender::{THREAD_SHIFT, cipher};
use crate::spi_block::SpiBlock;
use crate::{ICV_BYTES, NEXT_UDP};
use ring::aead::{Aad, LessSafeKey, Nonce};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;

/// Numbers that were given out and never used: what a sender asked for and lost. Of the owner that
/// has most of them the oldest makes way, so that requests without end fill nothing, and no owner
/// takes them from another that has fewer.
const UNUSED_MAX: usize = 1024;
/// Numbers in use. The owner that has most of them gets no more; for another its oldest makes way.
const USED_MAX: usize = 65_536;
/// Budget: threads of a sender that may have a replay window under one number.
const SENDER_THREADS_MAX: u64 = 16;

/// How many numbers there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberLimits {
    /// That were given out and never used, of all owners.
    pub unused: usize,
    /// In use, of all owners.
    pub used: usize,
    /// In use of one owner: a further one takes the place of its oldest.
    pub used_by_owner: usize,
}

impl Default for NumberLimits {
    fn default() -> NumberLimits {
        NumberLimits { unused: UNUSED_MAX, used: USED_MAX, used_by_owner: USED_MAX }
    }
}

/// Why a packet is dropped. Senders are not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// It is no packet of version 0 that holds UDP.
    Malformed,
    /// Its number was not given out, or is valid no more.
    Unknown,
    /// Nobody with the key has sealed it so.
    Forged,
    /// It arrived before, or too late to tell.
    Replayed,
    /// Too many senders have keys.
    Full,
}

/// A packet that was opened.
#[derive(Debug, PartialEq, Eq)]
pub struct OpenedPacket<'a> {
    /// Whose the key is.
    pub owner: u64,
    /// What it holds: UDP.
    pub payload: &'a mut [u8],
}

/// A number in use.
struct Association {
    key: LessSafeKey,
    /// For each thread of the sender that has sent something.
    windows: BTreeMap<u8, ReplayWindow>,
}

/// A number that was given out.
struct IssuedSpi {
    owner: u64,
    /// What it was given for: the same is not given another.
    request: [u8; REQUEST_BYTES],
    /// Since its first packet.
    association: Option<Association>,
}

/// The numbers of an owner, the oldest first.
#[derive(Default)]
struct OwnerSpis {
    unused: VecDeque<Spi>,
    used: VecDeque<Spi>,
}

impl OwnerSpis {
    fn unused(&self) -> usize {
        self.unused.len()
    }

    fn used(&self) -> usize {
        self.used.len()
    }
}

/// The keys that a host receives by.
pub struct Receiver {
    /// By the first bit of the numbers that are of it.
    masters: [Option<MasterKey>; 2],
    current: usize,
    /// Numbers that are given out, but for the first one.
    range: Range<u32>,
    /// How many numbers are given out under the current one.
    given: u32,
    /// How far from the beginning of the range the first of them is.
    place: u32,
    numbers: HashMap<Spi, IssuedSpi>,
    requests: HashMap<[u8; REQUEST_BYTES], Spi>,
    /// Of owners that have numbers.
    shares: BTreeMap<u64, OwnerSpis>,
    max: NumberLimits,
}

impl Receiver {
    /// With a master key that was never used before: a new one for each start.
    #[must_use]
    pub fn new(master: MasterKey) -> Receiver {
        Receiver::with_limits(master, NumberLimits::default(), None)
    }

    /// As [`Receiver::new`], with so many numbers at most, of one block alone if others share the
    /// port.
    #[must_use]
    pub fn with_limits(master: MasterKey, max: NumberLimits, block: Option<SpiBlock>) -> Receiver {
        let range = block.map_or(0..Spi::SELECTOR, SpiBlock::numbers);
        Receiver {
            masters: [Some(master), None],
            current: 0,
            given: 0,
            place: 0,
            range,
            numbers: HashMap::new(),
            requests: HashMap::new(),
            shares: BTreeMap::new(),
            max,
        }
    }

    /// Begins with another number of the range: `place` may be any. One that begins anywhere gives
    /// out none that its predecessor, or that of another tenant, has given out before a restart, or
    /// hardly ever.
    #[must_use]
    pub fn beginning_at(mut self, place: u32) -> Receiver {
        self.place = place % self.count_of_range();
        self
    }

    /// How many numbers there are under one master key.
    fn count_of_range(&self) -> u32 {
        self.range.end - self.range.start - 1
    }

    /// A number and its key, of this owner, for a request of its
    /// ([`crate::key_handshake::Accepted`]): a new one, or that which the same request got before.
    /// `None`: the master key is used up, or too many are in use and no owner has more of them.
    pub fn give(&mut self, owner: u64, request: &[u8; REQUEST_BYTES]) -> Option<(Spi, PacketKey)> {
        let before = self.requests.get(request).copied();
        if let Some(spi) =
            before.filter(|spi| self.numbers.get(spi).is_some_and(|given| given.owner == owner))
        {
            return Some((spi, self.masters[spi.selector()].as_ref()?.derive(spi)));
        }
        let all = self.count_of_range();
        if self.given >= all {
            return None;
        }
        let number = self.range.start + 1 + (self.place + self.given) % all;
        if self.total(OwnerSpis::used) >= self.max.used && !self.is_below_largest(owner) {
            return None;
        }
        let spi = Spi::new((self.current as u32) << 31 | number);
        let key = self.masters[self.current].as_ref()?.derive(spi);
        self.given += 1;
        if self.total(OwnerSpis::unused) >= self.max.unused
            && let Some((_, share)) = self.shares.iter().max_by_key(|(_, share)| share.unused())
            && let Some(oldest) = share.unused.front().copied()
        {
            self.drop_number(oldest);
        }
        self.shares.entry(owner).or_default().unused.push_back(spi);
        self.requests.insert(*request, spi);
        self.numbers.insert(spi, IssuedSpi { owner, request: *request, association: None });
        Some((spi, key))
    }

    fn total(&self, of: impl Fn(&OwnerSpis) -> usize) -> usize {
        self.shares.values().map(of).sum()
    }

    /// Whether another owner has so many more numbers in use that one of them may go to this one.
    fn is_below_largest(&self, owner: u64) -> bool {
        let used = self.shares.get(&owner).map_or(0, OwnerSpis::used);
        self.shares.values().any(|share| share.used() > used + 1)
    }

    /// Another master key from now on. Numbers of the one before it remain valid until
    /// [`Receiver::retire`], those of the one before that are valid no more.
    pub fn rotate(&mut self, master: MasterKey) {
        self.current = 1 - self.current;
        let current = self.current;
        self.drop_numbers(|spi, _| spi.selector() == current);
        (self.masters[self.current], self.given) = (Some(master), 0);
    }

    /// Numbers of the master key before this one are valid no more.
    pub fn retire(&mut self) {
        self.masters[1 - self.current] = None;
        let current = self.current;
        self.drop_numbers(|spi, _| spi.selector() != current);
    }

    /// An owner has no numbers any more.
    pub fn forget_owner(&mut self, owner: u64) {
        self.drop_numbers(|_, given| given.owner == owner);
    }

    fn drop_number(&mut self, spi: Spi) {
        let Some(given) = self.numbers.remove(&spi) else { return };
        self.requests.remove(&given.request);
        if let Some(share) = self.shares.get_mut(&given.owner) {
            share.unused.retain(|other| *other != spi);
            share.used.retain(|other| *other != spi);
        }
    }

    fn drop_numbers(&mut self, which: impl Fn(Spi, &IssuedSpi) -> bool) {
        self.numbers.retain(|spi, given| !which(*spi, given));
        let numbers = &self.numbers;
        self.requests.retain(|_, spi| numbers.contains_key(spi));
        self.shares.retain(|_, share| {
            share.unused.retain(|spi| numbers.contains_key(spi));
            share.used.retain(|spi| numbers.contains_key(spi));
            share.unused() + share.used() > 0
        });
    }

    /// Whether the master key has less than half of its numbers left: time for another.
    #[must_use]
    pub fn is_half_spent(&self) -> bool {
        self.given > self.count_of_range() / 2
    }

    /// Whether no numbers are given out.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Numbers that are given out.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.numbers.len()
    }

    /// Opens a packet that has to be of this owner, where it lies. One of another is not looked
    /// into.
    ///
    /// # Errors
    /// Why it is dropped. Its bytes are anything then.
    pub fn open_of<'a>(
        &mut self,
        owner: u64,
        packet: &'a mut [u8],
    ) -> Result<&'a mut [u8], DropReason> {
        let header = Header::decode(packet).map_err(|_| DropReason::Malformed)?;
        if self.numbers.get(&header.spi).is_none_or(|given| given.owner != owner) {
            return Err(DropReason::Unknown);
        }
        self.open(packet).map(|opened| opened.payload)
    }

    /// Opens a packet where it lies.
    ///
    /// # Errors
    /// Why it is dropped. Its bytes are anything then.
    pub fn open<'a>(&mut self, packet: &'a mut [u8]) -> Result<OpenedPacket<'a>, DropReason> {
        let header = Header::decode(packet).map_err(|_| DropReason::Malformed)?;
        let fits = header.version == 0
            && header.next_header == NEXT_UDP
            && !header.has_cookie
            && header.iv >> THREAD_SHIFT < SENDER_THREADS_MAX;
        if !fits || header.is_to_drop {
            return Err(DropReason::Malformed);
        }
        let given = self.numbers.get_mut(&header.spi).ok_or(DropReason::Unknown)?;
        let owner = given.owner;
        if let Some(association) = &mut given.association {
            authenticate(&association.key, &header, packet)?;
            association.accept(header.iv)?;
        } else {
            let master = self.masters[header.spi.selector()].as_ref().ok_or(DropReason::Unknown)?;
            let key = cipher(&master.derive(header.spi)).ok_or(DropReason::Unknown)?;
            authenticate(&key, &header, packet)?;
            let mut association = Association { key, windows: BTreeMap::new() };
            association.accept(header.iv)?;
            self.begin(header.spi, owner, association)?;
        }
        let end = packet.len() - ICV_BYTES;
        let payload = packet.get_mut(HEADER_BYTES..end).ok_or(DropReason::Malformed)?;
        Ok(OpenedPacket { owner, payload })
    }

    /// A number is in use from now on, if there is room.
    fn begin(&mut self, spi: Spi, owner: u64, association: Association) -> Result<(), DropReason> {
        if self.total(OwnerSpis::used) >= self.max.used {
            if !self.is_below_largest(owner) {
                return Err(DropReason::Full);
            }
            let largest = self.shares.values().max_by_key(|share| share.used());
            if let Some(oldest) = largest.and_then(|share| share.used.front().copied()) {
                self.drop_number(oldest);
            }
        }
        let oldest = self.shares.get(&owner).and_then(|share| {
            let is_full = share.used() >= self.max.used_by_owner;
            share.used.front().copied().filter(|_| is_full)
        });
        oldest.into_iter().for_each(|oldest| self.drop_number(oldest));
        if let Some(given) = self.numbers.get_mut(&spi) {
            given.association = Some(association);
        }
        let share = self.shares.entry(owner).or_default();
        share.unused.retain(|other| *other != spi);
        share.used.push_back(spi);
        Ok(())
    }
}

/// Deciphers a packet where it lies, if somebody with the key has sealed it so.
fn authenticate(key: &LessSafeKey, header: &Header, packet: &mut [u8]) -> Result<(), DropReason> {
    let at = HEADER_BYTES + header.clear_bytes();
    let (open, secret) = packet.split_at_mut_checked(at).ok_or(DropReason::Malformed)?;
    let nonce = Nonce::assume_unique_for_key(header.nonce());
    let opened = key.open_in_place(nonce, Aad::from(&*open), secret);
    opened.map(drop).map_err(|_| DropReason::Forged)
}

impl Association {
    /// A packet with this initialization vector is authentic.
    fn accept(&mut self, iv: u64) -> Result<(), DropReason> {
        let window = self.windows.entry((iv >> THREAD_SHIFT) as u8).or_default();
        let is_new = window.accept(iv & ((1 << THREAD_SHIFT) - 1));
        is_new.then_some(()).ok_or(DropReason::Replayed)
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (used, unused) = (self.total(OwnerSpis::used), self.total(OwnerSpis::unused));
        write!(f, "Receiver({used} keys in use, {unused} not yet)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sender::Sender;

    fn request(n: u32) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        bytes
    }

    /// Whether a sender's packet is opened.
    fn sends(receiver: &mut Receiver, (spi, key): (Spi, PacketKey)) -> Result<(), DropReason> {
        let mut packet = Vec::new();
        Sender::new(spi, key, 1).sealer().unwrap().seal(0, b"data", &mut packet).unwrap();
        receiver.open(&mut packet).map(drop)
    }

    #[test]
    fn requests_without_end_fill_nothing() {
        let mut receiver = Receiver::new(MasterKey::new([1; 32]));
        let (spi, key) = receiver.give(7, &request(0)).unwrap();
        let mut sealer = Sender::new(spi, key, 1).sealer().unwrap();
        let mut packet = Vec::new();
        sealer.seal(0, b"used", &mut packet).unwrap();
        assert!(receiver.open(&mut packet).is_ok());
        let first = receiver.give(7, &request(1)).unwrap();
        let all: std::collections::HashSet<_> =
            (2..10_002).map(|n| receiver.give(7, &request(n)).unwrap().0).collect();
        assert_eq!((all.len(), receiver.numbers.len()), (10_000, UNUSED_MAX + 1));
        assert_eq!(receiver.requests.len(), UNUSED_MAX + 1);
        assert_eq!(sends(&mut receiver, first), Err(DropReason::Unknown), "too late");
        let mut packet = Vec::new();
        sealer.seal(0, b"used", &mut packet).unwrap();
        assert!(receiver.open(&mut packet).is_ok(), "what is in use stays");
        receiver.forget_owner(7);
        assert_eq!(format!("{receiver:?}"), "Receiver(0 keys in use, 0 not yet)");
        assert!(receiver.requests.is_empty() && receiver.shares.is_empty());
    }

    #[test]
    fn a_request_that_comes_again_gets_the_same_number() {
        let mut receiver = Receiver::new(MasterKey::new([1; 32]));
        let (spi, key) = receiver.give(7, &request(1)).unwrap();
        for _ in 0..5000 {
            let (other, same) = receiver.give(7, &request(1)).unwrap();
            assert!(other == spi && same == key);
        }
        assert_eq!((receiver.given, receiver.numbers.len()), (1, 1));
        assert_ne!(receiver.give(8, &request(1)).unwrap().0, spi, "numbers have one owner");
        assert_eq!(sends(&mut receiver, (spi, key)), Ok(()));
        receiver.rotate(MasterKey::new([2; 32]));
        receiver.retire();
        assert_ne!(receiver.give(7, &request(1)).unwrap().0, spi, "it is valid no more");
    }

    #[test]
    fn an_owner_takes_no_numbers_from_one_that_has_fewer() {
        let mut receiver = Receiver::new(MasterKey::new([1; 32]));
        let small: Vec<_> = (0..10).map(|n| receiver.give(1, &request(n)).unwrap()).collect();
        for n in 10..10_000 {
            receiver.give(2, &request(n)).unwrap();
        }
        for given in small {
            assert_eq!(sends(&mut receiver, given), Ok(()));
        }
        // In use: the greedy one gets no more, another takes of it until both have as many.
        receiver.max.used = 20;
        for n in 20_000..20_010 {
            let given = receiver.give(2, &request(n)).unwrap();
            assert_eq!(sends(&mut receiver, given), Ok(()));
        }
        assert!(receiver.give(2, &request(30_000)).is_none());
        assert!(receiver.give(1, &request(30_001)).is_none());
        for n in 40_000..40_010 {
            let given = receiver.give(3, &request(n));
            let used = receiver.shares.get(&3).map_or(0, OwnerSpis::used);
            assert_eq!(given.is_some(), used < 6, "{used}");
            if let Some(given) = given {
                assert_eq!(sends(&mut receiver, given), Ok(()));
            }
        }
        let used: Vec<_> = receiver.shares.values().map(OwnerSpis::used).collect();
        assert_eq!(used, [7, 7, 6]);
    }

    #[test]
    fn a_block_is_spent_before_the_next_one_begins() {
        let block = SpiBlock::new(3);
        let master = MasterKey::new([1; 32]);
        let mut receiver = Receiver::with_limits(master, NumberLimits::default(), Some(block));
        let numbers = block.numbers();
        assert_eq!(receiver.give(1, &request(1)).unwrap().0.number(), numbers.start + 1);
        assert!(!receiver.is_half_spent());
        receiver.given = numbers.end - numbers.start - 2;
        assert!(receiver.is_half_spent());
        let (last, _) = receiver.give(1, &request(2)).unwrap();
        assert_eq!((last.number(), SpiBlock::of(last)), (numbers.end - 1, block));
        assert!(receiver.give(1, &request(3)).is_none());
        receiver.rotate(MasterKey::new([2; 32]));
        let (next, _) = receiver.give(1, &request(3)).unwrap();
        assert_eq!(next.number(), Spi::SELECTOR | (numbers.start + 1));
        assert_eq!(SpiBlock::of(next), block);
        // Begun at its last number, it goes on with its first.
        let master = MasterKey::new([3; 32]);
        let receiver = Receiver::with_limits(master, NumberLimits::default(), Some(block));
        let all = receiver.count_of_range();
        let mut receiver = receiver.beginning_at(all - 1);
        for (n, expected) in [(1, numbers.end - 1), (2, numbers.start + 1)] {
            assert_eq!(receiver.give(1, &request(n)).unwrap().0.number(), expected);
        }
        receiver.given = all;
        assert!(receiver.give(1, &request(3)).is_none());
        let master = MasterKey::new([4; 32]);
        let receiver = Receiver::with_limits(master, NumberLimits::default(), Some(block));
        let (last, _) = receiver.beginning_at(u32::MAX).give(1, &request(1)).unwrap();
        assert!(numbers.contains(&last.number()) && last.number() != numbers.start);
    }

    #[test]
    fn a_master_key_ends() {
        let mut receiver = Receiver::new(MasterKey::new([1; 32]));
        receiver.given = Spi::SELECTOR - 2;
        assert!(receiver.give(1, &request(1)).is_some() && receiver.give(1, &request(2)).is_none());
        receiver.rotate(MasterKey::new([2; 32]));
        assert_eq!(receiver.give(1, &request(3)).unwrap().0.number(), Spi::SELECTOR + 1);
    }
}
