//! Looks remote keys up for requests of the peer.

use crate::memory_region::Region;
use crate::qp::qp_attributes::QpAttributes;
use crate::qp::{Inner, Qp};
use crate::region_removal_wait::Reader;
use omniverb_ring::UserMemory;
use omniverb_terms::{Refusal, Rkey};
use std::sync::Arc;

/// What the peer of a queue pair may reach.
pub(super) struct RemoteAccess<'q> {
    pub(super) qp: &'q Qp,
    reader: &'q Reader,
    /// The protection domain of the keys.
    pd: u32,
    pub(super) attributes: &'q QpAttributes,
}

impl Inner {
    #[inline(always)]
    pub(super) fn remote_access<'q>(&'q self, qp: &'q Qp) -> RemoteAccess<'q> {
        let (reader, pd) = (&self.reader, self.extended.key_pd(qp));
        RemoteAccess { qp, reader, pd, attributes: self.machine.attributes() }
    }
}

impl RemoteAccess<'_> {
    /// The region of a remote key, if it may be used so.
    pub(super) fn opened(&self, rkey: Rkey, access: u32) -> Result<Arc<Region>, Refusal> {
        let regions = &self.qp.shared.regions;
        let region = regions.by_rkey(self.reader, rkey).ok_or(Refusal::RemoteAccess)?;
        let opens = region.pd == self.pd && region.opens_by(self.qp.number);
        if !opens || region.access & access != access {
            return Err(Refusal::RemoteAccess);
        }
        Ok(region)
    }

    /// Looks a remote key up for an access; the order of checks is that of the specification.
    pub(super) fn target(
        &self,
        rkey: Rkey,
        access: u32,
        address: u64,
        length: u64,
    ) -> Result<(Arc<Region>, UserMemory), Refusal> {
        let region = self.opened(rkey, access)?;
        let part = region.part(address, length).ok_or(Refusal::RemoteAccess)?;
        Ok((region, part))
    }
}
