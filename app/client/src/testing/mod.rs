//! What tests and fuzzing need of the client, and no product has.

pub mod hostile;
mod imports;
pub(crate) mod opened;

pub use self::imports::imports;
pub use self::opened::opened;
