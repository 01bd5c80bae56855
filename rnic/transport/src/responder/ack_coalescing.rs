//! Counts what is done and not acknowledged, and decides when to acknowledge it.

/// Packets that wait for one acknowledgement of all of them (9.7.5.1.2).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AckCoalescer {
    packets: u32,
    due: bool,
}

impl AckCoalescer {
    /// So many more are done. `every`: the requester is to hear of so many at the latest.
    pub(super) fn add(&mut self, packets: u32, every: u32) {
        self.packets += packets;
        self.due |= self.packets >= every;
    }

    /// The requester wants to hear of them, or hear once more of what it was told.
    pub(super) fn make_due(&mut self) {
        self.due = true;
    }

    /// Whether it is time.
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// Whether it is one packet, or none.
    pub(super) fn is_of_one(&self) -> bool {
        self.packets <= 1
    }

    /// An acknowledgement has left.
    pub(super) fn said(&mut self) {
        *self = AckCoalescer::default();
    }

    /// Something has left that acknowledges them as well. One that is due leaves all the same.
    pub(super) fn implied(&mut self) {
        self.packets = 0;
    }

    /// Nothing is said any more.
    pub(super) fn stop(&mut self) {
        self.due = false;
    }
}
