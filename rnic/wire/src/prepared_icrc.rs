//! The ICRC of many packets of one flow and one length: what they have in common goes through the
//! CRC once.
//!
//! A CRC is linear, so what differs before the BTH, and the byte of the BTH that counts as ones,
//! can be added to the result.

use crate::icrc::{MASKED_AT, SEED, masked};
use crate::ip_identification::{Fragments, Identification, POLYNOMIAL, multiply};
use crate::{Bth, DATAGRAM_MAX, IcrcFlow, IcrcVerdict, SUFFIX_BYTES, crc};
use std::net::IpAddr;

/// Bytes from behind the high byte of the identification to the end of the UDP header.
const BEHIND_HIGH: usize = 1 + 14 + 8;
/// Bytes of the longest packet, in steps of four.
const STEPS: usize = 1 + DATAGRAM_MAX / 4;

/// One byte of zeros more.
const fn zero_byte(mut register: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        register = register >> 1 ^ POLYNOMIAL & (register & 1).wrapping_neg();
        bit += 1;
    }
    register
}

const fn zero_bytes(mut register: u32, count: usize) -> u32 {
    let mut byte = 0;
    while byte < count {
        register = zero_byte(register);
        byte += 1;
    }
    register
}

/// What each value of a byte adds to the register, so many bytes later.
const fn additions(behind: usize) -> [u32; 256] {
    let mut table = [0; 256];
    let mut value = 0;
    while value < 256 {
        table[value] = zero_bytes(value as u32, 1 + behind);
        value += 1;
    }
    table
}

static HIGH: [u32; 256] = additions(BEHIND_HIGH);
static LOW: [u32; 256] = additions(BEHIND_HIGH - 1);

/// `ON[k]`: what to multiply a register with to take it on by `4 k` bytes, x^(32 k).
static ON: [u32; STEPS] = {
    let mut table = [1 << 31; STEPS];
    let mut step = 1;
    while step < STEPS {
        table[step] = zero_bytes(table[step - 1], 4);
        step += 1;
    }
    table
};

/// A flow and a length that were prepared.
#[derive(Clone, Copy, Debug)]
pub struct PreparedIcrc {
    flow: IcrcFlow,
    length: usize,
    /// CRC of everything before the BTH, with [`Identification::ZERO`].
    before: u32,
    /// What the ones in the BTH add.
    ones: u32,
    /// The identification counts.
    numbered: bool,
}

/// How many datagrams of one flow and length come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchSize {
    /// One, as far as is known.
    One,
    /// More: it is worth while to prepare.
    Several,
}

impl PreparedIcrc {
    /// For datagrams of `length` bytes with their ICRC. `None`: packets are not that long.
    pub fn new(flow: &IcrcFlow, length: usize) -> Option<PreparedIcrc> {
        let packet = length.checked_sub(SUFFIX_BYTES).filter(|packet| *packet >= Bth::BYTES)?;
        if !packet.is_multiple_of(4) {
            return None;
        }
        let fragment = Identification::ZERO.bytes();
        let IcrcFlow { source, destination, source_port } = *flow;
        let (head, bth) = masked(source, destination, source_port, fragment, packet);
        let before = crc::go_on(SEED, &head[..bth]);
        let behind = packet - MASKED_AT - 1;
        let ones = multiply(zero_bytes(0xff, 1 + behind % 4), *ON.get(behind / 4)?);
        let numbered = matches!((source, destination), (IpAddr::V4(_), IpAddr::V4(_)));
        Some(PreparedIcrc { flow: *flow, length, before, ones, numbered })
    }

    /// The latest one, if it is for such datagrams; otherwise it is made anew, if that is worth
    /// while: it is not for one datagram.
    pub fn reuse(
        latest: &mut Option<PreparedIcrc>,
        flow: &IcrcFlow,
        length: usize,
        alike: BatchSize,
    ) -> Option<PreparedIcrc> {
        let fits = latest.is_some_and(|prepared| prepared.fits(flow, length));
        if !fits && alike == BatchSize::Several {
            *latest = PreparedIcrc::new(flow, length);
        }
        latest.filter(|_| fits || alike == BatchSize::Several)
    }

    /// Whether this is for such datagrams.
    fn fits(&self, flow: &IcrcFlow, length: usize) -> bool {
        self.length == length && self.flow == *flow
    }

    /// `packet` is as long as the datagram without its ICRC.
    fn icrc(&self, id: u16, packet: &[u8]) -> u32 {
        let added = match self.numbered {
            true => HIGH[usize::from(id >> 8)] ^ LOW[usize::from(id & 0xff)],
            false => 0,
        };
        crc::go_on(self.before ^ added, packet) ^ self.ones
    }

    /// As [`IcrcFlow::seal`].
    pub fn seal(&self, datagram: &mut [u8], id: u16) {
        match datagram.split_last_chunk_mut::<SUFFIX_BYTES>() {
            Some((packet, suffix)) if self.length == packet.len() + 4 && packet[MASKED_AT] == 0 => {
                *suffix = self.icrc(id, packet).to_le_bytes();
            }
            _ => self.flow.seal(datagram, id),
        }
    }

    /// As [`IcrcFlow::check`], of a datagram that probably has this identification: what is found
    /// is the same, sooner and more surely if it has.
    pub fn check(&self, datagram: &[u8], probably: Identification) -> IcrcVerdict {
        match datagram.split_last_chunk::<SUFFIX_BYTES>() {
            Some((packet, suffix))
                if self.length == datagram.len()
                    && packet[MASKED_AT] == 0
                    && probably.fragments == Fragments::Forbidden
                    && self.icrc(probably.id, packet) == u32::from_le_bytes(*suffix) =>
            {
                match self.numbered && probably != Identification::ZERO {
                    true => IcrcVerdict::Solved(probably),
                    false => IcrcVerdict::Exact,
                }
            }
            _ => self.flow.check(datagram, None),
        }
    }
}
