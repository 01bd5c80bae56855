//! The memory of a trunk: what two processes of one network namespace have in common by which their
//! connections go without a socket of the kernel's. The broker gives it, and looks at nothing in
//! it.

/// Bytes of its file: a page of words, and a ring for what each of the two sends.
pub const BYTES: usize = 4096 + 2 * (256 << 10);
