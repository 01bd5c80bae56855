//! Parses the virtual address that a `[[container]]` rule gives.

use super::address_prefix::Prefix;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// The virtual address that a rule gives a container's vNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VirtualAddress {
    /// The IPv4 address of the container's interface.
    Own,
    /// One of these that no other vNIC of the tenant has.
    OfPrefix(Prefix),
}

impl<'de> Deserialize<'de> for VirtualAddress {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<VirtualAddress, D::Error> {
        let text = String::deserialize(from)?;
        if text == "own" {
            return Ok(VirtualAddress::Own);
        }
        let prefix = Prefix::parse(&text).ok().filter(|prefix| prefix.ipv4().is_some());
        prefix.map(VirtualAddress::OfPrefix).ok_or_else(|| {
            D::Error::custom(format!(
                "{text:?} is neither \"own\" nor a prefix of IPv4 addresses, as 10.0.0.0/24"
            ))
        })
    }
}

/// The addresses of a prefix that a vNIC may have: without the first and the last, which networks
/// use otherwise, unless there are no others. The first, and how many.
pub(super) fn usable(prefix: Prefix) -> Option<(u32, u64)> {
    let (first, bits) = prefix.ipv4()?;
    let count = 1_u64 << (32 - u32::from(bits));
    Some(match count {
        1 | 2 => (first.to_bits(), count),
        _ => (first.to_bits() + 1, count - 2),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<VirtualAddress, serde_json::Error> {
        serde_json::from_str(&format!("{text:?}"))
    }

    #[test]
    fn an_address_is_the_containers_own_or_of_an_ipv4_prefix() {
        assert_eq!(parse("own").unwrap(), VirtualAddress::Own);
        for (text, expected) in [
            ("10.0.0.0/24", (0x0a00_0001, 254)),
            ("10.0.0.4/30", (0x0a00_0005, 2)),
            ("10.0.0.4/31", (0x0a00_0004, 2)),
            ("10.0.0.4", (0x0a00_0004, 1)),
            ("0.0.0.0/0", (1, (1 << 32) - 2)),
        ] {
            let VirtualAddress::OfPrefix(prefix) = parse(text).unwrap() else { panic!("{text}") };
            assert_eq!(usable(prefix), Some(expected), "{text}");
        }
        for text in ["mine", "fd00::/8", "10.0.0.1/24", ""] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
