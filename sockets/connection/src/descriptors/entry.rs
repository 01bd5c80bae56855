//! Packs what is known of one descriptor into a word that is read and written at once.
//!
//! ```text
//! generation:8 | why:8 | flags:8 | kind:8 | id:32
//! ```
//!
//! The *id* names what is open, not its descriptor: duplicates have the same. The *generation*
//! changes whenever the descriptor may have been given to something else, so that what was found
//! out of an earlier one is not written into a later one.

const KIND_SHIFT: u32 = 32;
const FLAGS_SHIFT: u32 = 40;
const WHY_SHIFT: u32 = 48;
const GENERATION_SHIFT: u32 = 56;

/// Several descriptors of this process have it.
const DUPLICATED: u64 = 1 << FLAGS_SHIFT;
/// It was found open, not seen to be made: others may have it, too.
const FOUND: u64 = 2 << FLAGS_SHIFT;
/// Processes that were forked had it, too, and were counted then: they may have closed it since.
const SHARED: u64 = 4 << FLAGS_SHIFT;
/// A holder that is not counted may have it, or uses it in a call that outlasts its descriptor.
const LOOSE: u64 = 8 << FLAGS_SHIFT;

/// What is open at a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// It has not been looked up, or nothing is open.
    Unknown,
    /// No stream socket of TCP, and no epoll set.
    Other,
    /// A stream socket that is neither connected nor listening.
    Fresh,
    /// Connections come to it.
    Listening,
    /// `connect` was called and did not wait; how it went was not looked up.
    Connecting,
    /// By `connect`.
    Connected,
    /// By `accept`; or found open, with its origin unknown.
    Accepted,
    /// An epoll set.
    Set,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Unknown,
        Self::Other,
        Self::Fresh,
        Self::Listening,
        Self::Connecting,
        Self::Connected,
        Self::Accepted,
        Self::Set,
    ];

    /// A stream socket of TCP, in whichever state.
    #[must_use]
    pub fn is_stream(self) -> bool {
        !matches!(self, Self::Unknown | Self::Other | Self::Set)
    }

    /// How [`Entry`] is shown.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Other => "other",
            Self::Fresh => "fresh",
            Self::Listening => "listening",
            Self::Connecting => "connecting",
            Self::Connected => "connected",
            Self::Accepted => "accepted",
            Self::Set => "set",
        }
    }
}

/// Why a socket is the kernel's alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Why {
    /// It is not, or not yet.
    Free,
    /// A stream of the C library reads and writes it: `fdopen`, `dprintf`.
    Stdio,
    /// Helper threads of the C library do: `aio_read`.
    Asynchronous,
    /// `splice` and the like move its bytes within the kernel.
    Spliced,
    /// A signal tells of it: `F_SETOWN`, `O_ASYNC`.
    Signals,
    /// An option that only the kernel can honour, such as `TCP_ULP`.
    Option,
    /// A flag of a message that only the kernel can honour, such as `MSG_ZEROCOPY`.
    Flag,
    /// It was passed through a unix socket.
    Passed,
    /// Another process has it, too, and is not counted.
    Shared,
    /// It is, or was, in an epoll set where it cannot be carried.
    Member,
    /// One of its ends had ended before it could be carried.
    Ended,
    /// The program makes system calls by instructions of its own.
    Instructions,
}

impl Why {
    const ALL: [Self; 12] = [
        Self::Free,
        Self::Stdio,
        Self::Asynchronous,
        Self::Spliced,
        Self::Signals,
        Self::Option,
        Self::Flag,
        Self::Passed,
        Self::Shared,
        Self::Member,
        Self::Ended,
        Self::Instructions,
    ];

    /// How it is shown.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Stdio => "stdio",
            Self::Asynchronous => "aio",
            Self::Spliced => "splice",
            Self::Signals => "signals",
            Self::Option => "option",
            Self::Flag => "flag",
            Self::Passed => "passed",
            Self::Shared => "shared",
            Self::Member => "member",
            Self::Ended => "ended",
            Self::Instructions => "instructions",
        }
    }
}

/// The word. Zero is a number of which nothing is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Entry(pub(super) u64);

impl Entry {
    /// What has just been made, or found.
    pub(super) fn new(kind: Kind, id: u32) -> Self {
        Self(u64::from(id) | (kind as u64) << KIND_SHIFT)
    }

    /// What is open.
    #[must_use]
    pub fn kind(self) -> Kind {
        let byte = (self.0 >> KIND_SHIFT) as u8;
        Kind::ALL.get(usize::from(byte)).copied().unwrap_or(Kind::Unknown)
    }

    /// Why it is not to be carried.
    #[must_use]
    pub fn why(self) -> Why {
        let byte = (self.0 >> WHY_SHIFT) as u8;
        Why::ALL.get(usize::from(byte)).copied().unwrap_or(Why::Free)
    }

    /// Names what is open; 0 if nothing is known.
    #[must_use]
    pub fn id(self) -> u32 {
        self.0 as u32
    }

    /// Other descriptors of this process may be for the same.
    #[must_use]
    pub fn is_duplicated(self) -> bool {
        self.0 & DUPLICATED != 0
    }

    /// It was open when it was first looked at.
    #[must_use]
    pub fn was_found(self) -> bool {
        self.0 & FOUND != 0
    }

    /// Processes that were forked had it, too: how many have it is counted elsewhere
    /// ([`crate::processes_per_socket`]).
    #[must_use]
    pub fn is_shared(self) -> bool {
        self.0 & SHARED != 0
    }

    /// A holder that is not counted may have it, or uses it: the count of holders is not reliable.
    #[must_use]
    pub fn is_loose(self) -> bool {
        self.0 & LOOSE != 0
    }

    /// Changes whenever the descriptor may be for something else.
    #[must_use]
    pub fn generation(self) -> u8 {
        (self.0 >> GENERATION_SHIFT) as u8
    }

    pub(super) fn duplicated(self) -> Self {
        Self(self.0 | DUPLICATED)
    }

    pub(super) fn shared(self) -> Self {
        Self(self.0 | SHARED)
    }

    pub(super) fn loose(self) -> Self {
        Self(self.0 | LOOSE)
    }

    pub(super) fn found(self) -> Self {
        Self(self.0 | FOUND)
    }

    pub(super) fn with_kind(self, kind: Kind) -> Self {
        Self(self.0 & !(0xff << KIND_SHIFT) | (kind as u64) << KIND_SHIFT)
    }

    pub(super) fn with_why(self, why: Why) -> Self {
        Self(self.0 & !(0xff << WHY_SHIFT) | (why as u64) << WHY_SHIFT)
    }

    pub(super) fn with_generation(self, generation: u8) -> Self {
        Self(self.0 & !(0xff << GENERATION_SHIFT) | u64::from(generation) << GENERATION_SHIFT)
    }
}
