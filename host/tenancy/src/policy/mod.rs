//! What an administrator says about vNICs: `policies.rs` and `adoption.rs` have the words,
//! `policing.rs` what follows from them.

pub(crate) mod adoption;
pub(crate) mod policies;
mod policing;
