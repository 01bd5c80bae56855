//! The same random operations on the kernel's sockets and on what this crate says: the same
//! results.
// UNSAFETY: system calls on sockets of its own.
#![expect(unsafe_code)]

mod carried;
mod descriptors;
mod pair;
mod sets;
