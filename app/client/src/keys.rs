//! Memory keys: registration, adoption of pages when a peer wants to map them, revocation.

use crate::{Client, errno_of, lock};
use omniverb_adopt::AdoptedPages;
use omniverb_device::grants::Grant;
use omniverb_device::{Region, access};
use omniverb_session::Message;
use omniverb_session::body::{
    Adopt, Adopted, Connected, DeregMr, Granted, MrRegistered, RegMr, RequestGrant,
};
use omniverb_sys::mapping::Access;
use omniverb_sys::{memfd, window};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Keys with remote access, by R_Key.
#[derive(Default)]
pub(crate) struct Keys {
    pub(crate) list: HashMap<u32, Key>,
}

pub(crate) struct Key {
    pub(crate) region: Arc<Region>,
    adopted: Option<AdoptedPages>,
    /// Never to be mapped (again).
    mediated: bool,
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
    ) -> Result<Arc<Region>, i32> {
        if self.shared.regions.count() >= REGIONS_MAX {
            return Err(libc::ENOMEM);
        }
        let lkey = self.shared.regions.new_lkey();
        let mut rkey = 0;
        if flags & access::REMOTE != 0 {
            let ask =
                RegMr { pd, access: flags, addr: iova, length: length as u64, rkey, reserved: 0 };
            rkey = match self.call(&ask.into())? {
                Message::MrRegistered(MrRegistered { rkey, .. }) if rkey != 0 => rkey,
                _ => return Err(libc::EPROTO),
            };
        }
        // SAFETY: the caller's promise.
        let memory = unsafe { crate::window::registered(address, length) };
        let region = Arc::new(Region { lkey, rkey, pd, access: flags, iova, memory });
        self.shared.regions.insert(region.clone());
        if rkey != 0 {
            let mediated = iova != address as u64;
            let key = Key { region: region.clone(), adopted: None, mediated };
            lock(&self.keys).list.insert(rkey, key);
        }
        Ok(region)
    }

    /// Deregisters memory: when this returns, no peer reaches it any more.
    ///
    /// # Errors
    /// errno; the region is registered still.
    pub fn deregister(&self, region: &Region) -> Result<(), i32> {
        if !self.is_ours() {
            return Ok(()); // a forked child's copy of the handle: nothing of it is registered
        }
        let registered = self.shared.regions.remove(region.lkey);
        // Another thread may be placing a message there at this moment.
        let qps: Vec<_> = lock(&self.qps).values().map(|record| record.qp.clone()).collect();
        qps.iter().for_each(|qp| qp.finish_access());
        if region.rkey != 0 {
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
    pub(crate) fn revoke(&self, rkey: u32) -> Result<(), i32> {
        let adopted = {
            let mut keys = lock(&self.keys);
            let Some(key) = keys.list.get_mut(&rkey) else { return Ok(()) };
            key.mediated = true;
            key.adopted.take()
        };
        let Some(mut pages) = adopted else { return Ok(()) };
        let qps: Vec<_> = lock(&self.qps).values().map(|record| record.qp.clone()).collect();
        qps.iter().for_each(|qp| qp.revoke_grants());
        // Other threads may keep the pages busy for a moment; a region must not stay exposed.
        let mut errno = 0;
        for _ in 0..RELEASE_ATTEMPTS {
            match pages.release() {
                Ok(()) => return Ok(()),
                Err(failed) => (pages, errno) = (failed.pages, failed.error.errno()),
            }
        }
        if let Some(key) = lock(&self.keys).list.get_mut(&rkey) {
            key.adopted = Some(pages);
        }
        Err(errno)
    }

    /// A QP lost access rights: no mapping may outlive them.
    pub(crate) fn revoke_all(&self) {
        let keys: Vec<u32> = lock(&self.keys).list.keys().copied().collect();
        for rkey in keys {
            // What cannot be taken back now is tried again at deregistration.
            let _ = self.revoke(rkey);
        }
    }

    /// What was granted must not stay so, and others' pages are not to be used any more. For this
    /// once: who asks anew is judged by the daemon, so that whoever still may gets them again.
    pub(crate) fn take_back_all(&self) {
        let qps: Vec<_> = lock(&self.qps).values().map(|record| record.qp.clone()).collect();
        qps.iter().for_each(|qp| qp.forget_grants());
        let before: Vec<(u32, bool)> =
            lock(&self.keys).list.iter().map(|(rkey, key)| (*rkey, key.mediated)).collect();
        for (rkey, mediated) in before {
            let taken = self.revoke(rkey).is_ok();
            if let Some(key) = lock(&self.keys).list.get_mut(&rkey).filter(|_| taken) {
                key.mediated = mediated;
            }
        }
    }

    /// A peer wants to map a region: moves its pages onto a memfd.
    pub(crate) fn adopt(&self, ask: &Adopt) -> (Adopted, Option<OwnedFd>) {
        let refused = |errno: i32| {
            let errno = errno as u32;
            let answer =
                Adopted { token: ask.token, errno, epoch: 0, page_start: 0, page_length: 0 };
            (answer, None)
        };
        if self.keeps_pages {
            return refused(libc::EPERM);
        }
        let Some(qp) = self.qp(ask.qpn) else { return refused(libc::ENOENT) };
        let mut keys = lock(&self.keys);
        let Some(key) = keys.list.get_mut(&ask.rkey) else { return refused(libc::ENOENT) };
        let rights = key.region.access & access::REMOTE;
        let (_, attributes) = qp.query();
        if key.mediated || attributes.access_flags & rights != rights || qp.pd != key.region.pd {
            return refused(libc::EACCES);
        }
        if key.adopted.is_none() {
            let writable = rights & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
            let memory = key.region.memory;
            match omniverb_adopt::adopt(memory.address(), memory.len(), writable) {
                Ok(pages) => key.adopted = Some(pages),
                Err(error) => return refused(error.errno()),
            }
        }
        let Some(pages) = &key.adopted else { return refused(libc::EIO) };
        match pages.memfd().try_clone_to_owned() {
            Ok(file) => (
                Adopted {
                    token: ask.token,
                    errno: 0,
                    // Before whoever takes the pages back moves it: the keys are locked.
                    epoch: qp.epoch() as u32,
                    page_start: pages.page_start() as u64,
                    page_length: pages.page_length() as u64,
                },
                Some(file),
            ),
            Err(error) => refused(errno_of(&error)),
        }
    }

    pub(crate) fn request_grant(&self, qpn: u32, peer_qpn: u32, rkey: u32) {
        let ask = RequestGrant { qpn, peer_qpn, rkey, reserved: 0 };
        if let Ok(Message::Connected(Connected { .. })) = self.call(&ask.into()) {}
    }

    /// The daemon granted what we asked for.
    pub(crate) fn granted(&self, granted: &Granted, files: Vec<OwnedFd>) -> Result<(), i32> {
        let file = files.first().ok_or(libc::EPROTO)?;
        let length = usize::try_from(granted.page_length).map_err(|_| libc::EPROTO)?;
        memfd::verify(file.as_fd(), granted.page_length).map_err(|_| libc::EPROTO)?;
        let writable = granted.access & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
        let how = if writable { Access::ReadWrite } else { Access::ReadOnly };
        let window = window::map(file.as_fd(), length, how).map_err(|e| errno_of(&e))?;
        let qp = self.qp(granted.qpn).ok_or(libc::ENOENT)?;
        let grant = Grant {
            rkey: granted.rkey,
            access: granted.access,
            address: granted.addr,
            length: granted.length,
            page_start: granted.page_start,
            epoch: granted.epoch,
            window,
        };
        qp.granted(granted.peer_qpn, grant);
        Ok(())
    }
}

/// Regions a process may register, local ones included; `ibv_query_device` reports it.
pub const REGIONS_MAX: usize = 1 << 18;
/// How often to try to move pages back; each attempt waits for busy threads by itself.
const RELEASE_ATTEMPTS: u32 = 4;
