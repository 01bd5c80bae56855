//! Counts files of ended grants for READ only, which cannot be emptied.
//!
//! A process that was granted pages of a region that peers may not write to has a file that is
//! sealed against writing. When the grant ends it may keep the file mapped for ever, in another
//! process too, and the owner is charged with it. So an ended grant counts until the kernel reports
//! that no process has the file any more, and above a bound no pages are granted: such a region is
//! mediated. A file granted to several vNICs counts for each in equal parts, since its holders are
//! not known.

use crate::memory::extent_file_allocator::FileId;
use crate::memory::extent_table::ExtentId;
use crate::row_keys::SessionId;
use omniverb_terms::VnicId;
use std::collections::{BTreeMap, BTreeSet};

/// Budget: bytes of ended grants for READ only that are not proven gone, for each owner: it may be
/// charged with them beside what it has registered. As many as a small container can spare.
const OWNER_BYTES: u64 = 64 << 20;
/// Budget: those of one peer vNIC: several must work together to use up an owner's.
const VNIC_BYTES: u64 = 16 << 20;
/// Budget: bytes that a file counts for at least: the daemon keeps a watch for it, and the kernel
/// an inode.
const FILE_BYTES_MIN: u64 = 256 << 10;

/// A file of a grant that is over.
#[derive(Debug)]
struct EndedGrantFile {
    owner: SessionId,
    /// Bytes that count for each of these.
    each: u64,
    vnics: BTreeSet<VnicId>,
}

/// Extents granted for READ only, and ended ones whose files are not proven gone.
#[derive(Debug, Default)]
pub(crate) struct LingeringFiles {
    granted: BTreeMap<ExtentId, BTreeSet<VnicId>>,
    over: BTreeMap<FileId, EndedGrantFile>,
    /// Bytes of each owner's and each vNIC's.
    counts: BTreeMap<(SessionId, VnicId), u64>,
}

impl LingeringFiles {
    pub(crate) fn is_empty(&self) -> bool {
        self.granted.is_empty() && self.over.is_empty() && self.counts.is_empty()
    }

    /// Whether what this owner granted a vNIC, or all, and is over, is as much as may be.
    pub(crate) fn is_full(&self, owner: SessionId, vnic: VnicId) -> bool {
        let of_vnic = self.counts.get(&(owner, vnic)).copied().unwrap_or(0);
        let all = self.counts.range((owner, VnicId(0))..=(owner, VnicId(u64::MAX)));
        of_vnic >= VNIC_BYTES || all.map(|(_, bytes)| bytes).sum::<u64>() >= OWNER_BYTES
    }

    /// A process of a vNIC is granted an extent for READ only.
    pub(crate) fn granted(&mut self, extent: ExtentId, vnic: VnicId) {
        self.granted.entry(extent).or_default().insert(vnic);
    }

    /// Nothing remains of an extent.
    pub(crate) fn forget(&mut self, extent: ExtentId) {
        self.granted.remove(&extent);
    }

    /// An extent has ended, which was all of a file of so many bytes. Whether a process may have
    /// that.
    pub(crate) fn ended(
        &mut self,
        extent: ExtentId,
        owner: SessionId,
        (file, bytes): (FileId, u64),
    ) -> bool {
        let Some(vnics) = self.granted.remove(&extent) else { return false };
        let each = bytes.max(FILE_BYTES_MIN).div_ceil((vnics.len() as u64).max(1));
        for vnic in &vnics {
            *self.counts.entry((owner, *vnic)).or_default() += each;
        }
        self.over.insert(file, EndedGrantFile { owner, each, vnics });
        true
    }

    /// No process has this file any more.
    pub(crate) fn gone(&mut self, file: FileId) {
        let Some(EndedGrantFile { owner, each, vnics }) = self.over.remove(&file) else { return };
        for vnic in vnics {
            if let Some(bytes) = self.counts.get_mut(&(owner, vnic)) {
                *bytes = bytes.saturating_sub(each);
                if *bytes == 0 {
                    self.counts.remove(&(owner, vnic));
                }
            }
        }
    }

    /// An owner is no more, and its account neither. The files that were in it.
    pub(crate) fn end(&mut self, owner: SessionId) -> Vec<FileId> {
        self.counts.retain(|(of, _), _| *of != owner);
        self.over.extract_if(.., |_, over| over.owner == owner).map(|(file, _)| file).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: SessionId = SessionId(7);
    const MIB: u64 = 1 << 20;

    #[test]
    fn files_not_proven_gone_are_bounded_for_each_vnic_and_for_all() {
        let mut remains = LingeringFiles::default();
        let mut files = 0;
        for vnic in (1..=4).map(VnicId) {
            assert!(!remains.is_full(OWNER, vnic), "others have their share");
            while !remains.is_full(OWNER, vnic) {
                files += 1;
                remains.granted(files, vnic);
                assert!(remains.ended(files, OWNER, (files, MIB)));
            }
        }
        assert_eq!(files, OWNER_BYTES / MIB);
        assert!(remains.is_full(OWNER, VnicId(5)) && !remains.is_full(SessionId(8), VnicId(1)));
        remains.gone(1);
        remains.gone(1);
        assert!(!remains.is_full(OWNER, VnicId(1)) && remains.is_full(OWNER, VnicId(2)));
        assert_eq!(remains.end(OWNER).len() as u64, files - 1);
        assert!(remains.is_empty());
    }

    #[test]
    fn a_file_of_several_vnics_counts_in_parts_and_returns_them() {
        let mut remains = LingeringFiles::default();
        for vnic in (1..=3).map(VnicId) {
            remains.granted(1, vnic);
            remains.granted(1, vnic);
        }
        assert!(remains.ended(1, OWNER, (1, 2 * VNIC_BYTES)));
        assert!(!remains.is_full(OWNER, VnicId(1)), "two thirds of its share");
        remains.granted(2, VnicId(1));
        assert!(remains.ended(2, OWNER, (2, VNIC_BYTES)));
        assert!(remains.is_full(OWNER, VnicId(1)) && !remains.is_full(OWNER, VnicId(2)));
        remains.gone(2);
        remains.gone(1);
        assert!(remains.is_empty());
    }

    #[test]
    fn ungranted_files_do_not_count_and_small_ones_count_for_more() {
        let mut remains = LingeringFiles::default();
        assert!(!remains.ended(1, OWNER, (1, OWNER_BYTES)) && remains.is_empty());
        remains.granted(2, VnicId(1));
        remains.forget(2);
        assert!(!remains.ended(2, OWNER, (2, OWNER_BYTES)) && remains.is_empty());
        for file in 0..VNIC_BYTES / FILE_BYTES_MIN {
            assert!(!remains.is_full(OWNER, VnicId(1)));
            remains.granted(file, VnicId(1));
            assert!(remains.ended(file, OWNER, (file, 4096)));
        }
        assert!(remains.is_full(OWNER, VnicId(1)));
    }
}
