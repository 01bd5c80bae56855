//! Holds requests back until their sender may begin another operation.

/// Says whether a sender may begin an operation: with a permit only, if its operations are limited.
///
/// What belongs to an operation that has begun needs none: further packets of its message, and what
/// is sent again. Nor do answers to the peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct OperationPermit {
    is_limited: bool,
    is_given: bool,
    is_awaited: bool,
}

impl OperationPermit {
    /// Operations need permits from now on.
    pub fn require(&mut self) {
        self.is_limited = true;
    }

    /// Operations need no permits any more.
    pub fn lift(&mut self) {
        *self = OperationPermit::default();
    }

    /// The next operation may begin.
    pub fn give(&mut self) {
        (self.is_given, self.is_awaited) = (true, false);
    }

    /// Whether an operation was held back since, for want of a permit.
    pub fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    /// Whether operations need permits.
    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// Whether an operation may begin. If not, a permit is awaited.
    pub fn may_begin(&mut self) -> bool {
        self.is_awaited = self.is_limited && !self.is_given;
        !self.is_awaited
    }

    /// An operation has begun: its first packet was made.
    pub fn note_begun(&mut self) {
        self.is_given = false;
    }
}
