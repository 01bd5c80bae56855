//! Rows of `omniverb status` (`status.rs`), gone through from any place on (`walk.rs`).

pub(crate) mod status;
mod walk;
