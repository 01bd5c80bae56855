//! Names the two ends of a message of the connection manager.

use omniverb_terms::{Gid, VnicId};

/// Where a message came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// From an id of the same vNIC: it has not left the tables.
    SameVnic,
    /// From the vNIC's network.
    Network,
}

/// The sender and receiver of a message: names of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    /// The vNIC in whose network it arrived.
    pub(super) at: VnicId,
    /// The receiver's name, one of `at`'s.
    pub(super) own: Gid,
    pub(super) sender: Gid,
    pub(super) from: Origin,
}
