//! Describes a queue pair at rest, so that another host goes on with it over the same link memory:
//! the daemon's engine with one that a process has carried.
//!
//! The rings stay as they are, and so do the application's words. Requests that are under way stay
//! in the ring: the new host reads them again and sends them again, under the PSNs that they had.
//! What the application was given and has not consumed is told by where it ends in the ring. A READ
//! or an atomic of the peer that the application has not answered has to be waited for.
//!
//! **Trust.** The bytes come from a process that may be hostile. [`Handover::from_bytes`] checks
//! their form, and keeps no more than they have; [`Connected::restore`] checks the rest against the
//! link and the configuration. What passes can make the queue pair send wrong packets to its peer,
//! as its owner could by itself, and no more.
//!
//! [`Connected::restore`]: crate::queue_pair::connected_qp::Connected::restore

use crate::pages::write_execution::WriteRoute;
use omniverb_link::EndpointPositions;
use omniverb_terms::{Psn, Rkey};
use omniverb_transport::Ticket;
use omniverb_transport::snapshot::{
    IncomingMessage, OpenMessage, RememberedAnswer, RememberedSnapshot, RequesterSnapshot,
    ResponderSnapshot, SentExtent, UnansweredPart,
};

/// Most bytes of a handover: they travel in one message of a session.
pub const STATE_BYTES_MAX: usize = 4064;

/// The form of the bytes.
const FORM: u32 = 1;

/// Of a part: it is done.
const DONE: u16 = 1 << 15;
/// Of a part: the requester asked for an acknowledgement.
const ASKS: u16 = 1 << 14;
/// Of a part: a message ends with it.
const ENDS: u16 = 1 << 13;
/// Of a part, words between its end in the ring and that of the part before; none is so long.
const NOWHERE: u16 = ENDS - 1;

/// Why a queue pair cannot go on as a handover says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandoverError {
    /// The bytes are no handover.
    #[error("these bytes are no handover")]
    Form,
    /// The queue pair was served already.
    #[error("the queue pair was served already")]
    Late,
    /// No end of a link is ever there.
    #[error("impossible positions in the rings")]
    Positions,
    /// The application's queue pair is not as far as the handover says.
    #[error("the queue pair is not ready")]
    Attributes,
    /// No connection is ever in such a state.
    #[error("impossible state of the connection")]
    Connection,
    /// The ring does not hold the requests that are under way.
    #[error("the ring does not hold the requests under way")]
    Requests,
}

/// Address, key and length of a whole WRITE.
pub(crate) type Write = (u64, Rkey, u64);

/// A queue pair at rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handover {
    pub(crate) positions: EndpointPositions,
    /// From RTR on.
    pub(crate) receiving: Option<ReceivingState>,
    /// From RTS on.
    pub(crate) sending: Option<SendingState>,
}

/// The receiving half.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReceivingState {
    pub responder: ResponderSnapshot,
    /// What ends here in the ring, or before, is acknowledged, though perhaps not consumed.
    pub delivered: u64,
    /// Where each unanswered part ends in the ring. `None`: it is not there.
    pub ends: Vec<Option<u64>>,
    /// The way of the WRITE that is arriving.
    pub route: WriteRoute,
    /// Of that WRITE a part is in the ring, but not yet what is to be said after it.
    pub has_notice_due: bool,
}

/// The sending half.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SendingState {
    pub requester: RequesterSnapshot,
    /// The WRITE that the oldest request goes on with.
    pub write: Option<Write>,
}

/// The ticket of the unanswered part with this index; what is only delivered has ticket 0.
pub(crate) fn ticket(index: usize) -> Ticket {
    Ticket(index as u64 + 1)
}

impl Handover {
    /// As bytes; `None`: there are too many of them, because too much is unanswered.
    #[must_use]
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        let mut to = Writer(Vec::new());
        to.u32(FORM);
        to.u8(u8::from(self.receiving.is_some()) + u8::from(self.sending.is_some()));
        let EndpointPositions { requests_out, requests_in, responses_out, responses_in, .. } =
            self.positions;
        for position in [requests_out, requests_in, responses_out, responses_in] {
            to.u64(position);
        }
        to.u32(self.positions.receives_used);
        if let Some(receiving) = &self.receiving {
            to.receiving(receiving)?;
        }
        if let Some(sending) = &self.sending {
            to.sending(sending)?;
        }
        Some(to.0).filter(|bytes| bytes.len() <= STATE_BYTES_MAX)
    }

    /// From bytes that anybody may have written.
    pub fn from_bytes(bytes: &[u8]) -> Result<Handover, HandoverError> {
        let fits = Some(bytes).filter(|bytes| bytes.len() <= STATE_BYTES_MAX);
        fits.and_then(Self::read).ok_or(HandoverError::Form)
    }

    fn read(bytes: &[u8]) -> Option<Handover> {
        let mut from = Reader(bytes);
        let stage = (from.u32()? == FORM).then(|| from.u8())??;
        let positions = EndpointPositions {
            requests_out: from.u64()?,
            requests_in: from.u64()?,
            responses_out: from.u64()?,
            responses_in: from.u64()?,
            receives_used: from.u32()?,
        };
        let receiving = if stage > 0 { Some(from.receiving()?) } else { None };
        let sending = if stage > 1 { Some(from.sending()?) } else { None };
        (stage <= 2 && from.0.is_empty()).then_some(Handover { positions, receiving, sending })
    }
}

/// Writes numbers, the low byte first.
struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }
    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    fn count(&mut self, count: usize) -> Option<()> {
        self.u16(u16::try_from(count).ok()?);
        Some(())
    }

    /// Bytes of a message: at most [`omniverb_transport::MESSAGE_MAX`].
    fn length(&mut self, bytes: u64) -> Option<()> {
        self.u32(u32::try_from(bytes).ok()?);
        Some(())
    }

    fn write(&mut self, (address, key, total): Write) -> Option<()> {
        self.u64(address);
        self.u32(key.0);
        self.length(total)
    }

    fn receiving(&mut self, state: &ReceivingState) -> Option<()> {
        let ResponderSnapshot { expected, messages, message, has_named, unanswered, remembered } =
            &state.responder;
        self.u32(expected.number());
        self.u32(*messages);
        self.u8(u8::from(*has_named) | u8::from(state.has_notice_due) << 1);
        self.u8(match state.route {
            WriteRoute::Records => 0,
            WriteRoute::RecordsForNow => 1,
            WriteRoute::Here => 2,
            WriteRoute::Rest => 3,
        });
        match *message {
            None => self.u8(0),
            Some(IncomingMessage::Send { offset }) => {
                self.u8(1);
                self.length(offset)?;
            }
            Some(IncomingMessage::Write { address, key, total, offset }) => {
                self.u8(2);
                self.write((address, key, total))?;
                self.length(offset)?;
            }
        }
        self.u64(state.delivered);
        self.count(unanswered.len())?;
        let first = state.ends.iter().flatten().next().copied().unwrap_or(0);
        self.u64(first);
        let mut before = first;
        for (part, end) in unanswered.iter().zip(&state.ends) {
            let words = match end {
                None => NOWHERE,
                Some(end) => {
                    let bytes = end.checked_sub(std::mem::replace(&mut before, *end))?;
                    u16::try_from(bytes / 8).ok().filter(|words| *words < NOWHERE)?
                }
            };
            let flag = |set: bool, flag: u16| if set { flag } else { 0 };
            let flags = flag(part.is_done, DONE)
                | flag(part.is_ack_requested, ASKS)
                | flag(part.is_end_of_message, ENDS);
            self.u16(flags | words);
        }
        self.count(remembered.len())?;
        for RememberedSnapshot { back, answer } in remembered {
            self.u32(*back);
            match *answer {
                RememberedAnswer::Read { address, key, length } => {
                    self.u8(0);
                    self.write((address, key, length))?;
                }
                RememberedAnswer::Found(value) => {
                    self.u8(1);
                    self.u64(value);
                }
                RememberedAnswer::Done => self.u8(2),
            }
        }
        Some(())
    }

    fn sending(&mut self, state: &SendingState) -> Option<()> {
        let RequesterSnapshot { first, acknowledged, sent, open, extents } = &state.requester;
        self.u32(first.number());
        self.u32(*acknowledged);
        self.u32(*sent);
        match (*open, state.write) {
            (None, None) => self.u8(0),
            (Some(OpenMessage::Send { bytes }), None) => {
                self.u8(1);
                self.length(bytes)?;
            }
            (Some(OpenMessage::Write { left }), Some(write)) => {
                self.u8(2);
                self.write(write)?;
                self.length(left)?;
            }
            _ => return None,
        }
        self.count(extents.len())?;
        for SentExtent { first, count } in extents {
            self.u32(*first);
            self.u32(*count);
        }
        Some(())
    }
}

/// Reads them. `None`: there is not so much, or no such value.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }
    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }
    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn length(&mut self) -> Option<u64> {
        self.u32().map(u64::from)
    }

    fn psn(&mut self) -> Option<Psn> {
        let number = self.u32()?;
        Some(Psn::new(number)).filter(|psn| psn.number() == number)
    }

    fn write(&mut self) -> Option<Write> {
        Some((self.u64()?, Rkey(self.u32()?), self.length()?))
    }

    fn receiving(&mut self) -> Option<ReceivingState> {
        let (expected, messages) = (self.psn()?, self.u32()?);
        let flags = self.u8().filter(|flags| *flags < 4)?;
        let route = match self.u8()? {
            0 => WriteRoute::Records,
            1 => WriteRoute::RecordsForNow,
            2 => WriteRoute::Here,
            3 => WriteRoute::Rest,
            _ => return None,
        };
        let message = match self.u8()? {
            0 => None,
            1 => Some(IncomingMessage::Send { offset: self.length()? }),
            2 => {
                let (address, key, total) = self.write()?;
                Some(IncomingMessage::Write { address, key, total, offset: self.length()? })
            }
            _ => return None,
        };
        let delivered = self.u64()?;
        let count = self.u16()?;
        let first = self.u64()?;
        let (mut unanswered, mut ends) = (Vec::new(), Vec::new());
        let mut before = None;
        for index in 0..usize::from(count) {
            let word = self.u16()?;
            let is_done = word & DONE != 0;
            let end = match (word & NOWHERE, before) {
                (NOWHERE, _) if is_done => None,
                (NOWHERE, _) => return None,
                (0, None) => Some(first),
                (words @ 1.., Some(before)) => {
                    Some(u64::checked_add(before, 8 * u64::from(words))?)
                }
                _ => return None,
            };
            before = end.or(before);
            let (is_ack_requested, is_end_of_message) = (word & ASKS != 0, word & ENDS != 0);
            let ticket = ticket(index);
            unanswered.push(UnansweredPart {
                ticket,
                is_done,
                is_ack_requested,
                is_end_of_message,
            });
            ends.push(end);
        }
        if before.is_none() && first != 0 {
            return None;
        }
        let mut remembered = Vec::new();
        for _ in 0..self.u16()? {
            let back = self.u32()?;
            let answer = match self.u8()? {
                0 => {
                    let (address, key, length) = self.write()?;
                    RememberedAnswer::Read { address, key, length }
                }
                1 => RememberedAnswer::Found(self.u64()?),
                2 => RememberedAnswer::Done,
                _ => return None,
            };
            remembered.push(RememberedSnapshot { back, answer });
        }
        let has_named = flags & 1 != 0;
        let responder =
            ResponderSnapshot { expected, messages, message, has_named, unanswered, remembered };
        Some(ReceivingState { responder, delivered, ends, route, has_notice_due: flags & 2 != 0 })
    }

    fn sending(&mut self) -> Option<SendingState> {
        let (first, acknowledged, sent) = (self.psn()?, self.u32()?, self.u32()?);
        let (open, write) = match self.u8()? {
            0 => (None, None),
            1 => (Some(OpenMessage::Send { bytes: self.length()? }), None),
            2 => {
                let write = self.write()?;
                (Some(OpenMessage::Write { left: self.length()? }), Some(write))
            }
            _ => return None,
        };
        let mut extents = Vec::new();
        for _ in 0..self.u16()? {
            extents.push(SentExtent { first: self.u32()?, count: self.u32()? });
        }
        let requester = RequesterSnapshot { first, acknowledged, sent, open, extents };
        Some(SendingState { requester, write })
    }
}
