//! Devices that are shared with other processes: this one's with those that import it, and others'
//! that it imports.

use super::pages_granted_to_peers::{GrantedPages, RevocationMode};
use super::{Client, memory_registration};
use crate::device_import::{Device, ExportListener, ExportedObjects, Import, PageOwner};
use crate::errno_conversion::errno_of;
use omniverb_device::Shared;
use omniverb_session::device_import_messages::{self, Ask, Card};
use omniverb_sys::epoll::Interest;
use omniverb_sys::{lock, seqpacket};
use omniverb_terms::Errno;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

/// A process with a command file may import what is behind it, as long as this is there.
pub struct ExportOffer {
    client: Weak<Client>,
    /// Until the first one comes no thread of the process need listen for others.
    watch: u64,
    /// From then on, as what it is listened to.
    door: Arc<Mutex<Option<u64>>>,
}

impl Client {
    /// A command file for a context, and the socket at which its holders are heard.
    ///
    /// # Errors
    /// errno: `EMFILE`.
    pub fn command_file(&self) -> Result<(OwnedFd, OwnedFd), Errno> {
        let (file, door) = seqpacket::pair().map_err(|error| errno_of(&error))?;
        let card = card(self);
        seqpacket::try_send(door.as_fd(), card.bytes(), &[]).map_err(|error| errno_of(&error))?;
        Ok((file, door))
    }

    /// Lets others import what a context has.
    ///
    /// # Errors
    /// errno: no descriptors or threads are left, `EIO` in a forked child.
    pub fn offer(
        self: &Arc<Self>,
        door: Arc<OwnedFd>,
        objects: Weak<dyn ExportedObjects>,
    ) -> Result<ExportOffer, Errno> {
        let (number, client, door) = (Arc::new(Mutex::new(None)), Arc::downgrade(self), door);
        let (socket, opened, me) = (door.clone(), number.clone(), client.clone());
        let ready = move |watch| {
            let Some(client) = me.upgrade() else { return };
            let exporter = client.exporter.clone();
            let door = ExportListener::new(socket.clone(), exporter, objects.clone());
            // Otherwise it is tried again, as long as an importer waits.
            if let Ok(number) = client.service.add(Arc::new(door)) {
                *lock(&opened) = Some(number);
                let _ = client.unwatch(watch);
            }
        };
        let watch = self.watch(door, Interest::Input, Box::new(ready))?;
        Ok(ExportOffer { client, watch, door: number })
    }

    /// An object of ours is about to be destroyed, or to be another one, and cannot be imported any
    /// more: returns when no importer uses it.
    ///
    /// # Errors
    /// errno: its pages cannot be moved back, and importers reach it still.
    pub fn ends(&self, object: u32, handle: u32) -> Result<(), Errno> {
        if self.is_ours() { self.exporter.gone(object, handle) } else { Ok(()) }
    }

    /// Imports the device that a duplicate of a command file leads to.
    ///
    /// # Errors
    /// errno: `EINVAL`: it is no such file; `EOPNOTSUPP`: of another vNIC, or of a context that is
    /// closed; `EIO` in a forked child; or that something has run out.
    pub fn import(self: &Arc<Self>, file: BorrowedFd<'_>) -> Result<Import, Errno> {
        if !self.is_ours() {
            return Err(Errno::EIO);
        }
        if shown(file).ok_or(Errno::EINVAL)? != card(self) {
            return Err(Errno::EOPNOTSUPP);
        }
        let (ours, theirs) = seqpacket::pair().map_err(|error| errno_of(&error))?;
        let ask = Ask { what: device_import_messages::OPEN, ..Ask::NONE };
        let sent = seqpacket::try_send(file, ask.bytes(), &[theirs.as_fd()]);
        sent.map_err(|error| match error.raw_os_error() {
            Some(libc::EPIPE | libc::ECONNRESET | libc::ECONNREFUSED) => Errno::EOPNOTSUPP,
            _ => errno_of(&error),
        })?;
        drop(theirs);
        let device = Arc::downgrade(self);
        let line = crate::device_import::ExporterConnection::new(ours, device);
        Import::new(line, self.service.clone(), self.imported.clone())
    }
}

/// What a command file of this process shows.
fn card(client: &Client) -> Card {
    let (magic, version) = (device_import_messages::MAGIC, device_import_messages::VERSION);
    Card { magic, node_guid: client.nic().node_guid, version, reserved: 0 }
}

/// Whether a descriptor is a command file of some process's.
pub fn is_command_file(file: BorrowedFd<'_>) -> bool {
    shown(file).is_some()
}

/// What a command file shows.
fn shown(file: BorrowedFd<'_>) -> Option<Card> {
    let mut bytes = [0; size_of::<Card>() + 1];
    let length = seqpacket::peek(file, &mut bytes).ok()?;
    Card::read(bytes.get(..length)?).filter(|card| card.magic == device_import_messages::MAGIC)
}

impl Drop for ExportOffer {
    fn drop(&mut self) {
        let client = self.client.upgrade().filter(|client| client.is_ours());
        let Some(client) = client else { return };
        let _ = client.unwatch(self.watch);
        let door = lock(&self.door).take();
        if let Some(number) = door {
            client.service.remove(number);
        }
    }
}

impl PageOwner for GrantedPages {
    fn with_pages(
        &self,
        pages: &Range<usize>,
        act: &mut dyn FnMut() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.check_may_grant()?;
        self.withdraw(|_, extent| extent.overlaps(pages.start, pages.end), RevocationMode::Kindly)?;
        let _moving = self.keys.move_pages();
        let granted = self.keys.extents(|_, extent| extent.overlaps(pages.start, pages.end));
        if granted.is_empty() { act() } else { Err(Errno::EAGAIN) }
    }

    fn moving(&self, act: &mut dyn FnMut()) {
        let _moving = self.keys.move_pages();
        act();
    }
}

impl Device for Client {
    fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn is_ours(&self) -> bool {
        self.is_ours()
    }

    fn regions_max(&self) -> usize {
        memory_registration::REGIONS_MAX.min(self.nic().mr_max as usize)
    }
}
