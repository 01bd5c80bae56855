//! Tells whether work is left when an iteration is over.

/// Of what one link, or one socket, may have done in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkLeft {
    Nothing,
    /// More than fits into one turn; others have theirs first.
    Something,
}

impl WorkLeft {
    pub(super) fn if_more(more: bool) -> WorkLeft {
        if more { WorkLeft::Something } else { WorkLeft::Nothing }
    }

    pub(super) fn or(self, other: WorkLeft) -> WorkLeft {
        WorkLeft::if_more(self == WorkLeft::Something || other == WorkLeft::Something)
    }
}
