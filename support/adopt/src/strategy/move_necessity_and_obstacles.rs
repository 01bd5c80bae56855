//! Describes how much a move is worth, and which descriptors are in its way.

/// Whether a move may be left undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MoveNecessity {
    /// An adoption: it is left undone where looking at everything takes too long.
    Optional,
    /// A release: what was granted is taken back, however much there is to look at.
    Mandatory,
}

/// What is known to be in the way of protection, and is not to hold it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KnownObstacle {
    Nothing,
    /// A descriptor that is open for direct I/O, once no thread is in a request.
    Descriptors,
}

/// When descriptors are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DescriptorScanTime {
    /// Before pages are protected, too: it is not known yet how long that takes.
    First,
    /// Once pages are protected, and the program may be waiting: it did not take long before.
    Protected,
}
