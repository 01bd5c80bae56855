//! What tests and fuzzing need of the client, and no product has.

pub mod hostile;
pub(crate) mod imports;
pub(crate) mod opened;
#[cfg(test)]
pub(crate) mod random;

pub use self::imports::imports;
pub use self::opened::opened;
