//! Keeps which pages of peers are mapped here, within a budget.
//!
//! The granting peer decides how large a region is and how many there are, so an initiator has a
//! budget: for each peer process, and in all. Beyond it the mapping that its queue pair has not
//! used for longest goes, or else operations stay mediated.

use crate::memory_from_daemon;
use crate::peer_doorbells::BellName;
use crate::vm_window_loans::{self, WindowLoan};
use omniverb_ring::{WeakWindow, Window};
use omniverb_session::body;
use omniverb_sys::extent::FileId;
use omniverb_sys::lock;
use omniverb_sys::{Access, Extent};
use omniverb_terms::Errno;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

/// Mappings of a process, of which the kernel allows it 65530 in all; and their bytes: address
/// space, and page tables for what is touched of it.
const ALL: MappedAmount = MappedAmount { mappings: 1024, bytes: 64 << 30 };
/// Those of one peer process: several must work together to use up all.
const PEER: MappedAmount = MappedAmount { mappings: 512, bytes: 32 << 30 };

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MappedAmount {
    mappings: usize,
    bytes: usize,
}

impl MappedAmount {
    /// A mapping of so many bytes is gone.
    fn give_back(&mut self, bytes: usize) {
        self.mappings -= 1;
        self.bytes -= bytes;
    }

    fn with(self, bytes: usize) -> MappedAmount {
        MappedAmount { mappings: self.mappings + 1, bytes: self.bytes.saturating_add(bytes) }
    }

    fn fits(self, most: MappedAmount) -> bool {
        self.mappings <= most.mappings && self.bytes <= most.bytes
    }
}

/// How much is mapped, by peer.
#[derive(Default)]
struct Budget {
    all: MappedAmount,
    peers: HashMap<BellName, MappedAmount>,
}

/// One mapping's part of the budget; given back when it is dropped, with the mapping.
struct BudgetShare {
    of: Arc<Mutex<Budget>>,
    peer: BellName,
    bytes: usize,
}

impl BudgetShare {
    /// `None`: that would be too much.
    fn take(of: &Arc<Mutex<Budget>>, peer: BellName, bytes: usize) -> Option<BudgetShare> {
        let mut mapped = lock(of);
        let all = mapped.all.with(bytes);
        let theirs = mapped.peers.get(&peer).copied().unwrap_or_default().with(bytes);
        if !all.fits(ALL) || !theirs.fits(PEER) {
            return None;
        }
        mapped.all = all;
        mapped.peers.insert(peer, theirs);
        Some(BudgetShare { of: of.clone(), peer, bytes })
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        let mut mapped = lock(&self.of);
        mapped.all.give_back(self.bytes);
        let Some(theirs) = mapped.peers.get_mut(&self.peer) else { return };
        theirs.give_back(self.bytes);
        if theirs.mappings == 0 {
            mapped.peers.remove(&self.peer);
        }
    }
}

/// Of which peer, in which file, what of it, and how it may be used.
type Name = (BellName, FileId, u64, u64, Access);

/// A mapping, as long as it is there; what is told when it goes, if it is of a window.
type KnownMappings = (WeakWindow, Option<Weak<WindowLoan>>);

/// What is mapped, so that two rights to the same bytes have one mapping of them. It goes with the
/// last of them.
#[derive(Default)]
struct SharedMappings(HashMap<Name, KnownMappings>);

impl SharedMappings {
    /// The mapping of an extent of a peer's; made with what `share` takes for it, if there is none.
    fn window(
        &mut self,
        peer: BellName,
        extent: &Extent<OwnedFd>,
        access: Access,
        share: impl FnOnce(usize) -> Option<BudgetShare>,
        lent: Option<Arc<WindowLoan>>,
    ) -> Result<Window, Errno> {
        let bytes = extent.verify().map_err(|_| Errno::EPROTO)?;
        // Only a mapping keeps a file from becoming another of the same name.
        let file = extent.file_id().map_err(|error| memory_from_daemon::errno(&error))?;
        let name = (peer, file, extent.offset, extent.length, access);
        if let Some((window, lent)) = self.0.get(&name)
            && let Some(window) = window.upgrade()
        {
            lent.as_ref().and_then(Weak::upgrade).iter().for_each(|lent| lent.told());
            return Ok(window);
        }
        let share = share(bytes).ok_or(Errno::ENOMEM)?;
        let (told, keep) = (lent.clone(), (share, lent));
        // Of a device all pages are there.
        let window = match vm_window_loans::is_device(extent) {
            true => extent.map_and_keep(access, keep),
            false => extent.map_with_proof(access, keep),
        };
        let window = window.map_err(|error| memory_from_daemon::errno(&error))?;
        told.iter().for_each(|lent| lent.told());
        self.0.retain(|_, (window, _)| window.is_there());
        self.0.insert(name, (window.downgrade(), told.as_ref().map(Arc::downgrade)));
        Ok(window)
    }
}

/// All that is mapped.
#[derive(Default)]
pub(crate) struct PeerMappings {
    budget: Arc<Mutex<Budget>>,
    together: Mutex<SharedMappings>,
}

impl PeerMappings {
    /// The mapping of an extent of a peer's. `make_room`: lets go of another one, and says whether
    /// there was one. `let_go`: tells the daemon of the piece of a window that it is, if it is one,
    /// when it is mapped no more.
    pub(crate) fn window(
        &self,
        peer: BellName,
        (extent, piece): (&Extent<OwnedFd>, Option<body::Extent>),
        access: Access,
        mut make_room: impl FnMut() -> bool,
        let_go: impl Fn(body::Extent, u32) + Send + Sync + 'static,
    ) -> Result<Window, Errno> {
        let lent = piece.map(|piece| WindowLoan::new(piece, Box::new(let_go)));
        let share = |bytes| {
            let mut share = BudgetShare::take(&self.budget, peer, bytes);
            while share.is_none() && make_room() {
                share = BudgetShare::take(&self.budget, peer, bytes);
            }
            share
        };
        lock(&self.together).window(peer, extent, access, share, lent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An extent that is a whole file, and one in the middle of a file.
    fn both_kinds() -> [(OwnedFd, u64); 2] {
        [(2, 0), (5, 2)].map(|(pages, first)| {
            (omniverb_sys::memfd::create("test", pages * 4096).unwrap(), first * 4096)
        })
    }

    #[test]
    fn two_grants_of_the_same_bytes_share_one_mapping() {
        for (file, offset) in both_kinds() {
            let (mapped, mut together) = (Arc::default(), SharedMappings::default());
            let extent = Extent::new(file, offset, 8192);
            let mut right = |peer| {
                let share = |bytes| BudgetShare::take(&mapped, (0, peer), bytes);
                together.window((0, peer), &extent, Access::ReadWrite, share, None).unwrap()
            };
            let (one, other) = (right(1), right(1));
            assert_eq!(one.address(), other.address());
            assert_eq!(lock(&mapped).all, MappedAmount { mappings: 1, bytes: 8192 });
            // What another peer granted is another's to pay for.
            let stranger = right(2);
            assert_ne!(stranger.address(), one.address());
            drop((one, stranger));
            assert_eq!(lock(&mapped).all, MappedAmount { mappings: 1, bytes: 8192 });
            drop(other);
            assert_eq!(lock(&mapped).all, MappedAmount::default());
            drop(right(1));
            assert_eq!(lock(&mapped).all, MappedAmount::default());
        }
    }

    #[test]
    fn other_bytes_of_a_file_are_another_mapping() {
        let (mapped, mut together) = (Arc::default(), SharedMappings::default());
        let [_, (file, _)] = both_kinds();
        let mut right = |(offset, length), access| {
            let extent = Extent::new(file.try_clone().unwrap(), offset, length);
            let share = |bytes| BudgetShare::take(&mapped, (0, 1), bytes);
            together.window((0, 1), &extent, access, share, None)
        };
        let (page, both) = (4096, Access::ReadWrite);
        let all = [(0, page), (page, page), (page, 2 * page), (4 * page, page)];
        let windows = all.map(|place| right(place, both).unwrap());
        let reader = right(all[0], Access::ReadOnly).unwrap();
        assert_eq!(lock(&mapped).all.mappings, 5);
        omniverb_ring::WordMemory::store(&windows[2], 0, 7, std::sync::atomic::Ordering::Relaxed);
        let seen = windows.iter().chain([&reader]).map(|window| {
            omniverb_ring::WordMemory::load(window, 0, std::sync::atomic::Ordering::Relaxed)
        });
        assert_eq!(seen.collect::<Vec<_>>(), [0, 7, 7, 0, 0]);
        for wrong in [(4 * page, 2 * page), (8, page), (page, 0), (u64::MAX - 4095, page)] {
            assert_eq!(right(wrong, both).err(), Some(Errno::EPROTO), "{wrong:?}");
        }
        assert_eq!(lock(&mapped).all.mappings, 5);
    }

    /// The daemon counts how often it has said it.
    #[test]
    fn a_dropped_mapping_releases_its_piece_once_for_each_grant() {
        let (mapped, mut together) = (Arc::default(), SharedMappings::default());
        let [(file, offset), _] = both_kinds();
        let said = Arc::new(Mutex::new(Vec::new()));
        let extent = Extent::new(file, offset, 8192);
        let mut right = |access| {
            let share = |bytes| BudgetShare::take(&mapped, (0, 1), bytes);
            let (said, piece) = (said.clone(), body::Extent { offset: 4096, length: 8192 });
            let lent = WindowLoan::new(
                piece,
                Box::new(move |piece, times| {
                    lock(&said).push((piece.offset, times));
                }),
            );
            together.window((0, 1), &extent, access, share, Some(lent))
        };
        let [one, other] = [(); 2].map(|()| right(Access::ReadWrite).unwrap());
        let reader = right(Access::ReadOnly).unwrap();
        drop(one);
        assert!(lock(&said).is_empty());
        drop(other);
        assert_eq!(*lock(&said), [(4096, 2)]);
        drop(reader);
        assert_eq!(*lock(&said), [(4096, 2), (4096, 1)]);
    }

    #[test]
    fn a_peer_has_no_more_mapped_here_than_its_share() {
        let mapped = Arc::new(Mutex::new(Budget::default()));
        let take = |peer, bytes| BudgetShare::take(&mapped, (0, peer), bytes);
        assert!(take(1, PEER.bytes + 1).is_none() && take(1, usize::MAX).is_none());
        let held: Vec<BudgetShare> = (0..PEER.mappings).filter_map(|_| take(1, 4096)).collect();
        assert_eq!(held.len(), PEER.mappings);
        assert!(take(1, 4096).is_none() && take(2, 4096).is_some());
        drop(held);
        assert_eq!(lock(&mapped).all, MappedAmount::default());
        assert!(lock(&mapped).peers.is_empty());
        let all: Vec<BudgetShare> = (0..9).map_while(|peer| take(peer, PEER.bytes)).collect();
        assert_eq!(all.len(), ALL.bytes / PEER.bytes, "and all together");
    }
}
