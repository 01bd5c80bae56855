//! Encodes the messages between processes and the broker.
//!
//! Each has eight words, on a socket that keeps boundaries; some bring descriptors.

use crate::address_range::Range;
use crate::channel::Names;
use crate::message_words::{self, NO_MORE, Words, both, four, halves, pack, unpack, whole};

/// Bytes of every message.
pub const BYTES: usize = message_words::BYTES;
/// Follows the name of the daemon's socket in the name of the broker's.
pub const SUFFIX: &str = ".sockets";
/// Bytes of the page that the broker writes and a process reads. Its first word changes with each
/// message.
pub const PAGE: usize = 4096;

/// The version of this protocol.
const VERSION: u64 = 0x4f56_5306;

/// A process's message to the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Opens the conversation. A netlink socket of `NETLINK_SOCK_DIAG` comes along, by which the
    /// broker asks the kernel for the owner of a connection.
    Hello {
        /// The process's name, for people.
        name: [u64; 2],
    },
    /// The only message: asks for a list of the sockets of the network namespace
    /// ([`crate::socket_status_rows`]).
    ShowSockets,
    /// The only message: asks for the address ranges whose connections are to be light. The
    /// connection ends after the last range.
    ShowRanges,
    /// Offers a connected TCP socket, whose duplicate comes along. The answer repeats the tag.
    Offer {
        /// The process's own name for the socket.
        tag: u64,
        /// The socket has just been accepted: further connections may come to the same listener.
        is_new: bool,
    },
    /// The process has no more use for a link.
    LinkEnded {
        /// The broker's name for it.
        link: u64,
    },
    /// Registers a listening TCP socket, whose duplicate comes along. Clients that the kernel would
    /// connect to it may have a channel to this process. The tag replaces an earlier one.
    Listen {
        /// The process's own name for the socket.
        tag: u64,
    },
    /// Removes what [`Request::Listen`] has registered.
    Unlisten {
        /// The tag of that message.
        tag: u64,
    },
    /// Asks for a channel to the process that listens at an address.
    OpenChannel {
        /// The answer repeats it.
        tag: u64,
        /// The listener's address; IPv4 in its IPv6-mapped form.
        address: [u8; 16],
        /// The listener's port.
        port: u16,
        /// The address that the client's connections come from, if `address` is in another network
        /// namespace; otherwise zeros. The client finds it out by itself, since the broker cannot
        /// tell for a listener that is bound to all addresses.
        from: [u8; 16],
    },
    /// The process has no more use for a channel.
    ChannelEnded {
        /// The broker's name for it.
        name: u64,
    },
    /// The process still has a channel to another network namespace, from an earlier broker.
    ReclaimChannel {
        /// The earlier broker's name for it.
        name: u64,
        /// The addresses that came with it ([`Reply::Channel`]).
        ends: [[u8; 16]; 2],
    },
    /// Registers a gateway: a process that carries connections of its network namespace to other
    /// hosts ([`Reply::GatewayWanted`]). It serves its own user. It serves all users if a raw
    /// socket comes along, which shows that it may read all their traffic anyway.
    BecomeGateway,
    /// A gateway accepts a client, as if it were the listener.
    GatewayAccepts {
        /// The gateway's token ([`Reply::GatewayToken`]).
        token: u64,
        /// The client's request, repeated.
        wanted: Wanted,
    },
    /// A gateway refuses a client.
    GatewayRefuses {
        /// The gateway's token ([`Reply::GatewayToken`]).
        token: u64,
        /// The client's request, repeated.
        wanted: Wanted,
        /// Why the client is not served.
        why: Failure,
    },
    /// A gateway asks for a channel to a listener of this host, on behalf of a client of another
    /// host. That client has connected to the listener by TCP before.
    RemoteConnects {
        /// The answer repeats it.
        tag: u64,
        /// The gateway's token ([`Reply::GatewayToken`]).
        token: u64,
        /// The client's TCP connection, from the client's end.
        names: Names,
    },
}

/// The reason for which a gateway refuses a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The other host has no gateway, its gateway has not seen the client's TCP connection, or the
    /// listener is gone. The route that was assumed is void.
    NotThere,
    /// The other host's gateway has no room for the client, or does not serve that listener.
    NotBrought,
}

/// A client's request to be carried to another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The broker's name for the client.
    pub client: u64,
    /// When the client offered the TCP connection that shows the route; nanoseconds of the
    /// monotonic clock.
    pub at: u64,
    /// That TCP connection, from the client's end.
    pub names: Names,
}

/// The broker's message to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Answers [`Request::Hello`]. The page comes along.
    Welcome,
    /// Gives a link for an offered socket. The link's memory comes along.
    Link {
        /// The tag of the offer.
        tag: u64,
        /// The broker's name for the link.
        link: u64,
        /// The side of the link that the process is.
        side: u64,
        /// How far away the other end is.
        reach: Reach,
    },
    /// Ends a link or a channel. Unread bytes of a link go back to the kernel; the connections of a
    /// channel end.
    Ended {
        /// The broker's name for the link or channel.
        link: u64,
    },
    /// Gives the file of the process's [`crate::fallback_ledger`].
    Ledger,
    /// The other end has not been offered yet. The broker has closed the duplicate, as it has
    /// before [`Reply::Link`] and [`Reply::Refused`].
    Pending {
        /// The tag of the offer.
        tag: u64,
    },
    /// The offered socket will not be carried.
    Refused {
        /// The tag of the offer.
        tag: u64,
        /// Why the kernel keeps the socket.
        why: Refusal,
    },
    /// Answers [`Request::Listen`]. The broker has closed the duplicate.
    Listening {
        /// The tag of that message.
        tag: u64,
        /// The reason for which no client is brought there; `None`: clients may be.
        why: Option<Refusal>,
    },
    /// Tells which socket the kernel would connect the client to. The answer proper follows. A
    /// client that this listener has refused may go on only to one that shares the socket.
    ListenerIs {
        /// The tag of the request.
        tag: u64,
        /// The broker's name for the socket.
        socket: u64,
        /// Other sockets may listen at its port: the next client may be connected to another one.
        is_shared: bool,
    },
    /// Answers [`Request::Unlisten`]: no more clients are brought to that socket.
    Unlistened {
        /// The tag of that message.
        tag: u64,
    },
    /// Gives a channel. Its memory ([`crate::channel`]) comes along, and one end of a pair of
    /// stream sockets, whose other end the other process has.
    Channel {
        /// For the side that has asked the tag of its request; for the other one that of its
        /// [`Request::Listen`].
        tag: u64,
        /// The broker's name for the channel.
        name: u64,
        /// 0: this process has asked. 1: it listens.
        side: u64,
        /// For a channel between two network namespaces: this process's address and the other
        /// one's. Such a channel lasts until [`Reply::Ended`], connections may use it as far as
        /// [`Reply::PortAllowed`] says, and the answer to its request follows
        /// ([`Reply::ChannelKnown`]).
        ends: Option<[[u8; 16]; 2]>,
    },
    /// The two processes have a channel already, and neither has said that it has ended.
    ChannelKnown {
        /// The tag of the request.
        tag: u64,
        /// The broker's name for the channel.
        name: u64,
        /// Until when connections may be opened by it; nanoseconds of the monotonic clock. 0:
        /// always, within a network namespace.
        until: u64,
    },
    /// Connections to a port may be opened by a channel from another network namespace: the network
    /// has just brought one there.
    PortAllowed {
        /// The broker's name for the channel.
        name: u64,
        /// The port at which this process listens.
        port: u16,
        /// Until when; nanoseconds of the monotonic clock.
        until: u64,
    },
    /// The network has brought a connection of this process to an address of another network
    /// namespace. A request for a channel to it may succeed now.
    RemoteSeen {
        /// The address; IPv4 in its IPv6-mapped form.
        address: [u8; 16],
        /// The port of the listener there.
        port: u16,
    },
    /// No channel leads there. The listener is not registered, is the process itself, does not read
    /// its messages, or there are too many channels. TCP may still lead there.
    NoChannel {
        /// The tag of the request.
        tag: u64,
        /// The kernel would connect the client to a socket that no other process has registered.
        is_heard: bool,
        /// A gateway may carry the client after one connection by TCP. The client should ask again
        /// then, and the answer may take a moment.
        is_coming: bool,
    },
    /// A gateway is finding out whether it can carry the client. The answer may come within
    /// moments; the client need not wait for it.
    AskingGateway {
        /// The tag of the request.
        tag: u64,
    },
    /// Connections to these addresses are to be light, where that is possible.
    Range(Range),
    /// Asks a gateway to carry a client to another host. The client has connected there by TCP.
    GatewayWanted(Wanted),
    /// Answers [`Request::BecomeGateway`]. The gateway's other connections to the broker prove by
    /// this token that they are its own.
    GatewayToken {
        /// A secret between the broker and the gateway.
        token: u64,
    },
}

/// The reason for which an offer is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Refusal {
    /// The socket is neither a connected nor a listening TCP socket.
    NotConnected = 1,
    /// The socket is in another network namespace than the process's netlink socket.
    Elsewhere = 2,
    /// The kernel did not answer, or says that the other end is another socket.
    NotProven = 3,
    /// A quota is used up, or memory.
    TooMany = 4,
    /// The socket is bound to an interface, where two connections may have the same addresses.
    Bound = 5,
    /// The kernel's byte counts of the two ends do not agree: they may belong to two connections.
    NotOne = 6,
}

/// How far away the other end of a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Reach {
    /// In the same network namespace.
    Within = 0,
    /// In another network namespace of this host. The link lasts until the daemon ends it.
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
    /// Encodes the message.
    #[must_use]
    pub fn encode(self) -> [u8; BYTES] {
        let more = match self {
            Self::OpenChannel { from, .. } => {
                let [first, last] = halves(from);
                [first, last, 0, 0]
            }
            Self::ReclaimChannel { ends, .. } => four(ends),
            Self::GatewayAccepts { wanted: Wanted { names, .. }, .. }
            | Self::GatewayRefuses { wanted: Wanted { names, .. }, .. }
            | Self::RemoteConnects { names, .. } => four(names.addresses),
            _ => NO_MORE,
        };
        let words = match self {
            Self::Hello { name: [first, last] } => [1, VERSION, first, last],
            Self::Offer { tag, is_new } => [2, tag, is_new.into(), 0],
            Self::LinkEnded { link } => [3, link, 0, 0],
            Self::ShowSockets => [4, VERSION, 0, 0],
            Self::Listen { tag } => [5, tag, 0, 0],
            Self::Unlisten { tag } => [6, tag, 0, 0],
            Self::OpenChannel { tag, address, port, .. } => {
                let [first, last] = halves(address);
                [7 | u64::from(port) << 32, tag, first, last]
            }
            Self::ChannelEnded { name } => [8, name, 0, 0],
            Self::ShowRanges => [9, VERSION, 0, 0],
            Self::ReclaimChannel { name, .. } => [10, name, 0, 0],
            Self::BecomeGateway => [11, VERSION, 0, 0],
            Self::GatewayAccepts { token, wanted: Wanted { client, at, names } } => {
                [with_ports(12, names.ports), client, at, token]
            }
            Self::GatewayRefuses { token, wanted: Wanted { client, at, names }, why } => {
                let kind = if why == Failure::NotThere { 14 } else { 15 };
                [with_ports(kind, names.ports), client, at, token]
            }
            Self::RemoteConnects { tag, token, names } => {
                [with_ports(13, names.ports), tag, token, 0]
            }
        };
        pack(words, more)
    }

    /// Decodes a message, if the bytes are one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, more) = unpack(bytes)?;
        Some(match words {
            [kind, tag, first, last] if kind as u32 == 7 && more[2..] == [0; 2] => {
                let (port, from) = (u16::try_from(kind >> 32).ok()?, whole([more[0], more[1]]));
                Self::OpenChannel { tag, address: whole([first, last]), port, from }
            }
            [10, name, 0, 0] => Self::ReclaimChannel { name, ends: both(more) },
            [kind, client, at, token] if kind as u32 == 12 => Self::GatewayAccepts {
                token,
                wanted: Wanted { client, at, names: named(kind, more) },
            },
            [kind, client, at, token] if matches!(kind as u32, 14 | 15) => {
                let why = if kind as u32 == 14 { Failure::NotThere } else { Failure::NotBrought };
                Self::GatewayRefuses {
                    token,
                    wanted: Wanted { client, at, names: named(kind, more) },
                    why,
                }
            }
            [kind, tag, token, 0] if kind as u32 == 13 => {
                Self::RemoteConnects { tag, token, names: named(kind, more) }
            }
            _ if more != NO_MORE => return None,
            [1, VERSION, first, last] => Self::Hello { name: [first, last] },
            [2, tag, is_new @ 0..=1, 0] => Self::Offer { tag, is_new: is_new == 1 },
            [3, link, 0, 0] => Self::LinkEnded { link },
            [4, VERSION, 0, 0] => Self::ShowSockets,
            [5, tag, 0, 0] => Self::Listen { tag },
            [6, tag, 0, 0] => Self::Unlisten { tag },
            [8, name, 0, 0] => Self::ChannelEnded { name },
            [9, VERSION, 0, 0] => Self::ShowRanges,
            [11, VERSION, 0, 0] => Self::BecomeGateway,
            _ => return None,
        })
    }
}

impl Reply {
    /// Encodes the message.
    #[must_use]
    pub fn encode(self) -> [u8; BYTES] {
        let more = match self {
            Self::Channel { ends: Some(ends), .. } => four(ends),
            Self::GatewayWanted(Wanted { names, .. }) => four(names.addresses),
            _ => NO_MORE,
        };
        let words = match self {
            Self::Welcome => [17, VERSION, 0, 0],
            Self::Link { tag, link, side, reach } => [18, tag, link, side | (reach as u64) << 1],
            Self::Refused { tag, why } => [19, tag, why as u64, 0],
            Self::Pending { tag } => [20, tag, 0, 0],
            Self::Ended { link } => [21, link, 0, 0],
            Self::Ledger => [22, 0, 0, 0],
            Self::Channel { tag, name, side, ends } => {
                [23, tag, name, side | u64::from(ends.is_some()) << 1]
            }
            Self::ChannelKnown { tag, name, until } => [24, tag, name, until],
            Self::NoChannel { tag, is_heard, is_coming } => {
                [25, tag, is_heard.into(), is_coming.into()]
            }
            Self::Listening { tag, why } => [26, tag, why.map_or(0, |why| why as u64), 0],
            Self::Unlistened { tag } => [30, tag, 0, 0],
            Self::ListenerIs { tag, socket, is_shared } => [31, tag, socket, u64::from(is_shared)],
            Self::Range(range) => {
                let (address, bits, ports) = range.parts();
                let ports = u64::from(*ports.start()) | u64::from(*ports.end()) << 16;
                let [first, last] = halves(address);
                [27, u64::from(bits) | ports << 32, first, last]
            }
            Self::PortAllowed { name, port, until } => [28, name, port.into(), until],
            Self::RemoteSeen { address, port } => {
                let [first, last] = halves(address);
                [29, port.into(), first, last]
            }
            Self::GatewayWanted(Wanted { client, at, names }) => {
                [with_ports(32, names.ports), client, at, 0]
            }
            Self::GatewayToken { token } => [33, token, 0, 0],
            Self::AskingGateway { tag } => [34, tag, 0, 0],
        };
        pack(words, more)
    }

    /// Decodes a message, if the bytes are one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, more) = unpack(bytes)?;
        Some(match words {
            [23, tag, name, side @ 2..=3] => {
                Self::Channel { tag, name, side: side & 1, ends: Some(both(more)) }
            }
            [kind, client, at, 0] if kind as u32 == 32 => {
                Self::GatewayWanted(Wanted { client, at, names: named(kind, more) })
            }
            _ if more != NO_MORE => return None,
            [17, VERSION, 0, 0] => Self::Welcome,
            [18, tag, link, side @ 0..=3] => {
                let reach = if side & 2 == 0 { Reach::Within } else { Reach::Across };
                Self::Link { tag, link, side: side & 1, reach }
            }
            [19, tag, why, 0] => Self::Refused { tag, why: Refusal::of(why)? },
            [20, tag, 0, 0] => Self::Pending { tag },
            [21, link, 0, 0] => Self::Ended { link },
            [22, 0, 0, 0] => Self::Ledger,
            [33, token, 0, 0] => Self::GatewayToken { token },
            [34, tag, 0, 0] => Self::AskingGateway { tag },
            [23, tag, name, side @ 0..=1] => Self::Channel { tag, name, side, ends: None },
            [24, tag, name, until] => Self::ChannelKnown { tag, name, until },
            [25, tag, heard @ 0..=1, coming @ 0..=1] => {
                Self::NoChannel { tag, is_heard: heard == 1, is_coming: coming == 1 }
            }
            [26, tag, 0, 0] => Self::Listening { tag, why: None },
            [26, tag, why, 0] => Self::Listening { tag, why: Some(Refusal::of(why)?) },
            [30, tag, 0, 0] => Self::Unlistened { tag },
            [31, tag, socket, shared @ (0 | 1)] => {
                Self::ListenerIs { tag, socket, is_shared: shared == 1 }
            }
            [27, what, first, last] => {
                let bits = u8::try_from(what as u32).ok()?;
                let ports = (what >> 32) as u16..=(what >> 48) as u16;
                Self::Range(Range::of(whole([first, last]), bits, ports)?)
            }
            [28, name, port, until] => {
                Self::PortAllowed { name, port: u16::try_from(port).ok()?, until }
            }
            [29, port, first, last] => {
                Self::RemoteSeen { address: whole([first, last]), port: u16::try_from(port).ok()? }
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
    fn messages_survive_encoding() {
        for request in [
            Request::Hello { name: [1, 2] },
            Request::Offer { tag: u64::MAX, is_new: false },
            Request::Offer { tag: 7, is_new: true },
            Request::LinkEnded { link: 7 },
            Request::ShowSockets,
            Request::Listen { tag: u64::MAX },
            Request::Unlisten { tag: 8 },
            Request::OpenChannel { tag: 9, address: ADDRESS, port: u16::MAX, from: [0; 16] },
            Request::OpenChannel { tag: u64::MAX, address: [0; 16], port: 0, from: ADDRESS },
            Request::ChannelEnded { name: 10 },
            Request::ReclaimChannel { name: 11, ends: [ADDRESS, [3; 16]] },
            Request::ShowRanges,
            Request::BecomeGateway,
            Request::GatewayAccepts { token: 8, wanted: WANTED },
            Request::GatewayRefuses { token: 8, wanted: WANTED, why: Failure::NotThere },
            Request::GatewayRefuses { token: 0, wanted: WANTED, why: Failure::NotBrought },
            Request::RemoteConnects { tag: u64::MAX, token: 9, names: WANTED.names },
        ] {
            assert_eq!(Request::decode(&request.encode()), Some(request));
            assert_eq!(Reply::decode(&request.encode()), None);
        }
        for why in Refusal::ALL {
            let listens = Reply::Listening { tag: 3, why: Some(why) };
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
            Reply::Pending { tag: 4 },
            Reply::Ended { link: 5 },
            Reply::Ledger,
            Reply::Channel { tag: 6, name: u64::MAX, side: 1, ends: None },
            Reply::Channel { tag: u64::MAX, name: 7, side: 0, ends: Some([ADDRESS, [7; 16]]) },
            Reply::Channel { tag: 6, name: 7, side: 1, ends: Some([[0; 16]; 2]) },
            Reply::ChannelKnown { tag: 8, name: 9, until: 0 },
            Reply::ChannelKnown { tag: 8, name: 9, until: u64::MAX },
            Reply::PortAllowed { name: 11, port: u16::MAX, until: 12 },
            Reply::RemoteSeen { address: ADDRESS, port: 13 },
            Reply::NoChannel { tag: u64::MAX, is_heard: false, is_coming: true },
            Reply::NoChannel { tag: 1, is_heard: true, is_coming: false },
            Reply::Listening { tag: 10, why: None },
            Reply::Unlistened { tag: 10 },
            Reply::ListenerIs { tag: 10, socket: u64::MAX, is_shared: false },
            Reply::ListenerIs { tag: 10, socket: 1, is_shared: true },
            Reply::Range("10.1.0.0/16:7000-65535".parse().unwrap()),
            Reply::Range("[fd00::1]:1".parse().unwrap()),
            Reply::Range("::/0".parse().unwrap()),
            Reply::GatewayWanted(WANTED),
            Reply::GatewayToken { token: u64::MAX },
            Reply::AskingGateway { tag: u64::MAX },
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
            Request::OpenChannel { tag: 1, address: ADDRESS, port: 0x1f90, from: [7; 16] }.encode();
        assert_eq!((&sent[16..32], &sent[32..48]), (&ADDRESS[..], &[7; 16][..]));
        assert_eq!(sent[..8], (7 | 0x1f90_u64 << 32).to_ne_bytes());
    }
}
