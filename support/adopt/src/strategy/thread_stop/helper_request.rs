//! Describes the request to the helper and its result, in memory that both have.

use super::refusal_code;
use super::tracee::Tracee;
use crate::address_space_sharers::SharingProcesses;
use crate::error::AdoptError;
use crate::stretch_move::StretchMove;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

/// Threads a process may have for this strategy; bounds the helper's memory.
pub(super) const THREADS_MAX: usize = 4096;

/// How far the helper came, in [`StopRequest::progress`].
pub(super) const STARTED: u32 = 0;
pub(super) const REPLACING: u32 = 1;
pub(super) const REPLACED: u32 = 2;
pub(super) const REFUSED: u32 = 3;

/// What is to be done, for which process, and how far it is.
pub(super) struct StopRequest<'a> {
    pub(super) work: &'a StretchMove<'a>,
    pub(super) process: i32,
    pub(super) caller: i32,
    /// Lists this process's threads. Opened by the caller, to be closed even if the helper is
    /// killed: they share descriptors.
    pub(super) thread_list: BorrowedFd<'a>,
    /// Other processes whose threads are to be stopped too.
    pub(super) sharers: &'a SharingProcesses,
    /// Room for [`THREADS_MAX`] threads.
    pub(super) threads: *mut Tracee,
    pub(super) progress: AtomicU32,
    /// With [`REFUSED`]: an errno, or what `refusal_code.rs` has.
    pub(super) reason: AtomicI32,
}

impl StopRequest<'_> {
    /// What became of it, when the helper is gone.
    pub(super) fn outcome(&self) -> Result<(), AdoptError> {
        match self.progress.load(Ordering::Acquire) {
            REPLACED => Ok(()),
            // Killed around its last system call: the mappings tell on which side of it.
            REPLACING if self.work.protection()?.is_none() => Ok(()),
            REFUSED => Err(match self.reason.load(Ordering::Relaxed) {
                refusal_code::NOT_PERMITTED => AdoptError::NotPermitted,
                refusal_code::CHANGED => AdoptError::Changed,
                refusal_code::STACK => AdoptError::NotAnonymous,
                errno if errno > 0 => AdoptError::System(Errno::from_raw_os_error(errno)),
                _ => AdoptError::Busy,
            }),
            _ => Err(AdoptError::Busy),
        }
    }
}
