//! What tests and fuzzing need of the client, and no product has.

pub mod hostile;

pub use crate::imports::fuzz::imports;
pub use crate::opened::fuzz::opened;
