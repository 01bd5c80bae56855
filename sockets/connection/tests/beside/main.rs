//! Runs random operations on the kernel's sockets and on this crate's model, and compares the
//! results.
// UNSAFETY: system calls on sockets of its own.
#![expect(unsafe_code)]

mod carried;
mod descriptors;
mod pair;
mod sets;
