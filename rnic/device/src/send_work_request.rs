//! Describes a send work request as the C edge hands it over.

use crate::scatter_gather::Sge;
pub use omniverb_link::qp_attributes_for_engine::GlobalRoute;
use omniverb_ring::UserMemory;
use omniverb_terms::{Gid, Placement, Qkey, Qpn, Rkey, Selectivity};

/// Where the bytes of a send are.
#[derive(Clone, Copy)]
pub enum Data<'a> {
    /// In registered memory, at these places one after the other.
    Gather(&'a [Sge]),
    /// Anywhere; copied before the post returns.
    Inline(&'a [UserMemory]),
}

/// One send work request. Which fields count depends on the opcode, as in `ibv_send_wr`.
#[derive(Clone, Copy)]
pub struct SendWork<'a> {
    /// The application's number, which its completion bears.
    pub wr_id: u64,
    /// `IBV_WR_*`: anything may come in.
    pub opcode: u32,
    /// `IBV_SEND_*`: whether it is signalled, fenced, solicited.
    pub flags: u32,
    /// Immediate data in network order, or the R_Key to invalidate. Of a window to bind, the L_Key
    /// of the region.
    pub immediate: u32,
    /// Remote address of one-sided operations. Of a window to bind, the first address.
    pub address: u64,
    /// Remote key of one-sided operations. Of a window to bind, the key that it is to have.
    pub rkey: Rkey,
    /// Atomics: the number to compare with or to add. Of a window to bind, the rights. Of a FLUSH,
    /// the length of what is to be flushed.
    pub compare_add: u64,
    /// Compare-and-swap: the new number. Of a window to bind, its length. Of a FLUSH, what
    /// [`SendWork::flush`] makes of placement and selectivity.
    pub swap: u64,
    /// XRC: the shared receive queue of the peer's that it is for.
    pub srq: u32,
    /// UD: where to; `None` for the others.
    pub to: Option<DatagramAddress>,
    /// What is sent, or where what is fetched goes to.
    pub data: Data<'a>,
}

impl SendWork<'_> {
    /// One with nothing that depends on the opcode.
    #[must_use]
    #[inline(always)]
    pub const fn new(wr_id: u64, opcode: u32, flags: u32) -> Self {
        SendWork {
            wr_id,
            opcode,
            flags,
            immediate: 0,
            address: 0,
            rkey: Rkey(0),
            compare_add: 0,
            swap: 0,
            srq: 0,
            to: None,
            data: Data::Gather(&[]),
        }
    }

    /// Says how far and how much a FLUSH reaches.
    pub fn flush(&mut self, length: u32, placement: Placement, selectivity: Selectivity) {
        self.compare_add = u64::from(length);
        self.swap = u64::from(placement.bits()) | u64::from(selectivity.code()) << 8;
    }
}

/// What [`SendWork::flush`] said; `None`: nothing was.
pub(crate) fn flushes(swap: u64) -> Option<(Placement, Selectivity)> {
    let [placement, selectivity, ..] = swap.to_le_bytes();
    Some((Placement::from_bits(placement)?, Selectivity::from_code(selectivity)?))
}

/// The destination of a datagram, and its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramAddress {
    /// The queue pair, and by which of our addresses.
    pub destination: Destination,
    /// What that expects datagrams to know; bit 31: take the sender's own.
    pub qkey: Qkey,
    /// How packets to there are to travel, if it is on a network.
    pub route: GlobalRoute,
}

/// Destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// GID of the peer's port.
    pub dgid: Gid,
    /// Which of our GIDs it goes out from.
    pub sgid: Gid,
    /// The peer's QP.
    pub qpn: Qpn,
}

/// Why a post is refused. Nothing was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// `EINVAL`: it makes no sense.
    Invalid(PostFault),
    /// `ENOMEM`: the queue is full.
    Full,
}

/// What of a work request, or of a change of state, makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostFault {
    /// The queue pair's state: it takes no such requests in it, or may not go from there.
    State,
    /// The transport has no such opcode.
    Opcode,
    /// A datagram without a destination, or something else with one.
    Destination,
    /// A FLUSH that does not say what it is to do, or has data.
    Flags,
    /// More entries than the queue was made for.
    Entries,
    /// Inline data longer than the queue was made for, or with an operation that sends none.
    Inline,
    /// The queue pair has an SRQ, or receives nothing.
    Receives,
}
