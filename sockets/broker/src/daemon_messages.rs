//! Encodes messages between the broker and the daemon about pairs of network namespaces.
//!
//! The broker knows which sockets say that they are the ends of a connection between two network
//! namespaces. The daemon knows which vNIC has which address, and which vNICs may talk. So it is
//! asked once for each pair of addresses, and says later when that holds no longer. A message has
//! sixteen words.

use std::net::IpAddr;

/// Bytes of every message.
pub const BYTES: usize = 128;

/// A network namespace's cookie, the address of a socket in it, and the socket's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// As the kernel calls the namespace.
    pub namespace: u64,
    /// The address, in that.
    pub address: IpAddr,
}

/// What the broker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToDaemon {
    /// May bytes go through memory between these two? With a descriptor of a process in each, by
    /// which the namespace is found, and its user.
    Ask {
        /// Names the question, and what follows; never given again.
        number: u64,
        /// Where the two sockets are.
        places: [Place; 2],
        /// The users of those processes.
        users: [u32; 2],
    },
    /// The daemon need not keep this pair any more.
    Release {
        /// As it was asked.
        number: u64,
    },
    /// Whether processes are connected, since that was asked.
    Idle {
        /// For how many nanoseconds none is; `None`: one is.
        time: Option<u64>,
    },
}

/// What the daemon says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromDaemon {
    /// They may, until it is said that they may not.
    Allowed {
        /// As it was asked.
        number: u64,
    },
    /// They may not, or not any more.
    Denied {
        /// As it was asked.
        number: u64,
        /// What stands in the way.
        why: Denial,
    },
    /// The socket that comes along is an operator's, which is shown everything.
    Operator,
    /// Is any process connected?
    AskIdle,
}

/// Why bytes must not go through memory between two network namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Denial {
    /// One of them is not served: it cannot be entered, or is no more.
    NotServed = 1,
    /// An address is not one of its vNIC's, as far as is known.
    NotItsAddress = 2,
    /// What is sent to an address comes out elsewhere, or nowhere.
    NotThere = 3,
    /// Too much is asked.
    Busy = 4,
    /// An administrator's policy.
    Policy = 5,
}

impl Denial {
    const ALL: [Self; 5] =
        [Self::NotServed, Self::NotItsAddress, Self::NotThere, Self::Busy, Self::Policy];

    /// From its number.
    #[must_use]
    pub fn of(number: u64) -> Option<Denial> {
        Self::ALL.into_iter().find(|one| *one as u64 == number)
    }
}

type Words = [u64; BYTES / 8];

fn pack(words: &[u64]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes.chunks_exact_mut(8).zip(words).for_each(|(to, word)| {
        to.copy_from_slice(&word.to_ne_bytes());
    });
    bytes
}

fn unpack(bytes: &[u8]) -> Option<Words> {
    let (words, rest) = bytes.as_chunks();
    let words: Vec<u64> = words.iter().copied().map(u64::from_ne_bytes).collect();
    words.try_into().ok().filter(|_| rest.is_empty())
}

fn halves(address: IpAddr) -> [u64; 2] {
    let bytes = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    [(bytes >> 64) as u64, bytes as u64]
}

fn whole([high, low]: [u64; 2]) -> IpAddr {
    let bits = u128::from(high) << 64 | u128::from(low);
    IpAddr::V6(std::net::Ipv6Addr::from_bits(bits)).to_canonical()
}

impl ToDaemon {
    /// How it is sent.
    #[must_use]
    pub fn encode(&self) -> [u8; BYTES] {
        match *self {
            Self::Ask { number, places: [one, other], users } => {
                let [[a, b], [c, d]] = [one, other].map(|place| halves(place.address));
                let users = users.map(u64::from);
                pack(&[1, number, one.namespace, other.namespace, a, b, c, d, users[0], users[1]])
            }
            Self::Release { number } => pack(&[2, number]),
            Self::Idle { time } => pack(&[3, time.is_some().into(), time.unwrap_or(0)]),
        }
    }

    /// From bytes, if they are one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let words = unpack(bytes)?;
        match words {
            [1, number, one, other, a, b, c, d, user, another, 0, ..] => {
                let place = |namespace, halves| Place { namespace, address: whole(halves) };
                let users = [u32::try_from(user).ok()?, u32::try_from(another).ok()?];
                let places = [place(one, [a, b]), place(other, [c, d])];
                Some(Self::Ask { number, places, users })
            }
            [2, number, 0, ..] => Some(Self::Release { number }),
            [3, 0, 0, ..] => Some(Self::Idle { time: None }),
            [3, 1, time, 0, ..] => Some(Self::Idle { time: Some(time) }),
            _ => None,
        }
    }
}

impl FromDaemon {
    /// How it is sent.
    #[must_use]
    pub fn encode(&self) -> [u8; BYTES] {
        match *self {
            Self::Allowed { number } => pack(&[17, number]),
            Self::Denied { number, why } => pack(&[18, number, why as u64]),
            Self::Operator => pack(&[19]),
            Self::AskIdle => pack(&[20]),
        }
    }

    /// From bytes, if they are one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match unpack(bytes)? {
            [17, number, 0, ..] => Some(Self::Allowed { number }),
            [18, number, why, 0, ..] => Some(Self::Denied { number, why: Denial::of(why)? }),
            [19, 0, ..] => Some(Self::Operator),
            [20, 0, ..] => Some(Self::AskIdle),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_what_they_were() {
        let place =
            |namespace, address: &str| Place { namespace, address: address.parse().unwrap() };
        let places = [place(u64::MAX, "10.0.0.1"), place(7, "2001:db8::1")];
        for said in [
            ToDaemon::Ask { number: 5, places, users: [0, u32::MAX] },
            ToDaemon::Release { number: 6 },
            ToDaemon::Idle { time: None },
            ToDaemon::Idle { time: Some(u64::MAX) },
        ] {
            assert_eq!(ToDaemon::decode(&said.encode()), Some(said));
            assert_eq!(ToDaemon::decode(&said.encode()[1..]), None);
            assert_eq!(FromDaemon::decode(&said.encode()), None);
        }
        let apart = Denial::ALL.map(|why| FromDaemon::Denied { number: 3, why });
        for said in [FromDaemon::Allowed { number: 1 }, FromDaemon::Operator, FromDaemon::AskIdle]
            .into_iter()
            .chain(apart)
        {
            assert_eq!(FromDaemon::decode(&said.encode()), Some(said));
        }
        assert_eq!(FromDaemon::decode(&pack(&[18, 1, 99])), None);
    }
}
