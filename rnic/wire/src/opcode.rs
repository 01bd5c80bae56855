//! The opcode table (9.2.1, table 38; A17 for CNP, A19 for FLUSH and ATOMIC WRITE): which packets
//! there are, and what they carry.

use crate::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, Reth, XrcEth};
use omniverb_terms::Service;

/// The upper three bits: whose packet it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// That of queue pairs with this transport service; XRC is one, and stands here as what asks.
    Service(Service),
    /// That of congestion notifications (A17.9.3), which are for queue pairs of any service.
    Notification,
}

impl Class {
    /// That of the packets of a service.
    #[inline]
    pub fn of(service: Service) -> Class {
        match service {
            Service::XrcRecv => Class::Service(Service::XrcSend),
            service => Class::Service(service),
        }
    }
}

/// Where in its message a packet stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketPosition {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// The whole message.
    Only,
}

impl PacketPosition {
    /// From "nothing comes before" and "nothing comes after".
    #[inline]
    pub fn new(first: bool, last: bool) -> PacketPosition {
        match (first, last) {
            (true, true) => PacketPosition::Only,
            (true, false) => PacketPosition::First,
            (false, true) => PacketPosition::Last,
            (false, false) => PacketPosition::Middle,
        }
    }
    /// Whether a message begins with it.
    #[inline]
    pub fn begins(self) -> bool {
        matches!(self, PacketPosition::First | PacketPosition::Only)
    }
    /// Whether a message ends with it.
    #[inline]
    pub fn ends(self) -> bool {
        matches!(self, PacketPosition::Last | PacketPosition::Only)
    }
}

/// What a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named as in the specification's table
pub enum Operation {
    Send {
        place: PacketPosition,
        immediate: bool,
        invalidate: bool,
    },
    Write {
        place: PacketPosition,
        immediate: bool,
    },
    ReadRequest,
    ReadResponse {
        place: PacketPosition,
    },
    Acknowledge,
    AtomicAcknowledge,
    CompareSwap,
    FetchAdd,
    /// What was written before is to be visible, or kept; answered like a READ of nothing.
    Flush,
    /// A WRITE of eight bytes that nobody sees a part of; answered like a READ of nothing.
    AtomicWrite,
    Notification,
}

/// An opcode that we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opcode {
    /// Whose packet it is.
    pub class: Class,
    /// What the packet is for.
    pub operation: Operation,
}

/// Reserved bytes behind the BTH of a congestion notification.
pub(crate) const RESERVED_BYTES: usize = 16;
/// Congestion notification packet.
const NOTIFICATION: u8 = 0x81;

fn place_of(code: u8) -> PacketPosition {
    [PacketPosition::First, PacketPosition::Middle, PacketPosition::Last, PacketPosition::Only]
        [usize::from(code & 3)]
}

impl Operation {
    /// The lower five bits.
    #[inline]
    fn code(self) -> u8 {
        use Operation::*;
        match self {
            Send { place: PacketPosition::Last, immediate: false, invalidate: true } => 0x16,
            Send { place: PacketPosition::Only, immediate: false, invalidate: true } => 0x17,
            Send { place: PacketPosition::First, .. } => 0x00,
            Send { place: PacketPosition::Middle, .. } => 0x01,
            Send { place: PacketPosition::Last, immediate, .. } => 0x02 + u8::from(immediate),
            Send { place: PacketPosition::Only, immediate, .. } => 0x04 + u8::from(immediate),
            Write { place: PacketPosition::First, .. } => 0x06,
            Write { place: PacketPosition::Middle, .. } => 0x07,
            Write { place: PacketPosition::Last, immediate } => 0x08 + u8::from(immediate),
            Write { place: PacketPosition::Only, immediate } => 0x0a + u8::from(immediate),
            ReadRequest => 0x0c,
            ReadResponse { place: PacketPosition::First } => 0x0d,
            ReadResponse { place: PacketPosition::Middle } => 0x0e,
            ReadResponse { place: PacketPosition::Last } => 0x0f,
            ReadResponse { place: PacketPosition::Only } => 0x10,
            Acknowledge => 0x11,
            AtomicAcknowledge => 0x12,
            CompareSwap => 0x13,
            FetchAdd => 0x14,
            Flush => 0x1c,
            AtomicWrite => 0x1d,
            Notification => NOTIFICATION & 0x1f,
        }
    }

    #[inline]
    fn from_code(code: u8) -> Option<Operation> {
        use Operation::*;
        let send = |place, immediate| Send { place, immediate, invalidate: false };
        Some(match code {
            0x00..=0x02 => send(place_of(code), false),
            0x03 => send(PacketPosition::Last, true),
            0x04 | 0x05 => send(PacketPosition::Only, code == 5),
            0x06..=0x08 => Write { place: place_of(code - 6), immediate: false },
            0x09 => Write { place: PacketPosition::Last, immediate: true },
            0x0a | 0x0b => Write { place: PacketPosition::Only, immediate: code == 0xb },
            0x0c => ReadRequest,
            0x0d..=0x10 => ReadResponse { place: place_of(code - 0xd) },
            0x11 => Acknowledge,
            0x12 => AtomicAcknowledge,
            0x13 => CompareSwap,
            0x14 => FetchAdd,
            0x16 => Send { place: PacketPosition::Last, immediate: false, invalidate: true },
            0x17 => Send { place: PacketPosition::Only, immediate: false, invalidate: true },
            0x1c => Flush,
            0x1d => AtomicWrite,
            _ => return None,
        })
    }

    /// Whether a responder sends it.
    #[inline]
    pub fn is_response(self) -> bool {
        use Operation::*;
        matches!(self, ReadResponse { .. } | Acknowledge | AtomicAcknowledge)
    }
}

impl Opcode {
    /// That of a congestion notification.
    pub const NOTIFICATION: Opcode =
        Opcode { class: Class::Notification, operation: Operation::Notification };

    /// The operation on a service. Combinations the specification lacks become what is nearest:
    /// only the requester and responder of that service make opcodes.
    #[inline]
    pub fn new(service: Service, operation: Operation) -> Opcode {
        Opcode { class: Class::of(service), operation }
    }

    /// Whether it is a packet of this service.
    #[inline]
    pub fn is_of(self, service: Service) -> bool {
        self.class == Class::of(service)
    }

    /// Whether the number of an SRQ comes along.
    #[inline]
    pub fn has_srq(self) -> bool {
        self.is_of(Service::XrcSend) && !self.operation.is_response()
    }

    /// Bytes between the BTH and the other headers.
    #[inline]
    pub(crate) fn srq_bytes(self) -> usize {
        if self.has_srq() { XrcEth::BYTES } else { 0 }
    }

    /// Whether it is a congestion notification.
    #[inline]
    pub fn is_notification(self) -> bool {
        self.class == Class::Notification
    }

    /// The byte on the wire.
    #[inline]
    pub fn to_byte(self) -> u8 {
        let class = match self.class {
            Class::Service(Service::Rc) => 0x00,
            Class::Service(Service::Uc) => 0x20,
            Class::Service(Service::Ud) => 0x60,
            Class::Service(Service::XrcSend | Service::XrcRecv) => 0xa0,
            Class::Notification => return NOTIFICATION,
        };
        class | self.operation.code()
    }

    /// From the byte on the wire; `None`: unknown, to be dropped (9.6.1).
    #[inline]
    pub fn from_byte(byte: u8) -> Option<Opcode> {
        if byte == NOTIFICATION {
            return Some(Opcode::NOTIFICATION);
        }
        let operation = Operation::from_code(byte & 0x1f)?;
        let service = match (byte >> 5, byte & 0x1f) {
            (0, _) => Service::Rc,
            (1, 0x00..=0x0b) => Service::Uc,
            (3, 0x04 | 0x05) => Service::Ud,
            // Those of A19 are of RC only here.
            (5, 0x00..=0x17) => Service::XrcSend,
            _ => return None,
        };
        Some(Opcode::new(service, operation))
    }

    /// Whether an R_Key and an address come along.
    #[inline]
    pub fn has_reth(self) -> bool {
        match self.operation {
            Operation::Write { place, .. } => place.begins(),
            operation => {
                use Operation::{AtomicWrite, Flush, ReadRequest};
                matches!(operation, ReadRequest | Flush | AtomicWrite)
            }
        }
    }
    /// Whether immediate data come along.
    #[inline]
    pub fn has_immediate(self) -> bool {
        use Operation::{Send, Write};
        matches!(self.operation, Send { immediate: true, .. } | Write { immediate: true, .. })
    }
    /// Whether an R_Key to invalidate comes along.
    #[inline]
    pub fn has_invalidate(self) -> bool {
        matches!(self.operation, Operation::Send { invalidate: true, .. })
    }
    /// Whether a syndrome comes along. READ responses in the middle have none (9.4.4).
    #[inline]
    pub fn has_aeth(self) -> bool {
        match self.operation {
            Operation::ReadResponse { place } => place != PacketPosition::Middle,
            operation => operation.is_response(),
        }
    }
    /// Whether atomic operands come along.
    #[inline]
    pub fn has_atomic(self) -> bool {
        matches!(self.operation, Operation::CompareSwap | Operation::FetchAdd)
    }
    /// Whether it says what a FLUSH is to reach.
    #[inline]
    pub fn has_flush(self) -> bool {
        self.operation == Operation::Flush
    }
    /// Whether payload may come along.
    #[inline]
    pub fn has_payload(self) -> bool {
        use Operation::{AtomicWrite, ReadResponse, Send, Write};
        matches!(self.operation, Send { .. } | Write { .. } | ReadResponse { .. } | AtomicWrite)
    }

    /// Bytes of all headers, BTH included.
    #[inline]
    pub fn header_bytes(self) -> usize {
        let part = |present: bool, bytes: usize| if present { bytes } else { 0 };
        Bth::BYTES
            + self.srq_bytes()
            + part(self.is_of(Service::Ud), Deth::BYTES)
            + part(self.has_flush(), Feth::BYTES)
            + part(self.has_reth(), Reth::BYTES)
            + part(self.has_atomic(), AtomicEth::BYTES)
            + part(self.has_aeth(), Aeth::BYTES)
            + part(self.operation == Operation::AtomicAcknowledge, AtomicAckEth::BYTES)
            + part(self.has_immediate(), ImmDt::BYTES)
            + part(self.has_invalidate(), Ieth::BYTES)
            + part(self.is_notification(), RESERVED_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::Opcode;

    #[test]
    fn every_known_byte_survives() {
        let known: Vec<u8> = (0..=255).filter(|byte| Opcode::from_byte(*byte).is_some()).collect();
        for byte in &known {
            assert_eq!(Opcode::from_byte(*byte).map(Opcode::to_byte), Some(*byte));
        }
        // 25 of RC, 12 of UC, 2 of UD, 23 of XRC, and the notification.
        assert_eq!(known.len(), 25 + 12 + 2 + 23 + 1);
    }

    #[test]
    fn header_lengths_are_those_of_the_specification() {
        let lengths = [(0x00, 12), (0x05, 16), (0x06, 28), (0x0b, 32), (0x0e, 12), (0x12, 24)];
        let more = [(0x13, 40), (0x17, 16), (0x26, 28), (0x64, 20), (0x65, 24), (0x81, 28)];
        let newer = [(0x1c, 32), (0x1d, 28)];
        let extended = [(0xa4, 16), (0xa5, 20), (0xa6, 32), (0xb3, 44), (0xb1, 16), (0xb2, 24)];
        for (byte, length) in lengths.into_iter().chain(more).chain(newer).chain(extended) {
            assert_eq!(Opcode::from_byte(byte).map(Opcode::header_bytes), Some(length));
        }
    }
}
