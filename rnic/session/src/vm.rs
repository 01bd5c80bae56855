//! Defines the messages about processes of a virtual machine (decision 0036).
//!
//! Two languages. At the machine's *door*, a socket of the daemon's, its porter asks for sessions:
//! messages as everywhere, of kinds that neither tenants nor operators have. On the *port* between
//! porter and agent, a stream of bytes, *frames* carry the messages of all sessions. Whoever is at
//! the other end of either is hostile.

use crate::VERSION;
use crate::body::Done;
use crate::codec::{DecodeError, Header, Message as Said};
use crate::limits::{GIDS_MAX, MESSAGE_BYTES_MAX};
use crate::message_macros::{bodies, messages};
use crate::pinned_pages::{PINS_MAX, RUNS_MAX, Run};
use omniverb_terms::Errno;
use std::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What the port is called in the guest: `/dev/virtio-ports/` and this.
pub const PORT_NAME: &str = "omniverb.control";

/// First bytes of a window's data part, by which a guest knows it.
pub const WINDOW_MAGIC: [u8; 8] = *b"OMNIVERB";

/// Bytes of a name, NUL-padded: with `vm-` before it a vNIC's name as a process is told it.
pub const NAME_BYTES: usize = 28;

/// What a machine is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MachineName([u8; NAME_BYTES]);

impl MachineName {
    /// A name of letters, digits, `-`, `_` and `.`, up to [`NAME_BYTES`] of them; not of dots only.
    #[must_use]
    pub fn new(text: &str) -> Option<MachineName> {
        let right = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let named = text.bytes().any(|byte| byte != b'.');
        let mut bytes = [0; NAME_BYTES];
        let room = bytes.get_mut(..text.len()).filter(|_| named && text.bytes().all(right))?;
        room.copy_from_slice(text.as_bytes());
        Some(MachineName(bytes))
    }

    /// The same, from a field that is padded with NULs.
    #[must_use]
    pub fn read(field: &[u8]) -> Option<MachineName> {
        let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
        let (name, padding) = field.split_at(end);
        let text = std::str::from_utf8(name).ok().filter(|_| padding.iter().all(|b| *b == 0))?;
        MachineName::new(text)
    }

    /// The name as text, without the padding.
    #[must_use]
    pub fn text(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
        std::str::from_utf8(&self.0[..end]).unwrap_or("")
    }

    /// The name as messages have it, padded with zeros.
    #[must_use]
    pub fn bytes(&self) -> [u8; NAME_BYTES] {
        self.0
    }
}

impl fmt::Display for MachineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The beginning of a window's data part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WindowHead {
    /// [`WINDOW_MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`], of whoever made it.
    pub version: u16,
    /// Not used: zeros.
    pub reserved: [u8; 2],
    /// The machine's name, NUL-padded.
    pub name: [u8; NAME_BYTES],
    /// Random: another window has another number.
    pub number: u64,
    /// Bytes of the data part.
    pub bytes: u64,
}

impl WindowHead {
    /// Bytes that it has in the window's first page.
    pub const BYTES: usize = size_of::<WindowHead>();

    /// What a window of this name and number, with a data part of so many bytes, begins with.
    #[must_use]
    pub fn new(name: MachineName, number: u64, bytes: u64) -> WindowHead {
        let (magic, reserved, name) = (WINDOW_MAGIC, [0; 2], name.bytes());
        WindowHead { magic, version: VERSION, reserved, name, number, bytes }
    }

    /// As it lies in the window.
    #[must_use]
    pub fn written(&self) -> [u8; WindowHead::BYTES] {
        zerocopy::transmute!(*self)
    }

    /// The same, whatever it is.
    #[must_use]
    pub fn of(bytes: &[u8; WindowHead::BYTES]) -> WindowHead {
        zerocopy::transmute!(*bytes)
    }

    /// What stands at the beginning of a window of this version; `None`: it is none.
    #[must_use]
    pub fn read(bytes: &[u8; WindowHead::BYTES]) -> Option<WindowHead> {
        let head = WindowHead::of(bytes);
        (head.magic == WINDOW_MAGIC && head.version == VERSION).then_some(head)
    }
}

bodies! {
    /// Porter: a process of the machine wants a device. Answered with `SessionOpened`; `ENOMEM` if
    /// there are too many.
    OpenSession {
        /// Its number and user, as the guest says: nobody believes them, nobody shows them yet.
        pid: u32,
        uid: u32,
    }
    /// Answer to `OpenSession`. Descriptor: the process's socket for calls.
    SessionOpened {
        /// What it is called at this door.
        session: u64,
    }
    /// Porter: the process of a session is gone, as the guest says, so that nobody uses what it was
    /// given. Without this word its memory is given to nobody else. Answered with `Done`.
    EndSession { session: u64 }
    /// The daemon's last word at a door if an operator has parted with the machine: nobody is to
    /// attach it again.
    Parted { reserved: u64 }
    /// Porter: the machine's agent has its UDP port 4791, and carries what comes by it. Answered
    /// with `PortOpened`.
    OpenPort { reserved: u64 }
    /// Answer to `OpenPort`. Descriptor: the daemon's end of that, a socket of messages as frames
    /// of the kinds `Packet` (its bytes) and `Word` (one byte, 1) have them.
    PortOpened { reserved: u64 }
    /// Porter: what addresses the machine has, as the guest says. Answered with `Done`.
    TellAddresses {
        /// Entries that there are; the others are all zeros.
        count: u32,
        reserved: u32,
        entries: [MachineAddress; GIDS_MAX],
    }
    /// Porter: which pair windows ([`crate::pair`]) the machine's agent has found; the others are
    /// given to nobody. Answered with `Done`.
    TellPairs {
        /// Bit `number - 1` of each.
        present: u64,
    }
    /// Porter: in which boot of its guest the machine is, as its agent says. If that is another one
    /// than before, nobody of before is there: their sessions are over, and what they had may be
    /// given to others. Answered with `Done`.
    Booted {
        /// Another one after each boot; zeros: not known.
        boot: [u8; 16],
    }
    /// Porter: a process of the machine has these pages pinned, as its agent says, and what it was
    /// asked for by `Pin` is there. Answered with `Done`.
    TellPinned {
        /// What its session is called at this door; of no meaning where the agent says it.
        session: u64,
        /// The number of the `Pin` that this answers.
        token: u64,
        /// None; or why the pages cannot be used.
        errno: Errno,
        /// As the process has said it.
        epoch: u32,
        /// Runs that there are; the others are all zeros.
        count: u32,
        reserved: u32,
        runs: [Run; RUNS_MAX],
    }
    /// Porter: which of these pins, by the numbers of their `Pin`, does nobody use any more, nor
    /// will? Answered with `PinsOver`.
    QueryPins {
        /// Pins that are named; the others are all zeros.
        count: u32,
        reserved: u32,
        tokens: [u64; PINS_MAX],
    }
    /// Answer to `QueryPins`: those. The agent need not keep their pages any more.
    PinsOver { count: u32, reserved: u32, tokens: [u64; PINS_MAX] }
    /// An address of one of the machine's interfaces.
    MachineAddress {
        /// IPv6, or IPv4 as IPv6 has it.
        ip: [u8; 16],
        /// The interface's number in the guest.
        interface: u32,
        mtu: u32,
        /// `REACH_*`.
        reach: u32,
        /// Non-zero: of the loopback interface.
        loopback: u32,
    }
}

/// `MachineAddress::reach`: anywhere.
pub const REACH_GLOBAL: u32 = 0;
/// `MachineAddress::reach`: on the interface's link only.
pub const REACH_LINK: u32 = 1;
/// `MachineAddress::reach`: within the machine only.
pub const REACH_HOST: u32 = 2;

messages! {
    0x5001 OpenSession, 0x5002 SessionOpened, 0x5003 TellAddresses, 0x5004 Done,
    0x5005 EndSession, 0x5006 OpenPort, 0x5007 PortOpened, 0x5008 Parted, 0x5009 TellPairs,
    0x500a Booted, 0x500b TellPinned, 0x500c QueryPins, 0x500d PinsOver,
}

/// What comes before the bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FrameHead {
    /// The version of the agent's protocol, [`VERSION`].
    pub version: u16,
    /// A [`FrameKind`].
    pub kind: u16,
    /// Bytes behind this.
    pub length: u32,
    /// The session, by the agent's number.
    pub session: u32,
    /// Not used: zero.
    pub reserved: u32,
}

/// Bytes of the longest datagram, with what is said of where it comes from and goes to: of RoCE v2,
/// 4096 bytes and all headers that there are.
pub const PACKET_BYTES_MAX: usize = 4096 + 296;

/// Bytes of the longest frame.
pub const FRAME_BYTES_MAX: usize = size_of::<FrameHead>() + PACKET_BYTES_MAX;

/// What a bell of a pair window is called between porter and agent: the number of its window, and
/// how many are before it there.
pub type BellName = [u8; 2];
/// Bells that are named at a time; who has more to name names none.
pub const BELL_NAMES_MAX: usize = 64;

/// What a frame is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum FrameKind {
    /// The agent is there, and knows no session: a [`crate::agent_first_messages::AgentBegin`]. The
    /// proxy says the same; what it said before belongs to no session.
    Begin = 1,
    /// A process has come: its number and user, four bytes each.
    Open = 2,
    /// A message of its socket for calls, either way.
    Call = 3,
    /// A message of its events socket, either way.
    Event = 4,
    /// It is gone, and uses nothing any more; or: the session is over.
    Close = 5,
    /// The guest's addresses: a message [`TellAddresses`].
    Addresses = 6,
    /// The agent has parted with a process, which may go on using what it was given.
    Lost = 7,
    /// Agent: it has the machine's UDP port 4791 and carries what comes by it.
    Port = 8,
    /// A datagram that came by this port, or is to leave by it: where it comes from and goes to
    /// (`omniverb_sys::proxied_udp`), and its payload.
    Packet = 9,
    /// Something was rung on the side that says so: who sleeps on the other side is to be woken.
    Word = 10,
    /// The pair windows ([`crate::pair`]) that the agent has found: bit `number - 1` of eight
    /// bytes. Said by one that has found some. Porter: those that there are; the agent looks
    /// again, lets go of those that are not among them, and says what it has.
    Pairs = 11,
    /// The same as `Word`, in a pair window: who sleeps on one of its bells is to be woken. Which
    /// bells these are: [`BellName`]s; none: any may be.
    Rung = 12,
    /// Agent: pages of a process are pinned: a message [`TellPinned`].
    Pinned = 13,
    /// Agent: these it keeps: a message [`QueryPins`]. The answer is one of the kind `PinsOver`.
    Pins = 14,
    /// Those that it need not keep any more: a message [`PinsOver`].
    PinsOver = 15,
}

impl TellPinned {
    /// What an agent says of a `Pin` that it has looked at: these pages, or why not.
    #[must_use]
    pub fn new(token: u64, epoch: u32, found: Result<&[Run], Errno>) -> TellPinned {
        let (errno, found) = (found.err().unwrap_or(Errno::NONE), found.unwrap_or(&[]));
        let mut runs = [Run { word: 0 }; RUNS_MAX];
        runs.iter_mut().zip(found).for_each(|(to, from)| *to = *from);
        let count = u32::try_from(found.len()).unwrap_or(u32::MAX);
        TellPinned { session: 0, token, errno, epoch, count, reserved: 0, runs }
    }

    /// The runs that there are; `None`: more than there can be.
    #[must_use]
    pub fn runs(&self) -> Option<&[Run]> {
        self.runs.get(..usize::try_from(self.count).ok()?)
    }
}

/// As many numbers as a message has room for, and how many.
fn tokens(all: &[u64]) -> (u32, [u64; PINS_MAX]) {
    let mut tokens = [0; PINS_MAX];
    tokens.iter_mut().zip(all).for_each(|(to, from)| *to = *from);
    (u32::try_from(all.len().min(PINS_MAX)).unwrap_or(0), tokens)
}

impl QueryPins {
    /// Asks about these, as far as there is room.
    #[must_use]
    pub fn new(all: &[u64]) -> QueryPins {
        let (count, tokens) = tokens(all);
        QueryPins { count, reserved: 0, tokens }
    }

    /// Those that it is about.
    #[must_use]
    pub fn named(&self) -> &[u64] {
        self.tokens.get(..usize::try_from(self.count).unwrap_or(usize::MAX)).unwrap_or(&[])
    }
}

impl PinsOver {
    /// These are over.
    #[must_use]
    pub fn new(all: &[u64]) -> PinsOver {
        let (count, tokens) = tokens(all);
        PinsOver { count, reserved: 0, tokens }
    }

    /// Those that it is about.
    #[must_use]
    pub fn named(&self) -> &[u64] {
        self.tokens.get(..usize::try_from(self.count).unwrap_or(usize::MAX)).unwrap_or(&[])
    }
}

impl FrameKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [FrameKind; 15] = {
        use FrameKind::{Addresses, Begin, Call, Close, Event, Lost, Open, Packet, Pairs, Port};
        use FrameKind::{Pinned, Pins, PinsOver, Rung, Word};
        [
            Begin, Open, Call, Event, Close, Addresses, Lost, Port, Packet, Word, Pairs, Rung,
            Pinned, Pins, PinsOver,
        ]
    };

    fn of(number: u16) -> Option<FrameKind> {
        FrameKind::ALL.into_iter().find(|kind| *kind as u16 == number)
    }

    /// Bytes that such a frame may have.
    #[must_use]
    pub fn bytes_max(self) -> usize {
        match self {
            FrameKind::Packet => PACKET_BYTES_MAX,
            FrameKind::Port | FrameKind::Word => 0,
            FrameKind::Rung => BELL_NAMES_MAX * size_of::<BellName>(),
            _ => MESSAGE_BYTES_MAX,
        }
    }
}

/// A frame of the stream between agent and porter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is about.
    pub kind: FrameKind,
    /// Which session, by the agent's number; zero where it is about none.
    pub session: u32,
    /// What it says.
    pub bytes: Vec<u8>,
}

impl Frame {
    /// As it travels. What is longer than such a frame may be is cut off, and makes no sense any
    /// more.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let bytes = self.bytes.get(..self.kind.bytes_max()).unwrap_or(&self.bytes);
        let head = FrameHead {
            version: VERSION,
            kind: self.kind as u16,
            length: u32::try_from(bytes.len()).unwrap_or(0),
            session: self.session,
            reserved: 0,
        };
        [head.as_bytes(), bytes].concat()
    }
}

/// Why a stream makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// The other side speaks another version.
    Version,
    /// No such kind, or longer than any.
    Malformed,
}

/// Frames out of a stream of bytes. Holds less than one frame and what was fed last.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    taken: usize,
}

impl Frames {
    /// More has come.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame.
    ///
    /// # Errors
    /// [`StreamError`]; nothing that comes later makes sense, either.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, StreamError> {
        let rest = self.bytes.get(self.taken..).unwrap_or(&[]);
        let Ok((head, rest)) = FrameHead::read_from_prefix(rest) else { return Ok(None) };
        if head.version != VERSION {
            return Err(StreamError::Version);
        }
        let length = usize::try_from(head.length).map_err(|_| StreamError::Malformed)?;
        let kind = FrameKind::of(head.kind).filter(|kind| length <= kind.bytes_max());
        let kind = kind.ok_or(StreamError::Malformed)?;
        let Some(bytes) = rest.get(..length) else { return Ok(None) };
        let frame = Frame { kind, session: head.session, bytes: bytes.to_vec() };
        self.taken += size_of::<FrameHead>() + length;
        Ok(Some(frame))
    }
}

/// A descriptor that belongs beside a message, and does not travel to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnclosedDescriptor {
    /// The process's end of its events socket.
    Events,
    /// The memory that the message describes: the window.
    Memory,
}

/// What the library gets beside a message of the daemon's, in this order.
#[must_use]
pub fn enclosed(message: &Said) -> &'static [EnclosedDescriptor] {
    use EnclosedDescriptor::{Events, Memory};
    match message {
        Said::Welcome(_) => &[Events, Memory],
        Said::LinkReady(ready) if ready.bell_new != 0 => &[Memory, Memory],
        Said::LinkReady(_) | Said::Granted(_) | Said::TraceBegin(_) => &[Memory],
        Said::Adopt(adopt) if adopt.fresh != 0 => &[Memory],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_words() {
        for right in ["a", "web-1", "instance_00.x", &"x".repeat(NAME_BYTES)] {
            let name = MachineName::new(right).unwrap();
            assert_eq!((name.text(), MachineName::read(&name.bytes())), (right, Some(name)));
        }
        for wrong in ["", ".", "..", "a b", "a/b", "\u{e9}", "a\n", &"x".repeat(NAME_BYTES + 1)] {
            assert_eq!(MachineName::new(wrong), None, "{wrong:?}");
        }
        assert_eq!(MachineName::read(b"a\0b\0"), None);
    }

    fn frame(kind: FrameKind, length: usize) -> Frame {
        Frame { kind, session: 7, bytes: (0..length).map(|at| at as u8).collect() }
    }

    #[test]
    fn frames_come_out_of_a_stream_however_it_is_cut() {
        let all = [
            frame(FrameKind::Open, 8),
            frame(FrameKind::Close, 0),
            frame(FrameKind::Call, 4096),
            frame(FrameKind::Port, 0),
            frame(FrameKind::Packet, PACKET_BYTES_MAX),
            frame(FrameKind::Word, 0),
            frame(FrameKind::Pairs, 8),
            frame(FrameKind::Rung, 0),
            frame(FrameKind::Rung, 128),
            frame(FrameKind::Pinned, 4096),
            frame(FrameKind::Pins, 4096),
            frame(FrameKind::PinsOver, 4096),
        ];
        let stream: Vec<u8> = all.iter().flat_map(Frame::encode).collect();
        for step in [1, 3, 17, 4096, stream.len()] {
            let (mut frames, mut found) = (Frames::default(), Vec::new());
            for piece in stream.chunks(step) {
                frames.feed(piece);
                while let Some(frame) = frames.next_frame().unwrap() {
                    found.push(frame);
                }
            }
            assert_eq!(found, all);
        }
    }

    #[test]
    fn what_is_no_frame_ends_the_stream() {
        let right = frame(FrameKind::Call, 8).encode();
        let with = |at: usize, byte: u8| {
            let mut bytes = right.clone();
            bytes[at] = byte;
            let mut frames = Frames::default();
            frames.feed(&bytes);
            frames.next_frame()
        };
        assert_eq!(with(0, 99), Err(StreamError::Version));
        assert_eq!(with(2, 0), Err(StreamError::Malformed));
        assert_eq!(with(2, 99), Err(StreamError::Malformed));
        assert_eq!(with(5, 0x11), Err(StreamError::Malformed), "too long");
        assert_eq!(with(7, 0xff), Err(StreamError::Malformed), "far too long");
        let most = [(FrameKind::Packet, PACKET_BYTES_MAX), (FrameKind::Word, 0)];
        for (kind, most) in most.into_iter().chain([(FrameKind::Rung, 128)]) {
            let mut bytes = frame(kind, most).encode();
            bytes[4..8].copy_from_slice(&(most as u32 + 1).to_le_bytes());
            let mut frames = Frames::default();
            frames.feed(&bytes);
            assert_eq!(frames.next_frame(), Err(StreamError::Malformed), "{kind:?}");
        }
    }

    #[test]
    fn the_door_has_kinds_of_its_own() {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let open = OpenSession { pid: 1, uid: 2 };
        let length = encode(3, &open.into(), &mut bytes);
        assert_eq!(decode(&bytes[..length]), Ok((3, open.into())));
        assert_eq!(crate::decode(&bytes[..length]), Err(DecodeError::Kind));
        assert_eq!(crate::operator::decode(&bytes[..length]), Err(DecodeError::Kind));
    }
}
