//! Lists the reasons for which pages could not be moved.
//!
//! Every error leaves the program's memory as it was, except that a failed release leaves the pages
//! on their memfd.

use rustix::io::Errno;

/// Why [`crate::adopt`] or a release did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdoptError {
    /// The range contains no whole page.
    #[error("the range contains no whole page")]
    NoWholePage,
    /// Part of the range is not private anonymous read-write memory, or it is a stack.
    #[error("not private anonymous read-write memory")]
    NotAnonymous,
    /// The process uses kernel interfaces that store into user pages behind the page tables
    /// (io_uring, AIO, mapped devices): such a store could hit the page that was replaced.
    #[error("asynchronous kernel I/O may store into the pages")]
    KernelStores,
    /// io_uring has buffers registered in the pages since they were adopted: what it stores there
    /// would be lost. For releases only.
    #[error("io_uring has buffers registered in the pages")]
    Registered,
    /// The process already has so many mappings that ours could cost it one it needs.
    #[error("too many memory mappings")]
    TooManyMappings,
    /// The mappings changed while the pages were being moved.
    #[error("the mappings changed meanwhile")]
    Changed,
    /// The other threads could not be brought to a halt in time.
    #[error("the other threads did not stop in time")]
    Busy,
    /// Some pages have moved, and could not be moved back.
    #[error("some pages have moved and could not be moved back")]
    Stuck,
    /// No strategy is permitted to this process.
    #[error(
        "this process may neither use userfaultfd nor stop its threads (seccomp, ptrace_scope?)"
    )]
    NotPermitted,
    /// The kernel refused.
    #[error("system call failed: {0}")]
    System(#[from] Errno),
}

impl AdoptError {
    /// The errno that says the same in a control message.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            Self::NoWholePage => Errno::RANGE,
            Self::NotAnonymous | Self::KernelStores => Errno::OPNOTSUPP,
            Self::TooManyMappings => Errno::NOMEM,
            Self::Changed | Self::Busy | Self::Registered => Errno::BUSY,
            Self::NotPermitted => Errno::PERM,
            Self::Stuck => Errno::IO,
            Self::System(errno) => errno,
        }
        .raw_os_error()
    }
}
