//! Parses and matches ranges of addresses, as an administrator writes them: `10.1.0.0/16`,
//! `127.0.0.1:6379`, `[fd00::/8]:7000-7999`, `fd00::1`, `:6379`.
//!
//! An address alone stands for all of its ports, and a port, or a range of them, alone for all
//! addresses. Addresses of IPv4 are those of IPv6 that they are mapped to (RFC 4291, 2.5.5.2), so
//! `0.0.0.0/0` is every address of IPv4, and only `::/0`, or no address, is every one.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};
use core::ops::RangeInclusive;
use core::str::FromStr;

/// What a program's library is told by, with spaces or commas between ranges.
pub const VARIABLE: &str = "OMNIVERB_SOCKETS_LIGHT";
/// Ranges that one can be told of.
pub const MOST: usize = 64;

/// Bits of an address of IPv6, and of those that all mapped ones begin with.
const BITS: u32 = Ipv6Addr::BITS;
const MAPPED: u32 = 96;

/// Addresses that begin with the same bits, and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    address: u128,
    /// How many bits count.
    bits: u32,
    /// The first port, and the last.
    ports: (u16, u16),
}

/// Something that is no range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// There is nothing.
    Empty,
    /// An address that is none.
    Address,
    /// A number of bits that is none, or more than the address has.
    Bits,
    /// Bits of the address are set that do not count.
    Host,
    /// Ports that are none, or in the wrong order.
    Ports,
}

impl fmt::Display for Mistake {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Empty => "neither an address nor a port",
            Self::Address => "no address of IPv4 or IPv6 (with a port, one of IPv6 is in brackets)",
            Self::Bits => "no length of a prefix of such an address",
            Self::Host => "an address with bits set behind its prefix",
            Self::Ports => "no port, and no range of ports as 7000-7999",
        })
    }
}

impl core::error::Error for Mistake {}

impl Range {
    /// It has this address, as one of IPv6, and this port.
    #[must_use]
    pub fn has(&self, address: [u8; 16], port: u16) -> bool {
        let behind = BITS - self.bits;
        let differs = u128::from_be_bytes(address) ^ self.address;
        differs.checked_shr(behind).unwrap_or(0) == 0 && self.has_port(port)
    }

    /// It has this port, of some address.
    #[must_use]
    pub fn has_port(&self, port: u16) -> bool {
        (self.ports.0..=self.ports.1).contains(&port)
    }

    /// As two words and a half, and back ([`Range::of`]).
    #[must_use]
    pub fn parts(&self) -> ([u8; 16], u8, RangeInclusive<u16>) {
        (self.address.to_be_bytes(), self.bits as u8, self.ports.0..=self.ports.1)
    }

    /// From its parts, if they are those of one.
    #[must_use]
    pub fn of(address: [u8; 16], bits: u8, ports: RangeInclusive<u16>) -> Option<Self> {
        let (address, bits) = (u128::from_be_bytes(address), u32::from(bits));
        let is_one = bits <= BITS && behind(address, bits) == 0 && !ports.is_empty();
        is_one.then_some(Self { address, bits, ports: ports.into_inner() })
    }
}

/// What is set of the bits that do not count.
fn behind(address: u128, bits: u32) -> u128 {
    address & u128::MAX.checked_shr(bits).unwrap_or(0)
}

impl FromStr for Range {
    type Err = Mistake;

    fn from_str(text: &str) -> Result<Self, Mistake> {
        let (address, ports) = split(text)?;
        let (address, bits) = match address {
            "" if ports.is_none() => return Err(Mistake::Empty),
            "" => (0, 0),
            some => prefix(some)?,
        };
        if behind(address, bits) != 0 {
            return Err(Mistake::Host);
        }
        let ports = ports.map_or(Ok((0, u16::MAX)), between)?;
        Ok(Self { address, bits, ports })
    }
}

/// The address, and the ports, if there are some.
fn split(text: &str) -> Result<(&str, Option<&str>), Mistake> {
    if let Some(rest) = text.strip_prefix('[') {
        let (address, rest) = rest.split_once(']').ok_or(Mistake::Address)?;
        return match (address, rest) {
            ("", _) => Err(Mistake::Address),
            (_, "") => Ok((address, None)),
            _ => rest.strip_prefix(':').map(|ports| (address, Some(ports))).ok_or(Mistake::Ports),
        };
    }
    match text.split_once(':') {
        // One of IPv6 has several.
        Some((address, ports)) if !ports.contains(':') => Ok((address, Some(ports))),
        _ => Ok((text, None)),
    }
}

fn prefix(text: &str) -> Result<(u128, u32), Mistake> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| Mistake::Address)?;
    let (address, before) = match address {
        IpAddr::V4(four) => (four.to_ipv6_mapped(), MAPPED),
        IpAddr::V6(six) => (six, 0),
    };
    let bits = bits.map_or(Ok(BITS - before), |bits| number(bits).ok_or(Mistake::Bits))?;
    match before + bits {
        bits @ ..=BITS => Ok((address.to_bits(), bits)),
        _ => Err(Mistake::Bits),
    }
}

fn between(text: &str) -> Result<(u16, u16), Mistake> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text| number(text).and_then(|port| u16::try_from(port).ok());
    match (port(first), port(last)) {
        (Some(first), Some(last)) if first <= last => Ok((first, last)),
        _ => Err(Mistake::Ports),
    }
}

/// Of digits alone, few enough.
fn number(text: &str) -> Option<u32> {
    let is_plain = text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain)
}

impl fmt::Display for Range {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (has_address, has_ports) = (self.bits > 0, self.ports != (0, u16::MAX));
        let six = Ipv6Addr::from_bits(self.address);
        let four = six.to_ipv4_mapped().filter(|_| self.bits >= MAPPED);
        match four {
            Some(four) => write!(to, "{four}/{}", self.bits - MAPPED)?,
            None if has_address && has_ports => write!(to, "[{six}/{}]", self.bits)?,
            None if has_address || !has_ports => write!(to, "{six}/{}", self.bits)?,
            None => {}
        }
        match self.ports {
            _ if !has_ports => Ok(()),
            (first, last) if first == last => write!(to, ":{first}"),
            (first, last) => write!(to, ":{first}-{last}"),
        }
    }
}

/// The ranges of a text that has several.
pub fn each(text: &str) -> impl Iterator<Item = Result<Range, Mistake>> {
    text.split([' ', ',']).filter(|one| !one.is_empty()).map(str::parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(range: &str, address: &str, port: u16) -> bool {
        let address = match address.parse().unwrap() {
            IpAddr::V4(four) => four.to_ipv6_mapped(),
            IpAddr::V6(six) => six,
        };
        range.parse::<Range>().unwrap().has(address.octets(), port)
    }

    #[test]
    fn a_range_has_what_is_in_it() {
        for (range, address, port, is_in) in [
            ("10.1.0.0/16", "10.1.2.3", 1, true),
            ("10.1.0.0/16", "10.2.0.0", 1, false),
            ("127.0.0.1:6379", "127.0.0.1", 6379, true),
            ("127.0.0.1:6379", "127.0.0.1", 6380, false),
            ("127.0.0.1", "127.0.0.2", 6380, false),
            ("127.0.0.0/8:70-80", "127.9.9.9", 80, true),
            ("127.0.0.0/8:70-80", "127.9.9.9", 69, false),
            (":6379", "fd00::1", 6379, true),
            (":6379", "10.0.0.1", 6379, true),
            ("0.0.0.0/0", "255.255.255.255", 65535, true),
            ("0.0.0.0/0", "fd00::1", 65535, false),
            ("::/0", "10.0.0.1", 0, true),
            ("fd00::/8", "fdff::1", 5, true),
            ("fd00::1", "fd00::2", 5, false),
            ("[fd00::/8]:7000-7999", "fd12::", 7999, true),
            ("[fd00::1]:7", "fd00::1", 8, false),
        ] {
            assert_eq!(has(range, address, port), is_in, "{range} {address}:{port}");
        }
    }

    #[test]
    fn mistakes_are_said() {
        for (text, mistake) in [
            ("", Mistake::Empty),
            ("ten", Mistake::Address),
            ("10.0.0/8", Mistake::Address),
            ("[10.0.0.0/8", Mistake::Address),
            ("[]:5", Mistake::Address),
            ("fd00::1:5:x", Mistake::Address),
            ("10.0.0.0/33", Mistake::Bits),
            ("fd00::/129", Mistake::Bits),
            ("10.0.0.0/+8", Mistake::Bits),
            ("10.0.0.0/", Mistake::Bits),
            ("10.0.0.1/8", Mistake::Host),
            ("[fd00::1/8]", Mistake::Host),
            (":", Mistake::Ports),
            (":0x5", Mistake::Ports),
            (":65536", Mistake::Ports),
            (":5-4", Mistake::Ports),
            (":5-", Mistake::Ports),
            ("[fd00::1]5", Mistake::Ports),
            ("10.0.0.1:http", Mistake::Ports),
        ] {
            assert_eq!(text.parse::<Range>(), Err(mistake), "{text:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_as_the_same() {
        let text = "10.1.0.0/16:80, 127.0.0.1/32 ::/0  fd00::/8,[fd00::/8]:7-9 :6379 0.0.0.0/0,,";
        let all: Vec<Range> = each(text).map(Result::unwrap).collect();
        assert_eq!(all.len(), 7);
        let written: Vec<String> = all.iter().map(Range::to_string).collect();
        assert_eq!(
            written.join(" "),
            text.replace(',', " ").split_whitespace().collect::<Vec<_>>().join(" ")
        );
        for range in all {
            let (address, bits, ports) = range.parts();
            assert_eq!(Range::of(address, bits, ports), Some(range));
        }
        assert_eq!(Range::of([1; 16], 8, 0..=1), None);
        assert_eq!(Range::of([0; 16], 129, 0..=1), None);
        #[expect(clippy::reversed_empty_ranges, reason = "as somebody might send it")]
        let reversed = 1..=0;
        assert_eq!(Range::of([0; 16], 0, reversed), None);
    }
}
