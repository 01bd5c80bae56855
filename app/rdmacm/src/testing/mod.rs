//! Verbs and a daemon in place of `libibverbs.so.1`, and what must hold with them.

pub(crate) mod c_call_helpers;
mod connection_tests;
pub(crate) mod fake_daemon;
pub(crate) mod fake_ibverbs;
mod single_call_tests;
