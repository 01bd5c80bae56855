//! Encodes the messages by which two gateways mirror a channel ([`crate::channel_mirror`]).
//!
//! They are words of 64 bits, little endian.
//!
//! **Trust.** It comes from another host, which may say anything: a letter is one of these, whole
//! and with nothing behind it, or none.

use crate::channel::{BYTES, Names};
use crate::channel_mirror::{Update, WORDS};

/// Bytes of the longest.
pub const LONGEST: usize = 8 * (2 + WORDS);
/// Bytes of a [`hello`].
pub const HELLO: usize = 32;
/// Of letters, and of what the frames in a channel mean, which processes of both hosts read:
/// another number with each change of either.
const VERSION: u64 = 2;

/// What gateways begin with, as private data of the connection: only those that have the same
/// layout of a channel, and the same order of bytes in a word, can go on.
#[must_use]
pub fn hello() -> [u8; HELLO] {
    let words = [0x4f4d_5646_4552_5259, VERSION, BYTES as u64, WORDS as u64];
    let mut bytes = [0; HELLO];
    bytes.chunks_exact_mut(8).zip(words).for_each(|(to, word)| {
        to.copy_from_slice(&u64::to_ne_bytes(word));
    });
    bytes
}

/// That is how private data begin; the network may have put zeros behind.
#[must_use]
pub fn is_hello(bytes: &[u8]) -> bool {
    bytes.starts_with(&hello())
}

/// What one says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "nearly all are news")]
pub enum GatewayMessage {
    /// A TCP connection has just gone from here to there. If it has arrived, its process is to have
    /// a channel, or to be told that more connections may come.
    Prove(Names),
    /// That was so.
    Proven {
        /// For how long the like may come from now on, in nanoseconds: no longer than the clock of
        /// that host says.
        left: u64,
    },
    /// It was not, as far as the other host can tell, or there is no room.
    Refused,
    /// Where the sender's memory of the channel is to be written.
    Memory {
        /// As the device of its host calls it.
        address: u64,
        /// The key that goes with it.
        rkey: u32,
    },
    /// The process has written this, and its bytes are there already.
    Update(Update),
    /// The channel ends.
    Over {
        /// Not since the process ended, but since it was told to part.
        is_cut: bool,
    },
    /// Nothing but how many were read.
    Read,
}

/// A letter, and how many of the other's were read since that was said last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// What is said.
    pub letter: GatewayMessage,
    /// How many were read; those that say nothing else do not count.
    pub read: u32,
}

impl Sent {
    /// How it is sent: how many of the bytes.
    pub fn encode(&self, bytes: &mut [u8; LONGEST]) -> usize {
        let mut words = Words { bytes, count: 0 };
        let read = u64::from(self.read) << 32;
        match self.letter {
            GatewayMessage::Prove(Names { addresses, ports: [from, to] }) => {
                words.put(1 | read);
                words.put(u64::from(from) | u64::from(to) << 16);
                for half in addresses.as_flattened().as_chunks().0 {
                    words.put(u64::from_le_bytes(*half));
                }
            }
            GatewayMessage::Proven { left } => {
                words.put(2 | read);
                words.put(left);
            }
            GatewayMessage::Refused => words.put(3 | read),
            GatewayMessage::Memory { address, rkey } => {
                words.put(4 | read);
                words.put(address);
                words.put(rkey.into());
            }
            GatewayMessage::Update(news) => {
                words.put(5 | read);
                words.put(news.changed);
                let changed = |index: &usize| news.changed >> index & 1 != 0;
                (0..WORDS).filter(changed).for_each(|index| words.put(news.words[index]));
            }
            GatewayMessage::Over { is_cut } => {
                words.put(6 | read);
                words.put(is_cut.into());
            }
            GatewayMessage::Read => words.put(7 | read),
        }
        words.count * 8
    }

    /// From bytes, if they are one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        if !rest.is_empty() || bytes.len() > LONGEST {
            return None;
        }
        let first = words.next()?;
        let letter = match first as u32 {
            1 => {
                let ports = words.next()?;
                let mut addresses = [[0; 16]; 2];
                for half in addresses.as_flattened_mut().as_chunks_mut().0 {
                    *half = words.next()?.to_le_bytes();
                }
                let ports = [u32::try_from(ports).ok()? as u16, (ports >> 16) as u16];
                GatewayMessage::Prove(Names { addresses, ports })
            }
            2 => GatewayMessage::Proven { left: words.next()? },
            3 => GatewayMessage::Refused,
            4 => {
                let address = words.next()?;
                GatewayMessage::Memory { address, rkey: words.next()?.try_into().ok()? }
            }
            5 => {
                let mut news = Update { changed: words.next()?, words: [0; WORDS] };
                if news.changed >> WORDS != 0 {
                    return None;
                }
                let changed = news.changed;
                let places = news.words.iter_mut().enumerate();
                for (_, word) in places.filter(|(index, _)| changed >> index & 1 != 0) {
                    *word = words.next()?;
                }
                GatewayMessage::Update(news)
            }
            6 => match words.next()? {
                is_cut @ 0..=1 => GatewayMessage::Over { is_cut: is_cut == 1 },
                _ => return None,
            },
            7 => GatewayMessage::Read,
            _ => return None,
        };
        words.next().is_none().then_some(Self { letter, read: (first >> 32) as u32 })
    }
}

struct Words<'a> {
    bytes: &'a mut [u8; LONGEST],
    count: usize,
}

impl Words<'_> {
    fn put(&mut self, word: u64) {
        self.bytes[self.count * 8..][..8].copy_from_slice(&word.to_le_bytes());
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn again(sent: Sent) -> Option<Sent> {
        let mut bytes = [0; LONGEST];
        let length = sent.encode(&mut bytes);
        assert!((0..length).all(|less| Sent::decode(&bytes[..less]).is_none()));
        Sent::decode(&bytes[..length])
    }

    #[test]
    fn letters_are_what_they_were() {
        let names = Names { addresses: [[7; 16], [1; 16]], ports: [u16::MAX, 80] };
        for letter in [
            GatewayMessage::Prove(names),
            GatewayMessage::Proven { left: u64::MAX },
            GatewayMessage::Refused,
            GatewayMessage::Memory { address: u64::MAX, rkey: u32::MAX },
            GatewayMessage::Over { is_cut: true },
            GatewayMessage::Over { is_cut: false },
            GatewayMessage::Read,
        ] {
            let sent = Sent { letter, read: u32::MAX };
            assert_eq!(again(sent), Some(sent));
        }
        assert!(is_hello(&hello()) && is_hello(&[&hello()[..], &[0; 9]].concat()));
        assert!(!is_hello(&hello()[1..]) && !is_hello(&hello()[..HELLO - 1]));
    }

    proptest! {
        #[test]
        fn news_are_what_they_were(
            changed in 0..1_u64 << WORDS,
            word in any::<u64>(),
            read in any::<u32>(),
        ) {
            let mut news = Update { changed, words: [0; WORDS] };
            for (index, to) in news.words.iter_mut().enumerate() {
                if changed >> index & 1 != 0 {
                    *to = word.wrapping_add(index as u64);
                }
            }
            let sent = Sent { letter: GatewayMessage::Update(news), read };
            prop_assert_eq!(again(sent), Some(sent));
        }

        #[test]
        fn what_is_none_is_none(bytes in prop::collection::vec(any::<u8>(), 0..LONGEST + 20)) {
            if let Some(sent) = Sent::decode(&bytes) {
                let mut same = [0; LONGEST];
                let length = sent.encode(&mut same);
                prop_assert_eq!(&same[..length], &bytes[..]);
            }
        }
    }
}
