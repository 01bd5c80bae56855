//! ACK extended transport header (9.3.5): acknowledgements and most READ responses.

use crate::Syndrome;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The header as it is on the wire.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Aeth(U32);

impl Aeth {
    /// Its length in bytes: of answers, behind the BTH.
    pub const BYTES: usize = 4;

    /// A syndrome and the number of messages completed, modulo 2^24.
    pub fn new(syndrome: Syndrome, messages: u32) -> Aeth {
        Aeth(U32::new(u32::from(syndrome.to_byte()) << 24 | messages & 0xff_ffff))
    }
    /// What the responder says.
    pub fn syndrome(&self) -> Syndrome {
        Syndrome::from_byte((self.0.get() >> 24) as u8)
    }
    /// Message sequence number (9.7.7.1).
    pub fn messages(&self) -> u32 {
        self.0.get() & 0xff_ffff
    }
}
