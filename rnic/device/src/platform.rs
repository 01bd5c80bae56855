//! Defines what the device needs from outside: a clock, the progress thread, the daemon, and a
//! receiver of events.

use crate::send_work_request::Destination;
use omniverb_ring::{UserMemory, Window};
use omniverb_terms::{Psn, Qpn, Rkey};
use std::sync::atomic::AtomicU64;

/// Asynchronous events, numbered as `enum ibv_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum AsyncEvent {
    CqError = 0,
    QpFatal = 1,
    QpRequestError = 2,
    QpAccessError = 3,
    CommunicationEstablished = 4,
    SqDrained = 5,
    SrqError = 14,
    SrqLimitReached = 15,
    QpLastWqeReached = 16,
}

impl AsyncEvent {
    /// The one of a queue pair that has this number.
    #[must_use]
    pub fn of_qp(number: u32) -> Option<AsyncEvent> {
        use AsyncEvent::*;
        [
            QpFatal,
            QpRequestError,
            QpAccessError,
            CommunicationEstablished,
            SqDrained,
            QpLastWqeReached,
        ]
        .into_iter()
        .find(|event| *event as u32 == number)
    }
}

/// What a direct link does not mind and a wire would. `ours` is the requester's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // of each side
pub enum ToleratedMismatch {
    /// The requester does not begin with the PSN that the responder expects.
    Psn { ours: Psn, theirs: Psn },
    /// Messages are cut into packets of other lengths, in bytes.
    PathMtu { ours: u32, theirs: u32 },
    /// More READs and atomics at once than the responder has resources for.
    RdAtomic { ours: u8, theirs: u8 },
}

/// The world outside the device: clock, progress thread, daemon, application events.
/// Called with QP locks held, so nothing here may call back into a QP.
pub trait Host: Send + Sync {
    /// Monotonic nanoseconds.
    fn now(&self) -> u64;
    /// Whether this process carries connections over a network, in place of the daemon's engine:
    /// then no other thread needs a processor for what polls wait for.
    fn carries_connections(&self) -> bool {
        false
    }
    /// A poll of a CQ with links to an engine looks for news: it may look into the network.
    fn poll_network(&self) {}
    /// Requests were posted to a link that leads to an engine: they may leave. No lock is held.
    fn posted_to_network(&self) {}
    /// Sleeps while the low half of `word` is `value`, until woken, and at most for a moment.
    fn nap(&self, word: &AtomicU64, value: u32);
    /// Something began to wait: the progress thread must have a look.
    fn attend(&self);
    /// Ask the daemon for a mapping of so many bytes of `rkey`, from an address on; the answer
    /// comes as [`crate::Qp::granted`], [`crate::Qp::not_granted`] or not at all.
    fn request_grant(&self, qpn: Qpn, peer_qpn: Qpn, rkey: Rkey, range: (u64, u64));
    /// Copies to a region of ours have cost as much as moving its pages to a file does,
    /// where they can be reached without the kernel: see [`crate::Region::own`].
    fn own_pages(&self, _rkey: Rkey) {}
    /// A queue pair has gone to ERR: what was granted to its peer is to be taken back.
    fn qp_failed(&self, qpn: Qpn);
    /// A request of a queue pair, its oldest, completes with this status, and the queue pair is in
    /// ERR. For diagnosis.
    fn request_failed(&self, _qpn: Qpn, _status: u32) {}
    /// Whether direct links are to let pass only what a wire would, too. Asked once for each QP.
    fn is_strict(&self) -> bool {
        false
    }
    /// A request of a queue pair does not pass, since the device is strict.
    fn forgiven(&self, _qpn: Qpn, _what: ToleratedMismatch) {}
    /// Copies on a peer's behalf from memory of ours to as much of the program's, the last eight
    /// bytes last. False: some of it may not be written, or is gone. The program answers for what
    /// it does with its pages, but not to a peer: there is no signal.
    fn place(&self, ours: UserMemory, program: UserMemory) -> bool;
    /// Places several pieces, in order, and says how many: the next one may not be written, or was
    /// left for another time.
    fn place_all(&self, pieces: &[(UserMemory, UserMemory)]) -> usize {
        pieces.iter().take_while(|(ours, program)| self.place(*ours, *program)).count()
    }
    /// As [`Self::place`], from the program's memory to ours. False: some of it may not be read.
    fn fetch(&self, program: UserMemory, ours: UserMemory) -> bool;
    /// Whether eight bytes of the program's, on an eight-byte boundary, may be written just now.
    fn bears_atomics(&self, program: UserMemory) -> bool;
    /// For each page of a granted window from byte `start` on, whether it is in memory: bit 0 of a
    /// byte of `found`, which reaches to the end of the window at most. False: that is not known.
    fn resident(&self, window: &Window, start: usize, found: &mut [u8]) -> bool;
    /// Requests to a queue pair of an XRC domain are for SRQs of another part of it: find the
    /// process that has that. The answer comes as a link to a queue pair that
    /// [stands](crate::Qp::stand_for) for this one, or as [`crate::Qp::no_way`].
    fn hand_over(&self, _qpn: Qpn, _part: u32) {}
    /// This has happened to a queue pair that receives in an XRC domain: other processes may have
    /// it open.
    fn receiver_event(&self, _qpn: Qpn, _event: AsyncEvent) {}
    /// A queue pair that stands for another one, or receives for one, is of no use any more.
    fn discard(&self, _qpn: Qpn) {}
    /// Ask the daemon for a datagram link; the answer comes as [`crate::Qp::attach`] or
    /// [`crate::Qp::unreachable`].
    fn request_datagram_link(&self, qpn: Qpn, destination: Destination);
    /// Tell the application. `cookie` is the object's.
    fn async_event(&self, event: AsyncEvent, cookie: usize);
}
