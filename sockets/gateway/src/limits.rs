//! Bounds what processes and other gateways can make the gateway keep, and for how long.

use std::time::Duration;

/// Where gateways listen for each other, in the port space of rdma_cm's TCP, unless told otherwise.
pub(crate) const PORT: u16 = 7473;
/// Budget: channels to other hosts at a time for processes of this one: a thread, a connection to
/// the broker and a QP each. And as many for clients of other hosts.
pub(crate) const REMOTE_CHANNELS: usize = 64;
/// Budget: of these, of one process here, and with one address there.
pub(crate) const REMOTE_CHANNELS_OF: usize = 16;
/// Budget: incoming peers that have not proved anything yet. Beyond it the oldest one that has said
/// nothing yields, of the address with the most.
pub(crate) const UNPROVEN_PEERS: usize = 32;
/// Budget: of these with one address of IPv4, or one prefix of [`IPV6_PREFIX_BITS`] bits of IPv6.
pub(crate) const UNPROVEN_PEERS_OF: usize = 4;
/// Budget: threads of those that have made way, and have not ended.
pub(crate) const UNPROVEN_PEERS_LEAVING: usize = 64;
/// Budget: bits of an address of IPv6 that a host does not choose by itself: its share is theirs.
pub(crate) const IPV6_PREFIX_BITS: u32 = 64;
/// Budget: connections that wait to be accepted.
pub(crate) const BACKLOG: i32 = 64;

/// Letters that may be under way to the other gateway.
pub(crate) const SENDS: usize = 16;
/// Budget: letters for which there is room.
pub(crate) const RECEIVES: usize = 64;
/// Those that the other one may have sent and not heard to be read: the rest of the room is for
/// letters that say nothing but how many were.
pub(crate) const UNREAD: u32 = 48;
/// How many are read before that is said though there is nothing else to say.
pub(crate) const READ: u32 = 16;
/// Requests that may be posted: for each letter the WRITEs that come before it, of which a ring
/// has two at most.
pub(crate) const REQUESTS: usize = 512;
/// As many may come with a letter.
pub(crate) const REQUESTS_OF_LETTER: usize = 2 * (1 + omniverb_formats::channel_layout::LANES) + 1;

/// How long is looked before it is slept, in nanoseconds.
pub(crate) const SPIN_NS: u64 = 60_000;
/// How often a busy channel looks whether its peers are there and what the broker says, in
/// nanoseconds.
pub(crate) const CHECK_NS: u64 = 1_000_000;
/// The shortest and the longest time between two looks at what a process takes out without a word.
pub(crate) const WATCH_PAUSES: (Duration, Duration) =
    (Duration::from_micros(500), Duration::from_millis(16));
/// How long the network is waited for.
pub(crate) const NETWORK_MS: i32 = 2000;
/// How long a process may take to ask for a channel that it has wanted, in nanoseconds.
pub(crate) const CLIENT_TIMEOUT: u64 = 20_000_000_000;
/// Budget: how long the other gateway may take for a question or an answer, in nanoseconds; for a
/// peer that has proved nothing so far, for all of them together.
pub(crate) const ANSWER: u64 = 4_000_000_000;
/// How long nothing is said before something is, so that a host that is gone is found, in
/// nanoseconds.
pub(crate) const SILENCE: u64 = 15_000_000_000;
/// Budget: what may be to be said besides news.
pub(crate) const OUTBOX: usize = 8;
/// Budget: doorbell bytes of a process that are taken at once: a process that rings more often
/// between two looks lies.
pub(crate) const DOORBELLS_MAX: usize = 1024;
/// How long a host without a gateway is not tried again, in nanoseconds.
pub(crate) const FAILED_HOST_KEPT: u64 = 30_000_000_000;
/// How long is waited until a connection is seen to have arrived, and how often it is asked.
pub(crate) const ARRIVAL: u64 = 2_000_000_000;
pub(crate) const ARRIVAL_POLL: Duration = Duration::from_millis(20);
/// How long until the broker is looked for again.
pub(crate) const RECONNECT_PAUSE: Duration = Duration::from_secs(1);
/// How long the broker may take to admit a connection, in nanoseconds.
pub(crate) const BROKER: u64 = 2_000_000_000;
