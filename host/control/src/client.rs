//! One client connection: its sockets, what waits to be sent, its statistics area.

use crate::memory;
use crate::outbox::Outbox;
use omniverb_session::limits::{STATISTICS_SLOT_BYTES, STATISTICS_SLOTS};
use omniverb_sys::pidfd::Peer;
use omniverb_sys::{Access, Extent, Mapping};
use omniverb_tenancy::VnicId;
use omniverb_terms::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes of a statistics area.
const AREA_BYTES: usize = STATISTICS_SLOTS * STATISTICS_SLOT_BYTES;

/// A connected process.
#[derive(Debug)]
pub(crate) struct Client {
    /// The process asks here.
    pub(crate) calls: OwnedFd,
    /// The process is told here; once it has said hello.
    pub(crate) events: Option<OwnedFd>,
    /// Readable when the process has ended.
    pub(crate) pidfd: Option<Arc<OwnedFd>>,
    /// What the kernel says about it.
    pub(crate) peer: Peer,
    /// Its vNIC, or the errno it is refused with.
    pub(crate) vnic: Result<VnicId, Errno>,
    /// Has not said hello yet.
    pub(crate) half_open: bool,
    /// Counters that it writes.
    pub(crate) statistics: Option<Mapping>,
    pub(crate) calls_box: Outbox,
    pub(crate) events_box: Outbox,
    /// What the tables were told: it has left more than a little of what it was told.
    pub(crate) behind: bool,
    /// A timer will try again to send what waits.
    pub(crate) flush_timer: bool,
}

impl Client {
    /// Makes a statistics area that the client is to write.
    pub(crate) fn make_area(&mut self) -> io::Result<Extent> {
        let area = memory::make("omniverb-statistics", AREA_BYTES as u64)?;
        self.statistics = Some(area.mapping(Access::ReadOnly)?);
        Ok(area)
    }

    /// The eight words of a statistics slot, as they are at the moment.
    pub(crate) fn counters(&self, slot: u32) -> Option<[u64; 8]> {
        let area = self.statistics.as_ref()?;
        let start = (slot as usize).checked_mul(STATISTICS_SLOT_BYTES)?;
        let mut words = [0; 8];
        for (index, word) in words.iter_mut().enumerate() {
            *word = area.load_u64(start + 8 * index)?;
        }
        Some(words)
    }
}
