//! Takes the state of a responder out, and puts it into another one that goes on with it.

use super::{
    Message, OnceResult, Pending, PendingKind, RememberedKind, RememberedRequest, Responder,
    ResponderState, State,
};
use crate::snapshot::{
    IncomingMessage, PSNS_MAX, RememberedAnswer, RememberedSnapshot, ResponderSnapshot,
    SnapshotError, UnansweredPart,
};
use crate::unwrapped_psn::Sequence;
use crate::upper_layer::Ticket;
use crate::{Config, MESSAGE_MAX, segmentation};

impl Responder {
    /// The state. `None`: a READ or an atomic is not answered, or the connection is ending.
    pub(crate) fn snapshot(&mut self, config: &Config) -> Option<ResponderSnapshot> {
        self.pass_done(config);
        if self.standing != ResponderState::Takes
            || self.refused.is_some()
            || !self.replays.is_empty()
        {
            return None;
        }
        let mut unanswered = Vec::new();
        for pending in &self.pending {
            let is_done = match (pending.state, &pending.kind) {
                (State::Done, PendingKind::Part) => true,
                (State::Waiting | State::NotReady { .. }, PendingKind::Part) => false,
                _ => return None,
            };
            let packets = pending.last + 1 - pending.first;
            // The last packet of a run stands for what is said of all of it.
            for left in (0..packets).rev() {
                let is_last = left == 0;
                unanswered.push(UnansweredPart {
                    ticket: pending.ticket,
                    is_done,
                    is_ack_requested: pending.ask && is_last,
                    is_end_of_message: pending.ends && is_last,
                });
            }
        }
        if unanswered.len() > config.unanswered_max {
            return None;
        }
        Some(ResponderSnapshot {
            expected: self.expected.psn(),
            messages: self.messages & 0xff_ffff,
            message: match self.message {
                Message::None => None,
                Message::Send { offset } => Some(IncomingMessage::Send { offset }),
                Message::Write { address, key, total, offset } => {
                    Some(IncomingMessage::Write { address, key, total, offset })
                }
            },
            has_named: self.named,
            unanswered,
            remembered: self.memories.iter().filter_map(|memory| self.remembered(memory)).collect(),
        })
    }

    /// `None`: it is so long ago that no packet can name it any more.
    fn remembered(&self, memory: &RememberedRequest) -> Option<RememberedSnapshot> {
        let back = self.expected.since(memory.first);
        let answer = match memory.kind {
            RememberedKind::Read { address, key, length } => {
                RememberedAnswer::Read { address, key, length }
            }
            RememberedKind::Once { executed: Some(OnceResult::Found(value)) } => {
                RememberedAnswer::Found(value)
            }
            RememberedKind::Once { executed: Some(OnceResult::Silently) } => RememberedAnswer::Done,
            RememberedKind::Once { executed: None } => return None,
        };
        let back = u32::try_from(back).ok().filter(|_| back <= PSNS_MAX)?;
        Some(RememberedSnapshot { back, answer })
    }

    /// Begins as another responder has ended. The requester hears soon how far it is.
    pub(crate) fn restore(
        &mut self,
        config: &Config,
        snapshot: &ResponderSnapshot,
    ) -> Result<(), SnapshotError> {
        let expected = Sequence::first(snapshot.expected);
        let unanswered = snapshot.unanswered.len();
        if unanswered > config.unanswered_max
            || snapshot.remembered.len() > config.max_dest_rd_atomic.max(1)
            || snapshot.messages > 0xff_ffff
        {
            return Err(SnapshotError);
        }
        let (mut first, mut ticket) = (expected - unanswered as u64, Ticket(0));
        (self.expected, self.answered, self.messages) = (expected, first, snapshot.messages);
        for part in &snapshot.unanswered {
            // Those of a run have one.
            if part.ticket < ticket || part.ticket == ticket && !part.is_done {
                return Err(SnapshotError);
            }
            ticket = part.ticket;
            self.pending.push_back(Pending {
                first,
                last: first,
                ticket,
                ask: part.is_ack_requested,
                ends: part.is_end_of_message,
                state: if part.is_done { State::Done } else { State::Waiting },
                kind: PendingKind::Part,
            });
            first += 1;
        }
        self.tickets = ticket.0;
        self.message = message(config, snapshot.message)?;
        self.named = snapshot.has_named;
        let mut end = Sequence::first(snapshot.expected) - PSNS_MAX;
        for memory in &snapshot.remembered {
            let memory = recall(config, expected, memory)?;
            if memory.first < end || memory.last >= self.answered {
                return Err(SnapshotError);
            }
            end = memory.last + 1;
            self.memories.push_back(memory);
        }
        self.acknowledging.make_due();
        Ok(())
    }
}

/// Where in a message the requester is, as far as that can be.
fn message(config: &Config, state: Option<IncomingMessage>) -> Result<Message, SnapshotError> {
    let mtu = config.path_mtu as u64;
    let is_whole = |bytes: u64| bytes.is_multiple_of(mtu) && (1..=MESSAGE_MAX).contains(&bytes);
    match state {
        None => Ok(Message::None),
        Some(IncomingMessage::Send { offset }) if is_whole(offset) => Ok(Message::Send { offset }),
        Some(IncomingMessage::Write { address, key, total, offset })
            if is_whole(offset) && offset < total && total <= MESSAGE_MAX =>
        {
            Ok(Message::Write { address, key, total, offset })
        }
        _ => Err(SnapshotError),
    }
}

fn recall(
    config: &Config,
    expected: Sequence,
    memory: &RememberedSnapshot,
) -> Result<RememberedRequest, SnapshotError> {
    let (kind, packets) = match memory.answer {
        RememberedAnswer::Read { length, .. } if length > MESSAGE_MAX => return Err(SnapshotError),
        RememberedAnswer::Read { address, key, length } => (
            RememberedKind::Read { address, key, length },
            segmentation::packets(length, config.path_mtu),
        ),
        RememberedAnswer::Found(value) => {
            (RememberedKind::Once { executed: Some(OnceResult::Found(value)) }, 1)
        }
        RememberedAnswer::Done => {
            (RememberedKind::Once { executed: Some(OnceResult::Silently) }, 1)
        }
    };
    let back = u64::from(memory.back);
    if !(packets..=PSNS_MAX).contains(&back) {
        return Err(SnapshotError);
    }
    let first = expected - back;
    Ok(RememberedRequest { first, last: first + packets - 1, kind })
}
