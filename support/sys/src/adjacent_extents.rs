//! Maps extents side by side into one window, a few at a time.

use crate::extent::Extent;
use crate::mapping::{Access, Mapping};
use crate::mapping_as_ring_window;
use omniverb_ring::Window;
use std::io;
use std::os::fd::AsFd;

/// A window that is being made. Forked children do not inherit it.
#[derive(Debug)]
pub struct SideBySide {
    mapping: Mapping,
    /// So many bytes of it are there.
    done: usize,
    access: Access,
}

impl SideBySide {
    /// Has room for so many bytes.
    ///
    /// # Errors
    /// `EINVAL` for none, otherwise what the kernel says.
    pub fn begin(bytes: usize, access: Access) -> io::Result<SideBySide> {
        Ok(SideBySide { mapping: Mapping::reserve(bytes)?, done: 0, access })
    }

    /// Maps the next extent behind those that are there, if it is sound.
    ///
    /// # Errors
    /// As [`Extent::map`]; also if there is no room for it.
    pub fn map<F: AsFd>(&mut self, extent: &Extent<F>) -> io::Result<()> {
        let bytes = extent.verify()?;
        let part = (extent.file.as_fd(), extent.offset, bytes);
        self.mapping.fill(self.done, part, self.access)?;
        self.done += bytes;
        Ok(())
    }

    /// All of it is there. `keep` lives as long as the mapping.
    ///
    /// # Errors
    /// One without an errno if it is not.
    pub fn finish(self, keep: impl Send + Sync + 'static) -> io::Result<Window> {
        match self.done == self.mapping.len() {
            true => Ok(mapping_as_ring_window::over(self.mapping, keep)),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

impl<F: AsFd> Extent<F> {
    /// Maps several, if all are sound, side by side, not to be inherited by forked children. `keep`
    /// lives as long as the mapping.
    ///
    /// # Errors
    /// As [`map`](Self::map); also if there are none.
    pub fn map_row(
        row: &[Extent<F>],
        access: Access,
        keep: impl Send + Sync + 'static,
    ) -> io::Result<Window> {
        let bytes = row.iter().try_fold(0_u64, |sum, extent| sum.checked_add(extent.length));
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let mut all = SideBySide::begin(bytes.ok_or(io::ErrorKind::InvalidInput)?, access)?;
        row.iter().try_for_each(|extent| all.map(extent))?;
        all.finish(keep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd;
    use omniverb_ring::WordMemory;
    use omniverb_ring::shared_atomics::Ordering;
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    const PAGE: u64 = 4096;

    fn file(pages: u64) -> Arc<OwnedFd> {
        Arc::new(memfd::create("test", pages * PAGE).unwrap())
    }

    fn of(file: &Arc<OwnedFd>, first: u64, pages: u64) -> Extent {
        Extent::new(file.clone(), first * PAGE, pages * PAGE)
    }

    #[test]
    fn extents_side_by_side_are_one_window() {
        let (one, other) = (file(4), file(2));
        let row = [of(&one, 2, 1), of(&other, 0, 2), of(&one, 0, 1)];
        let window = Extent::map_row(&row, Access::ReadWrite, ()).unwrap();
        assert_eq!(window.len() as u64, 4 * PAGE);
        (0..4).for_each(|page| window.store(page * 4096, 7 + page as u64, Ordering::Relaxed));
        for (file, page, word) in [(&one, 2, 7), (&other, 0, 8), (&other, 1, 9), (&one, 0, 10)] {
            let mapping = of(file, page, 1).mapping(Access::ReadOnly).unwrap();
            assert_eq!(mapping.load_u64(0), Some(word));
        }
        assert!(Extent::map_row(&[of(&other, 1, 2)], Access::ReadOnly, ()).is_err());
        assert!(Extent::map_row(&row[..0], Access::ReadOnly, ()).is_err());
    }

    #[test]
    fn incomplete_extents_make_no_window() {
        let file = file(4);
        let mut row = SideBySide::begin(2 * 4096, Access::ReadWrite).unwrap();
        row.map(&of(&file, 3, 1)).unwrap();
        assert!(row.map(&of(&file, 0, 2)).is_err(), "more than there is room for");
        assert!(row.map(&of(&file, 4, 1)).is_err(), "not in the file");
        assert!(row.finish(()).is_err());
        let mut row = SideBySide::begin(2 * 4096, Access::ReadWrite).unwrap();
        row.map(&of(&file, 3, 1)).unwrap();
        row.map(&of(&file, 0, 1)).unwrap();
        assert!(row.finish(()).is_ok());
    }
}
