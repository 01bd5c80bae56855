//! Gives out keys and opens what was sealed with them.
//!
//! A key is derived from its number, so what is received before it was authenticated leaves
//! nothing behind. Each number belongs to one owner, a tenant: its packets are of no other. Numbers
//! are never given twice under a master key, and two master keys are valid while one takes the
//! other's place.

use crate::header::{HEADER_BYTES, Header};
use crate::key::{MasterKey, PacketKey, Spi};
use crate::replay_window::ReplayWindow;
use crate::sender::{THREAD_SHIFT, cipher};
use crate::{ICV_BYTES, NEXT_UDP};
use ring::aead::{Aad, LessSafeKey, Nonce};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Numbers that were given out and never used: what a sender asked for and lost. The oldest makes
/// way, so that requests that are sent again and again fill nothing.
const UNUSED_MAX: usize = 1024;
/// Numbers in use.
const USED_MAX: usize = 65_536;

/// Why a packet is dropped. Senders are not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dropped {
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
pub struct Opened<'a> {
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

/// The keys that a host receives by.
pub struct Receiver {
    /// By the first bit of the numbers that are of it.
    masters: [Option<MasterKey>; 2],
    current: usize,
    /// Numbers given out under the current one.
    given: u32,
    owners: HashMap<Spi, u64>,
    unused: VecDeque<Spi>,
    used: HashMap<Spi, Association>,
}

impl Receiver {
    /// With a master key that was never used before: a new one for each start.
    #[must_use]
    pub fn new(master: MasterKey) -> Receiver {
        Receiver {
            masters: [Some(master), None],
            current: 0,
            given: 0,
            owners: HashMap::new(),
            unused: VecDeque::new(),
            used: HashMap::new(),
        }
    }

    /// A new number and its key, of this owner. `None`: the master key is used up, or too many are
    /// in use.
    pub fn give(&mut self, owner: u64) -> Option<(Spi, PacketKey)> {
        let number = self.given.checked_add(1).filter(|number| *number < Spi::SELECTOR)?;
        if self.used.len() >= USED_MAX {
            return None;
        }
        let spi = Spi::new((self.current as u32) << 31 | number);
        let key = self.masters[self.current].as_ref()?.derive(spi);
        self.given = number;
        if self.unused.len() >= UNUSED_MAX
            && let Some(oldest) = self.unused.pop_front()
        {
            self.owners.remove(&oldest);
        }
        self.unused.push_back(spi);
        self.owners.insert(spi, owner);
        Some((spi, key))
    }

    /// Another master key from now on. Numbers of the one before it remain valid until
    /// [`Receiver::retire`], those of the one before that are valid no more.
    pub fn rotate(&mut self, master: MasterKey) {
        self.current = 1 - self.current;
        self.forget(|spi, current| spi.selector() == current);
        (self.masters[self.current], self.given) = (Some(master), 0);
    }

    /// Numbers of the master key before this one are valid no more.
    pub fn retire(&mut self) {
        self.masters[1 - self.current] = None;
        self.forget(|spi, current| spi.selector() != current);
    }

    /// An owner has no numbers any more.
    pub fn forget_owner(&mut self, owner: u64) {
        let theirs: Vec<_> =
            self.owners.iter().filter(|(_, of)| **of == owner).map(|(spi, _)| *spi).collect();
        for spi in theirs {
            self.owners.remove(&spi);
            self.used.remove(&spi);
        }
        let owners = &self.owners;
        self.unused.retain(|spi| owners.contains_key(spi));
    }

    fn forget(&mut self, which: impl Fn(Spi, usize) -> bool) {
        let current = self.current;
        self.owners.retain(|spi, _| !which(*spi, current));
        self.used.retain(|spi, _| !which(*spi, current));
        self.unused.retain(|spi| !which(*spi, current));
    }

    /// Opens a packet where it lies.
    ///
    /// # Errors
    /// Why it is dropped. Its bytes are anything then.
    pub fn open<'a>(&mut self, packet: &'a mut [u8]) -> Result<Opened<'a>, Dropped> {
        let header = Header::decode(packet).map_err(|_| Dropped::Malformed)?;
        let fits = header.version == 0 && header.next_header == NEXT_UDP && !header.has_cookie;
        if !fits || header.is_to_drop {
            return Err(Dropped::Malformed);
        }
        let owner = *self.owners.get(&header.spi).ok_or(Dropped::Unknown)?;
        if let Some(association) = self.used.get_mut(&header.spi) {
            authenticate(&association.key, &header, packet)?;
            association.accept(header.iv)?;
        } else {
            let master = self.masters[header.spi.selector()].as_ref().ok_or(Dropped::Unknown)?;
            let key = cipher(&master.derive(header.spi)).ok_or(Dropped::Unknown)?;
            authenticate(&key, &header, packet)?;
            if self.used.len() >= USED_MAX {
                return Err(Dropped::Full);
            }
            let mut association = Association { key, windows: BTreeMap::new() };
            association.accept(header.iv)?;
            self.used.insert(header.spi, association);
            self.unused.retain(|spi| *spi != header.spi);
        }
        let end = packet.len() - ICV_BYTES;
        let payload = packet.get_mut(HEADER_BYTES..end).ok_or(Dropped::Malformed)?;
        Ok(Opened { owner, payload })
    }
}

/// Deciphers a packet where it lies, if somebody with the key has sealed it so.
fn authenticate(key: &LessSafeKey, header: &Header, packet: &mut [u8]) -> Result<(), Dropped> {
    let at = HEADER_BYTES + header.clear_bytes();
    let (open, secret) = packet.split_at_mut_checked(at).ok_or(Dropped::Malformed)?;
    let nonce = Nonce::assume_unique_for_key(header.nonce());
    let opened = key.open_in_place(nonce, Aad::from(&*open), secret);
    opened.map(drop).map_err(|_| Dropped::Forged)
}

impl Association {
    /// A packet with this initialization vector is authentic.
    fn accept(&mut self, iv: u64) -> Result<(), Dropped> {
        let window = self.windows.entry((iv >> THREAD_SHIFT) as u8).or_default();
        let is_new = window.accept(iv & ((1 << THREAD_SHIFT) - 1));
        is_new.then_some(()).ok_or(Dropped::Replayed)
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Receiver({} keys in use, {} not yet)", self.used.len(), self.unused.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sender::Sender;

    #[test]
    fn requests_without_end_fill_nothing() {
        let mut receiver = Receiver::new(MasterKey::new([1; 32]));
        let (spi, key) = receiver.give(7).unwrap();
        let mut sealer = Sender::new(spi, key).sealer().unwrap();
        let mut packet = Vec::new();
        sealer.seal(0, b"used", &mut packet).unwrap();
        assert!(receiver.open(&mut packet).is_ok());
        let first = receiver.give(7).unwrap();
        let all: std::collections::HashSet<_> =
            (0..10_000).map(|_| receiver.give(7).unwrap().0).collect();
        assert_eq!((all.len(), receiver.owners.len()), (10_000, UNUSED_MAX + 1));
        let mut late = Sender::new(first.0, first.1).sealer().unwrap();
        let mut packet = Vec::new();
        late.seal(0, b"too late", &mut packet).unwrap();
        assert_eq!(receiver.open(&mut packet), Err(Dropped::Unknown));
        let mut packet = Vec::new();
        sealer.seal(0, b"used", &mut packet).unwrap();
        assert!(receiver.open(&mut packet).is_ok(), "what is in use stays");
        receiver.forget_owner(7);
        assert_eq!(format!("{receiver:?}"), "Receiver(0 keys in use, 0 not yet)");
    }

    #[test]
    fn a_master_key_ends() {
        let mut receiver = Receiver::new(MasterKey::new([1; 32]));
        receiver.given = Spi::SELECTOR - 2;
        assert!(receiver.give(1).is_some() && receiver.give(1).is_none());
        receiver.rotate(MasterKey::new([2; 32]));
        assert_eq!(receiver.give(1).unwrap().0.number(), Spi::SELECTOR + 1);
    }
}
