//! What tests and fuzzing need of the client, and no product has.

pub mod hostile_daemon;
pub(crate) mod hostile_importer;
pub(crate) mod hostile_opener;
#[cfg(test)]
pub(crate) mod xorshift64;

pub use self::hostile_importer::imports;
pub use self::hostile_opener::opened;
