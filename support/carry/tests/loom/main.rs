//! Publishing and sleeping in the model checker. See `src/direction.rs`.
#![cfg(loom)]
