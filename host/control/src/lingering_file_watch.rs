//! Finds out when files that the tables have forgotten are closed by every process.
//!
//! Where the kernel does not say, because there are too many or it has none of this, nothing is
//! ever said of a file, and the tables go on counting it.

use omniverb_sys::memfd_deletion::LastHolder;
use omniverb_tenancy::FileId;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};

/// Budget: watched files, of all owners: the kernel's events about them fit into its queue (16384
/// events, two for each).
const HELD_MAX: usize = 8192;

/// Those files, by both of their names.
#[derive(Debug)]
pub(crate) struct WatchedFiles {
    last: Option<LastHolder>,
    files: HashMap<i32, FileId>,
    names: HashMap<FileId, i32>,
}

impl WatchedFiles {
    pub(crate) fn new() -> WatchedFiles {
        WatchedFiles { last: LastHolder::new().ok(), files: HashMap::new(), names: HashMap::new() }
    }

    /// Readable when some are gone; `None`: nothing is ever said.
    pub(crate) fn ready(&self) -> Option<BorrowedFd<'_>> {
        self.last.as_ref().map(AsFd::as_fd)
    }

    /// Watches a file whose last descriptor of the daemon is about to be closed.
    pub(crate) fn watch(&mut self, file: FileId, descriptor: impl AsFd) {
        let last = self.last.as_ref().filter(|_| self.files.len() < HELD_MAX);
        if let Some(Ok(name)) = last.map(|last| last.watch(descriptor.as_fd())) {
            self.files.insert(name, file);
            self.names.insert(file, name);
        }
    }

    /// Stops watching a file.
    pub(crate) fn forget(&mut self, file: FileId) {
        if let (Some(last), Some(name)) = (&self.last, self.names.remove(&file)) {
            self.files.remove(&name);
            last.forget(name);
        }
    }

    /// Files that no process has any more.
    pub(crate) fn gone(&mut self) -> Vec<FileId> {
        let gone = self.last.iter().flat_map(LastHolder::gone);
        let files: Vec<FileId> = gone.filter_map(|name| self.files.remove(&name)).collect();
        for file in &files {
            self.names.remove(file);
        }
        files
    }
}
