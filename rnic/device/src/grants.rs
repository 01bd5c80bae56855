//! Mappings of peers' regions that the daemon granted to a QP.

use crate::limits::GRANTS_MAX;
use omniverb_ring::Window;

/// One grant: the whole pages of a region, mapped.
#[derive(Clone)]
pub struct Grant {
    /// The peer's key.
    pub rkey: u32,
    /// `IBV_ACCESS_*` of the region.
    pub access: u32,
    /// The region, as the peer's requests name it.
    pub address: u64,
    /// Its length.
    pub length: u64,
    /// First address that is mapped.
    pub page_start: u64,
    /// Low half of the owner's EPOCH when it gave them.
    pub epoch: u32,
    /// The pages.
    pub window: Window,
}

/// What a QP was granted, and what it asked for.
#[derive(Default)]
pub(crate) struct Grants {
    epoch: u64,
    list: Vec<Grant>,
    asked: Vec<u32>,
}

/// How an access relates to a grant.
pub(crate) enum Reach<'g> {
    /// It lies wholly in mapped pages, at this offset.
    Mapped(&'g Grant, usize),
    /// Ask the daemon: nobody has yet.
    Ask,
    /// Let the responder decide.
    Mediated,
}

impl Grants {
    /// Looks an access up. `epoch`: the peer's, which voids everything when it moves.
    #[inline(always)]
    pub(crate) fn reach(
        &mut self,
        epoch: u64,
        rkey: u32,
        address: u64,
        length: u64,
        access: u32,
    ) -> Reach<'_> {
        if epoch != self.epoch {
            self.void(epoch);
        }
        match self.known(epoch, rkey, address, length, access) {
            Reach::Ask if self.asked.contains(&rkey) || self.asked.len() >= GRANTS_MAX => {
                Reach::Mediated
            }
            Reach::Ask => {
                self.asked.push(rkey);
                Reach::Ask
            }
            // Looked up anew: the borrow checker does not see that the other arms let go.
            _ => self.known(epoch, rkey, address, length, access),
        }
    }

    /// As [`Self::reach`], but changes nothing.
    #[inline(always)]
    pub(crate) fn known(
        &self,
        epoch: u64,
        rkey: u32,
        address: u64,
        length: u64,
        access: u32,
    ) -> Reach<'_> {
        if epoch != self.epoch {
            return Reach::Mediated;
        }
        let Some(grant) = self.list.iter().find(|grant| grant.rkey == rkey) else {
            return Reach::Ask;
        };
        let inside = address.checked_sub(grant.page_start).filter(|offset| {
            let mapped = grant.window.len() as u64;
            *offset <= mapped && length <= mapped - *offset && grant.access & access == access
        });
        match inside {
            Some(offset) => Reach::Mapped(grant, offset as usize),
            None => Reach::Mediated,
        }
    }

    #[cold]
    fn void(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.list.clear();
        self.asked.clear();
    }

    /// The daemon granted. Ignored unless it was asked for, and given, in this epoch: what was
    /// given earlier may have been taken back since.
    pub(crate) fn insert(&mut self, epoch: u64, grant: Grant) -> bool {
        let late = epoch != self.epoch || epoch as u32 != grant.epoch;
        if late || !self.asked.contains(&grant.rkey) {
            return false;
        }
        self.list.retain(|other| other.rkey != grant.rkey);
        self.list.push(grant);
        true
    }

    /// Lets go of everything; what was asked for is not asked for again in this epoch.
    pub(crate) fn forget(&mut self) {
        self.list.clear();
    }

    pub(crate) fn clear(&mut self) {
        self.void(0);
    }
}
