//! Keeps the pages of this process that importers have mapped, by what lies in them.
//!
//! A region need not begin or end on a page, and regions may share pages. So what is moved onto
//! memory files is parts of the address space, none of which overlap, each with a file of its own;
//! an object that is imported needs those that it lies in, and what none needs any more moves back.
//! An importer maps whole pages: what else is in the first and the last one is shared, too. A page
//! that an object does not fill is a part by itself, so that neighbours have that one page in
//! common and nothing else. A part ends with the object that it was made for, unless it lies wholly
//! in another one that is imported.

use omniverb_adopt::{Access, AdoptedPages, adopt};
use omniverb_sys::extent::FileId;
use omniverb_sys::{Extent, clock};
use omniverb_terms::Errno;
use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::OwnedFd;

/// Files of all parts together: each is a descriptor of the program's process.
const PARTS_MAX: usize = 1024;
/// Of the descriptors that the process may have: one in so many.
const SHARE: usize = 2;
/// Bytes of a part: moving one is waited for.
const PART_BYTES: usize = 256 << 20;

/// An object: kind, handle.
pub(crate) type Object = (u32, u32);
/// An import: importer, kind, handle.
pub(crate) type ImportKey = (u64, u32, u32);

/// Pages that are on a file.
pub(crate) struct MovedPart {
    pages: AdoptedPages,
    file: FileId,
    /// What they were moved for.
    of: Object,
    /// The context that the object was made in, by its number in this process.
    context: u64,
    /// They are not given out any more: they are to move back.
    ends: bool,
}

/// An object that an importer has.
struct ImportedObject {
    bytes: Range<usize>,
    context: u64,
    /// How often it has imported it.
    times: u32,
}

/// What of this process's memory importers have mapped, or are about to: one table for all
/// contexts.
#[derive(Default)]
pub(crate) struct ExportedPages {
    /// In no order; none overlap.
    parts: Vec<MovedPart>,
    imported: HashMap<ImportKey, ImportedObject>,
}

impl ImportedObject {
    /// The whole pages around its bytes; none, if there are no such pages.
    fn range(&self) -> Range<usize> {
        around(self.bytes.start, self.bytes.len()).unwrap_or(0..0)
    }
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

fn is_within(inner: &Range<usize>, outer: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

impl MovedPart {
    fn range(&self) -> Range<usize> {
        let start = self.pages.page_start();
        start..start + self.pages.page_length()
    }

    /// A descriptor of the file, for another process. `EBADF`: the program has closed ours, and the
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

impl ExportedPages {
    /// An object of these bytes, not none, has been imported once more.
    pub(crate) fn import(&mut self, by: ImportKey, bytes: Range<usize>, context: u64) {
        let import =
            self.imported.entry(by).or_insert(ImportedObject { bytes: 0..0, context, times: 0 });
        (import.bytes, import.context) = (bytes, context);
        import.times = import.times.saturating_add(1);
    }

    /// An importer has given up an object once; whether it has none of it left.
    pub(crate) fn leave(&mut self, by: ImportKey) -> bool {
        let Some(import) = self.imported.get_mut(&by) else { return false };
        import.times = import.times.saturating_sub(1);
        import.times == 0
    }

    /// Whether none are on files, and nothing is imported.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.imported.is_empty()
    }

    /// How many objects are imported, each as often as it has importers.
    pub(crate) fn count(&self) -> usize {
        self.imported.len()
    }

    /// Whether this importer has imported something.
    pub(crate) fn has(&self, importer: u64) -> bool {
        self.imported.keys().any(|key| key.0 == importer)
    }

    /// The bytes of an imported object.
    pub(crate) fn of(&self, key: &ImportKey) -> Option<Range<usize>> {
        self.imported.get(key).map(|import| import.bytes.clone())
    }

    /// Where the pages from `address` on are, as many as lie together, of those that these bytes
    /// lie in. `None`: they are to be moved first.
    ///
    /// # Errors
    /// `EBADF`, `EMFILE`; `EAGAIN`: they are to move back first; `EOPNOTSUPP`: they are on a file
    /// with what another context has.
    pub(crate) fn at(
        &self,
        address: usize,
        bytes: &Range<usize>,
        context: u64,
    ) -> Result<Option<Extent<OwnedFd>>, Errno> {
        let Some(part) = self.parts.iter().find(|part| part.range().contains(&address)) else {
            return Ok(None);
        };
        let (range, all) = (part.range(), around(bytes.start, bytes.len()).ok_or(Errno::EINVAL)?);
        if part.ends {
            return Err(Errno::EAGAIN);
        }
        if part.context != context && !is_within(&range, &all) {
            return Err(Errno::EOPNOTSUPP);
        }
        let (offset, length) = (address - range.start, range.end.min(all.end) - address);
        Ok(Some(Extent::new(part.descriptor()?, offset as u64, length as u64)))
    }

    /// The pages that are to be moved together for one of them, of those that these bytes lie in:
    /// the same whichever of them is asked for.
    pub(crate) fn gap(&self, address: usize, bytes: &Range<usize>) -> Range<usize> {
        let page = clock::page_bytes();
        let all = around(bytes.start, bytes.len()).unwrap_or(0..0);
        let first = bytes.start.next_multiple_of(page);
        let last = bytes.end - bytes.end % page;
        let (start, end) = if address < first {
            (all.start, first)
        } else if address >= last {
            (last, all.end)
        } else {
            let start = address - (address - first) % PART_BYTES;
            (start, last.min(start.saturating_add(PART_BYTES)))
        };
        let ranges = || self.parts.iter().map(MovedPart::range);
        let before = ranges().map(|range| range.end).filter(|end| *end <= address).max();
        let behind = ranges().map(|range| range.start).filter(|start| *start > address).min();
        before.map_or(start, |at| at.max(start))..behind.map_or(end, |at| at.min(end))
    }

    /// Moves pages, of which none are on files, onto one.
    ///
    /// # Errors
    /// errno: `EOPNOTSUPP` for memory that cannot be moved, `ENOMEM` if there are too many,
    /// `EAGAIN` if other threads keep them busy.
    pub(crate) fn move_out(
        &mut self,
        range: Range<usize>,
        of: Object,
        context: u64,
    ) -> Result<(), Errno> {
        if self.parts.len() >= PARTS_MAX.min(omniverb_sys::process_is_dead::files_max() / SHARE) {
            return Err(Errno::ENOMEM);
        }
        let pages = adopt(range.start, range.len(), Access::ReadWrite)
            .map_err(|error| crate::errno_conversion::from_raw(error.errno()))
            // Other threads keep them busy: importers ask again.
            .map_err(|errno| if errno == Errno::EBUSY { Errno::EAGAIN } else { errno })?;
        let file = Extent::new(pages.memfd(), 0, 0).file_id();
        let file = file.map_err(|error| crate::errno_conversion::errno_of(&error))?;
        self.parts.push(MovedPart { pages, file, of, context, ends: false });
        Ok(())
    }

    /// An object ends. Returns the imports that end with it: of the object itself, and of what lies
    /// in pages that go with it.
    pub(crate) fn end(&mut self, object: Object) -> Vec<ImportKey> {
        let imported = &self.imported;
        let is_it = |key: &ImportKey| (key.1, key.2) == object;
        for part in self.parts.iter_mut().filter(|part| part.of == object) {
            let range = part.range();
            let mut others = imported.iter().filter(|(key, _)| !is_it(key));
            match others.find(|(_, import)| is_within(&range, &import.range())) {
                Some((key, import)) if !part.ends => {
                    (part.of, part.context) = ((key.1, key.2), import.context);
                }
                _ => part.ends = true,
            }
        }
        let ends = |range: &Range<usize>| {
            self.parts.iter().any(|part| part.ends && overlap(&part.range(), range))
        };
        let all = imported.iter().filter(|(key, import)| is_it(key) || ends(&import.range()));
        all.map(|(key, _)| *key).collect()
    }

    /// Whether pages that were moved for this object are to move back still.
    pub(crate) fn keeps(&self, object: Object) -> bool {
        self.parts.iter().any(|part| part.ends && part.of == object)
    }

    /// These are imported no longer: what none needs any more moves back, and what ends.
    ///
    /// # Errors
    /// errno: some cannot be moved now. They are not given out, and tried again the next time.
    pub(crate) fn let_go(&mut self, which: impl Fn(&ImportKey) -> bool) -> Result<(), Errno> {
        self.imported.retain(|key, _| !which(key));
        let is_needed =
            |range: &Range<usize>| self.imported.values().any(|of| overlap(&of.range(), range));
        let is_free = |part: &mut MovedPart| part.ends || !is_needed(&part.range());
        let free: Vec<MovedPart> = self.parts.extract_if(.., is_free).collect();
        let mut outcome = Ok(());
        for MovedPart { pages, file, of, context, .. } in free {
            if let Err(failed) = pages.release() {
                outcome = Err(crate::errno_conversion::from_raw(failed.error.errno()));
                let pages = failed.pages;
                self.parts.push(MovedPart { pages, file, of, context, ends: true });
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_ring::WordMemory;
    use omniverb_ring::shared_atomics::Ordering;

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
    fn objects_share_the_page_that_they_have_in_common_and_no_other() {
        let bytes = memory(8);
        let start = first_page(&bytes);
        let mut pages = ExportedPages::default();
        let (one, other) = ((1, 2, 7), (2, 2, 8));
        let first = start + 100..start + 2 * PAGE + 100;
        let second = start + 2 * PAGE + 2000..start + 5 * PAGE + 2000;
        pages.import(one, first.clone(), 1);
        pages.import(other, second.clone(), 2);
        pages.import(other, second.clone(), 2);
        for (page, of) in [(0, 0..1), (1, 1..2), (2, 2..3)] {
            let at = start + page * PAGE;
            assert!(pages.at(at, &first, 1).unwrap().is_none());
            let gap = pages.gap(at, &first);
            assert_eq!(gap, start + of.start * PAGE..start + of.end * PAGE);
            pages.move_out(gap, (2, 7), 1).unwrap();
        }
        let common = pages.at(start + 2 * PAGE, &second, 2).unwrap().unwrap();
        assert_eq!((common.offset, common.length), (0, PAGE as u64));
        for page in [4, 3] {
            let gap = pages.gap(start + page * PAGE, &second);
            assert_eq!(gap, start + 3 * PAGE..start + 5 * PAGE, "whichever is asked for");
        }
        pages.move_out(start + 3 * PAGE..start + 5 * PAGE, (2, 8), 2).unwrap();
        let window = common.map(Access::ReadWrite).unwrap();
        assert_eq!(window.load(0, Ordering::Relaxed), 1);
        window.store(0, 42, Ordering::Relaxed);
        assert_eq!(pages.end((2, 7)), [one]);
        pages.let_go(|key| *key == one).unwrap();
        assert_eq!(pages.parts.len(), 2, "the page in common, and the other's");
        assert!(!pages.leave(other), "it was imported twice");
        assert!(pages.leave(other));
        pages.let_go(|key| *key == other).unwrap();
        assert!(pages.is_empty());
        window.store(0, 43, Ordering::Relaxed);
        let index = (start + 2 * PAGE - bytes.as_ptr().addr()) / 8;
        let seen = std::hint::black_box(&bytes)[index];
        assert_eq!(seen, 42, "what was written before the end, and nothing after it");
    }

    #[test]
    fn a_part_of_a_domain_ends_with_its_object_even_if_used() {
        let bytes = memory(8);
        let start = first_page(&bytes);
        let whole = start..start + 8 * PAGE;
        let inner = start + PAGE + 8..start + 2 * PAGE;
        let mut pages = ExportedPages::default();
        let (one, other) = ((1, 2, 7), (2, 2, 8));
        pages.import(one, whole.clone(), 1);
        pages.move_out(pages.gap(start, &whole), (2, 7), 1).unwrap();
        pages.import(other, inner.clone(), 1);
        assert!(pages.at(start + PAGE, &inner, 1).unwrap().is_some());
        let of_another = pages.at(start + PAGE, &inner, 2).err();
        assert_eq!(of_another, Some(Errno::EOPNOTSUPP), "more than that context has");
        // The importer of the whole gives it up, and then it ends.
        assert!(pages.leave(one));
        pages.let_go(|key| *key == one).unwrap();
        assert_eq!(pages.parts.len(), 1);
        assert_eq!(pages.end((2, 7)), [other]);
        assert!(pages.keeps((2, 7)));
        assert_eq!(pages.at(start + PAGE, &inner, 1).err(), Some(Errno::EAGAIN));
        pages.let_go(|key| *key == other).unwrap();
        assert!(pages.is_empty() && !pages.keeps((2, 7)));
        // The inner first: its page lies in the whole.
        pages.import(other, inner.clone(), 1);
        pages.move_out(pages.gap(start + PAGE, &inner), (2, 8), 1).unwrap();
        pages.import(one, whole, 1);
        assert_eq!(pages.end((2, 8)), [other]);
        pages.let_go(|key| *key == other).unwrap();
        assert_eq!(pages.parts[0].of, (2, 7));
        pages.end((2, 7));
        pages.let_go(|key| *key == one).unwrap();
        assert!(pages.is_empty());
    }

    #[test]
    fn what_is_no_memory_of_the_processs_own_is_not_moved() {
        let mut pages = ExportedPages::default();
        assert!(pages.move_out(PAGE..2 * PAGE, (2, 1), 1).is_err());
        let code = around(first_page as fn(&[u64]) -> usize as usize, 16).unwrap();
        assert_eq!(pages.move_out(code, (2, 1), 1), Err(Errno::EOPNOTSUPP));
        assert_eq!(around(usize::MAX - 8, 16), None);
        assert_eq!(around(usize::MAX - 8, 4), None);
    }
}
