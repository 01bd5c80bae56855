//! Lists why two sockets may not share memory.

use crate::qp_data_path::PathReason;
use omniverb_terms::VnicId;
use std::net::IpAddr;

/// One end: a vNIC, and the address that the sockets there have.
pub type RelationEnd = (VnicId, IpAddr);

/// Why there is none between two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelationRefusal {
    /// One of the vNICs is no more, or the relation was ended by an operator.
    Gone,
    /// An address is not one of its vNIC's.
    NotItsAddress,
    /// Packets to one of the addresses come out elsewhere, or nowhere.
    NotThere,
    /// Too much was asked of the network at a time.
    Busy,
    /// The administrator wants what goes between the two seen by the engine.
    Policy(PathReason),
    /// They have no memory in common: one is a virtual machine.
    NoMemory,
}
