//! Encodes the messages between processes and the broker.
//!
//! They go by a socket that keeps boundaries; some bring descriptors.

use crate::address_range::Range;
use crate::channel_layout::Names;
pub use crate::message_codec::BYTES;
use crate::message_codec::{Field, Reader, Writer, fields, messages, numbers, on_sockets};

/// Follows the name of the daemon's socket in the name of the broker's.
pub const SUFFIX: &str = ".sockets";
/// Bytes of the page that the broker writes and a process reads. Its first word changes with each
/// message.
pub const PAGE: usize = 4096;

messages! {
    /// A process's message to the broker.
    Request, version 0x4f56_5307 {
        /// Opens the conversation. A netlink socket of `NETLINK_SOCK_DIAG` comes along, by which
        /// the broker asks the kernel for the owner of a connection.
        1 => Hello {
            /// The process's name, for people.
            name: [u64; 2],
        },
        /// The only message: asks for a list of the sockets of the network namespace
        /// ([`crate::listing`]).
        4 => ShowSockets,
        /// The only message: asks for the address ranges whose connections are to be light. The
        /// connection ends after the last range.
        9 => ShowRanges,
        /// Offers a connected TCP socket, whose duplicate comes along. The answer repeats the tag.
        2 => Offer {
            /// The process's own name for the socket.
            tag: u64,
            /// The socket has just been accepted: further connections may come to the same
            /// listener.
            is_new: bool,
        },
        /// The process has no more use for a link.
        3 => LinkEnded {
            /// The broker's name for it.
            link: u64,
        },
        /// Registers a listening TCP socket, whose duplicate comes along. Clients that the kernel
        /// would connect to it may have a channel to this process. The tag replaces an earlier one.
        5 => Listen {
            /// The process's own name for the socket.
            tag: u64,
        },
        /// Removes what [`Request::Listen`] has registered.
        6 => Unlisten {
            /// The tag of that message.
            tag: u64,
        },
        /// Asks for a channel to the process that listens at an address.
        7 => OpenChannel {
            /// The answer repeats it.
            tag: u64,
            /// The listener's address; IPv4 in its IPv6-mapped form.
            address: [u8; 16],
            /// The listener's port.
            port: u16,
            /// The address that the client's connections come from, if `address` is in another
            /// network namespace; otherwise zeros. The client finds it out by itself, since the
            /// broker cannot tell for a listener that is bound to all addresses.
            from: [u8; 16],
        },
        /// The process has no more use for a channel.
        8 => ChannelEnded {
            /// The broker's name for it.
            name: u64,
        },
        /// The process still has a channel to another network namespace, from an earlier broker.
        10 => ReclaimChannel {
            /// The earlier broker's name for it.
            name: u64,
            /// The addresses that came with it ([`Reply::Channel`]).
            ends: [[u8; 16]; 2],
        },
        /// Registers a gateway: a process that carries connections of its network namespace to
        /// other hosts ([`Reply::GatewayWanted`]). It serves its own user. It serves all users if a
        /// raw socket comes along, which shows that it may read all their traffic anyway.
        11 => BecomeGateway,
        /// A gateway accepts a client, as if it were the listener.
        12 => GatewayAccepts {
            /// The gateway's token ([`Reply::GatewayToken`]).
            token: u64,
            /// The client's request, repeated.
            wanted: Wanted,
        },
        /// A gateway refuses a client.
        14 => GatewayRefuses {
            /// The gateway's token ([`Reply::GatewayToken`]).
            token: u64,
            /// The client's request, repeated.
            wanted: Wanted,
            /// Why the client is not served.
            why: Failure,
        },
        /// A gateway asks for a channel to a listener of this host, on behalf of a client of
        /// another host. That client has connected to the listener by TCP before.
        13 => RemoteConnects {
            /// The answer repeats it.
            tag: u64,
            /// The gateway's token ([`Reply::GatewayToken`]).
            token: u64,
            /// The client's TCP connection, from the client's end.
            names: Names,
        },
    }
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

messages! {
    /// The broker's message to a process.
    Reply, version 0x4f56_5307 {
        /// Answers [`Request::Hello`]. The page comes along.
        17 => Welcome,
        /// Gives a link for an offered socket. The link's memory comes along.
        18 => Link {
            /// The tag of the offer.
            tag: u64,
            /// The broker's name for the link.
            link: u64,
            /// The side of the link that the process is.
            side: Side,
            /// How far away the other end is.
            reach: Reach,
        },
        /// Ends a link or a channel. Unread bytes of a link go back to the kernel; the connections
        /// of a channel end.
        21 => Ended {
            /// The broker's name for the link or channel.
            link: u64,
        },
        /// Gives the file of the process's [`crate::fallback_ledger`].
        22 => Ledger,
        /// The other end has not been offered yet. The broker has closed the duplicate, as it has
        /// before [`Reply::Link`] and [`Reply::Refused`].
        20 => Pending {
            /// The tag of the offer.
            tag: u64,
        },
        /// The offered socket will not be carried.
        19 => Refused {
            /// The tag of the offer.
            tag: u64,
            /// Why the kernel keeps the socket.
            why: Refusal,
        },
        /// Answers [`Request::Listen`]. The broker has closed the duplicate.
        26 => Listening {
            /// The tag of that message.
            tag: u64,
            /// The reason for which no client is brought there; `None`: clients may be.
            why: Option<Refusal>,
        },
        /// Tells which socket the kernel would connect the client to. The answer proper follows. A
        /// client that this listener has refused may go on only to one that shares the socket.
        31 => ListenerIs {
            /// The tag of the request.
            tag: u64,
            /// The broker's name for the socket.
            socket: u64,
            /// Other sockets may listen at its port: the next client may be connected to another
            /// one.
            is_shared: bool,
        },
        /// Answers [`Request::Unlisten`]: no more clients are brought to that socket.
        30 => Unlistened {
            /// The tag of that message.
            tag: u64,
        },
        /// Gives a channel. Its memory ([`crate::channel_layout`]) comes along, and one end of a
        /// pair of stream sockets, whose other end the other process has.
        23 => Channel {
            /// For the side that has asked the tag of its request; for the other one that of its
            /// [`Request::Listen`].
            tag: u64,
            /// The broker's name for the channel.
            name: u64,
            /// [`Side::First`]: this process has asked. [`Side::Second`]: it listens.
            side: Side,
            /// For a channel between two network namespaces: this process's address and the other
            /// one's. Such a channel lasts until [`Reply::Ended`], connections may use it as far as
            /// [`Reply::PortAllowed`] says, and the answer to its request follows
            /// ([`Reply::ChannelKnown`]).
            ends: Option<[[u8; 16]; 2]>,
        },
        /// The two processes have a channel already, and neither has said that it has ended.
        24 => ChannelKnown {
            /// The tag of the request.
            tag: u64,
            /// The broker's name for the channel.
            name: u64,
            /// Until when connections may be opened by it; nanoseconds of the monotonic clock. 0:
            /// always, within a network namespace.
            until: u64,
        },
        /// Connections to a port may be opened by a channel from another network namespace: the
        /// network has just brought one there.
        28 => PortAllowed {
            /// The broker's name for the channel.
            name: u64,
            /// The port at which this process listens.
            port: u16,
            /// Until when; nanoseconds of the monotonic clock.
            until: u64,
        },
        /// The network has brought a connection of this process to an address of another network
        /// namespace. A request for a channel to it may succeed now.
        29 => RemoteSeen {
            /// The address; IPv4 in its IPv6-mapped form.
            address: [u8; 16],
            /// The port of the listener there.
            port: u16,
        },
        /// No channel leads there. The listener is not registered, is the process itself, does not
        /// read its messages, or there are too many channels. TCP may still lead there.
        25 => NoChannel {
            /// The tag of the request.
            tag: u64,
            /// The kernel would connect the client to a socket that no other process has
            /// registered.
            is_heard: bool,
            /// A gateway may carry the client after one connection by TCP. The client should ask
            /// again then, and the answer may take a moment.
            is_coming: bool,
        },
        /// A gateway is finding out whether it can carry the client. The answer may come within
        /// moments; the client need not wait for it.
        34 => AskingGateway {
            /// The tag of the request.
            tag: u64,
        },
        /// Connections to these addresses are to be light, where that is possible.
        27 => Range(range: Range),
        /// Asks a gateway to carry a client to another host. The client has connected there by TCP.
        32 => GatewayWanted(wanted: Wanted),
        /// Answers [`Request::BecomeGateway`]. The gateway's other connections to the broker prove
        /// by this token that they are its own.
        33 => GatewayToken {
            /// A secret between the broker and the gateway.
            token: u64,
        },
    }
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

/// A side of a link or channel: which of the memory's words and rings are a process's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Side {
    /// Side 0 of the memory.
    First = 0,
    /// Side 1 of the memory.
    Second = 1,
}

impl Side {
    /// Its number: 0 or 1.
    #[must_use]
    pub const fn number(self) -> usize {
        self as usize
    }

    /// The other one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
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

numbers!(Failure { NotThere, NotBrought });
numbers!(Refusal { NotConnected, Elsewhere, NotProven, TooMany, Bound, NotOne });
numbers!(Side { First, Second });
numbers!(Reach { Within, Across });
fields!(Wanted { client, at, names });
on_sockets!(Request, Reply);

impl Field for Range {
    fn put(&self, to: &mut Writer<'_>) {
        let (address, bits, ports) = self.parts();
        address.put(to);
        bits.put(to);
        [*ports.start(), *ports.end()].put(to);
    }

    fn take(from: &mut Reader<'_>) -> Option<Self> {
        let (address, bits) = (Field::take(from)?, Field::take(from)?);
        let [first, last] = Field::take(from)?;
        Self::of(address, bits, first..=last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: u64 = 0x4f56_5307 << 32;
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
        use Refusal::{Bound, Elsewhere, NotConnected, NotOne, NotProven, TooMany};
        for why in [NotConnected, Elsewhere, NotProven, TooMany, Bound, NotOne] {
            let listens = Reply::Listening { tag: 3, why: Some(why) };
            for reply in [Reply::Refused { tag: 3, why }, listens] {
                assert_eq!(Reply::decode(&reply.encode()), Some(reply));
            }
        }
        let links = [Reach::Within, Reach::Across].map(|reach| Reply::Link {
            tag: 1,
            link: 2,
            side: Side::Second,
            reach,
        });
        for reply in links.into_iter().chain([
            Reply::Pending { tag: 4 },
            Reply::Ended { link: 5 },
            Reply::Ledger,
            Reply::Channel { tag: 6, name: u64::MAX, side: Side::Second, ends: None },
            Reply::Channel {
                tag: u64::MAX,
                name: 7,
                side: Side::First,
                ends: Some([ADDRESS, [7; 16]]),
            },
            Reply::Channel { tag: 6, name: 7, side: Side::Second, ends: Some([[0; 16]; 2]) },
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
        let message = |words: &[u64]| {
            let mut bytes = [0; BYTES];
            crate::message_codec::to_bytes(words, &mut bytes);
            bytes[..8].copy_from_slice(&(words[0] | VERSION).to_ne_bytes());
            bytes
        };
        assert_eq!(Reply::decode(&message(&[20, 1])), Some(Reply::Pending { tag: 1 }));
        for none in [
            &[18, 1, 2, 1, 2][..],
            &[20, 1, 1],
            &[18, 1, 2, 2, 0],
            &[18, 1, 2, 1 << 32, 0],
            &[23, 1, 2, 1, 2],
            &[23, 1, 2, 2, 0],
            &[23, 1, 2, 1, 0, 1],
            &[26, 1, 1, 99],
            &[27, 0, 0, 129, 0, 1],
            &[27, 0, 0, 8, 0, 1 << 16],
            &[27, 0, 1, 8, 0, 1],
            &[28, 1, 1 << 16],
            &[29, 0, 0, 1 << 16],
            &[20 | 8 << 32, 1],
        ] {
            assert_eq!(Reply::decode(&message(none)), None, "{none:?}");
        }
        for none in [&[7, 1, 2, 3, 1 << 16][..], &[2, 1, 2], &[2, 1, 1, 1], &[5, 1, 0, 0, 1]] {
            assert_eq!(Request::decode(&message(none)), None, "{none:?}");
        }
        assert_eq!(Request::decode(&[0; BYTES]), None);
        assert_eq!(Request::decode(&Request::ShowRanges.encode()[1..]), None);
    }

    /// Programs in other languages read and write this, too.
    #[test]
    fn an_address_is_sent_as_it_is() {
        let sent = Request::OpenChannel { tag: 1, address: ADDRESS, port: 0x1f90, from: [7; 16] };
        let sent = sent.encode();
        assert_eq!((&sent[16..32], &sent[40..56]), (&ADDRESS[..], &[7; 16][..]));
        assert_eq!(sent[..8], (7 | VERSION).to_ne_bytes());
        assert_eq!(sent[32..40], 0x1f90_u64.to_ne_bytes());
    }
}
