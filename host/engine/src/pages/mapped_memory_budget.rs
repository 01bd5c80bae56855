//! Bounds how much of tenants' memory is mapped here, for each vNIC and in all.

use omniverb_datapath::memory_accounts::{Room, RoomPart};
use omniverb_ring::Window;
use omniverb_sys::SideBySide;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};

/// Budget: mappings that all links of a vNIC may hold: the kernel allows the daemon 65530.
const VNIC_MAPPINGS: usize = 512;
/// Budget: bytes of them. A tenant that means harm can make so much memory count as the daemon's.
const VNIC_BYTES: usize = 1 << 30;
/// Budget: mappings of all vNICs together.
const ALL_MAPPINGS: usize = 4096;
/// Budget: bytes of them.
const ALL_BYTES: usize = 64 << 30;

/// Room for mappings, and for their bytes.
#[derive(Clone)]
struct Rooms {
    mappings: Room,
    bytes: Room,
}

/// A mapping and its part of the budget, in the order in which they are to go.
pub(crate) struct Mapped {
    pub(super) window: Window,
    pub(super) share: Share,
}

/// Remains that a packet thread has no time to drop.
#[expect(dead_code, reason = "what they hold is there to be dropped")]
pub(crate) enum Remains {
    /// Pages that a link was granted, mapped here.
    Mapped(Mapped),
    /// Mapped side by side, not completely.
    Unfinished(SideBySide, Share),
    /// A file of granted pages.
    File(Arc<OwnedFd>),
}

/// Mapped bytes of all vNICs, and the thread that unmaps them.
#[derive(Clone)]
pub(crate) struct Mappings {
    all: Rooms,
    undertaker: Option<mpsc::Sender<Remains>>,
}

impl Default for Mappings {
    fn default() -> Mappings {
        let (mappings, bytes) = (Room::new(ALL_MAPPINGS), Room::new(ALL_BYTES));
        Mappings { all: Rooms { mappings, bytes }, undertaker: None }
    }
}

impl Mappings {
    /// Taking down a large mapping takes the kernel milliseconds that a packet thread does not
    /// have: the receiver of `undertaker` does it.
    pub(crate) fn new(undertaker: mpsc::Sender<Remains>) -> Mappings {
        Mappings { undertaker: Some(undertaker), ..Mappings::default() }
    }

    /// Has something dropped, such as a file whose last reference may be ours: freeing its pages
    /// takes long, too.
    pub(crate) fn bury(&self, remains: Remains) {
        // Without an undertaker it goes here and now.
        if let Some(undertaker) = &self.undertaker {
            let _ = undertaker.send(remains);
        }
    }

    /// For one more vNIC.
    pub(crate) fn budget(&self) -> Budget {
        let Rooms { mappings, bytes } = &self.all;
        let (mappings, bytes) = (mappings.within(VNIC_MAPPINGS), bytes.within(VNIC_BYTES));
        Budget { vnic: Rooms { mappings, bytes }, undertaker: self.undertaker.clone() }
    }
}

/// Mapped bytes of all links of a vNIC.
#[derive(Clone)]
pub(crate) struct Budget {
    vnic: Rooms,
    undertaker: Option<mpsc::Sender<Remains>>,
}

impl Budget {
    /// Room for one more mapping of so many bytes.
    pub(crate) fn share(&self, bytes: usize) -> Option<Share> {
        self.share_of_row(1, bytes)
    }

    /// Room for pages that lie in so many places, each of which is a mapping to the kernel.
    pub(crate) fn share_of_row(&self, mappings: usize, bytes: usize) -> Option<Share> {
        self.take((mappings, bytes), VNIC_MAPPINGS, VNIC_BYTES)
    }

    /// Like `share`, as long as more than half is left: a mapping that is merely faster for the
    /// application itself does not take room that its peers may need.
    pub(crate) fn share_of_half(&self, bytes: usize) -> Option<Share> {
        self.take((1, bytes), VNIC_MAPPINGS / 2, VNIC_BYTES / 2)
    }

    fn take(
        &self,
        (mappings_wanted, bytes): (usize, usize),
        mappings_max: usize,
        bytes_max: usize,
    ) -> Option<Share> {
        let Rooms { mappings, bytes: room } = &self.vnic;
        let _mapping = mappings.part_up_to(mappings_max, mappings_wanted)?;
        let _bytes = room.part_up_to(bytes_max, bytes)?;
        Some(Share { _mapping, _bytes, undertaker: self.undertaker.clone() })
    }

    #[cfg(test)]
    pub(crate) fn mappings(&self) -> usize {
        self.vnic.mappings.taken()
    }
}

/// A part of a budget; given back when it is dropped.
pub(crate) struct Share {
    _mapping: RoomPart,
    _bytes: RoomPart,
    undertaker: Option<mpsc::Sender<Remains>>,
}

impl Share {
    /// The thread that takes down the mapping that it stands for.
    pub(crate) fn undertaker(&self) -> Option<mpsc::Sender<Remains>> {
        self.undertaker.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vnic_has_no_more_mapped_than_its_share() {
        let mappings = Mappings::default();
        let (one, other) = (mappings.budget(), mappings.budget());
        assert!(one.share(VNIC_BYTES + 1).is_none());
        let half = one.share_of_half(VNIC_BYTES / 2).unwrap();
        assert!(one.share_of_half(4096).is_none() && one.share(4096).is_some());
        drop(half);
        let held = one.share(VNIC_BYTES).unwrap();
        assert!(one.share(4096).is_none() && other.share(4096).is_some());
        drop(held);
        let many: Vec<Share> = std::iter::from_fn(|| one.share(4096)).collect();
        assert_eq!(many.len(), VNIC_MAPPINGS);
        assert!(other.share(4096).is_some());
        drop(many);
        let budgets = std::iter::repeat_with(|| mappings.budget());
        let all: Vec<Share> = budgets.map_while(|budget| budget.share(VNIC_BYTES)).collect();
        assert_eq!(all.len(), ALL_BYTES / VNIC_BYTES, "and all together");
    }
}
