//! Reports when no process has a memory file open or mapped any more.
//!
//! The kernel says so (inotify, `IN_DELETE_SELF`): a memory file has no name, so it is deleted when
//! its last holder lets go of it.

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Files that are looked at.
#[derive(Debug)]
pub struct LastHolder(OwnedFd);

impl LastHolder {
    /// None yet.
    ///
    /// # Errors
    /// `EMFILE`: also if this user has as many of these as are allowed.
    pub fn new() -> io::Result<LastHolder> {
        Ok(LastHolder(inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?))
    }

    /// Looks at one more, which may be closed then. Says what it is called here.
    ///
    /// # Errors
    /// `ENOSPC`: this user looks at as many files as are allowed. What `/proc` says.
    pub fn watch(&self, file: BorrowedFd<'_>) -> io::Result<i32> {
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(inotify::add_watch(&self.0, name, WatchFlags::DELETE_SELF)?)
    }

    /// No longer looks at one.
    pub fn forget(&self, name: i32) {
        let _ = inotify::remove_watch(&self.0, name);
    }

    /// Those that no process has any more, each once.
    #[must_use]
    pub fn gone(&self) -> Vec<i32> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.0, &mut buffer);
        let mut gone = Vec::new();
        while let Ok(event) = reader.next() {
            if event.events().contains(ReadFlags::DELETE_SELF) {
                gone.push(event.wd());
            }
        }
        gone
    }
}

impl AsFd for LastHolder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Extent, eventfd, memfd};
    use std::time::Duration;

    #[test]
    fn a_file_is_gone_when_it_is_neither_open_nor_mapped() {
        let last = LastHolder::new().unwrap();
        let file = memfd::create_sealable("pages", 0x2000).unwrap();
        let name = last.watch(file.as_fd()).unwrap();
        let map = Extent::new(&file, 0, 0x2000).mapping(Access::ReadWrite).unwrap();
        let copy = file.try_clone().unwrap();
        for holder in [file, copy] {
            assert!(last.gone().is_empty());
            drop(holder);
        }
        assert!(last.gone().is_empty(), "it is mapped");
        drop(map);
        assert!(eventfd::readable(last.as_fd(), Some(Duration::from_secs(20))).unwrap());
        assert_eq!(last.gone(), [name]);
        assert!(last.gone().is_empty(), "said once");
    }

    #[test]
    fn an_unwatched_file_reports_nothing() {
        let last = LastHolder::new().unwrap();
        let [one, other] = ["one", "other"].map(|name| memfd::create(name, 0x1000).unwrap());
        let names = [&one, &other].map(|file| last.watch(file.as_fd()).unwrap());
        last.forget(names[0]);
        drop(one);
        drop(other);
        assert!(eventfd::readable(last.as_fd(), Some(Duration::from_secs(20))).unwrap());
        assert_eq!(last.gone(), [names[1]]);
    }
}
