//! Syndromes of the AETH (9.7.5.2, table 45 and following): acknowledge, not ready, refused.

use omniverb_terms::Refusal;

/// Syndrome of a NAK, to which its code is added (9.7.5.2.8).
const NAK: u8 = 0x60;
/// Credit code that says "credits are not in use" (9.7.7.2.5).
pub const CREDITS_INVALID: u8 = 0x1f;

/// What a responder says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Everything up to this PSN is acknowledged; a credit code.
    Ack(u8),
    /// No receive; ask again after this timer (a code).
    ReceiverNotReady(u8),
    /// NAK: a packet is missing; the PSN is that of the one expected.
    SequenceError,
    /// NAK: the responder will not.
    Refused(Refusal),
    /// Values nobody may send; ignored.
    Reserved(u8),
}

impl Syndrome {
    /// The byte on the wire.
    pub fn to_byte(self) -> u8 {
        match self {
            Syndrome::Ack(code) => code & 0x1f,
            Syndrome::ReceiverNotReady(code) => 0x20 | code & 0x1f,
            Syndrome::SequenceError => NAK,
            Syndrome::Refused(refusal) => NAK | refusal.code(),
            Syndrome::Reserved(byte) => byte,
        }
    }

    /// From the byte on the wire.
    pub fn from_byte(byte: u8) -> Syndrome {
        match (byte >> 5, byte & 0x1f) {
            (0, code) => Syndrome::Ack(code),
            (1, code) => Syndrome::ReceiverNotReady(code),
            (3, 0) => Syndrome::SequenceError,
            (3, code) => match Refusal::from_code(code) {
                Some(refusal) => Syndrome::Refused(refusal),
                None => Syndrome::Reserved(byte),
            },
            _ => Syndrome::Reserved(byte),
        }
    }
}

/// Receives that a credit code stands for; `None`: not in use (table 47).
pub fn credits(code: u8) -> Option<u32> {
    match code & 0x1f {
        CREDITS_INVALID => None,
        small @ 0..=4 => Some(u32::from(small)),
        // From here on the codes alternate between 3 * 2^n and 2^n.
        code => {
            let half = u32::from(code - 5) / 2;
            Some(if code % 2 == 1 { 6 << half } else { 8 << half })
        }
    }
}

/// Nanoseconds that an RNR timer code stands for (table 46).
pub fn rnr_nanoseconds(code: u8) -> u64 {
    let microseconds = match code & 0x1f {
        0 => 655_360,
        tens @ 1..=4 => u64::from(tens) * 10,
        // 60, 80, 120, 160, 240, 320, ...
        code => {
            let half = u64::from(code - 5) / 2;
            if code % 2 == 1 { 60 << half } else { 80 << half }
        }
    };
    microseconds * 1000
}

#[cfg(test)]
mod tests {
    use super::{Syndrome, credits, rnr_nanoseconds};

    #[test]
    fn every_byte_survives() {
        for byte in 0..=255u8 {
            assert_eq!(Syndrome::from_byte(byte).to_byte(), byte);
        }
    }

    #[test]
    fn tables_have_the_values_of_the_specification() {
        let known = [(4, Some(4)), (5, Some(6)), (6, Some(8)), (0x10, Some(256))];
        for (code, count) in known.into_iter().chain([(0x1e, Some(32768)), (0x1f, None)]) {
            assert_eq!(credits(code), count, "credit code {code:#x}");
        }
        let known = [(0, 655_360), (4, 40), (5, 60), (12, 640), (14, 1280), (25, 61_440)];
        for (code, microseconds) in known.into_iter().chain([(31, 491_520), (30, 327_680)]) {
            assert_eq!(rnr_nanoseconds(code), microseconds * 1000, "timer code {code}");
        }
    }
}
