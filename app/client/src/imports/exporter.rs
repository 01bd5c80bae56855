//! The process that opened a device: answers those who have a duplicate of its command file.
//!
//! Whoever asks has been given the device, by this process or by somebody whom it gave it to. So
//! nothing is kept from him that the context has; but what he says is checked like anything from
//! another process, there are only so many of him, and his end is noticed.

use super::pages::{Holder, Pages, around};
use super::service::{Party, Service};
use omniverb_device::Region;
use omniverb_session::import::{self, Ask, Told};
use omniverb_sys::socket::{self, Mode};
use omniverb_sys::{Extent, clock, lock};
use omniverb_terms::{Errno, Rkey};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

/// Importers at a time.
const GUESTS_MAX: usize = 64;
/// Objects that all importers together hold.
const HOLDS_MAX: usize = 1 << 16;
/// Messages that are taken of one socket in a row.
const IN_A_ROW: usize = 64;
/// How long importers have to say that they do not use what is gone. Honest ones are quick, and who
/// is not has pages that are nobody's any more.
const WAIT_MAX: Duration = Duration::from_millis(500);

/// What a context has that can be imported, by handles.
pub trait Exported: Send + Sync {
    /// Whether there is this protection domain.
    fn has_domain(&self, handle: u32) -> bool;

    /// A memory region and what peers name it by.
    ///
    /// # Errors
    /// `ENOENT`: there is none; `EOPNOTSUPP`: its memory is none that others can have; `EAGAIN`: it
    /// is changing.
    fn region(&self, handle: u32) -> Result<(Arc<Region>, Rkey), Errno>;

    /// Device memory: address and length.
    fn device_memory(&self, handle: u32) -> Option<(usize, usize)>;

    /// Destroys an object, [`import::DOMAIN`] and others.
    ///
    /// # Errors
    /// As the verb that does so.
    fn destroy(&self, object: u32, handle: u32) -> Result<(), Errno>;
}

/// Has pages that may be moved.
pub(crate) trait Owner: Send + Sync {
    /// Moves some, while nobody else moves any; none of them are granted to peers at that time.
    ///
    /// # Errors
    /// As `act`; `EAGAIN`: they were granted anew; `EPERM`: no pages are to be moved.
    fn with_pages(
        &self,
        pages: &Range<usize>,
        act: &mut dyn FnMut() -> Result<(), Errno>,
    ) -> Result<(), Errno>;
}

/// What this process gives to importers.
pub(crate) struct Exporter {
    service: Arc<Service>,
    owner: Weak<dyn Owner>,
    guests: Mutex<Guests>,
    pages: Mutex<Pages>,
    /// An importer has said that it does not use something.
    seen: Condvar,
}

#[derive(Default)]
struct Guests {
    latest: u64,
    here: HashMap<u64, Arc<Guest>>,
    /// Importers and tags of what they have not answered.
    unseen: HashSet<(u64, u64)>,
    latest_tag: u64,
}

/// Where importers of a context come in.
pub(crate) struct Door {
    pub(crate) socket: Arc<OwnedFd>,
    pub(crate) exporter: Arc<Exporter>,
    pub(crate) objects: Weak<dyn Exported>,
}

/// A process that imports.
pub(super) struct Guest {
    number: u64,
    socket: OwnedFd,
    exporter: Arc<Exporter>,
    objects: Weak<dyn Exported>,
}

impl Party for Door {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// One at a time: whoever has gone meanwhile makes room.
    fn hear(&self) -> bool {
        let mut bytes = [0; import::BYTES_MAX];
        match socket::receive(self.socket.as_fd(), &mut bytes, Mode::NonBlocking) {
            // Nobody has the command file any more.
            Ok((0, files)) if files.is_empty() => return false,
            Ok((length, mut files)) => {
                let ask = Ask::read(&bytes[..length]);
                let asks = ask.is_some_and(|ask| ask.what == import::OPEN) && files.len() == 1;
                if let (true, Some(socket)) = (asks, files.pop()) {
                    self.exporter.admit(socket, self.objects.clone());
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            // A message of another kind, which is lost.
            Err(error) => {
                return matches!(error.raw_os_error(), Some(libc::EMSGSIZE | libc::EMFILE));
            }
        }
        true
    }
}

impl Party for Guest {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn hear(&self) -> bool {
        for _ in 0..IN_A_ROW {
            let mut bytes = [0; import::BYTES_MAX];
            match socket::receive(self.socket.as_fd(), &mut bytes, Mode::NonBlocking) {
                Ok((length, _)) => {
                    let ask = Ask::read(&bytes[..length]);
                    if !ask.is_some_and(|ask| self.take(&ask)) {
                        self.exporter.leaves(self.number);
                        return false;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return true,
                Err(_) => {
                    self.exporter.leaves(self.number);
                    return false;
                }
            }
        }
        true
    }
}

impl Guest {
    pub(super) fn new(
        number: u64,
        socket: OwnedFd,
        exporter: Arc<Exporter>,
        objects: Weak<dyn Exported>,
    ) -> Guest {
        Guest { number, socket, exporter, objects }
    }

    /// Does what is asked; whether that was something, and the answer is on its way.
    pub(super) fn take(&self, ask: &Ask) -> bool {
        let holder = (self.number, ask.object, ask.handle);
        let answer = match ask.what {
            import::IMPORT => self.open(ask, holder).map(|told| (told, None)),
            import::PAGES => self.exporter.pages_for(ask, holder, &self.objects),
            import::DESTROY => {
                let destroyed = self.objects.upgrade().ok_or(Errno::ENOENT);
                let destroyed = destroyed.and_then(|of| of.destroy(ask.object, ask.handle));
                destroyed.map(|()| (Told::NONE, None))
            }
            import::LEAVE => {
                lock(&self.exporter.pages).leave(holder);
                return true;
            }
            import::SEEN => {
                self.exporter.has_seen(self.number, ask.tag);
                return true;
            }
            _ => return false,
        };
        let (told, file) = answer.unwrap_or_else(|errno| (Told { errno, ..Told::NONE }, None));
        let Ask { tag, object, handle, .. } = *ask;
        self.tell(&Told { what: import::ANSWER, tag, object, handle, ..told }, file.as_ref())
    }

    /// Whether it could be sent: an importer that takes nothing has no answer.
    fn tell(&self, told: &Told, file: Option<&OwnedFd>) -> bool {
        let files: Vec<BorrowedFd<'_>> = file.into_iter().map(AsFd::as_fd).collect();
        socket::try_send(self.socket.as_fd(), told.bytes(), &files).is_ok()
    }

    /// What an object is.
    fn open(&self, ask: &Ask, holder: Holder) -> Result<Told, Errno> {
        let objects = self.objects.upgrade().ok_or(Errno::ENOENT)?;
        let (told, place) = match ask.object {
            import::DOMAIN => {
                let there = objects.has_domain(ask.handle).then_some(Told::NONE);
                return there.ok_or(Errno::ENOENT);
            }
            import::REGION => {
                let (region, rkey) = objects.region(ask.handle)?;
                let place = (region.memory.address(), region.memory.len());
                let Region { pd, access, iova, .. } = *region;
                (Told { pd, access, rkey, iova, ..Told::NONE }, place)
            }
            import::DEVICE_MEMORY => {
                (Told::NONE, objects.device_memory(ask.handle).ok_or(Errno::ENOENT)?)
            }
            _ => return Err(Errno::EINVAL),
        };
        let range = around(place.0, place.1).ok_or(Errno::EINVAL)?;
        let begin = (place.0 - range.start) as u64;
        let mut pages = lock(&self.exporter.pages);
        if pages.of(&holder).is_none() && pages.count() >= HOLDS_MAX {
            return Err(Errno::ENOMEM);
        }
        pages.hold(holder, range);
        Ok(Told { length: place.1 as u64, begin, ..told })
    }
}

impl Exporter {
    pub(crate) fn new(service: Arc<Service>, owner: Weak<dyn Owner>) -> Arc<Exporter> {
        let (guests, pages, seen) = (Mutex::default(), Mutex::default(), Condvar::new());
        Arc::new(Exporter { service, owner, guests, pages, seen })
    }

    /// Somebody imports. Who is refused finds the end of the socket.
    fn admit(self: &Arc<Self>, socket: OwnedFd, objects: Weak<dyn Exported>) {
        let mut guests = lock(&self.guests);
        if guests.here.len() >= GUESTS_MAX {
            return;
        }
        guests.latest += 1;
        let number = guests.latest;
        let guest = Arc::new(Guest::new(number, socket, self.clone(), objects));
        // Only this thread hears it, and later.
        if self.service.add(guest.clone()).is_ok() {
            guests.here.insert(number, guest);
        }
    }

    /// An importer is gone, and holds nothing any more.
    pub(super) fn leaves(&self, number: u64) {
        let mut guests = lock(&self.guests);
        guests.here.remove(&number);
        guests.unseen.retain(|(guest, _)| *guest != number);
        drop(guests);
        self.seen.notify_all();
        lock(&self.pages).let_go(|holder| holder.0 == number);
    }

    /// Whether no pages are on files.
    #[cfg(any(test, feature = "fuzz"))]
    pub(super) fn has_nothing_out(&self) -> bool {
        lock(&self.pages).is_empty()
    }

    fn has_seen(&self, number: u64, tag: u64) {
        lock(&self.guests).unseen.remove(&(number, tag));
        self.seen.notify_all();
    }

    /// The file with the pages of an object, from a byte of them on.
    fn pages_for(
        &self,
        ask: &Ask,
        holder: Holder,
        objects: &Weak<dyn Exported>,
    ) -> Result<(Told, Option<OwnedFd>), Errno> {
        let owner = self.owner.upgrade().ok_or(Errno::EIO)?;
        let objects = objects.upgrade().ok_or(Errno::ENOENT)?;
        let range = lock(&self.pages).of(&holder).ok_or(Errno::ENOENT)?;
        let at = usize::try_from(ask.at).ok().and_then(|at| range.start.checked_add(at));
        let page = clock::page_bytes();
        let at = at.filter(|at| *at < range.end && at.is_multiple_of(page)).ok_or(Errno::EINVAL)?;
        let found = |extent: Extent<OwnedFd>| {
            let Extent { file, offset, length } = extent;
            let memory = omniverb_session::body::Extent { offset, length };
            (Told { memory, ..Told::NONE }, Some(file))
        };
        if let Some(extent) = lock(&self.pages).at(at, range.end)? {
            return Ok(found(extent));
        }
        let gap = lock(&self.pages).gap(at, range.end);
        owner.with_pages(&gap, &mut || {
            let mut pages = lock(&self.pages);
            // Not what has been destroyed meanwhile: its pages may be something else now.
            let there = pages_now(&*objects, ask)?;
            if there.as_ref() != Some(&range) || pages.of(&holder) != there {
                return Err(Errno::ENOENT);
            }
            pages.move_out(gap.clone())
        })?;
        let extent = lock(&self.pages).at(at, range.end)?;
        extent.map(found).ok_or(Errno::EAGAIN)
    }

    /// An object has been destroyed, or is another one now. When this returns no importer uses it
    /// any more, unless one is hostile: then what it has is pages that nobody else uses.
    pub(crate) fn gone(&self, object: u32, handle: u32) {
        let is_it = |holder: &Holder| (holder.1, holder.2) == (object, handle);
        let holders = lock(&self.pages).holders(is_it);
        if holders.is_empty() {
            return;
        }
        let mut guests = lock(&self.guests);
        let mut told = Vec::new();
        for (number, ..) in holders {
            guests.latest_tag += 1;
            let tag = guests.latest_tag;
            let message = Told { what: import::GONE, tag, object, handle, ..Told::NONE };
            if guests.here.get(&number).is_some_and(|guest| guest.tell(&message, None)) {
                guests.unseen.insert((number, tag));
                told.push((number, tag));
            }
        }
        let until = clock::now() + WAIT_MAX.as_nanos() as u64;
        // The thread that listens for the answers does not wait for them.
        while !self.service.is_me() && told.iter().any(|one| guests.unseen.contains(one)) {
            let left = until.saturating_sub(clock::now());
            if left == 0 {
                break;
            }
            let waited = self.seen.wait_timeout(guests, Duration::from_nanos(left));
            guests = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
        told.iter().for_each(|one| _ = guests.unseen.remove(one));
        drop(guests);
        lock(&self.pages).let_go(is_it);
    }
}

/// The pages that an object lies in now.
fn pages_now(objects: &dyn Exported, ask: &Ask) -> Result<Option<Range<usize>>, Errno> {
    let (address, length) = match ask.object {
        import::REGION => {
            let (region, _) = objects.region(ask.handle)?;
            (region.memory.address(), region.memory.len())
        }
        _ => objects.device_memory(ask.handle).ok_or(Errno::ENOENT)?,
    };
    Ok(around(address, length))
}
