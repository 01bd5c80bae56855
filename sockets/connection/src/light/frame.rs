//! Encodes frames, which are what goes through a channel.
//!
//! A frame is a word, and behind it the bytes of the frame, up to a multiple of eight.

/// Bytes of the word that comes first.
pub const HEADER: usize = 8;
/// The most bytes of a connection in one frame.
pub const DATA_MAX: usize = 16 << 10;
/// Bytes of [`Endpoints`].
pub const NAMES: usize = 40;
/// Lanes of a side of a channel.
pub const LANES: u32 = 16;
/// Bytes that are in a lane at most.
pub const LANE_MAX: u32 = 64 << 10;

const OPEN: u64 = 1;
const DATA: u64 = 2;
const CREDIT: u64 = 3;
const END: u64 = 4;
const CLOSE: u64 = 5;
const ACCEPTED: u64 = 6;
const ASSIGN_LANE: u64 = 7;
const RELEASE_LANE: u64 = 8;

/// A frame, of the connection that both ends call `id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Opens a connection. [`NAMES`] bytes follow: the addresses of client and server.
    Open,
    /// So many bytes follow, 1 to [`DATA_MAX`].
    Data(u32),
    /// So many bytes more may be sent the other way.
    Credit(u32),
    /// No more bytes come (`SHUT_WR`).
    End,
    /// The socket is closed: nothing more comes, and nothing is received. The last frame of a
    /// connection from this end. True: it had not received all, or wants no more, as a reset says.
    Close(bool),
    /// A program has accepted it. A connection that gets `Close` without this was not accepted.
    Accepted,
    /// Its bytes go by this lane of the sender's from now on.
    AssignLane(u32),
    /// It comes by the channel again. So many bytes, or fewer, are in its lane: they come before,
    /// and count as if they had come by the channel.
    ReleaseLane(u32),
}

impl Frame {
    /// The word that comes first.
    #[must_use]
    pub fn encode(self, id: u32) -> u64 {
        let (kind, count) = match self {
            Self::Open => (OPEN, NAMES as u32),
            Self::Data(bytes) => (DATA, bytes),
            Self::Credit(bytes) => (CREDIT, bytes),
            Self::End => (END, 0),
            Self::Close(reset) => (CLOSE, u32::from(reset)),
            Self::Accepted => (ACCEPTED, 0),
            Self::AssignLane(lane) => (ASSIGN_LANE, lane),
            Self::ReleaseLane(bytes) => (RELEASE_LANE, bytes),
        };
        kind | u64::from(count & 0xff_ffff) << 8 | u64::from(id) << 32
    }

    /// What a word says; `None`: nothing that there is.
    #[must_use]
    pub fn decode(word: u64) -> Option<(Self, u32)> {
        let count = (word >> 8) as u32 & 0xff_ffff;
        let frame = match (word & 0xff, count) {
            (OPEN, 40) => Self::Open,
            (DATA, 1..=0x4000) => Self::Data(count),
            (CREDIT, 1..) => Self::Credit(count),
            (END, 0) => Self::End,
            (CLOSE, 0 | 1) => Self::Close(count == 1),
            (ACCEPTED, 0) => Self::Accepted,
            (ASSIGN_LANE, ..LANES) => Self::AssignLane(count),
            (RELEASE_LANE, ..=LANE_MAX) => Self::ReleaseLane(count),
            _ => return None,
        };
        Some((frame, (word >> 32) as u32))
    }

    /// Bytes behind its word.
    #[must_use]
    pub fn follow(self) -> usize {
        match self {
            Self::Open => NAMES,
            Self::Data(bytes) => bytes as usize,
            _ => 0,
        }
    }

    /// Bytes of a channel that it takes.
    #[must_use]
    pub fn takes(self) -> usize {
        HEADER + self.follow().next_multiple_of(HEADER)
    }
}

/// An end of a connection: an IPv6 address, or a mapped one of IPv4, and a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Endpoint {
    /// In the order of the network.
    pub address: [u8; 16],
    /// In the order of the machine.
    pub port: u16,
}

impl Endpoint {
    /// It is one of IPv4.
    #[must_use]
    pub fn is_v4(&self) -> bool {
        self.address[..10] == [0; 10] && self.address[10..12] == [0xff; 2]
    }

    /// One of IPv4.
    #[must_use]
    pub fn v4(address: [u8; 4], port: u16) -> Self {
        let mut mapped = [0; 16];
        mapped[10..12].fill(0xff);
        mapped[12..].copy_from_slice(&address);
        Self { address: mapped, port }
    }

    /// It stands for all addresses.
    #[must_use]
    pub fn is_any(&self) -> bool {
        let zeros = if self.is_v4() { &self.address[12..] } else { &self.address[..] };
        zeros.iter().all(|byte| *byte == 0)
    }

    /// It is an address of the loopback.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let six = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        self.address == six || self.is_v4() && self.address[12] == 127
    }

    /// What is sent to that one, of the same host, may be sent from this one's address: it is the
    /// same, or both are in the loopback's network of IPv4 (RFC 1122, 3.2.1.3).
    #[must_use]
    pub fn leads_to(&self, to: &Self) -> bool {
        let are_loopback = self.is_loopback() && to.is_loopback() && self.is_v4() == to.is_v4();
        self.address == to.address || are_loopback
    }

    /// Whether a listener at this name serves a client that connects to that one.
    #[must_use]
    pub fn hears(&self, to: &Self) -> bool {
        let is_six_for_all = !self.is_v4() && self.is_any();
        let is_same = self.address == to.address || is_six_for_all;
        self.port == to.port && (is_same || self.is_any() && self.is_v4() == to.is_v4())
    }
}

/// The addresses of client and server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// The end that connects.
    pub from: Endpoint,
    /// The end that listens.
    pub to: Endpoint,
}

impl Endpoints {
    /// As they follow [`Frame::Open`].
    #[must_use]
    pub fn encode(&self) -> [u8; NAMES] {
        let mut bytes = [0; NAMES];
        bytes[..16].copy_from_slice(&self.from.address);
        bytes[16..32].copy_from_slice(&self.to.address);
        bytes[32..34].copy_from_slice(&self.from.port.to_ne_bytes());
        bytes[34..36].copy_from_slice(&self.to.port.to_ne_bytes());
        bytes
    }

    /// From such bytes, whatever they are.
    #[must_use]
    pub fn decode(bytes: &[u8; NAMES]) -> Self {
        let mut names = Self::default();
        names.from.address.copy_from_slice(&bytes[..16]);
        names.to.address.copy_from_slice(&bytes[16..32]);
        names.from.port = u16::from_ne_bytes([bytes[32], bytes[33]]);
        names.to.port = u16::from_ne_bytes([bytes[34], bytes[35]]);
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_what_they_were() {
        let all = [
            Frame::Open,
            Frame::Data(1),
            Frame::Data(DATA_MAX as u32),
            Frame::Credit(0xff_ffff),
            Frame::End,
            Frame::Close(false),
            Frame::Close(true),
            Frame::Accepted,
            Frame::AssignLane(0),
            Frame::AssignLane(LANES - 1),
            Frame::ReleaseLane(0),
            Frame::ReleaseLane(LANE_MAX),
        ];
        for frame in all {
            assert_eq!(Frame::decode(frame.encode(7)), Some((frame, 7)));
        }
        let none = [0, 2, 2 | 0x4001 << 8, 3, 4 | 1 << 8, 5 | 2 << 8, 6 | 1 << 8, 9, 1];
        for word in none.into_iter().chain([7 | 16 << 8, 8 | 0x1_0001 << 8]) {
            assert_eq!(Frame::decode(word), None, "{word:#x}");
        }
        assert_eq!(Frame::Data(9).takes(), 24);
    }

    #[test]
    fn a_wildcard_listener_serves_its_whole_family() {
        let (one, other) = (Endpoint::v4([127, 0, 0, 1], 80), Endpoint::v4([10, 0, 0, 1], 80));
        assert!(one.hears(&one) && !one.hears(&other));
        assert!(Endpoint::v4([0; 4], 80).hears(&other) && !Endpoint::v4([0; 4], 81).hears(&other));
        let six = Endpoint { address: [9; 16], port: 80 };
        assert!(!Endpoint::v4([0; 4], 80).hears(&six));
        let any = Endpoint { address: [0; 16], port: 80 };
        assert!(any.hears(&six) && any.hears(&one));
        let names = Endpoints { from: six, to: one };
        assert_eq!(Endpoints::decode(&names.encode()), names);
    }

    #[test]
    fn only_loopback_addresses_of_one_family_lead_to_each_other() {
        let v4 = |last| Endpoint::v4([127, 0, 0, last], 1);
        let mut six = Endpoint { address: [0; 16], port: 1 };
        assert!(six.is_any() && !six.is_loopback() && Endpoint::v4([0; 4], 1).is_any());
        six.address[15] = 1;
        assert!(six.is_loopback() && !six.is_any() && v4(9).is_loopback());
        assert!(v4(1).leads_to(&v4(2)) && !v4(1).leads_to(&six) && !six.leads_to(&v4(1)));
        let (host, other) = (Endpoint::v4([10, 0, 0, 1], 1), Endpoint::v4([10, 0, 0, 2], 1));
        assert!(host.leads_to(&Endpoint { port: 2, ..host }));
        assert!(!host.leads_to(&other) && !host.leads_to(&v4(1)) && !v4(1).leads_to(&host));
    }
}
