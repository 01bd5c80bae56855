//! What processes and the broker say to each other: messages of four words on a socket that keeps
//! boundaries, some with a descriptor.

/// Bytes of every message.
pub const BYTES: usize = 32;
/// What comes behind the name of the daemon's socket for the broker's.
pub const SUFFIX: &str = ".sockets";
/// Bytes of the page that the broker writes and a process reads: its first word changes with each
/// message.
pub const PAGE: usize = 4096;

/// Says which protocol it is.
const VERSION: u64 = 0x4f56_5302;

/// What a process says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// First of all, with a netlink socket of `NETLINK_SOCK_DIAG`: by it the kernel is asked who
    /// has a connection.
    Hello,
    /// With a duplicate of a connected socket of TCP. The tag comes back with what becomes of it.
    Offer {
        /// The process's own name for it.
        tag: u64,
    },
    /// The process has no more use for a link.
    Ended {
        /// As it was called.
        link: u64,
    },
}

/// What the broker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// With the page.
    Welcome,
    /// With a link's memory, for what was offered with this tag.
    Link {
        /// As it was offered.
        tag: u64,
        /// What the link is called.
        link: u64,
        /// Which side the process is.
        side: u64,
    },
    /// The other end has not come yet. The duplicate is closed, as it is before the other two.
    Waiting {
        /// As it was offered.
        tag: u64,
    },
    /// It will not be carried.
    Refused {
        /// As it was offered.
        tag: u64,
        /// What stands in the way.
        why: Refusal,
    },
}

/// Why an offer is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Refusal {
    /// It is no connected socket of TCP.
    NotConnected = 1,
    /// It is in another network namespace than what asks the kernel.
    Elsewhere = 2,
    /// The kernel could not be asked, or says that the other end is another.
    NotProven = 3,
    /// Quotas, or memory.
    TooMany = 4,
    /// It is bound to an interface, where the same names may be two connections.
    Bound = 5,
}

impl Refusal {
    const ALL: [Self; 5] =
        [Self::NotConnected, Self::Elsewhere, Self::NotProven, Self::TooMany, Self::Bound];
}

fn pack(words: [u64; 4]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes.chunks_exact_mut(8).zip(words).for_each(|(to, word)| {
        to.copy_from_slice(&word.to_ne_bytes());
    });
    bytes
}

fn unpack(bytes: &[u8]) -> Option<[u64; 4]> {
    let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
    let mut words = [0; 4];
    for (word, from) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(from.try_into().ok()?);
    }
    Some(words)
}

impl Request {
    /// How it is sent.
    #[must_use]
    pub fn encode(self) -> [u8; BYTES] {
        pack(match self {
            Self::Hello => [1, VERSION, 0, 0],
            Self::Offer { tag } => [2, tag, 0, 0],
            Self::Ended { link } => [3, link, 0, 0],
        })
    }

    /// From bytes, if they are one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Some(match unpack(bytes)? {
            [1, VERSION, 0, 0] => Self::Hello,
            [2, tag, 0, 0] => Self::Offer { tag },
            [3, link, 0, 0] => Self::Ended { link },
            _ => return None,
        })
    }
}

impl Reply {
    /// How it is sent.
    #[must_use]
    pub fn encode(self) -> [u8; BYTES] {
        pack(match self {
            Self::Welcome => [17, VERSION, 0, 0],
            Self::Link { tag, link, side } => [18, tag, link, side],
            Self::Refused { tag, why } => [19, tag, why as u64, 0],
            Self::Waiting { tag } => [20, tag, 0, 0],
        })
    }

    /// From bytes, if they are one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Some(match unpack(bytes)? {
            [17, VERSION, 0, 0] => Self::Welcome,
            [18, tag, link, side @ 0..=1] => Self::Link { tag, link, side },
            [19, tag, why, 0] => {
                let why = Refusal::ALL.into_iter().find(|one| *one as u64 == why)?;
                Self::Refused { tag, why }
            }
            [20, tag, 0, 0] => Self::Waiting { tag },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_what_they_were() {
        for request in
            [Request::Hello, Request::Offer { tag: u64::MAX }, Request::Ended { link: 7 }]
        {
            assert_eq!(Request::decode(&request.encode()), Some(request));
            assert_eq!(Reply::decode(&request.encode()), None);
        }
        for why in Refusal::ALL {
            let reply = Reply::Refused { tag: 3, why };
            assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        }
        for reply in [Reply::Link { tag: 1, link: 2, side: 1 }, Reply::Waiting { tag: 4 }] {
            assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        }
        assert_eq!(Reply::decode(&pack([18, 1, 2, 2])), None);
        assert_eq!(Request::decode(&[0; BYTES - 1]), None);
    }
}
