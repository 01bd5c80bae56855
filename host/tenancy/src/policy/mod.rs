//! Keeps the settings of administrators about vNICs (`policies.rs`), about pages (`adoption.rs`)
//! and about control operations (`control_limits.rs`).

pub(crate) mod adoption;
pub(crate) mod control_limits;
pub(crate) mod policies;
