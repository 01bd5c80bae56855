//! Keeps the settings of administrators about vNICs (`policies.rs`), and about pages
//! (`adoption.rs`).

pub(crate) mod adoption;
pub(crate) mod policies;
