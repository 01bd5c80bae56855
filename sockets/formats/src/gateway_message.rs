//! Encodes the messages by which two gateways mirror a channel ([`crate::channel_mirror`]).
//!
//! **Trust.** It comes from another host, which may say anything: a letter is one of these, whole
//! and with nothing behind it, or none.

use crate::channel_layout::{BYTES, Names};
use crate::channel_mirror::{Update, WORDS};
use crate::message_codec::{self, Field, Reader, Writer, fields, messages};

/// Bytes of the longest.
pub const LONGEST: usize = 8 * (3 + WORDS);
/// Bytes of a [`hello`].
pub const HELLO: usize = 32;
/// Of letters, and of what the frames in a channel mean, which processes of both hosts read:
/// another number with each change of either.
const VERSION: u64 = 3;

/// What gateways begin with, as private data of the connection: only those that have the same
/// layout of a channel, and the same order of bytes in a word, can go on.
#[must_use]
pub fn hello() -> [u8; HELLO] {
    let words = [0x4f4d_5646_4552_5259, VERSION, BYTES as u64, WORDS as u64];
    let mut bytes = [0; HELLO];
    message_codec::to_bytes(&words, &mut bytes);
    bytes
}

/// That is how private data begin; the network may have put zeros behind.
#[must_use]
pub fn is_hello(bytes: &[u8]) -> bool {
    bytes.starts_with(&hello())
}

messages! {
    /// What one says.
    #[allow(clippy::large_enum_variant, reason = "nearly all are news")]
    GatewayMessage, version 0 {
        /// A TCP connection has just gone from here to there. If it has arrived, its process is to
        /// have a channel, or to be told that more connections may come.
        1 => Prove(names: Names),
        /// That was so.
        2 => Proven {
            /// For how long the like may come from now on, in nanoseconds: no longer than the clock
            /// of that host says.
            left: u64,
        },
        /// It was not, as far as the other host can tell, or there is no room.
        3 => Refused,
        /// Where the sender's memory of the channel is to be written.
        4 => Memory {
            /// As the device of its host calls it.
            address: u64,
            /// The key that goes with it.
            rkey: u32,
        },
        /// The process has written this, and its bytes are there already.
        5 => Update(update: Update),
        /// The channel ends.
        6 => Over {
            /// Not since the process ended, but since it was told to part.
            is_cut: bool,
        },
        /// Nothing but how many were read.
        7 => Read,
    }
}

/// A letter, and how many of the other's were read since that was said last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// What is said.
    pub letter: GatewayMessage,
    /// How many were read; those that say nothing else do not count.
    pub read: u32,
}

fields!(Sent { letter, read });

/// Which words have changed, and these.
impl Field for Update {
    fn put(&self, to: &mut Writer<'_>) {
        to.put(self.changed);
        let changed = |index: &usize| self.changed >> index & 1 != 0;
        (0..WORDS).filter(changed).for_each(|index| to.put(self.words[index]));
    }

    fn take(from: &mut Reader<'_>) -> Option<Self> {
        let changed = from.take().filter(|changed| changed >> WORDS == 0)?;
        let mut words = [0; WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            if changed >> index & 1 != 0 {
                *word = from.take()?;
            }
        }
        Some(Self { changed, words })
    }
}

impl Sent {
    /// How it is sent: how many of the bytes.
    pub fn encode(&self, bytes: &mut [u8; LONGEST]) -> usize {
        let mut words = [0; LONGEST / 8];
        let count = message_codec::put(self, &mut words);
        message_codec::to_bytes(&words[..count], bytes);
        count * 8
    }

    /// From bytes, if they are one, with nothing behind it.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut all = [0; LONGEST];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes);
        let words: [u64; LONGEST / 8] = message_codec::from_bytes(&all)?;
        let sent: Self = message_codec::take(&words)?;
        (sent.encode(&mut all) == bytes.len()).then_some(sent)
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
