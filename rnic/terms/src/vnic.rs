//! Names vNICs within one host.

/// A vNIC, by a number that its daemon has counted and never gives again. How it is reached it does
/// not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VnicId(pub u64);
