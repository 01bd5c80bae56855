//! Describes a virtual machine's memory, and the parts that the engine may reach.
//!
//! In: the file behind the machine's memory, from its supervisor; pages that its agent reports as
//! pinned. Out: rows of parts of that file, for the engine, and their holders. A guest can name
//! parts of its own memory only. The daemon cannot know whether the pages are pinned, nor by which
//! process: a guest that lies lets the engine write into itself. No other process ever gets the
//! file.

use crate::engine::Row;
use omniverb_session::pinned_pages::{InvalidRuns, Layout, Run};
use omniverb_sys::deferred_close::CloseQueue;
use omniverb_sys::{Extent, clock};
use omniverb_tenancy::{FileId, VnicId};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// Granularity of a machine's memory here; no page is smaller.
const PAGE: usize = 4096;

/// A machine's memory.
#[derive(Debug)]
pub(crate) struct Ram {
    file: Arc<OwnedFd>,
    layout: Layout,
    /// Where the file goes in the end.
    bin: CloseQueue,
}

impl Ram {
    /// # Errors
    /// If the file is no memory that can never be cut short and can always be written, or does not
    /// have just the bytes that are said.
    pub(crate) fn check(file: &OwnedFd, layout: Layout) -> io::Result<()> {
        let extent = Extent::new(file, 0, layout.bytes);
        let sound = extent.seals()?.is_for_writers() && clock::page_bytes() == PAGE;
        let bytes = omniverb_sys::memfd::size(std::os::fd::AsFd::as_fd(file))?;
        if !sound || !layout.is_sound(bytes) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        extent.verify()?;
        Ok(())
    }

    /// Of a file that was [checked](Self::check).
    pub(crate) fn new(file: OwnedFd, layout: Layout, bin: CloseQueue) -> Ram {
        Ram { file: Arc::new(file), layout, bin }
    }

    /// Bytes of it.
    pub(crate) fn bytes(&self) -> u64 {
        self.layout.bytes
    }

    /// These pages, so many bytes.
    pub(crate) fn row(self: &Arc<Ram>, runs: &[Run], bytes: u64) -> Result<Row, InvalidRuns> {
        let parts = self.layout.places(runs, bytes)?.into_iter();
        let parts = parts.map(|part| Extent::new(self.file.clone(), part.offset, part.length));
        Ok(Row { parts: parts.collect(), keep: Some(self.clone()) })
    }
}

impl Drop for Ram {
    /// As a window's: ours is not to be the last descriptor.
    fn drop(&mut self) {
        self.bin.put_copy(&self.file);
    }
}

/// Pages that agents keep where they are because of what this daemon asked.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    /// Rows that the tables may still grant, with their vNICs.
    held: HashMap<FileId, (VnicId, Arc<Row>)>,
    /// Rows that are in use, if only mapped, by the numbers of the questions.
    by_token: HashMap<u64, (VnicId, Weak<Row>)>,
}

impl Pins {
    /// These are kept from now on.
    pub(crate) fn add(&mut self, (file, token): (FileId, u64), vnic: VnicId, row: Row) {
        let row = Arc::new(row);
        self.by_token.retain(|_, (_, row)| row.strong_count() > 0);
        self.by_token.insert(token, (vnic, Arc::downgrade(&row)));
        self.held.insert(file, (vnic, row));
    }

    /// What has this name.
    pub(crate) fn row(&self, file: FileId) -> Option<Arc<Row>> {
        self.held.get(&file).map(|(_, row)| row.clone())
    }

    /// It is granted to no link any more: its vNIC and row; links of that vNIC may still use it.
    pub(crate) fn forget(&mut self, file: FileId) -> Option<(VnicId, Arc<Row>)> {
        self.held.remove(&file)
    }

    /// Those of these rows of a vNIC that are not in use. An unknown one was an earlier daemon's,
    /// which is gone with its mappings.
    pub(crate) fn over(&self, vnic: VnicId, tokens: &[u64]) -> Vec<u64> {
        let has = |token: &u64| {
            let known = self.by_token.get(token).filter(|(owner, _)| *owner == vnic);
            known.is_some_and(|(_, row)| row.strong_count() > 0)
        };
        tokens.iter().copied().filter(|token| !has(token)).collect()
    }

    /// Bytes in use of a vNIC's memory.
    pub(crate) fn bytes(&self, vnic: VnicId) -> u64 {
        let rows = self.by_token.values().filter(|(owner, _)| *owner == vnic);
        rows.filter_map(|(_, row)| row.upgrade()).map(|row| row.bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_sys::memfd;

    const LAYOUT: Layout = Layout { below: 0x4000, above: 0x10000, bytes: 0x8000 };

    fn run(page: u64, pages: u64) -> Run {
        Run::new(page, pages).unwrap()
    }

    #[test]
    fn machine_memory_is_a_file_of_fixed_size() {
        let right = memfd::create("memory", 0x8000).unwrap();
        assert!(Ram::check(&right, LAYOUT).is_ok());
        let short = Layout { bytes: 0x7000, ..LAYOUT };
        assert!(Ram::check(&right, short).is_err());
        assert!(Ram::check(&memfd::unsealed("memory", 0x8000).unwrap(), LAYOUT).is_err());
        assert!(Ram::check(&memfd::create_sealable("memory", 0x8000).unwrap(), LAYOUT).is_err());
        let other = std::fs::File::open("/dev/null").unwrap().into();
        assert!(Ram::check(&other, LAYOUT).is_err());
    }

    #[test]
    fn a_pin_ends_with_its_last_holder() {
        let file = memfd::create("memory", 0x8000).unwrap();
        let ram = Arc::new(Ram::new(file, LAYOUT, CloseQueue::new().unwrap()));
        let row = ram.row(&[run(0x10, 1), run(1, 1)], 0x2000).unwrap();
        assert_eq!(row.parts.iter().map(|p| p.offset).collect::<Vec<_>>(), [0x4000, 0x1000]);
        assert_eq!(ram.row(&[run(4, 1)], 0x1000).unwrap_err(), InvalidRuns::Outside);
        let mut pins = Pins::default();
        let (vnic, other) = (VnicId(1), VnicId(2));
        pins.add((9, 77), vnic, row);
        assert_eq!((pins.over(vnic, &[77, 78]), pins.bytes(vnic)), (vec![78], 0x2000));
        assert_eq!((pins.over(other, &[77]), pins.bytes(other)), (vec![77], 0));
        let mapped = pins.row(9);
        assert_eq!(pins.forget(9).map(|(vnic, _)| vnic), Some(vnic));
        assert!(pins.forget(9).is_none());
        assert!(pins.over(vnic, &[77]).is_empty() && pins.row(9).is_none());
        drop(mapped);
        assert_eq!((pins.over(vnic, &[77]), pins.bytes(vnic)), (vec![77], 0));
        assert_eq!(Arc::strong_count(&ram), 1);
    }
}
