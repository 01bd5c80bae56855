//! Keeps which extent was granted by which link: a grant ends with the last link that justifies it.
//!
//! A grant is a right of a pair of processes, given by way of a link of theirs: the key is of the
//! owner's queue pair's domain, and that queue pair's access flags cover it. When the last link by
//! which a process was granted an extent ends, for any reason, the extent ends as well: a process
//! keeps its mappings, so the owner is told to take the pages off that file. Other grantees of the
//! same extent, that still may have it, are served by the owner meanwhile, and then from another.

use crate::accounts::Receipt;
use crate::action::GrantOccasion;
use crate::memory::extent_table::{ExtentId, Extents};
use crate::row_keys::{LinkKey, SessionId};
use omniverb_terms::Qpn;
use std::collections::{BTreeMap, BTreeSet};

/// Granted extents, and the links by which.
#[derive(Debug, Default)]
pub(crate) struct Grantees {
    /// With the grantee's receipt.
    by_extent: BTreeMap<(ExtentId, LinkKey), Receipt>,
    by_link: BTreeSet<(LinkKey, ExtentId)>,
}

impl Grantees {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_extent.is_empty() && self.by_link.is_empty()
    }

    /// The links by which an extent was granted.
    pub(crate) fn links_of(&self, extent: ExtentId) -> impl Iterator<Item = LinkKey> {
        let from = (extent, LinkKey(Qpn(0), Qpn(0)));
        let to = (extent, LinkKey(Qpn(u32::MAX), Qpn(u32::MAX)));
        self.by_extent.range(from..=to).map(|((_, link), _)| *link)
    }

    /// The extents granted by a link.
    pub(crate) fn extents_of(&self, link: LinkKey) -> Vec<ExtentId> {
        let all = self.by_link.range((link, 0)..=(link, ExtentId::MAX));
        all.map(|(_, extent)| *extent).collect()
    }

    /// An extent is granted by a link from now on. If it was not before, this is paid.
    pub(crate) fn add(
        &mut self,
        extent: ExtentId,
        link: LinkKey,
        pay: impl FnOnce() -> Receipt,
    ) -> GrantOccasion {
        self.by_extent.entry((extent, link)).or_insert_with(pay);
        if self.by_link.insert((link, extent)) {
            GrantOccasion::First
        } else {
            GrantOccasion::Again
        }
    }

    /// An extent is granted by this link no longer; what was paid is returned.
    pub(crate) fn remove(&mut self, extent: ExtentId, link: LinkKey) {
        self.by_link.remove(&(link, extent));
        self.by_extent.remove(&(extent, link));
    }

    /// Every grant by a link: the owner of the pages, and its receipt.
    pub(crate) fn iter(
        &self,
        extents: &Extents,
    ) -> impl Iterator<Item = (LinkKey, SessionId, &Receipt)> {
        let owner = |extent| extents.get(extent).map(|extent| extent.region.0);
        let all = self.by_extent.iter();
        all.filter_map(move |((extent, link), paid)| Some((*link, owner(*extent)?, paid)))
    }
}

/// The session that is not the owner; `None`: the link is within a process.
pub(crate) fn other_end(sessions: [SessionId; 2], owner: SessionId) -> Option<SessionId> {
    let [first, second] = sessions;
    match (first == owner, second == owner) {
        (true, false) => Some(second),
        (false, true) => Some(first),
        _ => None,
    }
}
