//! Packs and unpacks the eight words of a message ([`crate::broker_message`]).

/// Bytes of every message.
pub(crate) const BYTES: usize = 64;

/// What each message has, and what addresses of some have room in behind it.
pub(crate) type Words = [u64; 4];
pub(crate) const NO_MORE: Words = [0; 4];

pub(crate) fn pack(words: Words, more: Words) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes.chunks_exact_mut(8).zip(words.into_iter().chain(more)).for_each(|(to, word)| {
        to.copy_from_slice(&word.to_ne_bytes());
    });
    bytes
}

pub(crate) fn unpack(bytes: &[u8]) -> Option<(Words, Words)> {
    let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
    let mut words = [[0; 4]; 2];
    for (word, from) in words.as_flattened_mut().iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(from.try_into().ok()?);
    }
    let [words, more] = words;
    Some((words, more))
}

/// An address's bytes, as they are, as two words.
pub(crate) fn halves(address: [u8; 16]) -> [u64; 2] {
    let (first, last) = address.split_at(8);
    [first, last].map(|half| u64::from_ne_bytes(half.try_into().unwrap_or([0; 8])))
}

/// The same back.
pub(crate) fn whole(halves: [u64; 2]) -> [u8; 16] {
    let mut address = [0; 16];
    address.chunks_exact_mut(8).zip(halves).for_each(|(to, half)| {
        to.copy_from_slice(&half.to_ne_bytes());
    });
    address
}

/// Two addresses, as words.
pub(crate) fn four(ends: [[u8; 16]; 2]) -> Words {
    let [[a, b], [c, d]] = ends.map(halves);
    [a, b, c, d]
}

/// The same back.
pub(crate) fn both([a, b, c, d]: Words) -> [[u8; 16]; 2] {
    [[a, b], [c, d]].map(whole)
}
