//! What leads from a process that imports a device to the one that has opened it: questions and
//! their answers, and what it says by itself. It may be slow, or dead: a question has an end.

use super::peer_socket_thread::PeerSocket;
use super::unsent_messages::Outbox;
use omniverb_device::Shared;
use omniverb_session::device_import_messages::{self, Ask, Notice};
use omniverb_sys::seqpacket::{self, BlockingMode};
use omniverb_sys::{clock, lock, memfd};
use omniverb_terms::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

/// How long an answer may take; moving 256 MiB takes a tenth of a second, if no other thread moves
/// any.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// What moves in a second at least, of which half may be others'.
const BYTES_A_SECOND: usize = 128 << 20;
/// Until what was not possible just now is asked for again.
const PAUSE: Duration = Duration::from_millis(1);

/// What this process needs for its part.
pub(crate) trait Device: Send + Sync {
    /// The device that regions become part of.
    fn shared(&self) -> &Arc<Shared>;
    /// False in a forked child.
    fn is_ours(&self) -> bool;
    /// Regions there may be.
    fn regions_max(&self) -> usize;
}

/// What is over when the other process says so.
pub(crate) trait EndsWithExporter: Send + Sync {
    /// No thread uses it any more when this returns.
    fn end(&self);
}

/// What leads to the other process.
pub(crate) struct ExporterConnection {
    socket: OwnedFd,
    pub(crate) device: Weak<dyn Device>,
    /// One question at a time.
    asking: Mutex<()>,
    answer: Mutex<PendingAnswer>,
    change: Condvar,
    outbox: Outbox,
    regions: Mutex<ImportedRegions>,
    /// The owner is gone.
    lost: AtomicBool,
}

#[derive(Default)]
struct PendingAnswer {
    tag: u64,
    /// The question is one for pages: an answer without an error has to bring their file.
    has_file: bool,
    came: Option<(Notice, Option<OwnedFd>)>,
}

#[derive(Default)]
struct ImportedRegions {
    here: HashMap<u32, Weak<dyn EndsWithExporter>>,
    /// The one that is being imported, and whether it has gone meanwhile.
    coming: Option<(u32, bool)>,
}

impl PeerSocket for ExporterConnection {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn hear(&self) -> bool {
        let mut bytes = [0; device_import_messages::BYTES_MAX];
        let goes_on =
            match seqpacket::receive(self.socket.as_fd(), &mut bytes, BlockingMode::NonBlocking) {
                Ok((length, files)) => {
                    self.take(Notice::read(&bytes[..length]), files)
                        && self.outbox.flush(self.socket.as_fd()).is_some()
                }
                // No room for a descriptor that came along: the question has no answer.
                Err(error) if error.raw_os_error() == Some(libc::EMFILE) => true,
                Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
            };
        if goes_on {
            return true;
        }
        self.lost.store(true, Ordering::Release);
        drop(lock(&self.answer));
        self.change.notify_all();
        false
    }
}

impl ExporterConnection {
    pub(crate) fn new(socket: OwnedFd, device: Weak<dyn Device>) -> ExporterConnection {
        ExporterConnection {
            socket,
            device,
            asking: Mutex::default(),
            answer: Mutex::default(),
            change: Condvar::new(),
            outbox: Outbox::default(),
            regions: Mutex::default(),
            lost: AtomicBool::new(false),
        }
    }

    /// Takes in what the owner says. False: no owner says so.
    pub(crate) fn take(&self, notice: Option<Notice>, files: Vec<OwnedFd>) -> bool {
        let Some(notice) = notice else { return false };
        match notice.what {
            device_import_messages::ANSWER => {
                // What is no memory file is closed here: that may never end, and no other thread is
                // to wait for it.
                let is_asked_for = lock(&self.answer).has_file && notice.errno == Errno::NONE;
                let is_memory = |file: &OwnedFd| is_asked_for && memfd::size(file.as_fd()).is_ok();
                let file = files.into_iter().next().filter(is_memory);
                let mut answer = lock(&self.answer);
                // One that came too late is dropped.
                if notice.tag == answer.tag {
                    answer.came = Some((notice, file));
                    drop(answer);
                    self.change.notify_all();
                }
                true
            }
            device_import_messages::GONE => {
                if notice.object == device_import_messages::REGION {
                    self.end_region(notice.handle);
                }
                let Notice { tag, object, handle, .. } = notice;
                self.say(&Ask {
                    what: device_import_messages::SEEN,
                    object,
                    handle,
                    tag,
                    ..Ask::NONE
                })
            }
            _ => false,
        }
    }

    fn end_region(&self, handle: u32) {
        let mut regions = lock(&self.regions);
        if let Some((_, gone)) = regions.coming.as_mut().filter(|(coming, _)| *coming == handle) {
            *gone = true;
        }
        let gone = regions.here.remove(&handle);
        drop(regions);
        if let Some(region) = gone.and_then(|region| region.upgrade()) {
            region.end();
        }
    }

    /// This region is about to be here.
    pub(crate) fn begin_import(&self, handle: u32) {
        lock(&self.regions).coming = Some((handle, false));
    }

    /// It is, if there is something; whether it has not gone meanwhile.
    pub(crate) fn finish_import(
        &self,
        handle: u32,
        region: Option<Weak<dyn EndsWithExporter>>,
    ) -> bool {
        let mut regions = lock(&self.regions);
        let gone = regions.coming.take().is_some_and(|(_, gone)| gone);
        if let (Some(region), false) = (region, gone) {
            regions.here.retain(|_, region| region.strong_count() > 0);
            regions.here.insert(handle, region);
        }
        !gone
    }

    /// An object is not used here any more.
    pub(crate) fn leave(&self, object: u32, handle: u32) {
        // A forked child has the parent's socket, and nothing to say on it.
        if self.device.upgrade().is_some_and(|device| device.is_ours()) {
            self.say(&Ask { what: device_import_messages::LEAVE, object, handle, ..Ask::NONE });
        }
    }

    /// Says something that is not answered, now or when there is room; whether that is possible.
    pub(crate) fn say(&self, ask: &Ask) -> bool {
        self.outbox.say(self.socket.as_fd(), ask.bytes())
    }

    /// Asks something, if there is room.
    fn try_ask(&self, ask: &Ask) -> Result<(), Errno> {
        match self.outbox.flush(self.socket.as_fd()) {
            Some(true) => {}
            Some(false) => return Err(Errno::EAGAIN),
            None => return Err(Errno::EIO),
        }
        seqpacket::try_send(self.socket.as_fd(), ask.bytes(), &[]).map_err(|error| {
            let full = error.kind() == std::io::ErrorKind::WouldBlock;
            if full { Errno::EAGAIN } else { Errno::EIO }
        })
    }

    /// Whether the other process is there, as far as we know.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Asks, again if that was not possible just now.
    pub(crate) fn ask(&self, ask: Ask) -> Result<(Notice, Option<OwnedFd>), Errno> {
        self.ask_until(ask, ExporterConnection::until(0))
    }

    /// When the other process has had long enough for something of so many bytes.
    pub(crate) fn until(bytes: usize) -> u64 {
        let more = (bytes / BYTES_A_SECOND) as u32 * Duration::from_secs(1);
        clock::now() + (ANSWER_MAX + more).as_nanos() as u64
    }

    /// As [`ask`](Self::ask), for as long.
    pub(crate) fn ask_until(
        &self,
        ask: Ask,
        until: u64,
    ) -> Result<(Notice, Option<OwnedFd>), Errno> {
        loop {
            match self.ask_once(ask, until) {
                Err(Errno::EAGAIN) if clock::now() < until => std::thread::sleep(PAUSE),
                answer => return answer,
            }
        }
    }

    fn ask_once(&self, ask: Ask, until: u64) -> Result<(Notice, Option<OwnedFd>), Errno> {
        let _mine = lock(&self.asking);
        let mut answer = lock(&self.answer);
        answer.tag += 1;
        answer.came = None;
        answer.has_file = ask.what == device_import_messages::PAGES;
        if self.is_lost() {
            return Err(Errno::EIO);
        }
        self.try_ask(&Ask { tag: answer.tag, ..ask })?;
        loop {
            if let Some((notice, file)) = answer.came.take() {
                let of = (notice.object, notice.handle) == (ask.object, ask.handle);
                return match notice.errno {
                    Errno::NONE if of => Ok((notice, file)),
                    Errno::NONE => Err(Errno::EPROTO),
                    errno => Err(errno),
                };
            }
            let left = until.saturating_sub(clock::now());
            if self.is_lost() || left == 0 {
                // What comes later is dropped.
                answer.tag += 1;
                return Err(if self.is_lost() { Errno::EIO } else { Errno::ETIMEDOUT });
            }
            let waited = self.change.wait_timeout(answer, Duration::from_nanos(left));
            answer = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
    }
}
