//! Encodes the messages. Little endian, whatever the machine; all of one length.
//!
//! | bytes | |
//! |---|---|
//! | 0..4 | kind |
//! | 4..8 | rights |
//! | 8..16 | identifier |
//! | 16..24 | serial |
//! | 24..32 | address |
//! | 32..40 | length |
//! | 40..44 | R_Key |
//! | 44..48 | zero |
//!
//! What a kind has no use for is zero.

use crate::MESSAGE_BYTES;
use omniverb_terms::Rkey;

/// The other node may read it.
pub const READABLE: u32 = 1;
/// The other node may write it.
pub const WRITABLE: u32 = 2;

/// Longest buffer, in bytes: 1 TiB.
pub const BUFFER_BYTES_MAX: u64 = 1 << 40;

/// What both sides say of themselves when they connect, as private data of the connection manager;
/// the last but one is the version of these messages.
pub const HELLO: [u8; 8] = *b"omvdma\x01\0";

/// Whether private data are a [`HELLO`]. Zeros follow it: managers pad.
#[must_use]
pub fn is_hello(private_data: &[u8]) -> bool {
    private_data.starts_with(&HELLO)
}

/// A buffer, as its node announces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnnouncedBuffer {
    /// What the program calls it.
    pub id: u64,
    /// What the node calls it: never used again, and growing.
    pub serial: u64,
    /// Where it is in the memory of its node.
    pub address: u64,
    /// Bytes; not zero.
    pub length: u64,
    /// Of the region that it is.
    pub rkey: Rkey,
    /// [`READABLE`], [`WRITABLE`] or both.
    pub rights: u32,
}

/// What nodes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// There is a buffer.
    Buffer(AnnouncedBuffer),
    /// A buffer is about to go: begin nothing with it any more.
    Withdrawn(u64),
    /// Nothing of ours is under way with that buffer of yours, and nothing will be.
    LetGo(u64),
    /// These were all that there were when we were connected.
    All,
}

const BUFFER: u32 = 1;
const WITHDRAWN: u32 = 2;
const LET_GO: u32 = 3;
const ALL: u32 = 4;

/// Not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a message between nodes")]
pub struct Malformed;

impl Message {
    /// As it travels. What its kind has no use for is zero.
    #[must_use]
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let (kind, it) = match *self {
            Self::Buffer(announced) => (BUFFER, announced),
            Self::Withdrawn(serial) => (WITHDRAWN, nothing(serial)),
            Self::LetGo(serial) => (LET_GO, nothing(serial)),
            Self::All => (ALL, nothing(0)),
        };
        let mut out = [0; MESSAGE_BYTES];
        out[0..4].copy_from_slice(&kind.to_le_bytes());
        out[4..8].copy_from_slice(&it.rights.to_le_bytes());
        out[8..16].copy_from_slice(&it.id.to_le_bytes());
        out[16..24].copy_from_slice(&it.serial.to_le_bytes());
        out[24..32].copy_from_slice(&it.address.to_le_bytes());
        out[32..40].copy_from_slice(&it.length.to_le_bytes());
        out[40..44].copy_from_slice(&it.rkey.0.to_le_bytes());
        out
    }

    /// What the bytes say.
    ///
    /// # Errors
    /// Another length, an unknown kind, a value where none belongs, or a buffer that cannot be: of
    /// no bytes, too long, beyond the end of memory, or with rights that there are not.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; MESSAGE_BYTES] = bytes.try_into().map_err(|_| Malformed)?;
        let it = AnnouncedBuffer {
            id: u64::from_le_bytes(piece(bytes, 8)),
            serial: u64::from_le_bytes(piece(bytes, 16)),
            address: u64::from_le_bytes(piece(bytes, 24)),
            length: u64::from_le_bytes(piece(bytes, 32)),
            rkey: Rkey(u32::from_le_bytes(piece(bytes, 40))),
            rights: u32::from_le_bytes(piece(bytes, 4)),
        };
        if u32::from_le_bytes(piece(bytes, 44)) != 0 {
            return Err(Malformed);
        }
        match u32::from_le_bytes(piece(bytes, 0)) {
            BUFFER => {
                let rights = it.rights & !(READABLE | WRITABLE) == 0 && it.rights != 0;
                let length = 1..=BUFFER_BYTES_MAX;
                let ends = it.address.checked_add(it.length).is_some();
                let fits = rights && ends && length.contains(&it.length);
                if fits { Ok(Self::Buffer(it)) } else { Err(Malformed) }
            }
            WITHDRAWN if it == nothing(it.serial) => Ok(Self::Withdrawn(it.serial)),
            LET_GO if it == nothing(it.serial) => Ok(Self::LetGo(it.serial)),
            ALL if it == nothing(0) => Ok(Self::All),
            _ => Err(Malformed),
        }
    }
}

/// Zeros but for the serial.
const fn nothing(serial: u64) -> AnnouncedBuffer {
    AnnouncedBuffer { id: 0, serial, address: 0, length: 0, rkey: Rkey(0), rights: 0 }
}

/// Some bytes in the middle. All callers stay within the message.
fn piece<const N: usize>(bytes: &[u8; MESSAGE_BYTES], at: usize) -> [u8; N] {
    let mut out = [0; N];
    if let Some(from) = bytes.get(at..at + N) {
        out.copy_from_slice(from);
    }
    out
}
