//! Ring and doorbell against the memory model: every interleaving of a few steps, and every value a
//! load may return.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p omniverb_ring --release --test loom`
//!
//! Loom treats sequentially consistent accesses as acquire and release only. That is weaker than
//! what the hardware does, so what passes here holds all the more there.
#![cfg(loom)]

mod doorbell;
mod doorbell_sleep;
mod grant_revocation;
mod payload_source_revocation;
mod spsc;
