//! Lists the options that a light connection can have, and marks sockets that have others.
//!
//! A socket with other options stays TCP.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use omniverb_connection::descriptors::{Entry, PIECE};
use omniverb_connection::light::Slot;

use crate::descriptor_tables::{self, DESCRIPTORS};
use crate::table_memory::Pieces;

/// An option: its level, its name, its bytes.
pub(super) type Known = (c_int, c_int, usize);

const INT: usize = size_of::<c_int>();
/// Bytes of a value, at most.
pub(super) const VALUE_MAX: usize = 16;

/// Options that are honoured here, or that change nothing of a connection that has no packets.
pub(super) const KNOWN: [Known; 34] = [
    (libc::SOL_SOCKET, libc::SO_DEBUG, INT),
    (libc::SOL_SOCKET, libc::SO_REUSEADDR, INT),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT, INT),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE, INT),
    (libc::SOL_SOCKET, libc::SO_BROADCAST, INT),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE, INT),
    (libc::SOL_SOCKET, libc::SO_DONTROUTE, INT),
    (libc::SOL_SOCKET, libc::SO_LINGER, 2 * INT),
    (libc::SOL_SOCKET, libc::SO_SNDBUF, INT),
    (libc::SOL_SOCKET, libc::SO_RCVBUF, INT),
    (libc::SOL_SOCKET, libc::SO_PRIORITY, INT),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL, INT),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY, INT),
    (libc::IPPROTO_TCP, libc::TCP_CORK, INT),
    (libc::IPPROTO_TCP, libc::TCP_QUICKACK, INT),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, INT),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, INT),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, INT),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT, INT),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2, INT),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG, INT),
    (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, INT),
    (libc::IPPROTO_TCP, libc::TCP_CONGESTION, VALUE_MAX),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, INT),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, INT),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN, INT),
    (libc::IPPROTO_IP, libc::IP_TOS, INT),
    (libc::IPPROTO_IP, libc::IP_TTL, INT),
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, INT),
    (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, INT),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, INT),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, INT),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, INT),
    (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, INT),
];

/// Options that each connection has by itself.
const OWN: [c_int; 3] = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO, libc::SO_RCVLOWAT];

/// A light connection has this one by itself.
pub(super) fn is_own(level: c_int, name: c_int) -> bool {
    level == libc::SOL_SOCKET && OWN.contains(&name)
}

/// A connection that is light can be given this one.
pub(super) fn may_be_set(level: c_int, name: c_int) -> bool {
    // Where packets go it is too late for that.
    is_known(level, name) || (level, name) == (libc::SOL_SOCKET, libc::SO_MARK)
}

fn is_known(level: c_int, name: c_int) -> bool {
    is_own(level, name) || KNOWN.iter().any(|one| (one.0, one.1) == (level, name))
}

/// What a listening socket gives to those that are accepted, or a socket to its connection.
#[derive(Clone, Copy, Default)]
pub(super) struct Inherited {
    /// The combination of options; 0: none.
    pub profile: u8,
    /// `SO_RCVTIMEO`, `SO_SNDTIMEO`, in milliseconds.
    pub times: [u32; 2],
    /// `SO_RCVLOWAT`.
    pub least: u32,
    /// `SO_LINGER` without time.
    pub is_abrupt: bool,
}

impl Inherited {
    /// A connection has it from now on.
    pub(super) fn give(&self, slot: &mut Slot) {
        (slot.profile, slot.times) = (self.profile, self.times);
        (slot.least, slot.is_abrupt) = (self.least, self.is_abrupt);
    }
}

/// For each descriptor what is open there, and what is known of its options.
static NOTES: Pieces<{ 1 << 12 }> = Pieces::new();

/// What is known of the options of a socket of the kernel's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Options {
    /// Those that a new socket has.
    Fresh,
    /// Others, that a light connection can have.
    Known,
    /// Some that it cannot.
    Others,
}

const KNOWN_NOTE: u64 = 1 << 32;
const OTHERS_NOTE: u64 = 1 << 33;

fn word(fd: c_int) -> Option<&'static AtomicU64> {
    let fd = usize::try_from(fd).ok()?;
    NOTES.make_piece(fd / PIECE)?.get(fd % PIECE)
}

fn noted(fd: c_int, id: u32) -> u64 {
    let note = word(fd).map_or(OTHERS_NOTE, |word| word.load(Ordering::Relaxed));
    if note as u32 == id || note == OTHERS_NOTE { note & (KNOWN_NOTE | OTHERS_NOTE) } else { 0 }
}

/// What is known of a socket.
pub(super) fn of(fd: c_int, entry: Entry) -> Options {
    let mut note = noted(fd, entry.id());
    if entry.is_duplicated() {
        let others = DESCRIPTORS.fds_of(entry.id());
        note |= others.fold(0, |notes, other| notes | noted(other, entry.id()));
    }
    match note {
        _ if note & OTHERS_NOTE != 0 => Options::Others,
        // The options of a socket that was found were set by its unknown maker.
        0 if !entry.was_found() => Options::Fresh,
        _ => Options::Known,
    }
}

/// A descriptor is a duplicate of another one's.
pub(super) fn duplicated(from: c_int, to: c_int) {
    let id = descriptor_tables::look(to).id();
    let what = noted(from, id);
    if what != 0
        && let Some(word) = word(to)
    {
        word.store(u64::from(id) | what, Ordering::Relaxed);
    }
}

/// An option of a socket was set.
pub(super) fn was_set(fd: c_int, level: c_int, name: c_int) {
    note(fd, if is_known(level, name) { KNOWN_NOTE } else { OTHERS_NOTE });
}

/// A light connection cannot be what was made of a socket.
pub(super) fn is_unlike(fd: c_int) {
    note(fd, OTHERS_NOTE);
}

fn note(fd: c_int, what: u64) {
    let id = descriptor_tables::look(fd).id();
    if let Some(word) = word(fd) {
        let more = noted(fd, id) | what;
        word.store(u64::from(id) | more, Ordering::Relaxed);
    }
}

/// Some connection of this process has a `SO_RCVLOWAT`.
static HAS_LEAST: AtomicBool = AtomicBool::new(false);

/// That is so from now on.
pub(super) fn has_least() {
    HAS_LEAST.store(true, Ordering::Relaxed);
}

/// Calls that receive may have to wait for more than a byte.
#[inline(always)]
pub(super) fn is_any_least() -> bool {
    HAS_LEAST.load(Ordering::Relaxed)
}
