//! Encodes what the broker shows of sockets: a message for each row.
//!
//! A user is shown the sockets of its network namespace; an operator all. What processes have
//! written of themselves (names, counts, reasons) is shown as they have written it.

use core::net::SocketAddr;

pub use crate::message_codec::BYTES;
use crate::message_codec::{Field, Reader, Writer, fields, messages, numbers, on_sockets};

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

impl Field for Reason {
    fn put(&self, to: &mut Writer<'_>) {
        to.put(*self as u64);
    }

    fn take(from: &mut Reader<'_>) -> Option<Self> {
        let number = from.take()?;
        Self::ALL.iter().copied().find(|one| *one as u64 == number)
    }
}

numbers!(State { Shadow, Carried, Left, Light });
fields!(Process { number, pid, uid, namespace, name });
fields!(Socket { process, local, remote, state, reason, is_across, link, sent, received, unread });
fields!(Listener { process, local });
fields!(Channel { process, name, peer, has_asked, is_across });
on_sockets!(Row);

impl State {
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

messages! {
    /// What the broker says, one after the other.
    Row, version 0 {
        /// A process; its sockets follow.
        1 => Process(process: Process),
        /// A socket of the last process.
        2 => Socket(socket: Socket),
        /// A listening socket of the last process.
        4 => Listener(listener: Listener),
        /// A channel of the last process.
        5 => Channel(channel: Channel),
        /// That was all.
        3 => End,
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
            let row = Row::Socket(Socket { reason: *reason, ..socket });
            assert_eq!(Row::decode(&row.encode()), Some(row));
        }
        assert_eq!(Row::decode(&[9; BYTES]), None);
    }
}
