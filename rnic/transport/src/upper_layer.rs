//! Defines the layer above: the owner of the memory that messages come from and go to.
//!
//! In the daemon that is the far end of a link, whose application lives in another process and
//! answers when it gets to it. So everything a peer asks for can be answered at once or later, by
//! the [`Ticket`] it was handed over with.

use crate::RequestId;
use omniverb_terms::{Placement, Refusal, Rkey, Selectivity};
use omniverb_wire::{PacketPosition, PacketSlots, WriteRun};

/// Names something that was handed to the layer above; they count up in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Where a part of a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Into the receive of the message.
    Send,
    /// Into memory. The values are those of the message, the same for each of its parts. A message
    /// of no bytes checks neither key nor address (C9-88).
    Write {
        /// Virtual address of the message's first byte.
        address: u64,
        /// R_Key of the region.
        key: Rkey,
        /// Bytes of the whole message.
        total: u64,
    },
}

/// A part of a message that arrived: one packet.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Where it goes.
    pub kind: Kind,
    /// XRC: the SRQ that it is for; zero otherwise.
    pub srq: u32,
    /// Where in the message it stands.
    pub place: PacketPosition,
    /// Bytes of the message before it.
    pub offset: u64,
    /// The packet's payload, without padding.
    pub data: &'a [u8],
    /// Immediate data, with the last part: takes a receive.
    pub immediate: Option<[u8; 4]>,
    /// R_Key to invalidate, with the last part of a SEND.
    pub invalidate: Option<Rkey>,
    /// Whether the completion solicits an event.
    pub is_solicited: bool,
}

impl Part<'_> {
    /// Whether it takes a receive: the first of a SEND, and what carries the immediate data of a
    /// WRITE (9.9.6.1.3).
    pub fn takes_receive(&self) -> bool {
        match self.kind {
            Kind::Send => self.place.begins(),
            Kind::Write { .. } => self.immediate.is_some(),
        }
    }
}

/// What became of a part that was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It is where it belongs, or surely will be: acknowledge it.
    Done,
    /// It was taken; the answer comes later.
    Later,
    /// It was not taken: there is no receive. [`crate::Connection::receive_came`] says when there
    /// is.
    NotReady,
    /// It was not taken: no room to keep it. [`crate::Connection::resume`] says when there is.
    Full,
    /// It is refused; the connection fails.
    Refused(Refusal),
}

/// What became of a run that was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// All of it is where it belongs: [`Delivery::Done`] for each packet.
    All,
    /// Nothing of it counts.
    Nothing,
}

/// A late answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateAnswer {
    /// It is where it belongs.
    Done,
    /// An atomic found this value; of an ATOMIC WRITE or a FLUSH, that it is done.
    Original(u64),
    /// There is no receive, so far. A later answer may say otherwise; the part stays taken.
    NotReady,
    /// Refused; the connection fails, and everything handed over after it is void.
    Refused(Refusal),
    /// A READ that was asked for again cannot be answered: its memory is not there any more. The
    /// peer hears of it if it can take that ([`crate::GoneReads::Refused`]); nothing ends here.
    Gone,
}

/// A READ that the peer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Virtual address of the first byte.
    pub address: u64,
    /// R_Key. Not looked at if the length is zero (C9-88).
    pub key: Rkey,
    /// XRC: the SRQ that it is for; zero otherwise.
    pub srq: u32,
    /// Bytes, at most [`crate::MESSAGE_MAX`]; may be none.
    pub length: u64,
    /// A part of it was answered before: what the peer asked for before it has taken effect, and
    /// things that it asked for later may have been handed over.
    pub is_repeated: bool,
}

/// An atomic that the peer asks for; the address is a multiple of eight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// Virtual address of the first byte.
    pub address: u64,
    /// R_Key of the region.
    pub key: Rkey,
    /// XRC: the SRQ that it is for; zero otherwise.
    pub srq: u32,
    /// What to do.
    pub operation: AtomicOperation,
}

/// What is done to the eight bytes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AtomicOperation {
    CompareSwap {
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        add: u64,
    },
    /// Finds nothing. The bytes are as they are to be in memory.
    Write {
        value: [u8; 8],
    },
}

/// A FLUSH that the peer asks for: what it wrote before is to be visible, or kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushRequest {
    /// Virtual address of the first byte.
    pub address: u64,
    /// R_Key of the region.
    pub key: Rkey,
    /// Bytes from there on; may be none.
    pub length: u64,
    /// How far it is to have got.
    pub placement: Placement,
    /// How much of the region; if all of it, address and length count for nothing.
    pub selectivity: Selectivity,
}

/// What came of asking for bytes of a request of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatherOutcome {
    /// The buffer is filled.
    Filled,
    /// Not there yet; [`crate::Connection::resume`] says when.
    Later,
    /// The memory is gone or may not be read: the request fails.
    Failed,
}

/// What came of bytes that a READ of ours brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceOutcome {
    /// They are where they belong.
    Done,
    /// No room; [`crate::Connection::resume`] says when there is. They are asked for anew.
    Full,
    /// The memory is gone or may not be written: the request fails.
    Failed,
}

/// What came of asking for bytes that the peer reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchOutcome {
    /// The buffer is filled.
    Filled,
    /// Not there yet; [`crate::Connection::resume`] says when.
    Later,
    /// It comes after something that was asked for earlier and has to be fetched first.
    Behind,
    /// Refused; the connection fails.
    Refused(Refusal),
}

/// The layer above.
///
/// What is handed over with a ticket must take effect in the order of the tickets; only a READ may
/// wait until its bytes are fetched (the ordering rules want a fence where that matters).
pub trait UpperLayer {
    /// Bytes from `offset` on of one of our requests, to fill `target`. Asked for again when the
    /// packet has to be sent again.
    fn gather(&mut self, request: RequestId, offset: u64, target: &mut [u8]) -> GatherOutcome;

    /// Bytes from `offset` on of one of our requests, to fill all of `slots`, or none.
    fn gather_run(
        &mut self,
        request: RequestId,
        offset: u64,
        slots: &mut PacketSlots<'_>,
    ) -> GatherOutcome {
        let mut at = offset;
        for slot in slots.iter_mut() {
            let gathered = self.gather(request, at, slot);
            if gathered != GatherOutcome::Filled {
                return gathered;
            }
            at += slot.len() as u64;
        }
        GatherOutcome::Filled
    }

    /// Bytes at `offset` of what one of our READs asked for. They come in order.
    fn place(&mut self, request: RequestId, offset: u64, data: &[u8]) -> PlaceOutcome;

    /// A part of a message of the peer. Each comes once, in order.
    fn deliver(&mut self, ticket: Ticket, part: &Part<'_>) -> Delivery;

    /// Several parts of a WRITE of the peer at once: `part` is the first of them, all of `run` is
    /// to be placed, and the message goes on behind it. What is not taken comes again, part by
    /// part.
    fn deliver_run(&mut self, part: &Part<'_>, run: &WriteRun<'_>) -> RunOutcome {
        let _ = (part, run);
        RunOutcome::Nothing
    }

    /// The peer reads. [`Delivery::Done`] and [`Delivery::Later`] both mean that
    /// [`UpperLayer::fetch`] may be called from now on. A READ whose answer was lost comes again
    /// with a new ticket, as often as the peer asks (9.4.4).
    fn read(&mut self, ticket: Ticket, request: &ReadRequest) -> Delivery;

    /// Bytes from `offset` on of what a READ of the peer asks for. They are asked for in order,
    /// and the same ones again if the answer before was [`FetchOutcome::Later`].
    fn fetch(&mut self, ticket: Ticket, offset: u64, target: &mut [u8]) -> FetchOutcome;

    /// A READ is over, be it that all of it was fetched or that nobody wants the rest.
    fn release(&mut self, ticket: Ticket);

    /// The peer wants an atomic executed. It comes once. `Err` is for everything but success; what
    /// finds nothing succeeds with 0.
    fn atomic(&mut self, ticket: Ticket, request: &AtomicRequest) -> Result<u64, Delivery>;

    /// The peer wants to know when what it asked for before is visible, or kept. It comes once, and
    /// succeeds with 0, as [`UpperLayer::atomic`].
    fn flush(&mut self, ticket: Ticket, request: &FlushRequest) -> Result<u64, Delivery>;
}
