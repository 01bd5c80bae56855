//! Keeps what a responder has said, what it may still say, and why it takes nothing.

use crate::unwrapped_psn::Sequence;
use omniverb_terms::Refusal;

/// A negative acknowledgement for the packet expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NakKind {
    Sequence,
    NotReady,
}

/// Whether one is said. Once for each packet that is missing (9.7.5.2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nak {
    /// None was; what comes out of order is a reason.
    None,
    /// This one leaves when everything before is answered.
    Due(NakKind),
    /// No other until what is expected arrives: one is out, or the packet was dropped and the
    /// requester is not to be hurried.
    Withheld,
}

impl Nak {
    pub(super) fn due(self) -> Option<NakKind> {
        match self {
            Nak::Due(negative) => Some(negative),
            Nak::None | Nak::Withheld => None,
        }
    }
}

/// The receive that the packet expected takes, as the requester was told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receive {
    /// It has not heard that one is missing.
    NotMissed,
    /// It was told that there is none.
    Missed,
    /// It was told so, and since then one has come.
    CameBack,
    /// One has come before it was told.
    CameBefore,
}

impl Receive {
    /// The requester hears that there is none.
    pub(super) fn missed(self) -> Receive {
        match self {
            Receive::NotMissed | Receive::Missed => Receive::Missed,
            Receive::CameBack | Receive::CameBefore => Receive::CameBack,
        }
    }

    /// One has come. `nak`: what the requester is about to hear.
    pub(super) fn came(self, nak: Nak) -> Receive {
        match self {
            Receive::Missed | Receive::CameBack => Receive::CameBack,
            Receive::NotMissed | Receive::CameBefore => match nak {
                Nak::Due(NakKind::NotReady) => Receive::CameBefore,
                _ => Receive::NotMissed,
            },
        }
    }
}

/// For lack of what the packet expected was dropped, since the last one that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DroppedFor {
    /// It was not.
    No,
    /// The layer above had no room.
    ForRoomAbove,
    /// Too much was unanswered.
    ForUnanswered,
    /// First the one, then the other.
    ForBoth,
}

impl DroppedFor {
    pub(super) fn for_room_above(self) -> bool {
        matches!(self, DroppedFor::ForRoomAbove | DroppedFor::ForBoth)
    }

    pub(super) fn for_unanswered(self) -> bool {
        matches!(self, DroppedFor::ForUnanswered | DroppedFor::ForBoth)
    }

    /// Once more: the layer above has no room.
    pub(super) fn and_for_room_above(self) -> DroppedFor {
        if self.for_unanswered() { DroppedFor::ForBoth } else { DroppedFor::ForRoomAbove }
    }

    /// Once more: too much is unanswered.
    pub(super) fn and_for_unanswered(self) -> DroppedFor {
        if self.for_room_above() { DroppedFor::ForBoth } else { DroppedFor::ForUnanswered }
    }
}

/// Whether anything is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponderState {
    Takes,
    /// Nothing is any more.
    Closed,
    /// Nothing is any more; the requester was told so, of this packet.
    Refused(Sequence, Refusal),
    /// It has asked again, and is to be told again.
    AskedAgain(Sequence, Refusal),
}

impl ResponderState {
    /// Nothing is taken any more.
    pub(super) fn closed(self) -> ResponderState {
        match self {
            ResponderState::Takes => ResponderState::Closed,
            closed => closed,
        }
    }

    /// The requester asks again for something before what is expected.
    pub(super) fn asked_again(self) -> ResponderState {
        match self {
            ResponderState::Refused(psn, refusal) => ResponderState::AskedAgain(psn, refusal),
            other => other,
        }
    }
}
