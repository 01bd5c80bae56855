//! Where packets go, which is not what verbs calls a peer.

use core::net::IpAddr;

/// A route to a peer through the network below: what the engine and probes send by. Says nothing of
/// names.
///
/// The key of an encrypted tunnel belongs to the route, too: it would be a field here, and nothing
/// between the directory and the engine names a field of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Underlay {
    /// Ours: packets leave from this address.
    pub local: IpAddr,
    /// The peer's: packets go to this address.
    pub remote: IpAddr,
    /// Through this interface if the peer's address means something on one link only, else zero.
    pub interface: u32,
}
