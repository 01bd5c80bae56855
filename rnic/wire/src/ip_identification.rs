//! Recovers the IPv4 identification field, which the ICRC covers and a UDP socket does not show.
//!
//! A CRC is linear: two packets that differ in these 16 bits only have CRCs that differ by an
//! amount that depends on the bits and on how many bytes follow. So the received ICRC tells which
//! identification it was made with, if any. That leaves 16 of 32 bits of protection (15 where both
//! settings of "don't fragment" are tried), on top of the Ethernet frame check.

/// What the bit "don't fragment" says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragments {
    /// It is not set: routers may send the packet on in parts.
    Allowed,
    /// It is set: who cannot send the packet on whole drops it, and says so.
    Forbidden,
}

/// Identification and "don't fragment" of an IPv4 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identification {
    /// The identification field.
    pub id: u16,
    /// The flag beside it.
    pub fragments: Fragments,
}

impl Identification {
    /// What Linux puts into packets of an unconnected socket with path MTU discovery.
    pub const ZERO: Identification = Identification { id: 0, fragments: Fragments::Forbidden };

    /// Bytes 4 to 7 of the IPv4 header.
    pub fn bytes(self) -> [u8; 4] {
        let id = self.id.to_be_bytes();
        let flags = match self.fragments {
            Fragments::Allowed => 0,
            Fragments::Forbidden => 0x40,
        };
        [id[0], id[1], flags, 0]
    }
}

pub(crate) const POLYNOMIAL: u32 = 0xedb8_8320;
/// Bytes from the identification to the end of the UDP header.
const BEFORE_PAYLOAD: usize = 2 + 14 + 8;
/// Covers the longest packet, 4 KiB and all headers, in steps of four bytes.
const STEPS: usize = 1 + (BEFORE_PAYLOAD + crate::DATAGRAM_MAX) / 4;

/// One bit backwards through the CRC register.
const fn back(register: u32) -> u32 {
    if register & 1 << 31 != 0 { (register ^ POLYNOMIAL) << 1 | 1 } else { register << 1 }
}

const fn back_bits(mut register: u32, bits: usize) -> u32 {
    let mut bit = 0;
    while bit < bits {
        register = back(register);
        bit += 1;
    }
    register
}

/// `BACK[k]`: what to multiply a register with to take it back by `4 k` bytes, x^(-32 k).
static BACK: [u32; STEPS] = {
    let mut table = [1 << 31; STEPS];
    let mut step = 1;
    while step < STEPS {
        table[step] = back_bits(table[step - 1], 32);
        step += 1;
    }
    table
};

/// What a set "don't fragment" adds to the register before the identification.
const FLAG: u32 = back_bits(0x40, 16);

/// Product of two polynomials modulo the CRC's; bit 31 is x^0.
pub(crate) fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    for bit in (0..32).rev() {
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = b >> 1 ^ POLYNOMIAL & (b & 1).wrapping_neg();
    }
    product
}

/// The identification that a packet of `length` bytes (without its ICRC) was sent with, given the
/// ICRC it carries and the one it would have had with [`Identification::ZERO`]. `None`: there is
/// none, the packet is damaged.
pub fn solve(received: u32, zero: u32, length: usize) -> Option<Identification> {
    if received == zero {
        return Some(Identification::ZERO);
    }
    let bytes = BEFORE_PAYLOAD + length;
    if !bytes.is_multiple_of(4) {
        return None;
    }
    let register = multiply(received ^ zero, *BACK.get(bytes / 4)?);
    let (register, fragments) = match register >> 16 {
        0 => (register, Fragments::Forbidden),
        _ => (register ^ FLAG, Fragments::Allowed),
    };
    let id = u16::try_from(register).ok()?.swap_bytes();
    Some(Identification { id, fragments })
}
