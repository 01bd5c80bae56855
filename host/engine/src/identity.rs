//! How the control plane and the engine name vNICs to each other.

/// A vNIC, by a number of the control plane's choice that is not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VnicId(pub u64);
