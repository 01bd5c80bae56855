//! Maps extents once for all links with a right to the same bytes.
//!
//! In: an extent that was granted to a link of a vNIC. Out: its mapping, which goes with the last
//! grant and is taken down by another thread.

use crate::pages::mapped_memory_budget::{Budget, Mapped, Mappings, Remains, Share};
use omniverb_ring::Window;
use omniverb_sys::extent::FileId;
use omniverb_sys::{Access, Extent};
use omniverb_terms::VnicId;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// One right's hold of a mapping.
pub(crate) struct Hold {
    // Dropped first, so that the last holder of the mapping has all of it.
    window: Window,
    mapped: Arc<Mapped>,
}

impl Hold {
    /// Of a mapping that is not shared.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn alone(window: Window, share: Share) -> Hold {
        Hold::of(Arc::new(Mapped { window, share }))
    }

    fn of(mapped: Arc<Mapped>) -> Hold {
        Hold { window: mapped.window.clone(), mapped }
    }

    #[inline(always)]
    pub(crate) fn window(&self) -> &Window {
        &self.window
    }

    /// Lets go of it.
    pub(crate) fn release(self) {
        let Hold { window, mapped } = self;
        drop(window);
        let Some(mapped) = Arc::into_inner(mapped) else { return };
        // Without an undertaker it goes here and now.
        if let Some(undertaker) = mapped.share.undertaker() {
            let _ = undertaker.send(Remains::Mapped(mapped));
        }
    }
}

/// Of which vNIC, in which file, what of it, and how it may be used.
type Name = (VnicId, FileId, u64, u64, Access);

/// Of which vNIC, which row of pages that stay where they are, and how it may be used. A row that
/// is mapped is there, and no other is in its place.
pub(super) type RowName = (VnicId, usize, Access);

/// A packet thread's mappings, a part of all threads'.
#[derive(Default)]
pub(crate) struct SharedMappings {
    mapped: HashMap<Name, Weak<Mapped>>,
    rows: HashMap<RowName, Weak<Mapped>>,
    all: Mappings,
}

impl SharedMappings {
    pub(crate) fn new(all: Mappings) -> SharedMappings {
        SharedMappings { mapped: HashMap::new(), rows: HashMap::new(), all }
    }

    /// For one more vNIC.
    pub(crate) fn budget(&self) -> Budget {
        self.all.budget()
    }

    /// Has a file closed whose last reference may be ours.
    pub(crate) fn bury(&self, file: Arc<OwnedFd>) {
        self.all.bury(Remains::File(file));
    }

    /// The mapping of an extent for a vNIC; made with what `share` takes for it, if there is none.
    ///
    /// # Errors
    /// It cannot be mapped, or would be too much.
    pub(crate) fn hold(
        &mut self,
        vnic: VnicId,
        extent: &Extent,
        access: Access,
        share: impl FnOnce(usize) -> Option<Share>,
    ) -> io::Result<Hold> {
        let bytes = extent.verify()?;
        // Only a mapping keeps a file from becoming another of the same name.
        let name = (vnic, extent.file_id()?, extent.offset, extent.length, access);
        if let Some(mapped) = self.mapped.get(&name).and_then(Weak::upgrade) {
            return Ok(Hold::of(mapped));
        }
        let share = share(bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapped = Arc::new(Mapped { window: extent.map(access)?, share });
        self.mapped.retain(|_, mapped| mapped.strong_count() > 0);
        self.mapped.insert(name, Arc::downgrade(&mapped));
        Ok(Hold::of(mapped))
    }

    /// The row mapped side by side for these vNICs.
    pub(super) fn row(&self, name: &RowName) -> Option<Hold> {
        self.rows.get(name).and_then(Weak::upgrade).map(Hold::of)
    }

    /// This is mapped now.
    pub(super) fn add_row(&mut self, name: RowName, window: Window, share: Share) -> Hold {
        let mapped = Arc::new(Mapped { window, share });
        self.rows.retain(|_, mapped| mapped.strong_count() > 0);
        self.rows.insert(name, Arc::downgrade(&mapped));
        Hold::of(mapped)
    }

    /// Has something dropped where there is time for it.
    pub(super) fn bury_remains(&self, remains: Remains) {
        self.all.bury(remains);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_sys::memfd;

    #[test]
    fn two_grants_of_the_same_bytes_share_one_mapping() {
        for (pages, first) in [(2, 0), (5, 2)] {
            let file = Arc::new(memfd::create("test", pages * 4096).unwrap());
            let extent = Extent::new(file, first * 4096, 8192);
            let (mut together, mappings) = (SharedMappings::default(), Mappings::default());
            let budgets = [mappings.budget(), mappings.budget()];
            let mut hold = |vnic: usize, access| {
                let share = |bytes| budgets[vnic].share(bytes);
                together.hold(VnicId(vnic as u64), &extent, access, share).unwrap()
            };
            let both = Access::ReadWrite;
            let (one, other) = (hold(0, both), hold(0, both));
            assert_eq!(one.window().address(), other.window().address());
            let (reader, stranger) = (hold(0, Access::ReadOnly), hold(1, both));
            assert_eq!([budgets[0].mappings(), budgets[1].mappings()], [2, 1]);
            [one, reader, stranger].into_iter().for_each(Hold::release);
            assert_eq!([budgets[0].mappings(), budgets[1].mappings()], [1, 0]);
            other.release();
            assert_eq!(budgets[0].mappings(), 0);
            hold(0, both).release();
            assert_eq!(budgets[0].mappings(), 0);
        }
    }

    #[test]
    fn bytes_beyond_the_file_are_not_mapped() {
        let file = Arc::new(memfd::create("test", 3 * 4096).unwrap());
        let (mut together, budget) = (SharedMappings::default(), Mappings::default().budget());
        for (offset, length) in [(8192, 8192), (8, 4096), (0, 0), (4096, 1), (1 << 40, 4096)] {
            let extent = Extent::new(file.clone(), offset, length);
            let held =
                together.hold(VnicId(1), &extent, Access::ReadOnly, |bytes| budget.share(bytes));
            assert!(held.is_err(), "{offset} {length}");
        }
        assert_eq!(budget.mappings(), 0);
    }
}
