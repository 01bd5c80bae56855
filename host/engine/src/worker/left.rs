//! Whether something is left to be done when a turn is over.

/// Of what one link, or one socket, may have done in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    /// More than fits into one turn; others have theirs first.
    Something,
}

impl Left {
    pub(super) fn if_more(more: bool) -> Left {
        if more { Left::Something } else { Left::Nothing }
    }

    pub(super) fn or(self, other: Left) -> Left {
        Left::if_more(self == Left::Something || other == Left::Something)
    }
}
