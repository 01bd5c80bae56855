//! Stores which pages of a machine's window are in use, in a memory file that outlives the daemon.
//!
//! The machine's supervisor keeps it and hands it to the next daemon; no guest ever sees it.
//!
//! A byte for each page of the data part; zero: free. It is written before a page is given and
//! after it came back, so a page that is noted as free is unused.

use omniverb_sys::{Extent, memfd};
use rustix::io::{Errno, pread, pwrite};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Pages that are read, or noted, at a time.
const STEP: usize = 4096;

/// The state of a page: the byte for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// No process uses it.
    Free = 0,
    /// A process may use it.
    Given = 1,
}

/// The notes on a window, if it has any.
#[derive(Clone, Debug)]
pub(crate) struct Ledger(Option<Arc<OwnedFd>>);

impl Ledger {
    /// A ledger that is not kept: everything is free, and nothing is noted.
    pub(crate) fn none() -> Ledger {
        Ledger(None)
    }

    /// Whether it is kept.
    pub(crate) fn is_kept(&self) -> bool {
        self.0.is_some()
    }

    /// Those in a file, which was [checked](Self::check).
    pub(crate) fn of(file: OwnedFd) -> Ledger {
        Ledger(Some(Arc::new(file)))
    }

    /// Whether a file can be notes about so many pages. Asks no file system.
    ///
    /// # Errors
    /// `InvalidInput` if it is none that has so many bytes for ever and can be written.
    pub(crate) fn check(file: &OwnedFd, pages: u64) -> io::Result<()> {
        let sound = Extent::new(file, 0, pages).seals()?.is_for_writers();
        match sound && memfd::size(file.as_fd())? >= pages {
            true => Ok(()),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// The ranges of given pages, of so many.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn given(&self, pages: u64) -> io::Result<Vec<Range<u64>>> {
        let mut given: Vec<Range<u64>> = Vec::new();
        let Some(file) = &self.0 else { return Ok(given) };
        let mut bytes = [0; STEP];
        let mut at = 0;
        while at < pages {
            let length = pread(file, &mut bytes, at)?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let numbers = at..pages.min(at + length as u64);
            for (page, _) in numbers.zip(bytes).filter(|(_, byte)| *byte != 0) {
                match given.last_mut().filter(|last| last.end == page) {
                    Some(last) => last.end += 1,
                    None => given.push(page..page + 1),
                }
            }
            at += length as u64;
        }
        Ok(given)
    }

    /// The bytes behind the notes about so many pages; `None`: zeros, or nothing.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn trailer<const N: usize>(&self, pages: u64) -> io::Result<Option<[u8; N]>> {
        let Some(file) = &self.0 else { return Ok(None) };
        let mut bytes = [0; N];
        if pread(file, &mut bytes, pages)? != N {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(bytes.iter().any(|byte| *byte != 0).then_some(bytes))
    }

    /// Writes the bytes behind the notes.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn note_trailer(&self, pages: u64, bytes: &[u8]) -> io::Result<()> {
        let Some(file) = &self.0 else { return Ok(()) };
        match pwrite(file, bytes, pages)? == bytes.len() {
            true => Ok(()),
            false => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Notes the state of pages.
    ///
    /// # Errors
    /// The kernel's error; some of them may be noted then.
    pub(crate) fn note(&self, pages: Range<u64>, state: State) -> io::Result<()> {
        let Some(file) = &self.0 else { return Ok(()) };
        let bytes = [state as u8; STEP];
        let mut at = pages.start;
        while at < pages.end {
            let most = usize::try_from(pages.end - at).unwrap_or(STEP).min(STEP);
            match pwrite(file, &bytes[..most], at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => at += length as u64,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u64 = 10_000;

    #[test]
    fn notes_reach_the_next_daemon() {
        let file = memfd::create("ledger", PAGES).unwrap();
        Ledger::check(&file, PAGES).unwrap();
        let ledger = |file: &OwnedFd| Ledger::of(file.try_clone().unwrap());
        let first = ledger(&file);
        assert!(first.given(PAGES).unwrap().is_empty());
        for pages in [1..3, 3..9, 4000..9001, 9999..10_000] {
            first.note(pages, State::Given).unwrap();
        }
        first.note(2..4, State::Free).unwrap();
        drop(first);
        assert_eq!(ledger(&file).given(PAGES).unwrap(), [1..2, 4..9, 4000..9001, 9999..10_000]);
        Ledger::none().note(0..7, State::Given).unwrap();
        assert!(Ledger::none().given(PAGES).unwrap().is_empty());
    }

    #[test]
    fn a_malformed_ledger_is_refused() {
        let short = memfd::create("ledger", PAGES - 1).unwrap();
        let open = memfd::unsealed("ledger", PAGES).unwrap();
        let sealed = memfd::create_sealable("ledger", PAGES).unwrap();
        memfd::seal_future_write(sealed.as_fd()).unwrap();
        let other = std::fs::File::open("/dev/null").unwrap();
        for file in [short, open, sealed, other.into()] {
            assert!(Ledger::check(&file, PAGES).is_err());
        }
    }
}
