//! Encodes the messages between processes and the broker.
//!
//! Each has eight words, on a socket that keeps boundaries; some bring descriptors.

use crate::address_range::Range;
use crate::channel::Names;
use crate::message_words::{self, NO_MORE, Words, both, four, halves, pack, unpack, whole};

/// Bytes of every message.
pub const BYTES: usize = message_words::BYTES;
/// What comes behind the name of the daemon's socket for the broker's.
pub const SUFFIX: &str = ".sockets";
/// Bytes of the page that the broker writes and a process reads: its first word changes with each
/// message.
pub const PAGE: usize = 4096;

/// Says which protocol it is.
const VERSION: u64 = 0x4f56_5306;

/// What a process says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// First of all, with a netlink socket of `NETLINK_SOCK_DIAG`: by it the kernel is asked who
    /// has a connection.
    Hello {
        /// What the process calls itself, for people.
        name: [u64; 2],
    },
    /// First of all, and nothing behind it: sockets in the network namespace are to be shown
    /// ([`crate::listing`]).
    Show,
    /// First of all, and nothing behind it: between which addresses connections are to be light is
    /// to be said. After the last range the connection ends.
    Ranges,
    /// With a duplicate of a connected socket of TCP. The tag comes back with what becomes of it.
    Offer {
        /// The process's own name for it.
        tag: u64,
        /// It was accepted just now: where it has come to others may come as well.
        is_new: bool,
    },
    /// The process has no more use for a link.
    Ended {
        /// As it was called.
        link: u64,
    },
    /// With a duplicate of a listening socket of TCP: whom the kernel would bring there is to be
    /// brought by a channel, if he asks for that. The tag names it from now on; one that had it
    /// before is forgotten.
    Listen {
        /// The process's own name for it.
        tag: u64,
    },
    /// The process listens there no more.
    Unlisten {
        /// As it was called.
        tag: u64,
    },
    /// A channel is wanted to who listens at an address.
    Reach {
        /// Comes back with the answer.
        tag: u64,
        /// As of IPv6, one of IPv4 mapped.
        address: [u8; 16],
        /// And the port.
        port: u16,
        /// The address that connections come from, if that one is not of the process's network
        /// namespace; otherwise zeros. Who asks has found out which it is: where somebody listens
        /// at all addresses the broker cannot tell.
        from: [u8; 16],
    },
    /// The process has no more use for a channel.
    ChannelEnded {
        /// As it was called.
        name: u64,
    },
    /// The process has a channel to another network namespace that a broker before this one has
    /// given.
    Still {
        /// As it was called.
        name: u64,
        /// As it came with it ([`Reply::Channel`]).
        ends: [[u8; 16]; 2],
    },
    /// The process brings those of its network namespace to other hosts who want that
    /// ([`Reply::Wanted`]): its user's, or anybody's if a raw socket comes along, which shows that
    /// it may read what all of them send.
    Gateways,
    /// Of a gateway: who wanted that is to be brought to it, as if it listened there.
    Leads {
        /// What the gateway was told ([`Reply::Gateways`]).
        token: u64,
        /// As it was wanted.
        wanted: Wanted,
    },
    /// Of a gateway: nobody can be brought to where that was wanted.
    Fails {
        /// What the gateway was told ([`Reply::Gateways`]).
        token: u64,
        /// As it was wanted.
        wanted: Wanted,
        /// What stands in the way.
        why: Failure,
    },
    /// Of a gateway: somebody of another host is to be brought to who listens, by a channel to it.
    /// He has connected by the kernel's TCP before.
    Comes {
        /// Comes back with the answer.
        tag: u64,
        /// What the gateway was told ([`Reply::Gateways`]).
        token: u64,
        /// That connection, as he has it.
        names: Names,
    },
}

/// Why a gateway brings somebody nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No gateway is there, or it has not seen him come, or nobody listens there any more: what was
    /// seen to go there does not.
    NotThere,
    /// This gateway has no room for him, or does not go there for anybody.
    NotBrought,
}

/// Who wants to be brought to another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Who, as the broker calls him.
    pub client: u64,
    /// When the connection was offered by which the network was asked, by the monotonic clock, in
    /// nanoseconds.
    pub at: u64,
    /// That connection, as he has it.
    pub names: Names,
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
        /// How far away the other end is.
        reach: Reach,
    },
    /// A link is not to be used any more: what it has goes back to the kernel. Or a channel, whose
    /// connections end.
    Over {
        /// What the link, or the channel, is called.
        link: u64,
    },
    /// With a file: the process's [`crate::fallback_ledger`].
    Ledger,
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
    /// What came with [`Request::Listen`] is closed.
    Listens {
        /// As it was called.
        tag: u64,
        /// Why nobody is brought there; `None`: whoever reaches for it may be.
        why: Option<Refusal>,
    },
    /// By which socket the kernel would bring him there; the answer comes behind it. Who was
    /// refused there goes on to who has the same one only.
    By {
        /// As it was asked.
        tag: u64,
        /// What the broker calls the socket.
        socket: u64,
        /// Others may listen at its port, too: the next one may be brought to another one.
        is_shared: bool,
    },
    /// From now on nobody is brought to what [`Request::Unlisten`] has named.
    Unheard {
        /// As it was called.
        tag: u64,
    },
    /// With a channel's memory ([`crate::channel`]) and one end of two joined stream sockets, whose
    /// other end the other process has.
    Channel {
        /// Of the side that asked, as it asked; of the other one, what it listens by.
        tag: u64,
        /// What the channel is called.
        name: u64,
        /// 0: this process has asked. 1: it listens.
        side: u64,
        /// Of one between two network namespaces: this process's address and the other one's. It
        /// is only as long as the daemon says so ([`Reply::Over`]); connections come by it as far
        /// as [`Reply::Way`] says; and who has asked has the answer behind it
        /// ([`Reply::Known`]).
        ends: Option<[[u8; 16]; 2]>,
    },
    /// The two have a channel, and neither has said that it has ended.
    Known {
        /// As it was asked.
        tag: u64,
        /// What the channel is called.
        name: u64,
        /// Until when connections may be opened by it, by the monotonic clock, in nanoseconds.
        /// 0: always, within a network namespace.
        until: u64,
    },
    /// By a channel from another network namespace connections to a port may be opened: the network
    /// was seen to bring one there.
    Way {
        /// What the channel is called.
        name: u64,
        /// Where who has the channel listens.
        port: u16,
        /// Until when, by the monotonic clock, in nanoseconds.
        until: u64,
    },
    /// The network was seen to bring a connection of the process's to an address of another
    /// network namespace: who reaches for that may find a channel now.
    Seen {
        /// As of IPv6, one of IPv4 mapped.
        address: [u8; 16],
        /// And the port.
        port: u16,
    },
    /// No channel leads there: who listens has not said so, or is the process itself, or does not
    /// read what he is told, or there are too many. The kernel's TCP may lead there.
    Nobody {
        /// As it was asked.
        tag: u64,
        /// The kernel would bring him to a socket there, of which no other process has said that it
        /// listens by it.
        is_heard: bool,
        /// A gateway may bring him there as soon as he has connected once by TCP: then it is worth
        /// asking anew, and the answer may take a moment.
        is_coming: bool,
    },
    /// A gateway is finding out whether he can be brought there: the answer may come within
    /// moments, and need not be waited for longer.
    Waits {
        /// As it was asked.
        tag: u64,
    },
    /// Connections to these addresses are to be light, if they can be.
    Range(Range),
    /// To a gateway: somebody wants to be brought to another host, and has connected to there by
    /// the kernel's TCP.
    Wanted(Wanted),
    /// To a gateway: it is one. What its other connections to the broker say that they are its by.
    Gateways {
        /// Nobody else is to know it.
        token: u64,
    },
}

/// Why an offer is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Refusal {
    /// It is no connected socket of TCP, or no listening one.
    NotConnected = 1,
    /// It is in another network namespace than what asks the kernel.
    Elsewhere = 2,
    /// The kernel could not be asked, or says that the other end is another.
    NotProven = 3,
    /// Quotas, or memory.
    TooMany = 4,
    /// It is bound to an interface, where the same names may be two connections.
    Bound = 5,
    /// Both ends are there, but what the kernel has counted at one does not fit the other: they
    /// may be ends of two connections.
    NotOne = 6,
}

/// How far away the other end of a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Reach {
    /// In the same network namespace.
    Within = 0,
    /// In another one of this host: only as long as the daemon says so.
    Across = 1,
}

impl Refusal {
    const ALL: [Self; 6] = [
        Self::NotConnected,
        Self::Elsewhere,
        Self::NotProven,
        Self::TooMany,
        Self::Bound,
        Self::NotOne,
    ];

    fn of(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|one| *one as u64 == number)
    }
}

/// A kind of message, with both ports.
fn with_ports(kind: u64, ports: [u16; 2]) -> u64 {
    let [from, to] = ports.map(u64::from);
    kind | from << 32 | to << 48
}

/// The names of a message whose first word has ports, and the rest addresses.
fn named(kind: u64, more: Words) -> Names {
    Names { addresses: both(more), ports: [(kind >> 32) as u16, (kind >> 48) as u16] }
}

impl Request {
    /// How it is sent.
    #[must_use]
    pub fn encode(self) -> [u8; BYTES] {
        let more = match self {
            Self::Reach { from, .. } => {
                let [first, last] = halves(from);
                [first, last, 0, 0]
            }
            Self::Still { ends, .. } => four(ends),
            Self::Leads { wanted: Wanted { names, .. }, .. }
            | Self::Fails { wanted: Wanted { names, .. }, .. }
            | Self::Comes { names, .. } => four(names.addresses),
            _ => NO_MORE,
        };
        let words = match self {
            Self::Hello { name: [first, last] } => [1, VERSION, first, last],
            Self::Offer { tag, is_new } => [2, tag, is_new.into(), 0],
            Self::Ended { link } => [3, link, 0, 0],
            Self::Show => [4, VERSION, 0, 0],
            Self::Listen { tag } => [5, tag, 0, 0],
            Self::Unlisten { tag } => [6, tag, 0, 0],
            Self::Reach { tag, address, port, .. } => {
                let [first, last] = halves(address);
                [7 | u64::from(port) << 32, tag, first, last]
            }
            Self::ChannelEnded { name } => [8, name, 0, 0],
            Self::Ranges => [9, VERSION, 0, 0],
            Self::Still { name, .. } => [10, name, 0, 0],
            Self::Gateways => [11, VERSION, 0, 0],
            Self::Leads { token, wanted: Wanted { client, at, names } } => {
                [with_ports(12, names.ports), client, at, token]
            }
            Self::Fails { token, wanted: Wanted { client, at, names }, why } => {
                let kind = if why == Failure::NotThere { 14 } else { 15 };
                [with_ports(kind, names.ports), client, at, token]
            }
            Self::Comes { tag, token, names } => [with_ports(13, names.ports), tag, token, 0],
        };
        pack(words, more)
    }

    /// From bytes, if they are one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, more) = unpack(bytes)?;
        Some(match words {
            [kind, tag, first, last] if kind as u32 == 7 && more[2..] == [0; 2] => {
                let (port, from) = (u16::try_from(kind >> 32).ok()?, whole([more[0], more[1]]));
                Self::Reach { tag, address: whole([first, last]), port, from }
            }
            [10, name, 0, 0] => Self::Still { name, ends: both(more) },
            [kind, client, at, token] if kind as u32 == 12 => {
                Self::Leads { token, wanted: Wanted { client, at, names: named(kind, more) } }
            }
            [kind, client, at, token] if matches!(kind as u32, 14 | 15) => {
                let why = if kind as u32 == 14 { Failure::NotThere } else { Failure::NotBrought };
                Self::Fails { token, wanted: Wanted { client, at, names: named(kind, more) }, why }
            }
            [kind, tag, token, 0] if kind as u32 == 13 => {
                Self::Comes { tag, token, names: named(kind, more) }
            }
            _ if more != NO_MORE => return None,
            [1, VERSION, first, last] => Self::Hello { name: [first, last] },
            [2, tag, is_new @ 0..=1, 0] => Self::Offer { tag, is_new: is_new == 1 },
            [3, link, 0, 0] => Self::Ended { link },
            [4, VERSION, 0, 0] => Self::Show,
            [5, tag, 0, 0] => Self::Listen { tag },
            [6, tag, 0, 0] => Self::Unlisten { tag },
            [8, name, 0, 0] => Self::ChannelEnded { name },
            [9, VERSION, 0, 0] => Self::Ranges,
            [11, VERSION, 0, 0] => Self::Gateways,
            _ => return None,
        })
    }
}

impl Reply {
    /// How it is sent.
    #[must_use]
    pub fn encode(self) -> [u8; BYTES] {
        let more = match self {
            Self::Channel { ends: Some(ends), .. } => four(ends),
            Self::Wanted(Wanted { names, .. }) => four(names.addresses),
            _ => NO_MORE,
        };
        let words = match self {
            Self::Welcome => [17, VERSION, 0, 0],
            Self::Link { tag, link, side, reach } => [18, tag, link, side | (reach as u64) << 1],
            Self::Refused { tag, why } => [19, tag, why as u64, 0],
            Self::Waiting { tag } => [20, tag, 0, 0],
            Self::Over { link } => [21, link, 0, 0],
            Self::Ledger => [22, 0, 0, 0],
            Self::Channel { tag, name, side, ends } => {
                [23, tag, name, side | u64::from(ends.is_some()) << 1]
            }
            Self::Known { tag, name, until } => [24, tag, name, until],
            Self::Nobody { tag, is_heard, is_coming } => {
                [25, tag, is_heard.into(), is_coming.into()]
            }
            Self::Listens { tag, why } => [26, tag, why.map_or(0, |why| why as u64), 0],
            Self::Unheard { tag } => [30, tag, 0, 0],
            Self::By { tag, socket, is_shared } => [31, tag, socket, u64::from(is_shared)],
            Self::Range(range) => {
                let (address, bits, ports) = range.parts();
                let ports = u64::from(*ports.start()) | u64::from(*ports.end()) << 16;
                let [first, last] = halves(address);
                [27, u64::from(bits) | ports << 32, first, last]
            }
            Self::Way { name, port, until } => [28, name, port.into(), until],
            Self::Seen { address, port } => {
                let [first, last] = halves(address);
                [29, port.into(), first, last]
            }
            Self::Wanted(Wanted { client, at, names }) => {
                [with_ports(32, names.ports), client, at, 0]
            }
            Self::Gateways { token } => [33, token, 0, 0],
            Self::Waits { tag } => [34, tag, 0, 0],
        };
        pack(words, more)
    }

    /// From bytes, if they are one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, more) = unpack(bytes)?;
        Some(match words {
            [23, tag, name, side @ 2..=3] => {
                Self::Channel { tag, name, side: side & 1, ends: Some(both(more)) }
            }
            [kind, client, at, 0] if kind as u32 == 32 => {
                Self::Wanted(Wanted { client, at, names: named(kind, more) })
            }
            _ if more != NO_MORE => return None,
            [17, VERSION, 0, 0] => Self::Welcome,
            [18, tag, link, side @ 0..=3] => {
                let reach = if side & 2 == 0 { Reach::Within } else { Reach::Across };
                Self::Link { tag, link, side: side & 1, reach }
            }
            [19, tag, why, 0] => Self::Refused { tag, why: Refusal::of(why)? },
            [20, tag, 0, 0] => Self::Waiting { tag },
            [21, link, 0, 0] => Self::Over { link },
            [22, 0, 0, 0] => Self::Ledger,
            [33, token, 0, 0] => Self::Gateways { token },
            [34, tag, 0, 0] => Self::Waits { tag },
            [23, tag, name, side @ 0..=1] => Self::Channel { tag, name, side, ends: None },
            [24, tag, name, until] => Self::Known { tag, name, until },
            [25, tag, heard @ 0..=1, coming @ 0..=1] => {
                Self::Nobody { tag, is_heard: heard == 1, is_coming: coming == 1 }
            }
            [26, tag, 0, 0] => Self::Listens { tag, why: None },
            [26, tag, why, 0] => Self::Listens { tag, why: Some(Refusal::of(why)?) },
            [30, tag, 0, 0] => Self::Unheard { tag },
            [31, tag, socket, shared @ (0 | 1)] => Self::By { tag, socket, is_shared: shared == 1 },
            [27, what, first, last] => {
                let bits = u8::try_from(what as u32).ok()?;
                let ports = (what >> 32) as u16..=(what >> 48) as u16;
                Self::Range(Range::of(whole([first, last]), bits, ports)?)
            }
            [28, name, port, until] => Self::Way { name, port: u16::try_from(port).ok()?, until },
            [29, port, first, last] => {
                Self::Seen { address: whole([first, last]), port: u16::try_from(port).ok()? }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 1, 2, 3];

    const WANTED: Wanted = Wanted {
        client: 3,
        at: u64::MAX,
        names: Names { addresses: [ADDRESS, [9; 16]], ports: [u16::MAX, 1] },
    };

    #[test]
    fn messages_are_what_they_were() {
        for request in [
            Request::Hello { name: [1, 2] },
            Request::Offer { tag: u64::MAX, is_new: false },
            Request::Offer { tag: 7, is_new: true },
            Request::Ended { link: 7 },
            Request::Show,
            Request::Listen { tag: u64::MAX },
            Request::Unlisten { tag: 8 },
            Request::Reach { tag: 9, address: ADDRESS, port: u16::MAX, from: [0; 16] },
            Request::Reach { tag: u64::MAX, address: [0; 16], port: 0, from: ADDRESS },
            Request::ChannelEnded { name: 10 },
            Request::Still { name: 11, ends: [ADDRESS, [3; 16]] },
            Request::Ranges,
            Request::Gateways,
            Request::Leads { token: 8, wanted: WANTED },
            Request::Fails { token: 8, wanted: WANTED, why: Failure::NotThere },
            Request::Fails { token: 0, wanted: WANTED, why: Failure::NotBrought },
            Request::Comes { tag: u64::MAX, token: 9, names: WANTED.names },
        ] {
            assert_eq!(Request::decode(&request.encode()), Some(request));
            assert_eq!(Reply::decode(&request.encode()), None);
        }
        for why in Refusal::ALL {
            let listens = Reply::Listens { tag: 3, why: Some(why) };
            for reply in [Reply::Refused { tag: 3, why }, listens] {
                assert_eq!(Reply::decode(&reply.encode()), Some(reply));
            }
        }
        let links = [Reach::Within, Reach::Across].map(|reach| Reply::Link {
            tag: 1,
            link: 2,
            side: 1,
            reach,
        });
        for reply in links.into_iter().chain([
            Reply::Waiting { tag: 4 },
            Reply::Over { link: 5 },
            Reply::Ledger,
            Reply::Channel { tag: 6, name: u64::MAX, side: 1, ends: None },
            Reply::Channel { tag: u64::MAX, name: 7, side: 0, ends: Some([ADDRESS, [7; 16]]) },
            Reply::Channel { tag: 6, name: 7, side: 1, ends: Some([[0; 16]; 2]) },
            Reply::Known { tag: 8, name: 9, until: 0 },
            Reply::Known { tag: 8, name: 9, until: u64::MAX },
            Reply::Way { name: 11, port: u16::MAX, until: 12 },
            Reply::Seen { address: ADDRESS, port: 13 },
            Reply::Nobody { tag: u64::MAX, is_heard: false, is_coming: true },
            Reply::Nobody { tag: 1, is_heard: true, is_coming: false },
            Reply::Listens { tag: 10, why: None },
            Reply::Unheard { tag: 10 },
            Reply::By { tag: 10, socket: u64::MAX, is_shared: false },
            Reply::By { tag: 10, socket: 1, is_shared: true },
            Reply::Range("10.1.0.0/16:7000-65535".parse().unwrap()),
            Reply::Range("[fd00::1]:1".parse().unwrap()),
            Reply::Range("::/0".parse().unwrap()),
            Reply::Wanted(WANTED),
            Reply::Gateways { token: u64::MAX },
            Reply::Waits { tag: u64::MAX },
        ]) {
            assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        }
        assert_eq!(Reply::decode(&pack([18, 1, 2, 4], NO_MORE)), None);
        assert_eq!(Reply::decode(&pack([23, 1, 2, 4], NO_MORE)), None);
        assert_eq!(Reply::decode(&pack([23, 1, 2, 1], [1, 0, 0, 0])), None);
        assert_eq!(Reply::decode(&pack([26, 1, 99, 0], NO_MORE)), None);
        assert_eq!(Reply::decode(&pack([27, 129, 0, 0], NO_MORE)), None);
        assert_eq!(Reply::decode(&pack([27, 8 | 1 << 40, 0, 0], NO_MORE)), None);
        assert_eq!(Reply::decode(&pack([28, 1, 1 << 16, 0], NO_MORE)), None);
        assert_eq!(Reply::decode(&pack([29, 1 << 16, 0, 0], NO_MORE)), None);
        assert_eq!(Request::decode(&pack([7 | 1 << 48, 1, 2, 3], NO_MORE)), None);
        assert_eq!(Request::decode(&pack([7, 1, 2, 3], [0, 0, 1, 0])), None);
        assert_eq!(Request::decode(&pack([2, 1, 0, 0], [0, 0, 0, 1])), None);
        assert_eq!(Request::decode(&[0; BYTES - 1]), None);
    }

    /// Programs in other languages read and write this, too.
    #[test]
    fn an_address_is_sent_as_it_is() {
        let sent =
            Request::Reach { tag: 1, address: ADDRESS, port: 0x1f90, from: [7; 16] }.encode();
        assert_eq!((&sent[16..32], &sent[32..48]), (&ADDRESS[..], &[7; 16][..]));
        assert_eq!(sent[..8], (7 | 0x1f90_u64 << 32).to_ne_bytes());
    }
}
