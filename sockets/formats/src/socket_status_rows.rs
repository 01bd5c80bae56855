//! Encodes what the broker shows of sockets: a message of twenty-four words for each row.
//!
//! A user is shown the sockets of its network namespace; an operator all. What processes have
//! written of themselves (names, counts, reasons) is shown as they have written it.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Bytes of every message.
pub const BYTES: usize = 192;
/// Bytes of a program's name.
pub const NAME: usize = 16;

/// A process that has talked with the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// As long as it is connected no other one has it.
    pub number: u64,
    /// As the broker sees it, which is as the daemon does.
    pub pid: i32,
    /// Its user, likewise.
    pub uid: u32,
    /// The cookie of its network namespace.
    pub namespace: u64,
    /// What it calls itself.
    pub name: [u8; NAME],
}

/// A socket of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// The process that has it.
    pub process: u64,
    /// The address of this end.
    pub local: SocketAddr,
    /// The address of the other one.
    pub remote: SocketAddr,
    /// Where its bytes go.
    pub state: State,
    /// Why not through memory.
    pub reason: Reason,
    /// The other end is in another network namespace.
    pub is_across: bool,
    /// As the link, or the channel, is called; 0: it has none.
    pub link: u64,
    /// Bytes that this end has ever put into the ring, and those that the other one has.
    pub sent: u64,
    /// The other way.
    pub received: u64,
    /// Of these, bytes that are not read yet; of a channel those of all its connections.
    pub unread: [u32; 2],
}

/// A listening socket of a process, to which others are brought by channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The process that has it.
    pub process: u64,
    /// Where it listens.
    pub local: SocketAddr,
}

/// A channel of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// The process that has it.
    pub process: u64,
    /// As it is called.
    pub name: u64,
    /// The process at its other end.
    pub peer: u64,
    /// This process has asked for it.
    pub has_asked: bool,
    /// The other process is in another network namespace.
    pub is_across: bool,
}

/// Where the bytes of a socket go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// By the kernel: it has no link.
    Shadow = 0,
    /// Through memory, as soon as both ends are awake.
    Carried = 1,
    /// By the kernel again, for good.
    Left = 2,
    /// Through memory, without a socket of the kernel's.
    Light = 3,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $number:literal $phrase:literal,)*) => {
        /// Why a socket's bytes do not go through memory.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Reason {
            $(#[doc = concat!("Shown as: ", $phrase)] $name = $number,)*
        }

        impl Reason {
            /// All of them, by their numbers.
            pub const ALL: &[Reason] = &[$(Reason::$name,)*];

            /// What `omniverb status` says.
            #[must_use]
            pub fn phrase(self) -> &'static str {
                match self {
                    $(Reason::$name => $phrase,)*
                }
            }
        }
    };
}

reasons! {
    None = 0 "",
    Stdio = 1 "a stream of the C library has it",
    Asynchronous = 2 "aio has it",
    Spliced = 3 "splice, or the like, moves its bytes",
    Signals = 4 "a signal tells of it",
    Option = 5 "an option is set that is not known to be harmless, or its send buffer is small",
    Flag = 6 "a message had a flag that only the kernel can honour",
    Passed = 7 "it was passed to another process",
    Shared = 8 "other processes have it, too",
    Member = 9 "it is in an epoll set where it cannot be carried",
    Ended = 10 "one of its ends had ended before",
    Unknown = 11 "another reason of the library's",
    Rests = 12 "its link has ended, carrying little or by a fork, and may come again",
    Instructions = 13
        "the program makes system calls by its own instructions, which no library sees",
    Alone = 20
        "no process offers the other end: no library there, another host, or translated addresses",
    Asking = 21 "the daemon is being asked",
    NotServed = 22 "a network namespace has no vNIC: the daemon cannot enter it, or has no room",
    NotItsAddress = 23 "an address is not one of its vNIC's",
    NotThere = 24 "the network brings what is sent to an address elsewhere, or nowhere",
    Busy = 25 "the daemon was asked too much",
    Policy = 26 "not allowed: a vNIC is forwarded, limited or has faults",
    Over = 27 "the daemon has ended it",
    NotConnected = 31 "it is no connected socket of TCP",
    Elsewhere = 32 "it is of another network namespace than its process",
    NotProven = 33 "the kernel has not confirmed it",
    TooMany = 34 "too many are carried",
    Bound = 35 "it is bound to an interface",
    NotOne = 36 "what the kernel has counted at its ends does not fit: addresses are translated",
}

impl Reason {
    /// From its number.
    #[must_use]
    pub fn of(number: u8) -> Option<Reason> {
        Self::ALL.iter().copied().find(|one| *one as u8 == number)
    }
}

impl State {
    fn of(number: u8) -> Option<State> {
        let all = [Self::Shadow, Self::Carried, Self::Left, Self::Light];
        all.into_iter().find(|one| *one as u8 == number)
    }

    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Shadow => "shadow",
            Self::Carried => "carried",
            Self::Left => "left",
            Self::Light => "light",
        }
    }
}

/// What the broker says, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// A process; its sockets follow.
    Process(Process),
    /// A socket of the last process.
    Socket(Socket),
    /// A listening socket of the last process.
    Listener(Listener),
    /// A channel of the last process.
    Channel(Channel),
    /// That was all.
    End,
}

/// An address as two words.
#[must_use]
pub fn halves(address: IpAddr) -> [u64; 2] {
    let bits = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

/// The same back.
#[must_use]
pub fn whole([high, low]: [u64; 2]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low))).to_canonical()
}

impl Row {
    /// How it is sent.
    #[must_use]
    pub fn encode(&self) -> [u8; BYTES] {
        let mut words = [0; BYTES / 8];
        match self {
            Row::Process(process) => {
                let (first, last) = process.name.split_at(8);
                let long = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap_or([0; 8]));
                words[..6].copy_from_slice(&[
                    1,
                    process.number,
                    u64::from(process.pid as u32) | u64::from(process.uid) << 32,
                    process.namespace,
                    long(first),
                    long(last),
                ]);
            }
            Row::Socket(socket) => {
                let [[a, b], [c, d]] = [socket.local.ip(), socket.remote.ip()].map(halves);
                let ports = [socket.local.port(), socket.remote.port()].map(u64::from);
                let said = [socket.state as u8, socket.reason as u8, socket.is_across.into()];
                let [state, reason, across] = said.map(u64::from);
                let [out, come] = socket.unread.map(u64::from);
                words[..12].copy_from_slice(&[
                    2,
                    socket.process,
                    a,
                    b,
                    c,
                    d,
                    ports[0] | ports[1] << 16,
                    state | reason << 8 | across << 16,
                    socket.link,
                    socket.sent,
                    socket.received,
                    out | come << 32,
                ]);
            }
            Row::End => words[0] = 3,
            Row::Listener(listener) => {
                let [a, b] = halves(listener.local.ip());
                let port = u64::from(listener.local.port());
                words[..5].copy_from_slice(&[4, listener.process, a, b, port]);
            }
            Row::Channel(channel) => {
                let Channel { process, name, peer, has_asked, is_across } = *channel;
                let how = u64::from(has_asked) | u64::from(is_across) << 1;
                words[..5].copy_from_slice(&[5, process, name, peer, how]);
            }
        }
        let mut bytes = [0; BYTES];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(to, word)| {
            to.copy_from_slice(&word.to_ne_bytes());
        });
        bytes
    }

    /// From bytes, if they are one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Row> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let mut words = [0; BYTES / 8];
        for (word, from) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(from.try_into().ok()?);
        }
        let [kind, number, rest @ ..] = words;
        match kind {
            1 => {
                let mut name = [0; NAME];
                name[..8].copy_from_slice(&rest[2].to_ne_bytes());
                name[8..].copy_from_slice(&rest[3].to_ne_bytes());
                let (pid, uid) = (rest[0] as u32 as i32, (rest[0] >> 32) as u32);
                Some(Row::Process(Process { number, pid, uid, namespace: rest[1], name }))
            }
            2 => {
                let address = |at: usize, port: u64| {
                    SocketAddr::new(whole([rest[at], rest[at + 1]]), port as u16)
                };
                Some(Row::Socket(Socket {
                    process: number,
                    local: address(0, rest[4]),
                    remote: address(2, rest[4] >> 16),
                    state: State::of(rest[5] as u8)?,
                    reason: Reason::of((rest[5] >> 8) as u8)?,
                    is_across: rest[5] >> 16 & 1 != 0,
                    link: rest[6],
                    sent: rest[7],
                    received: rest[8],
                    unread: [rest[9] as u32, (rest[9] >> 32) as u32],
                }))
            }
            3 => Some(Row::End),
            4 => {
                let local = SocketAddr::new(whole([rest[0], rest[1]]), rest[2] as u16);
                Some(Row::Listener(Listener { process: number, local }))
            }
            5 => {
                let [name, peer, how] = [rest[0], rest[1], rest[2]];
                let (has_asked, is_across) = (how & 1 != 0, how & 2 != 0);
                Some(Row::Channel(Channel { process: number, name, peer, has_asked, is_across }))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_what_they_were() {
        let process =
            Process { number: 3, pid: 77, uid: u32::MAX, namespace: 1 << 40, name: [b'x'; NAME] };
        let socket = Socket {
            process: 3,
            local: ([10, 0, 0, 1], 65535).into(),
            remote: "[2001:db8::1]:80".parse().unwrap(),
            state: State::Left,
            reason: Reason::Policy,
            is_across: true,
            link: 9,
            sent: u64::MAX,
            received: 5,
            unread: [1, 65536],
        };
        let listener = Listener { process: 3, local: "[::1]:65535".parse().unwrap() };
        let channel = |has_asked, is_across| {
            Row::Channel(Channel { process: 3, name: u64::MAX, peer: 4, has_asked, is_across })
        };
        for row in [
            Row::Process(process),
            Row::Socket(socket),
            Row::Listener(listener),
            channel(true, false),
            channel(false, true),
            Row::End,
        ] {
            assert_eq!(Row::decode(&row.encode()), Some(row));
            assert_eq!(Row::decode(&row.encode()[1..]), None);
        }
        for reason in Reason::ALL {
            assert_eq!(Reason::of(*reason as u8), Some(*reason));
        }
        assert_eq!(Row::decode(&[9; BYTES]), None);
    }
}
