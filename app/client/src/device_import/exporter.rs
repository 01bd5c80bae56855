//! Serves the process that opened a device: answers holders of a duplicate of its command file.
//!
//! An importer has been given the device, by this process or by another importer. So it may have
//! all that the context has; but what it says is checked like anything from another process, the
//! number of importers is limited, and their end is noticed.

use super::concurrent_destroy_limit::DestroyLimit;
use super::exported_pages::{ExportedPages, ImportKey, around};
use super::importer_move_rate_limit::{MoveBudget, ProcessMoveTime, timed};
use super::peer_socket_thread::{PeerSocket, PeerSocketThread};
use super::unsent_messages::Outbox;
use crate::signal_free_thread::spawn_quietly;
use omniverb_device::Region;
use omniverb_session::device_import_messages::{self, Ask, Notice};
use omniverb_sys::seqpacket::{self, BlockingMode};
use omniverb_sys::{Extent, clock, lock, pidfd};
use omniverb_terms::{Errno, Rkey};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

/// Importers at a time.
const IMPORTERS_MAX: usize = 64;
/// Objects that all importers together have imported.
const IMPORTED_MAX: usize = 1 << 16;
/// Messages that are taken of one socket in a row.
const IN_A_ROW: usize = 64;
/// How long importers have to say that they do not use what is gone. Honest ones are quick, and a
/// hostile one has pages that are not used any more. Tests are never in a hurry.
const WAIT_MAX: Duration = Duration::from_millis(if cfg!(test) { 60_000 } else { 500 });
/// How often to try to move pages back; each attempt waits for busy threads by itself.
const RELEASE_ATTEMPTS: u32 = 4;
/// Of so many that are left one is answered, so that an importer that had no room for more goes on.
const LEFT_UNANSWERED: u32 = 16;

/// What a context has that can be imported, by handles.
pub trait ExportedObjects: Send + Sync {
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

    /// Destroys an object, [`device_import_messages::DOMAIN`] and others.
    ///
    /// # Errors
    /// As the verb that does so.
    fn destroy(&self, object: u32, handle: u32) -> Result<(), Errno>;
}

/// Has pages that may be moved.
pub(crate) trait PageOwner: Send + Sync {
    /// Moves some, while no other thread moves any; none of them are granted to peers at that time.
    ///
    /// # Errors
    /// As `act`; `EAGAIN`: they were granted anew; `EPERM`: no pages are to be moved.
    fn with_pages(
        &self,
        pages: &Range<usize>,
        act: &mut dyn FnMut() -> Result<(), Errno>,
    ) -> Result<(), Errno>;

    /// Moves some back, while no other thread moves any.
    fn moving(&self, act: &mut dyn FnMut());
}

/// What this process gives to importers.
pub(crate) struct Exporter {
    service: Arc<PeerSocketThread>,
    owner: Weak<dyn PageOwner>,
    importers: Mutex<Importers>,
    pages: Mutex<ExportedPages>,
    pace: MoveBudget,
    endings: Arc<DestroyLimit>,
    /// An importer has said that it does not use something.
    seen: Condvar,
    contexts: AtomicU64,
}

#[derive(Default)]
struct Importers {
    latest: u64,
    here: HashMap<u64, Arc<Importer>>,
    /// Importers and tags of what they have not answered.
    unseen: HashSet<(u64, u64)>,
    latest_tag: u64,
}

/// Where importers of a context come in.
pub(crate) struct ExportListener {
    socket: Arc<OwnedFd>,
    exporter: Arc<Exporter>,
    objects: Weak<dyn ExportedObjects>,
    /// Of the process's contexts, this one.
    context: u64,
}

impl ExportListener {
    pub(crate) fn new(
        socket: Arc<OwnedFd>,
        exporter: Arc<Exporter>,
        objects: Weak<dyn ExportedObjects>,
    ) -> ExportListener {
        let context = exporter.contexts.fetch_add(1, Ordering::Relaxed);
        ExportListener { socket, exporter, objects, context }
    }
}

/// A connection of a process that imports, and what it was given.
pub(crate) struct Importer {
    number: u64,
    socket: OwnedFd,
    exporter: Arc<Exporter>,
    objects: Weak<dyn ExportedObjects>,
    context: u64,
    outbox: Outbox,
    /// How often it has left something.
    left: AtomicU32,
    /// Whose connection it is, as far as we can tell, and what that may use.
    process: i32,
    purse: Arc<ProcessMoveTime>,
}

impl PeerSocket for ExportListener {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// One at a time: an importer that has gone meanwhile makes room.
    fn hear(&self) -> bool {
        let mut bytes = [0; device_import_messages::BYTES_MAX];
        match seqpacket::receive(self.socket.as_fd(), &mut bytes, BlockingMode::NonBlocking) {
            // No process has the command file any more.
            Ok((0, files)) if files.is_empty() => return false,
            Ok((length, mut files)) => {
                let ask = Ask::read(&bytes[..length]);
                let asks = ask.is_some_and(|ask| ask.what == device_import_messages::OPEN)
                    && files.len() == 1;
                // Before anything is done with it: it may be a file of a system that never answers.
                // What is none of ours is closed here, where no thread waits.
                let socket = files.pop().filter(|file| asks && seqpacket::is_one(file.as_fd()));
                if let Some(socket) = socket {
                    self.exporter.admit(socket, self);
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

impl PeerSocket for Importer {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn hear(&self) -> bool {
        for _ in 0..IN_A_ROW {
            if self.outbox.flush(self.socket.as_fd()).is_none() {
                self.exporter.remove_importer(self);
                return false;
            }
            let mut bytes = [0; device_import_messages::BYTES_MAX];
            match seqpacket::receive(self.socket.as_fd(), &mut bytes, BlockingMode::NonBlocking) {
                Ok((length, _)) => {
                    let ask = Ask::read(&bytes[..length]);
                    if !ask.is_some_and(|ask| self.take(&ask)) {
                        self.exporter.remove_importer(self);
                        return false;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return true,
                Err(_) => {
                    self.exporter.remove_importer(self);
                    return false;
                }
            }
        }
        true
    }
}

impl Importer {
    pub(crate) fn new(
        number: u64,
        socket: OwnedFd,
        exporter: Arc<Exporter>,
        objects: Weak<dyn ExportedObjects>,
        context: u64,
    ) -> Importer {
        let (outbox, left) = (Outbox::default(), AtomicU32::new(0));
        // The maker of the socket. A process in a namespace that we do not see is 0.
        let process = pidfd::peer(socket.as_fd()).map_or(0, |peer| peer.pid);
        let purse = exporter.pace.of(process);
        Importer { number, socket, exporter, objects, context, outbox, left, process, purse }
    }

    /// Does what is asked; whether that was something, and the answer is on its way.
    pub(crate) fn take(&self, ask: &Ask) -> bool {
        let key = (self.number, ask.object, ask.handle);
        let answer = match ask.what {
            device_import_messages::IMPORT => self.open(ask, key).map(|notice| (notice, None)),
            device_import_messages::PAGES => self.exporter.pages_for(ask, key, self),
            device_import_messages::DESTROY => return self.destroy(*ask),
            device_import_messages::LEAVE => {
                self.release_object(key);
                return true;
            }
            device_import_messages::SEEN => {
                self.exporter.mark_seen(self.number, ask.tag);
                return true;
            }
            _ => return false,
        };
        self.answer(ask, answer)
    }

    fn answer(&self, ask: &Ask, answer: Result<(Notice, Option<OwnedFd>), Errno>) -> bool {
        let (notice, file) =
            answer.unwrap_or_else(|errno| (Notice { errno, ..Notice::NONE }, None));
        let Ask { tag, object, handle, .. } = *ask;
        self.send(
            &Notice { what: device_import_messages::ANSWER, tag, object, handle, ..notice },
            file.as_ref(),
        )
    }

    /// Destroys an object for all. The other importers are waited for, to which this thread
    /// listens: so that is done, and answered, in another one, of which there are only so many.
    fn destroy(&self, ask: Ask) -> bool {
        let me = lock(&self.exporter.importers).here.get(&self.number).cloned();
        // It had to make room for another one.
        let Some(me) = me else { return false };
        let Some(ending) = self.exporter.endings.begin(self.process) else {
            return self.answer(&ask, Err(Errno::EAGAIN));
        };
        let work = move || {
            let answer = me.exporter.pace.spend(&me.purse, || me.destroy_now(&ask));
            drop(ending);
            if !me.answer(&ask, answer) {
                // The thread that listens to it finds its end.
                seqpacket::shut(me.socket.as_fd());
            }
        };
        let begun = spawn_quietly("omniverb-ends", work);
        begun.map_or_else(|errno| self.answer(&ask, Err(errno)), |()| true)
    }

    fn destroy_now(&self, ask: &Ask) -> Result<(Notice, Option<OwnedFd>), Errno> {
        let objects = self.objects.upgrade().ok_or(Errno::ENOENT)?;
        objects.destroy(ask.object, ask.handle).map(|()| (Notice::NONE, None))
    }

    /// Whether it could be sent: an importer that takes nothing has no answer.
    fn send(&self, notice: &Notice, file: Option<&OwnedFd>) -> bool {
        let files: Vec<BorrowedFd<'_>> = file.into_iter().map(AsFd::as_fd).collect();
        seqpacket::try_send(self.socket.as_fd(), notice.bytes(), &files).is_ok()
    }

    /// It uses an object no longer.
    fn release_object(&self, key: ImportKey) {
        if lock(&self.exporter.pages).leave(key) {
            let exporter = &self.exporter;
            let _ = exporter.pace.spend(&self.purse, || exporter.let_go(|of| *of == key));
        }
        if self.left.fetch_add(1, Ordering::Relaxed) % LEFT_UNANSWERED == LEFT_UNANSWERED - 1 {
            // An answer without a question.
            self.send(&Notice { what: device_import_messages::ANSWER, ..Notice::NONE }, None);
        }
    }

    /// What an object is.
    fn open(&self, ask: &Ask, key: ImportKey) -> Result<Notice, Errno> {
        let objects = self.objects.upgrade().ok_or(Errno::ENOENT)?;
        // Until it is imported: what ends after this finds that it is.
        let mut pages = lock(&self.exporter.pages);
        let (notice, place) = match ask.object {
            device_import_messages::DOMAIN => {
                let there = objects.has_domain(ask.handle).then_some(Notice::NONE);
                return there.ok_or(Errno::ENOENT);
            }
            device_import_messages::REGION => {
                let (region, rkey) = objects.region(ask.handle)?;
                let place = (region.memory.address(), region.memory.len());
                let Region { pd, access, iova, .. } = *region;
                (Notice { pd, access, rkey, iova, ..Notice::NONE }, place)
            }
            device_import_messages::DEVICE_MEMORY => {
                (Notice::NONE, objects.device_memory(ask.handle).ok_or(Errno::ENOENT)?)
            }
            _ => return Err(Errno::EINVAL),
        };
        let range = around(place.0, place.1).ok_or(Errno::EINVAL)?;
        let begin = (place.0 - range.start) as u64;
        if pages.of(&key).is_none() && pages.count() >= IMPORTED_MAX {
            return Err(Errno::ENOMEM);
        }
        pages.import(key, place.0..place.0 + place.1, self.context);
        Ok(Notice { length: place.1 as u64, begin, ..notice })
    }
}

impl Exporter {
    pub(crate) fn new(service: Arc<PeerSocketThread>, owner: Weak<dyn PageOwner>) -> Arc<Exporter> {
        let (importers, pages, seen) = (Mutex::default(), Mutex::default(), Condvar::new());
        let (contexts, pace, endings) = (AtomicU64::new(0), MoveBudget::default(), Arc::default());
        Arc::new(Exporter { service, owner, importers, pages, pace, endings, seen, contexts })
    }

    /// Admits an importer. One that is refused finds the end of the socket. If there are too many,
    /// the oldest that has imported nothing goes: its other end may be gone.
    fn admit(self: &Arc<Self>, socket: OwnedFd, at: &ExportListener) {
        let mut importers = lock(&self.importers);
        if importers.here.len() >= IMPORTERS_MAX {
            let pages = lock(&self.pages);
            let idle = importers.here.keys().filter(|number| !pages.has(**number)).min().copied();
            drop(pages);
            let Some(idle) = idle.and_then(|number| importers.here.remove(&number)) else { return };
            seqpacket::shut(idle.socket.as_fd());
        }
        importers.latest += 1;
        let number = importers.latest;
        let (exporter, objects) = (self.clone(), at.objects.clone());
        let importer = Arc::new(Importer::new(number, socket, exporter, objects, at.context));
        importers.here.insert(number, importer.clone());
        drop(importers);
        // Only this thread hears it, and later.
        if self.service.add(importer).is_err() {
            lock(&self.importers).here.remove(&number);
        }
    }

    /// An importer is gone, and has imported nothing any more.
    pub(crate) fn remove_importer(&self, importer: &Importer) {
        let number = importer.number;
        let mut importers = lock(&self.importers);
        let gone = importers.here.remove(&number);
        importers.unseen.retain(|(importer, _)| *importer != number);
        drop(importers);
        drop(gone);
        self.seen.notify_all();
        let _ = self.pace.spend(&importer.purse, || self.let_go(|key| key.0 == number));
    }

    /// These are imported no longer; what only they needed moves back.
    fn let_go(&self, which: impl Fn(&ImportKey) -> bool) -> Result<(), Errno> {
        let mut outcome = Ok(());
        let mut act = || outcome = lock(&self.pages).let_go(&which);
        timed(|| match self.owner.upgrade() {
            Some(owner) => owner.moving(&mut act),
            None => act(),
        });
        outcome
    }

    /// Whether no pages are on files.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn has_nothing_out(&self) -> bool {
        lock(&self.pages).is_empty()
    }

    fn mark_seen(&self, number: u64, tag: u64) {
        lock(&self.importers).unseen.remove(&(number, tag));
        self.seen.notify_all();
    }

    /// The file with the pages of an object, from a byte of them on.
    fn pages_for(
        &self,
        ask: &Ask,
        key: ImportKey,
        importer: &Importer,
    ) -> Result<(Notice, Option<OwnedFd>), Errno> {
        let owner = self.owner.upgrade().ok_or(Errno::EIO)?;
        let objects = importer.objects.upgrade().ok_or(Errno::ENOENT)?;
        let page = clock::page_bytes();
        let found = |extent: Extent<OwnedFd>| {
            let Extent { file, offset, length } = extent;
            let memory = omniverb_session::body::Extent { offset, length };
            (Notice { memory, ..Notice::NONE }, Some(file))
        };
        // Not what has been destroyed meanwhile: its pages may be something else now.
        let look = |pages: &ExportedPages| {
            let bytes = pages.of(&key).ok_or(Errno::ENOENT)?;
            if bytes_now(&*objects, ask)? != bytes {
                return Err(Errno::ENOENT);
            }
            let range = around(bytes.start, bytes.len()).ok_or(Errno::EINVAL)?;
            let at = usize::try_from(ask.at).ok().and_then(|at| range.start.checked_add(at));
            let inside = |at: &usize| *at < range.end && at.is_multiple_of(page);
            let at = at.filter(inside).ok_or(Errno::EINVAL)?;
            let extent = pages.at(at, &bytes, importer.context)?;
            Ok((extent.map(found), pages.gap(at, &bytes)))
        };
        let gap = match look(&lock(&self.pages))? {
            (Some(found), _) => return Ok(found),
            (None, gap) => gap,
        };
        // It asks again.
        if !self.pace.may(&importer.purse) {
            return Err(Errno::EAGAIN);
        }
        let mut act = || {
            let mut pages = lock(&self.pages);
            match look(&pages)? {
                (None, now) if now == gap => {
                    pages.move_out(gap.clone(), (ask.object, ask.handle), importer.context)
                }
                _ => Err(Errno::EAGAIN),
            }
        };
        self.pace.spend(&importer.purse, || timed(|| owner.with_pages(&gap, &mut act)))?;
        let (found, _) = look(&lock(&self.pages))?;
        found.ok_or(Errno::EAGAIN)
    }

    /// An object is about to end, or to be another one, and cannot be imported any more. When this
    /// returns no importer uses it, unless one is hostile, or has been stopped for half a second:
    /// then what it has is pages that are not used any more.
    ///
    /// # Errors
    /// errno: some pages cannot be moved back, and importers that have mapped them reach them
    /// still.
    pub(crate) fn gone(&self, object: u32, handle: u32) -> Result<(), Errno> {
        let keys = lock(&self.pages).end((object, handle));
        if keys.is_empty() && !lock(&self.pages).keeps((object, handle)) {
            return Ok(());
        }
        let mut importers = lock(&self.importers);
        let mut awaited = Vec::new();
        for (number, object, handle) in &keys {
            importers.latest_tag += 1;
            let (object, handle, tag) = (*object, *handle, importers.latest_tag);
            let message =
                Notice { what: device_import_messages::GONE, tag, object, handle, ..Notice::NONE };
            let Some(importer) = importers.here.get(number).cloned() else { continue };
            if importer.outbox.say(importer.socket.as_fd(), message.bytes()) {
                importers.unseen.insert((*number, tag));
                awaited.push((*number, tag));
            }
        }
        let until = clock::now() + WAIT_MAX.as_nanos() as u64;
        // The thread that listens for the answers does not wait for them: it ends what contexts
        // have that no other process has imported.
        while !self.service.is_me() && awaited.iter().any(|one| importers.unseen.contains(one)) {
            let left = until.saturating_sub(clock::now());
            if left == 0 {
                break;
            }
            let waited = self.seen.wait_timeout(importers, Duration::from_nanos(left));
            importers = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
        awaited.iter().for_each(|one| _ = importers.unseen.remove(one));
        drop(importers);
        let mut outcome = Ok(());
        for _ in 0..RELEASE_ATTEMPTS {
            outcome = self.let_go(|key| keys.contains(key));
            if !lock(&self.pages).keeps((object, handle)) {
                return Ok(());
            }
        }
        outcome.and(Err(Errno::EBUSY))
    }
}

/// The bytes of an object now.
fn bytes_now(objects: &dyn ExportedObjects, ask: &Ask) -> Result<Range<usize>, Errno> {
    let (address, length) = match ask.object {
        device_import_messages::REGION => {
            let (region, _) = objects.region(ask.handle)?;
            (region.memory.address(), region.memory.len())
        }
        _ => objects.device_memory(ask.handle).ok_or(Errno::ENOENT)?,
    };
    Ok(address..address.saturating_add(length))
}
