//! Identifies this process. What a process made is not its forked child's: the daemon knows whose
//! it is.

/// This process, by its number.
pub(crate) fn this() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}
