//! All maxima of the control plane, in one place, with the reason for each.

/// Bytes of the largest message, header included. One datagram; bounds what a receiver allocates.
pub const MESSAGE_BYTES_MAX: usize = 4096;

/// GID table length. Enough for a container with several networks; fixed so that the table fits
/// one message.
pub const GIDS_MAX: usize = 32;

/// Links one process may hold with one other process: the size of a bell's ready map
/// (one summary word of 64 bits, each standing for a word of 64 links).
pub const LINKS_PER_BELL: usize = 64 * 64;

/// Multicast groups that a vNIC's queue pairs may be attached to: as many as Linux lets a socket be
/// in (`net.ipv4.igmp_max_memberships`).
pub const GROUPS_MAX: usize = 20;

/// Attachments of one process's queue pairs to groups: each has a link to the engine.
pub const ATTACHMENTS_MAX: usize = 64;

/// Slots in a process's statistics area, one per queue pair.
pub const STATISTICS_SLOTS: usize = 8192;

/// 64-bit words of one statistics slot.
pub const STATISTICS_WORDS: usize = 16;

/// Bytes of one statistics slot: two cache lines, so that two queue pairs never share one.
pub const STATISTICS_SLOT_BYTES: usize = 8 * STATISTICS_WORDS;

/// Bytes of the state of a connection that a process gives to the engine: room for the results of
/// as many READs and atomics as a queue pair can have under way, which may be asked for again.
pub const CARRIED_STATE_BYTES: usize = MESSAGE_BYTES_MAX - 16 - 16;
