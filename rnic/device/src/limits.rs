//! Every maximum of the device, with its reason. `ibv_query_device` reports these.

/// Work requests per queue. UCX wants 4096 for UD, several storage targets 16384.
pub const WR_MAX: u32 = 32768;
/// Scatter/gather entries per work request. UCX asks for 6, librpma for 16.
pub const SGE_MAX: u32 = 32;
/// Inline bytes per send. An inline send is copied once either way, so the bound is only memory.
pub const INLINE_MAX: u32 = 1024;
/// Entries of a completion queue.
pub const CQE_MAX: u32 = 1 << 22;
/// Outstanding READs and atomics per QP, as initiator and as responder.
pub const RD_ATOMIC_MAX: u8 = 128;
/// Bytes of the longest message (InfiniBand specification, C9-4: 2^31).
pub const MESSAGE_MAX: u64 = 1 << 31;
/// Bytes of one chunk of a long message in a ring: long enough to amortise the record, short
/// enough that sender and receiver copy at the same time.
pub const CHUNK: usize = 16 << 10;
/// Bytes of one chunk in the ring of a link to the engine, which begins when one is there; each is
/// a job for it. (With 16 KiB, 64 KiB WRITEs were 4 % slower.)
pub const CHUNK_ENGINE: usize = 64 << 10;
/// Bytes of the longest packet: every path MTU divides it.
pub const PATH_MTU_MAX: usize = 4096;
/// Least bytes of a payload that may stay in the application's region: a shorter one is copied
/// sooner. More than [`INLINE_MAX`], so that it is not inline data.
pub const SOURCE_MIN: usize = 4096;
const _: () = assert!(SOURCE_MIN > INLINE_MAX as usize);
/// Bytes sent from a region after which it is worth moving its pages to where the engine can map
/// them; of a larger region, as many as it has, since all of them move.
pub const SOURCE_WORTH: u64 = 4 << 20;
/// Bytes of the largest region that is moved for that: the engine maps 512 MiB of them for a vNIC.
pub const SOURCE_REGION_MAX: usize = 256 << 20;
/// Memory windows of a process: as many as regions; each is a row of a table.
pub const WINDOWS_MAX: usize = 1 << 18;
/// Queue pairs one opened device can hold; bounds the table of released work requests.
pub const QP_SLOTS: usize = 8192;
/// Bytes that a queue pair counts into: two cache lines, of which fast operations need the first.
pub const STATISTICS_BYTES: usize = 128;
/// QPs a completion queue looks at directly on every poll; the others announce themselves through
/// the ready map. Small, because each costs two loads a poll.
pub const WATCHED_MAX: usize = 8;
/// Looks without news after which a link is no longer looked at directly, if others compete.
pub const IDLE_LOOKS_MAX: u32 = 2048;
/// Looks of polls that see the peer consume nothing, until it is woken although it polls: some
/// microseconds, about what waking it takes.
pub const INSIST_LOOKS: u32 = 256;
/// How long after a flag of ours was set for the peer a look finds all that it did without having
/// seen the flag, in nanoseconds (decision 0001).
pub const LOOK_LATER: u64 = 1_000_000;
/// How long completions that a poll of an armed queue has left may wait to be polled until an event
/// tells of them, in nanoseconds: a program that takes them one by one takes the next sooner.
pub const REMIND_AFTER: u64 = 1_000_000;
/// How long a datagram that others wait behind waits for room, and a UC message behind one that
/// waited in vain, in nanoseconds, before it is dropped.
pub const UNRELIABLE_WAIT: u64 = 100_000_000;
/// How long a datagram or UC message waits for a receive, and one of a direct link that holds up
/// only its receiver for room, before it is dropped, in nanoseconds. On a busy machine the receiver
/// may have no processor for that long. What comes over the network meanwhile the engine keeps.
pub const RECEIVER_AWAY: u64 = 1_000_000_000;
/// How long an RC message on a direct link waits for a receive at least, in nanoseconds, whatever
/// the RNR retries allow: as long as an unreliable one.
pub const RECEIVER_LATE: u64 = RECEIVER_AWAY;
/// How long a request waits at least for a link and for the peer, or the engine, to attach, in
/// nanoseconds: the daemon may have to find out that no other daemon is at the peer's address,
/// which takes 300 ms, and on a busy machine it, and the peer, have to get a processor first. Of UC
/// messages one waits so long in vain.
pub const LINK_WAIT: u64 = 2_000_000_000;
/// So many short WRITEs in a row may go through the ring before the next waits for it to drain.
pub const DETOURS_MAX: u32 = 16;
/// Bytes of a WRITE that still goes through the ring when its target is mapped but earlier requests
/// are on their way: copying it twice costs less than waiting for them.
pub const MEDIATED_MAX: u64 = 4096;
/// Keys that a QP asks for, until something is revoked.
pub const GRANTS_MAX: usize = 64;
/// Extents of peers' regions that a QP remembers: the oldest unused makes room.
pub const EXTENTS_MAX: usize = 256;
/// Other processes of an XRC domain that a queue pair hands requests over to. Each takes a queue
/// pair and a link in both.
pub const RELAYS_MAX: usize = 256;
/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Different pages of peers that a process goes through before it looks again whether they are in
/// memory. Those that their owners took away meanwhile are charged to it: 32 MiB at most.
pub const PAGES_BELIEVED: usize = (32 << 20) / PAGE_BYTES;
/// Bytes of the longest datagram: the path MTU.
pub const DATAGRAM_MAX: u64 = 4096;
/// Bytes of datagrams held back for one destination: half of the least request ring, so that they
/// fit with whatever the ring needs to wrap.
pub const UNRESOLVED_BYTES_MAX: usize = omniverb_link::layout::REQUEST_BYTES_MIN / 2;
/// What such a datagram takes in a ring besides its payload: header, extra word, rounding.
pub const UNRESOLVED_OVERHEAD: usize = 24;
/// How long datagrams to a destination that the daemon knows no way to are lost, in nanoseconds.
pub const UNREACHABLE_WAIT: u64 = 1_000_000_000;
/// How long the daemon may take to make a datagram link, in nanoseconds.
pub const ANSWER_WAIT: u64 = 2_000_000_000;
/// Datagrams a QP holds back while their links are made; later ones wait in the send queue.
pub const UNRESOLVED_MAX: usize = 256;
/// Links of one UD QP.
pub const DATAGRAM_LINKS_MAX: usize = 4096;
