//! A packet that arrived: checked once, then read through accessors that cannot fail.

use crate::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, HEADERS_MAX, Ieth, ImmDt, Opcode, Operation,
    Reth, SUFFIX_BYTES, XrcEth,
};
use omniverb_terms::{Psn, Qpn, Service};
use zerocopy::FromBytes;

/// Why a datagram is no packet; it is dropped without an answer (9.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Shorter than its headers say.
    #[error("shorter than its headers, padding and ICRC")]
    Short,
    /// This is no opcode (9.2.1, table 38).
    #[error("unknown opcode {0:#04x}")]
    Opcode(u8),
    /// This is not the transport header version 0.
    #[error("unknown transport version {0}")]
    Version(u8),
    /// Not a multiple of four bytes (9.2.4).
    #[error("length is not a multiple of four")]
    Unaligned,
    /// Payload where none belongs.
    #[error("payload behind a header that has none")]
    Excess,
    /// QP 0 does not exist on RoCE.
    #[error("destination QP 0")]
    Destination,
}

/// A packet. The ICRC is not looked at here: see [`crate::Flow::check`].
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bth: Bth,
    opcode: Opcode,
    /// What follows the BTH; at least as long as the opcode says.
    headers: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks a UDP payload, ICRC included.
    #[inline]
    pub fn parse(datagram: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        let (bth, _) = Bth::read_from_prefix(datagram).map_err(|_| Malformed::Short)?;
        let opcode = Opcode::from_byte(bth.opcode()).ok_or(Malformed::Opcode(bth.opcode()))?;
        if bth.version() != 0 {
            return Err(Malformed::Version(bth.version()));
        }
        if bth.destination() == Qpn(0) {
            return Err(Malformed::Destination);
        }
        if !datagram.len().is_multiple_of(4) {
            return Err(Malformed::Unaligned);
        }
        let header_bytes = opcode.header_bytes();
        debug_assert!(header_bytes <= HEADERS_MAX);
        let end = datagram.len().checked_sub(SUFFIX_BYTES + bth.padding());
        let headers = datagram.get(Bth::BYTES..header_bytes).ok_or(Malformed::Short)?;
        let payload = datagram.get(header_bytes..end.ok_or(Malformed::Short)?);
        let payload = payload.ok_or(Malformed::Short)?;
        if !opcode.has_payload() && !payload.is_empty() && !opcode.is_notification() {
            return Err(Malformed::Excess);
        }
        Ok(Packet { bth, opcode, headers, payload })
    }

    /// Reads the header that lies `offset` bytes behind the BTH. Its presence was checked.
    #[inline]
    fn header<H: FromBytes>(&self, present: bool, offset: usize) -> Option<H> {
        if !present {
            return None;
        }
        H::read_from_prefix(self.headers.get(offset..)?).ok().map(|(header, _)| header)
    }

    /// The base transport header.
    pub fn bth(&self) -> &Bth {
        &self.bth
    }
    /// What it is for, and of which service.
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }
    /// Payload without padding.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
    /// Address, key and length of a WRITE, READ, FLUSH or ATOMIC WRITE.
    pub fn reth(&self) -> Option<Reth> {
        let before = if self.opcode.has_flush() { Feth::BYTES } else { self.opcode.srq_bytes() };
        self.header(self.opcode.has_reth(), before)
    }
    /// The SRQ that a request of XRC is for.
    pub fn srq(&self) -> Option<u32> {
        self.header(self.opcode.has_srq(), 0).map(|header: XrcEth| header.number())
    }
    /// What a FLUSH is to reach.
    pub fn flush(&self) -> Option<Feth> {
        self.header(self.opcode.has_flush(), 0)
    }
    /// What a responder says.
    pub fn aeth(&self) -> Option<Aeth> {
        self.header(self.opcode.has_aeth(), 0)
    }
    /// Operands of an atomic.
    pub fn atomic(&self) -> Option<AtomicEth> {
        self.header(self.opcode.has_atomic(), self.opcode.srq_bytes())
    }
    /// Result of an atomic.
    pub fn atomic_ack(&self) -> Option<AtomicAckEth> {
        self.header(self.opcode.operation == Operation::AtomicAcknowledge, Aeth::BYTES)
    }
    /// Q_Key and sender, of a datagram.
    pub fn deth(&self) -> Option<Deth> {
        self.header(self.opcode.is_of(Service::Ud), 0)
    }
    /// Immediate data, if the opcode says that they come along.
    pub fn immediate(&self) -> Option<ImmDt> {
        self.header(self.opcode.has_immediate(), self.headers.len().saturating_sub(ImmDt::BYTES))
    }
    /// QP and PSN of a report (see [`crate::write_report`]).
    pub fn report(&self) -> Option<(Qpn, Psn)> {
        crate::cnp::read_report(self.headers).filter(|_| self.opcode.is_notification())
    }
    /// Microseconds of a delay notice (see [`crate::write_delay`]).
    pub fn delay(&self) -> Option<u32> {
        crate::cnp::read_delay(self.headers).filter(|_| self.opcode.is_notification())
    }
    /// R_Key to invalidate.
    pub fn invalidate(&self) -> Option<Ieth> {
        self.header(self.opcode.has_invalidate(), self.opcode.srq_bytes())
    }
}
