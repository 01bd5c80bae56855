//! Memory keys: registration and revocation. How pages come to be granted is in
//! `adopt_and_withdraw_pages`.

use super::Client;
use crate::daemon_caller_trait::DaemonCaller;
use omniverb_device::memory_region::{NO_RKEY, Regions};
use omniverb_device::{Region, RegionKind, WindowType, access};
use omniverb_session::Message;
use omniverb_session::body::{DeregMr, MrRegistered, RegMr};
use omniverb_terms::{Errno, Lkey, Rkey};
use std::sync::Arc;

/// Regions a process may register, local ones included; `ibv_query_device` reports it.
pub const REGIONS_MAX: usize = 1 << 18;

/// Memory to be registered.
pub struct RegistrationRequest {
    /// The protection domain's number.
    pub pd: u32,
    /// Of the first byte, as the program has it mapped.
    pub address: usize,
    /// Bytes from there on.
    pub length: usize,
    /// What requests name the first byte by.
    pub iova: u64,
    /// `IBV_ACCESS_*`.
    pub access: u32,
    /// In what it differs from most.
    pub extras: RegionKind,
}

impl RegistrationRequest {
    /// # Safety
    /// As [`Client::register`].
    #[expect(unsafe_code)] // UNSAFETY: passes the application's promise on
    unsafe fn region(self, lkey: Lkey, rkey: Rkey) -> Arc<Region> {
        // SAFETY: the caller's promise.
        let memory =
            unsafe { crate::user_memory_constructors::registered(self.address, self.length) };
        let RegistrationRequest { pd, access, iova, extras, .. } = self;
        let (moved, own) = Default::default();
        Arc::new(Region { lkey, rkey, pd, access, iova, memory, moved, own, extras })
    }
}

/// A key that cannot be guessed.
fn random_key() -> u32 {
    omniverb_sys::random::number() as u32
}

/// A key of the daemon's for a region.
fn register_key(
    daemon: &impl DaemonCaller,
    regions: &Regions,
    wish: &RegistrationRequest,
) -> Result<Rkey, Errno> {
    let ask = RegMr {
        pd: wish.pd,
        access: wish.access & (access::LOCAL_WRITE | access::REMOTE),
        addr: wish.iova,
        length: wish.length as u64,
        rkey: Rkey(0),
        reserved: 0,
    };
    loop {
        let rkey = match daemon.call(&ask.into())? {
            Message::MrRegistered(MrRegistered { rkey, .. }) if rkey != Rkey(0) => rkey,
            _ => return Err(Errno::EPROTO),
        };
        if regions.is_free(rkey.0) {
            return Ok(rkey);
        }
        // One that the daemon does not know of: a window's, or of a region without remote
        // access, or that has changed.
        daemon.call(&DeregMr { rkey, reserved: 0 }.into())?;
    }
}

/// A key of a region that peers may not use. They may later ([`Client::reregister`]), by the same
/// number.
fn spare_key(regions: &Regions) -> Lkey {
    loop {
        let key = random_key();
        if key != NO_RKEY.0 && regions.is_free(key) {
            return Lkey(key);
        }
    }
}

impl Client {
    /// Registers memory.
    ///
    /// # Errors
    /// errno: what the daemon says about its quota, mostly `ENOMEM`.
    ///
    /// # Safety
    /// The contract of `ibv_reg_mr`: the range stays mapped, with the access asked for, until it is
    /// deregistered.
    #[expect(unsafe_code)] // UNSAFETY: passes the application's promise on
    pub unsafe fn register(&self, wish: RegistrationRequest) -> Result<Arc<Region>, Errno> {
        let most = REGIONS_MAX.min(self.nic().mr_max as usize);
        if self.shared.regions.count() >= most {
            return Err(Errno::ENOMEM);
        }
        // One number for both keys, as with the drivers of kernels: programs that send their L_Key
        // to peers work with those.
        let (lkey, rkey) = match wish.access & access::REMOTE {
            0 => (spare_key(&self.shared.regions), NO_RKEY),
            _ => {
                register_key(self, &self.shared.regions, &wish).map(|rkey| (Lkey(rkey.0), rkey))?
            }
        };
        // SAFETY: the caller's promise.
        let region = unsafe { wish.region(lkey, rkey) };
        self.shared.regions.insert(region.clone());
        if rkey != NO_RKEY {
            self.pages.keys.add(&region);
        }
        Ok(region)
    }

    /// Registers anew what was registered: its local key stays. `rkey`: what peers are to name it
    /// by, if they may; the daemon does not know of that any more, so it is never mapped.
    ///
    /// # Errors
    /// errno: `EBUSY` while windows are bound to it; the region is as it was.
    ///
    /// # Safety
    /// As [`Self::register`].
    #[expect(unsafe_code)] // UNSAFETY: passes the application's promise on
    pub unsafe fn reregister(
        &self,
        region: &Region,
        wish: RegistrationRequest,
        rkey: Rkey,
    ) -> Result<Arc<Region>, Errno> {
        if !self.is_ours() {
            return Err(Errno::EIO);
        }
        let all_note = || self.qps.all().iter().for_each(|qp| qp.note_receives());
        let regions = &self.shared.regions;
        self.end_region(region, || regions.remove_to_change(region.lkey, all_note))?;
        regions.doubt_receives(region.lkey);
        let opens = wish.access & access::REMOTE != 0;
        // SAFETY: the caller's promise.
        let region = unsafe { wish.region(region.lkey, if opens { rkey } else { NO_RKEY }) };
        self.shared.regions.insert(region.clone());
        Ok(region)
    }

    /// Deregisters memory: when this returns, no peer reaches it any more.
    ///
    /// # Errors
    /// errno; the region is registered still. `EBUSY` while windows are bound to it.
    pub fn deregister(&self, region: &Region) -> Result<(), Errno> {
        if !self.is_ours() {
            return Ok(()); // a forked child's copy of the handle: nothing of it is registered
        }
        self.end_region(region, || self.shared.regions.remove(region.lkey))
    }

    /// Ends what peers may do with a region that `remove` takes out of the table.
    fn end_region(
        &self,
        region: &Region,
        remove: impl FnOnce() -> Option<Arc<Region>>,
    ) -> Result<(), Errno> {
        if region.is_bound() {
            return Err(Errno::EBUSY);
        }
        let registered = remove();
        if region.rkey != NO_RKEY && self.pages.keys.has(region.rkey) {
            // Without a daemon there is none that has to forget it.
            let forget = || _ = self.call(&DeregMr { rkey: region.rkey, reserved: 0 }.into());
            if let (Err(errno), Some(region)) = (self.pages.revoke(region.rkey, forget), registered)
            {
                self.shared.regions.insert(region);
                return Err(errno);
            }
            self.pages.keys.remove(region.rkey);
        }
        Ok(())
    }

    /// A new memory window, bound to nothing, and its first key.
    ///
    /// # Errors
    /// errno: there are too many.
    pub fn add_window(&self, of: WindowType, pd: u32) -> Result<Rkey, Errno> {
        if !self.is_ours() {
            return Err(Errno::EIO);
        }
        self.shared.regions.add_window(of, pd, random_key).ok_or(Errno::ENOMEM)
    }

    /// A window goes: when this returns, no peer reaches anything by it any more.
    pub fn remove_window(&self, rkey: Rkey) {
        if self.is_ours() {
            self.shared.regions.remove_window(rkey);
        }
    }
}
