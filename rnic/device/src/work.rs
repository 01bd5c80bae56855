//! A send work request as the C edge hands it over.

use crate::gather::Sge;
pub use omniverb_link::wire::Route;
use omniverb_ring::UserMemory;
use omniverb_terms::{Gid, Qpn, Rkey};

/// Where the bytes of a send are.
#[derive(Clone, Copy)]
pub enum Data<'a> {
    /// In registered memory.
    Gather(&'a [Sge]),
    /// Anywhere; copied before the post returns.
    Inline(&'a [UserMemory]),
}

/// One send work request. Which fields count depends on the opcode, as in `ibv_send_wr`.
#[derive(Clone, Copy)]
pub struct SendWork<'a> {
    /// The application's.
    pub wr_id: u64,
    /// `IBV_WR_*`.
    pub opcode: u32,
    /// `IBV_SEND_*`.
    pub flags: u32,
    /// Immediate data in network order, or the R_Key to invalidate.
    pub immediate: u32,
    /// Remote address of one-sided operations.
    pub address: u64,
    /// Remote key of one-sided operations.
    pub rkey: Rkey,
    /// Atomics: the number to compare with or to add.
    pub compare_add: u64,
    /// Compare-and-swap: the new number.
    pub swap: u64,
    /// UD: where to.
    pub to: Option<Addressee>,
    /// The bytes.
    pub data: Data<'a>,
}

/// To whom a datagram goes, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addressee {
    /// Which queue pair.
    pub destination: Destination,
    /// What that expects datagrams to know; bit 31: take the sender's own.
    pub qkey: u32,
    /// How packets to there are to travel, if it is on a network.
    pub route: Route,
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
    /// `EINVAL`: state, opcode, flags or number of entries.
    Invalid,
    /// `ENOMEM`: the queue is full.
    Full,
}
