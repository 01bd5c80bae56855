//! Verbs and a daemon in place of `libibverbs.so.1`, and what must hold with them.

pub(crate) mod below;
mod calls;
mod connections;
pub(crate) mod daemon;
pub(crate) mod program;
