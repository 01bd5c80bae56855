//! Encodes the frame of a message: the common management header (13.4.3).

use crate::big_endian_fields::{BYTES, Fields};
use crate::message::Message;

/// Bytes of a management datagram.
pub const MAD_BYTES: usize = HEADER + BYTES;
const HEADER: usize = 24;
const BASE_VERSION: u8 = 1;
const CLASS: u8 = 0x07;
const CLASS_VERSION: u8 = 2;
const SEND: u8 = 0x03;

/// A management datagram of the communication manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mad {
    /// Chosen by whoever begins an exchange, echoed in the answers.
    pub transaction: u64,
    /// Options of "enhanced connection establishment"; 0 is none.
    pub modifier: u32,
    /// What it says.
    pub message: Message,
}

/// Why bytes are no message; they are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Not 256 bytes.
    #[error("a management datagram has 256 bytes, not {0}")]
    Length(usize),
    /// Another class, version or method.
    #[error("not a message of the communication manager")]
    Class,
    /// A message we do not know.
    #[error("unknown attribute {0:#06x}")]
    Attribute(u16),
}

impl Mad {
    /// From the payload of a datagram to QP 1.
    pub fn parse(bytes: &[u8]) -> Result<Mad, Malformed> {
        let (header, body) =
            bytes.split_first_chunk::<HEADER>().ok_or(Malformed::Length(bytes.len()))?;
        let body: [u8; BYTES] = body.try_into().map_err(|_| Malformed::Length(bytes.len()))?;
        let [base, class, version, method, _, _, _, _, rest @ ..] = header;
        if (*base, *class, *version, *method) != (BASE_VERSION, CLASS, CLASS_VERSION, SEND) {
            return Err(Malformed::Class);
        }
        let [t0, t1, t2, t3, t4, t5, t6, t7, a0, a1, _, _, m0, m1, m2, m3] = *rest;
        let attribute = u16::from_be_bytes([a0, a1]);
        let mut message =
            Message::read(attribute, &Fields(body)).ok_or(Malformed::Attribute(attribute))?;
        let modifier = u32::from_be_bytes([m0, m1, m2, m3]);
        message.set_options(modifier);
        let transaction = u64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]);
        Ok(Mad { transaction, modifier, message })
    }

    /// To the payload of a datagram.
    pub fn to_bytes(&self) -> [u8; MAD_BYTES] {
        let mut bytes = [0; MAD_BYTES];
        bytes[..4].copy_from_slice(&[BASE_VERSION, CLASS, CLASS_VERSION, SEND]);
        bytes[8..16].copy_from_slice(&self.transaction.to_be_bytes());
        let (attribute, fields) = self.message.write();
        bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
        bytes[20..24].copy_from_slice(&self.modifier.to_be_bytes());
        bytes[HEADER..].copy_from_slice(&fields.0);
        bytes
    }
}
