//! Memory keys: registration and revocation. How pages come to be granted is in `extents`.

use crate::Client;
use crate::extents::Extent;
use crate::lock::lock;
use omniverb_device::region::{Moved, NO_RKEY};
use omniverb_device::{Region, access};
use omniverb_session::Message;
use omniverb_session::body::{DeregMr, MrRegistered, RegMr};
use omniverb_terms::{Errno, Rkey};
use std::collections::HashMap;
use std::sync::Arc;

/// Keys with remote access, by R_Key.
#[derive(Default)]
pub(crate) struct Keys {
    pub(crate) list: HashMap<Rkey, Key>,
}

pub(crate) struct Key {
    pub(crate) region: Arc<Region>,
    /// Parts of it that are on files of a daemon's.
    pub(crate) adopted: Vec<Extent>,
    /// Never to be mapped (again).
    pub(crate) mediated: bool,
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
    pub unsafe fn register(
        &self,
        pd: u32,
        address: usize,
        length: usize,
        iova: u64,
        flags: u32,
    ) -> Result<Arc<Region>, Errno> {
        if self.shared.regions.count() >= REGIONS_MAX {
            return Err(Errno::ENOMEM);
        }
        let lkey = self.shared.regions.new_lkey();
        let mut rkey = NO_RKEY;
        if flags & access::REMOTE != 0 {
            let ask = RegMr {
                pd,
                access: flags,
                addr: iova,
                length: length as u64,
                rkey: Rkey(0),
                reserved: 0,
            };
            rkey = match self.call(&ask.into())? {
                Message::MrRegistered(MrRegistered { rkey, .. }) if rkey != Rkey(0) => rkey,
                _ => return Err(Errno::EPROTO),
            };
        }
        // SAFETY: the caller's promise.
        let memory = unsafe { crate::window::registered(address, length) };
        let moved = Moved::default();
        let region = Arc::new(Region { lkey, rkey, pd, access: flags, iova, memory, moved });
        self.shared.regions.insert(region.clone());
        if rkey != NO_RKEY {
            let mediated = iova != address as u64;
            let key = Key { region: region.clone(), adopted: Vec::new(), mediated };
            lock(&self.keys).list.insert(rkey, key);
        }
        Ok(region)
    }

    /// Deregisters memory: when this returns, no peer reaches it any more.
    ///
    /// # Errors
    /// errno; the region is registered still.
    pub fn deregister(&self, region: &Region) -> Result<(), Errno> {
        if !self.is_ours() {
            return Ok(()); // a forked child's copy of the handle: nothing of it is registered
        }
        let registered = self.shared.regions.remove(region.lkey);
        // Another thread may be placing a message there at this moment.
        let qps = self.qps.all();
        qps.iter().for_each(|qp| qp.finish_access());
        if region.rkey != NO_RKEY {
            if let (Err(errno), Some(region)) = (self.revoke(region.rkey), registered) {
                self.shared.regions.insert(region);
                return Err(errno);
            }
            lock(&self.keys).list.remove(&region.rkey);
            // Without a daemon there is nobody to forget it.
            let _ = self.call(&DeregMr { rkey: region.rkey, reserved: 0 }.into());
        }
        Ok(())
    }

    /// Takes a key's pages back from everybody who mapped them, for good.
    ///
    /// # Errors
    /// errno: the pages could not be moved back, and whoever mapped them reaches them still.
    fn revoke(&self, rkey: Rkey) -> Result<(), Errno> {
        if let Some(key) = lock(&self.keys).list.get_mut(&rkey) {
            key.mediated = true;
        }
        // Who is at them at this moment writes to a region that is gone.
        self.withdraw(|other, _| other == rkey, false)
    }

    /// A QP lost access rights: no mapping may outlive them.
    ///
    /// # Errors
    /// errno: as when pages cannot be taken back at deregistration. It is tried again, but who
    /// mapped them reaches them until that succeeds.
    pub(crate) fn revoke_all(&self) -> Result<(), Errno> {
        lock(&self.keys).list.values_mut().for_each(|key| key.mediated = true);
        self.withdraw(|_, _| true, true).inspect_err(|_| self.take_all_back())
    }
}

/// Regions a process may register, local ones included; `ibv_query_device` reports it.
pub const REGIONS_MAX: usize = 1 << 18;
