//! Pages of this process that others have mapped because they imported what lies in them.
//!
//! A region need not begin or end on a page, and regions may share pages. So what is moved onto
//! memory files is parts of the address space, none of which overlap, each with a file of its own;
//! an object that is imported holds those that it lies in, and what nobody holds any more moves
//! back. Who imports maps whole pages: what else is in the first and the last one is shared, too.

use omniverb_adopt::{Access, AdoptedPages, adopt};
use omniverb_sys::extent::FileId;
use omniverb_sys::{Extent, clock};
use omniverb_terms::Errno;
use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::OwnedFd;

/// Files of all parts together: each is a descriptor of the program's process.
const PARTS_MAX: usize = 1024;
/// Bytes of a part: moving one is waited for.
const PART_BYTES: usize = 256 << 20;

/// Who holds pages, and for which object: importer, kind, handle.
pub(crate) type Holder = (u64, u32, u32);

/// Pages that are on a file.
pub(crate) struct Part {
    pages: AdoptedPages,
    file: FileId,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Pages {
    /// In no order; none overlap.
    parts: Vec<Part>,
    /// Which pages each holds, and how often it says so.
    held: HashMap<Holder, (Range<usize>, u32)>,
}

impl Part {
    fn range(&self) -> Range<usize> {
        let start = self.pages.page_start();
        start..start + self.pages.page_length()
    }

    /// A descriptor of the file, for somebody else. `EBADF`: the program has closed ours, and the
    /// number may mean another file.
    fn descriptor(&self) -> Result<OwnedFd, Errno> {
        let file = Extent::new(self.pages.memfd(), 0, 0);
        if file.file_id().ok() != Some(self.file) {
            return Err(Errno::EBADF);
        }
        self.pages.memfd().try_clone_to_owned().map_err(|_| Errno::EMFILE)
    }
}

/// The whole pages that some bytes lie in. `None`: more than addresses there are.
pub(crate) fn around(address: usize, length: usize) -> Option<Range<usize>> {
    let page = clock::page_bytes();
    let end = address.checked_add(length)?.checked_next_multiple_of(page)?;
    Some(address - address % page..end)
}

impl Pages {
    /// An object lies in these pages, and somebody has imported it, once more.
    pub(crate) fn hold(&mut self, by: Holder, range: Range<usize>) {
        let held = self.held.entry(by).or_insert((0..0, 0));
        *held = (range, held.1.saturating_add(1));
    }

    /// Somebody has imported an object once less.
    pub(crate) fn leave(&mut self, by: Holder) {
        let Some(held) = self.held.get_mut(&by) else { return };
        held.1 = held.1.saturating_sub(1);
        if held.1 == 0 {
            self.let_go(|holder| *holder == by);
        }
    }

    /// Whether none are on files, nor held.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.held.is_empty()
    }

    /// How many objects are held.
    pub(crate) fn count(&self) -> usize {
        self.held.len()
    }

    /// Who has imported what this is true of.
    pub(crate) fn holders(&self, which: impl Fn(&Holder) -> bool) -> Vec<Holder> {
        self.held.keys().filter(|holder| which(holder)).copied().collect()
    }

    /// The pages of an object that somebody has imported.
    pub(crate) fn of(&self, holder: &Holder) -> Option<Range<usize>> {
        self.held.get(holder).map(|(range, _)| range.clone())
    }

    /// Where the pages from `address` on are, as many as lie together, up to `end`. `None`: they
    /// are to be moved first.
    ///
    /// # Errors
    /// `EBADF`, `EMFILE`.
    pub(crate) fn at(&self, address: usize, end: usize) -> Result<Option<Extent<OwnedFd>>, Errno> {
        let Some(part) = self.parts.iter().find(|part| part.range().contains(&address)) else {
            return Ok(None);
        };
        let range = part.range();
        let (offset, length) = (address - range.start, range.end.min(end) - address);
        Ok(Some(Extent::new(part.descriptor()?, offset as u64, length as u64)))
    }

    /// The pages from `address` on, up to `end`, that are to be moved together.
    pub(crate) fn gap(&self, address: usize, end: usize) -> Range<usize> {
        let next = self.parts.iter().map(|part| part.range().start).filter(|at| *at > address);
        let end = next.min().map_or(end, |next| next.min(end));
        address..end.min(address.saturating_add(PART_BYTES))
    }

    /// Moves pages, of which none are on files, onto one.
    ///
    /// # Errors
    /// errno: `EOPNOTSUPP` for memory that cannot be moved.
    pub(crate) fn move_out(&mut self, range: Range<usize>) -> Result<(), Errno> {
        if self.parts.len() >= PARTS_MAX {
            return Err(Errno::ENOMEM);
        }
        let pages = adopt(range.start, range.len(), Access::ReadWrite)
            .map_err(|error| crate::errno::from_raw(error.errno()))?;
        let file = Extent::new(pages.memfd(), 0, 0).file_id();
        let file = file.map_err(|error| crate::errno::errno_of(&error))?;
        self.parts.push(Part { pages, file });
        Ok(())
    }

    /// These hold theirs no longer: what nobody holds any more moves back. What cannot be moved
    /// now is tried again the next time.
    pub(crate) fn let_go(&mut self, which: impl Fn(&Holder) -> bool) {
        self.held.retain(|holder, _| !which(holder));
        let held = |part: &mut Part| {
            let range = part.range();
            self.held.values().any(|(of, _)| of.start < range.end && range.start < of.end)
        };
        let free: Vec<Part> = self.parts.extract_if(.., |part| !held(part)).collect();
        for Part { pages, file } in free {
            if let Err(failed) = pages.release() {
                self.parts.push(Part { pages: failed.pages, file });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_ring::WordMemory;
    use omniverb_ring::sync::Ordering;

    const PAGE: usize = 4096;

    /// Pages of this process, private.
    fn memory(pages: usize) -> Vec<u64> {
        // Large enough to be a mapping of its own, where no other test's memory is.
        vec![1; (pages + 512) * PAGE / 8]
    }

    fn first_page(of: &[u64]) -> usize {
        of.as_ptr().addr().next_multiple_of(PAGE)
    }

    #[test]
    fn objects_share_the_pages_that_they_have_in_common() {
        let bytes = memory(8);
        let start = first_page(&bytes);
        let mut pages = Pages::default();
        let (one, other) = ((1, 2, 7), (2, 2, 8));
        let first = around(start + 100, 2 * PAGE).unwrap();
        let second = around(start + 2 * PAGE + 2000, 3 * PAGE).unwrap();
        assert_eq!((first.len(), second.start), (3 * PAGE, start + 2 * PAGE));
        pages.hold(one, first.clone());
        pages.hold(other, second.clone());
        pages.hold(other, second.clone());
        assert!(pages.at(first.start, first.end).unwrap().is_none());
        pages.move_out(pages.gap(first.start, first.end)).unwrap();
        // The page in common is there; what is missing of the other lies behind it.
        let common = pages.at(second.start, second.end).unwrap().unwrap();
        assert_eq!((common.offset, common.length), (2 * PAGE as u64, PAGE as u64));
        let gap = pages.gap(second.start + PAGE, second.end);
        assert_eq!(gap, second.start + PAGE..second.end);
        pages.move_out(gap).unwrap();
        let window = common.map(Access::ReadWrite).unwrap();
        assert_eq!(window.load(0, Ordering::Relaxed), 1);
        window.store(0, 42, Ordering::Relaxed);
        pages.let_go(|holder| *holder == one);
        assert_eq!(pages.parts.len(), 2, "the other one lies there");
        pages.leave(other);
        assert_eq!(pages.parts.len(), 2, "it was imported twice");
        pages.leave(other);
        assert!(pages.is_empty());
        window.store(0, 43, Ordering::Relaxed);
        let index = (second.start - bytes.as_ptr().addr()) / 8;
        let seen = std::hint::black_box(&bytes)[index];
        assert_eq!(seen, 42, "what was written before the end, and nothing after it");
    }

    #[test]
    fn what_is_no_memory_of_the_processs_own_is_not_moved() {
        let mut pages = Pages::default();
        assert!(pages.move_out(PAGE..2 * PAGE).is_err());
        let code = around(first_page as fn(&[u64]) -> usize as usize, 16).unwrap();
        assert_eq!(pages.move_out(code), Err(Errno::EOPNOTSUPP));
        assert_eq!(around(usize::MAX - 8, 16), None);
        assert_eq!(around(usize::MAX - 8, 4), None);
    }
}
