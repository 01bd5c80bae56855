//! Datagram extended transport header (9.3.2): UD.

use omniverb_terms::{Qkey, Qpn};
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The header as it is on the wire.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Deth {
    queue_key: U32,
    source: U32,
}

impl Deth {
    /// Its length in bytes: of UD, behind the BTH.
    pub const BYTES: usize = 8;

    /// Q_Key and the QP number of the sender.
    pub fn new(queue_key: Qkey, source: Qpn) -> Deth {
        Deth { queue_key: U32::new(queue_key.0), source: U32::new(source.0 & 0xff_ffff) }
    }
    /// Q_Key that the receiver must have.
    pub fn queue_key(&self) -> Qkey {
        Qkey(self.queue_key.get())
    }
    /// QP number of the sender.
    pub fn source(&self) -> Qpn {
        Qpn(self.source.get() & 0xff_ffff)
    }
}
