//! Base transport header (clause 9.2): in every packet.

use omniverb_terms::{Psn, Qpn};
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const SOLICITED: u8 = 1 << 7;
const MIGRATED: u8 = 1 << 6;
const FECN: u8 = 1 << 7;
const BECN: u8 = 1 << 6;
const ACK_REQUEST: u32 = 1 << 31;
const LOW_24: u32 = 0xff_ffff;
/// Byte 8 of a packet that asks for a report.
const REPORT_REQUEST: u8 = 0xaa;

/// The header as it is on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Bth {
    opcode: u8,
    flags: u8,
    partition_key: U16,
    destination: U32,
    sequence: U32,
}

impl Bth {
    /// Its length in bytes: of every packet, the first.
    pub const BYTES: usize = 12;

    /// A header with MigReq set, as hardware without a path migration under way sends it (9.2.3).
    #[inline]
    pub fn new(opcode: u8, destination: Qpn, psn: Psn) -> Bth {
        Bth {
            opcode,
            flags: MIGRATED,
            partition_key: U16::new(crate::PKEY_DEFAULT),
            destination: U32::new(destination.0 & LOW_24),
            sequence: U32::new(psn.number()),
        }
    }

    /// The same with the solicited event bit (9.2.2).
    #[inline]
    pub fn solicited(mut self, solicited: bool) -> Bth {
        self.flags = self.flags & !SOLICITED | if solicited { SOLICITED } else { 0 };
        self
    }

    /// The same with so many bytes of padding, 0 to 3 (9.2.4).
    #[inline]
    pub fn padded(mut self, padding: usize) -> Bth {
        self.flags = self.flags & !0x30 | ((padding & 3) as u8) << 4;
        self
    }

    /// The same with the acknowledge request bit (9.2.8).
    #[inline]
    pub fn ack_requested(mut self, ack_requested: bool) -> Bth {
        let sequence = self.sequence.get() & !ACK_REQUEST;
        self.sequence.set(sequence | if ack_requested { ACK_REQUEST } else { 0 });
        self
    }

    /// Asks for a report: marks a finished packet, before it is sealed.
    #[inline]
    pub fn request_report(datagram: &mut [u8]) {
        if let Some(byte) = datagram.get_mut(8) {
            *byte = REPORT_REQUEST;
        }
    }

    /// The same with another partition key.
    #[inline]
    pub fn in_partition(mut self, key: u16) -> Bth {
        self.partition_key.set(key);
        self
    }

    /// The same with MigReq as given.
    #[inline]
    pub fn migrated(mut self, migrated: bool) -> Bth {
        self.flags = self.flags & !MIGRATED | if migrated { MIGRATED } else { 0 };
        self
    }

    /// The same, telling the receiver of congestion on the way to us (A17.9.3).
    #[inline]
    pub fn backward_congestion(mut self) -> Bth {
        self.destination.set(self.destination.get() | u32::from(BECN) << 24);
        self
    }

    /// That of a packet so many PSNs later.
    #[inline]
    pub(crate) fn later(mut self, count: u32) -> Bth {
        let psn = self.psn().plus(count);
        self.sequence.set(self.sequence.get() & !LOW_24 | psn.number());
        self
    }

    /// Whether it asks for nothing: no acknowledgement, no event, no padding, no reserved bit.
    #[inline]
    pub(crate) fn asks_nothing(&self) -> bool {
        self.flags & !MIGRATED == 0 && self.sequence.get() & !LOW_24 == 0
    }

    /// The opcode byte.
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.opcode
    }
    /// Whether the receiver's completion solicits an event (9.2.2).
    #[inline]
    pub fn is_solicited(&self) -> bool {
        self.flags & SOLICITED != 0
    }
    /// Whether MigReq is set (9.2.3), as it is while no path migration is under way.
    #[inline]
    pub fn is_migrated(&self) -> bool {
        self.flags & MIGRATED != 0
    }
    /// Bytes of padding behind the payload.
    #[inline]
    pub fn padding(&self) -> usize {
        usize::from(self.flags >> 4 & 3)
    }
    /// Transport header version; 0 is the only one (9.2.5).
    #[inline]
    pub fn version(&self) -> u8 {
        self.flags & 0xf
    }
    /// P_Key: partition in the low 15 bits, "full member" in the highest.
    #[inline]
    pub fn partition_key(&self) -> u16 {
        self.partition_key.get()
    }
    /// Whether the P_Key matches ours, the default one (10.9.3): the low 15 bits count, and as a
    /// full member we meet limited ones too.
    #[inline]
    pub fn is_in_default_partition(&self) -> bool {
        self.partition_key() & 0x7fff == crate::PKEY_DEFAULT & 0x7fff
    }
    /// Destination QP number.
    #[inline]
    pub fn destination(&self) -> Qpn {
        Qpn(self.destination.get() & LOW_24)
    }
    /// Forward congestion notification.
    #[inline]
    pub fn fecn(&self) -> bool {
        (self.destination.get() >> 24) as u8 & FECN != 0
    }
    /// Backward congestion notification.
    #[inline]
    pub fn becn(&self) -> bool {
        (self.destination.get() >> 24) as u8 & BECN != 0
    }
    /// Whether an acknowledgement is asked for.
    #[inline]
    pub fn is_ack_requested(&self) -> bool {
        self.sequence.get() & ACK_REQUEST != 0
    }
    /// Whether a report is asked for (see [`crate::write_report`]): between Omniverbs, a pattern in
    /// the reserved bits beside the acknowledge request, which unreliable packets have no use for.
    #[inline]
    pub fn is_report_requested(&self) -> bool {
        (self.sequence.get() >> 24) as u8 == REPORT_REQUEST
    }
    /// PSN of a request; of an answer, that of what it answers.
    #[inline]
    pub fn psn(&self) -> Psn {
        Psn::new(self.sequence.get())
    }
}
