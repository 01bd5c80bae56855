//! Gives regions a mapping of the library's own, where copies for peers are made without a system
//! call.
//!
//! Regions that a peer may only write to, or reach by atomics, are mapped by no peer that is not
//! trusted (`page_rights`): all that peers do there is copied by this process. The program can
//! protect or unmap its pages at any moment, so the kernel has to copy, which costs half a
//! microsecond each time. Pages on a file of ours can be mapped a second time, where the program
//! changes nothing. They go back like those that peers map: at deregistration, and before a fork.

use super::pages_granted_to_peers::GrantedPages;
use crate::region_extents_by_rkey::{Key, OtherKeysBytes};
use omniverb_link::page_grant_pacing;
use omniverb_session::page_rights::{self, PeerTrust};
use omniverb_sys::proc_maps;
use omniverb_terms::{Errno, Rkey};
use rustix::process::{Resource, getrlimit};

/// Budget: bytes of a region that has one. Its pages move at once, which takes about a second a
/// GiB, and the program's threads stand still for most of that.
pub const OWN_REGION_BYTES_MAX: u64 = 256 << 20;
/// Budget: regions of a process that have one; each takes a descriptor and three mappings.
pub const OWN_REGIONS_MAX: usize = 32;

impl GrantedPages {
    /// Copies for peers have cost as much as a move of this region's pages.
    pub(super) fn own(&self, rkey: Rkey) {
        if self.check_may_grant().is_err() {
            return;
        }
        if let Err(Errno::EAGAIN | Errno::EBUSY) = self.move_own(rkey) {
            // Two threads may have asked, and the first question been answered.
            let put_off = |key: &mut Key| key.is_unmoved().then(|| key.region().own.put_off());
            self.keys.with(rkey, |key, _| put_off(key));
        }
    }

    fn move_own(&self, rkey: Rkey) -> Result<(), Errno> {
        let _moving = self.keys.try_move_pages().ok_or(Errno::EAGAIN)?;
        let checked = |key: &mut Key, others| may_own(key, others).map(|()| key.shared_region());
        let region = self.keys.with(rkey, checked).ok_or(Errno::EACCES)??;
        let stay = self.taking.stay(&self.me)?;
        self.keys.adopt_own(&region, stay).inspect_err(|_| self.taking.left())
    }
}

/// `vm.overcommit_memory` is 2, or unknown (proc_sys_vm(5)). A page of a file that nobody has
/// touched may have no memory then, and our store into it would be a SIGBUS.
fn overcommits_never() -> bool {
    let mut text = [0; 8];
    let file = proc_maps::open_read(c"/proc/sys/vm/overcommit_memory");
    let count = file.and_then(|file| rustix::io::read(&file, &mut text)).unwrap_or(0);
    !matches!(text[..count].trim_ascii(), b"0" | b"1")
}

/// Whether the region of a key is to have a mapping of the library's own.
fn may_own(key: &Key, others: OtherKeysBytes) -> Result<(), Errno> {
    let (access, length) = (key.region().access, key.region().memory.len() as u64);
    // Peers map all others, or may ask to.
    let is_copied =
        access & page_rights::REMOTE != 0 && page_rights::mappable(access, PeerTrust::Exact) == 0;
    if key.is_mediated() || !is_copied || !key.is_unmoved() {
        return Err(Errno::EPERM);
    }
    if others.own >= OWN_REGIONS_MAX || length > OWN_REGION_BYTES_MAX {
        return Err(Errno::ENOMEM);
    }
    // A second mapping may be what the program lacks room for later.
    if getrlimit(Resource::As).current.is_some() || overcommits_never() {
        return Err(Errno::ENOMEM);
    }
    if !page_grant_pacing::allows(length, key.region().moved.bytes(), others.free) {
        return Err(Errno::EAGAIN);
    }
    Ok(())
}
