//! Shares requests for windows, and the mapper's answers, between the supervisor's threads.
//!
//! In: windows; what mappers have said. Out: what a mapper is asked for; whether it was done.

use crate::vm::window_mapper::{MAP, UNMAP};
use crate::vm::window_slots::Slots;
use omniverb_session::pair_window::PlugTrouble;
use omniverb_sys::{lock, seqpacket};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// How long QEMU may take for a window, and a mapper to be followed by another meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);

/// The abilities of the guest's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::vm) enum Driver {
    /// None has begun.
    Unknown,
    /// It knows of memory that is mapped.
    Knows,
    /// It does not.
    KnowsNot,
    /// There is no mapper any more.
    Gone,
}

/// The mapper, if there is one.
pub(in crate::vm) struct Mapped {
    pub(in crate::vm) slots: Slots,
    pub(super) inner: Mutex<Inner>,
    pub(super) changed: Condvar,
}

pub(super) struct Inner {
    pub(super) mapper: Option<OwnedFd>,
    pub(super) driver: Driver,
    /// The request without an answer.
    pub(super) asked: Option<WindowRequest>,
    /// Whether the last request was done.
    done: Option<bool>,
    /// Windows of QEMU's mappers, by number: the next mapper gets them. One that goes is among them
    /// until it has gone, so that the next mapper takes it out.
    pub(super) windows: BTreeMap<u8, OwnedFd>,
    /// Where QEMU is asked, once it has said where.
    pub(super) channel: Option<OwnedFd>,
}

/// A window that is to be mapped, if it is a file, or to be taken away.
pub(super) struct WindowRequest {
    number: u8,
    file: Option<OwnedFd>,
}

impl WindowRequest {
    pub(super) fn tell(&self, mapper: &OwnedFd) -> io::Result<()> {
        let what = if self.file.is_some() { MAP } else { UNMAP };
        let files: Vec<_> = self.file.iter().map(AsFd::as_fd).collect();
        seqpacket::try_send(mapper.as_fd(), &[what, self.number], &files)
    }
}

impl Inner {
    fn new(mapper: Option<OwnedFd>, driver: Driver) -> Inner {
        let windows = BTreeMap::new();
        Inner { mapper, driver, asked: None, done: None, windows, channel: None }
    }

    /// The request was done, or not.
    pub(super) fn is_done(&mut self, done: bool) {
        let Some(WindowRequest { number, file }) = self.asked.take() else { return };
        self.done = Some(done);
        match file {
            Some(file) if done => _ = self.windows.insert(number, file),
            Some(_) => {}
            None => _ = self.windows.remove(&number),
        }
    }
}

impl Mapped {
    /// One without a mapper so far.
    pub(super) fn new(slots: Slots) -> Arc<Mapped> {
        let inner = Inner::new(None, Driver::Unknown);
        Arc::new(Mapped { slots, inner: inner.into(), changed: Condvar::new() })
    }

    /// One whose mapper is played, of a guest whose driver knows of such memory.
    #[cfg(test)]
    pub(in crate::vm) fn played(slots: Slots, mapper: OwnedFd) -> Arc<Mapped> {
        let inner = Inner::new(Some(mapper), Driver::Knows);
        Arc::new(Mapped { slots, inner: inner.into(), changed: Condvar::new() })
    }

    /// There is no mapper any more, until another QEMU comes.
    pub(in crate::vm) fn is_over(&self) {
        let mut inner = lock(&self.inner);
        (inner.mapper, inner.driver) = (None, Driver::Gone);
        inner.windows.clear();
        let channel = inner.channel.take();
        self.changed.notify_all();
        drop(inner);
        close(channel);
    }

    /// The abilities of the guest's driver, when one has begun.
    pub(in crate::vm) fn driver(&self) -> Driver {
        let inner = lock(&self.inner);
        let begun = self.changed.wait_while(inner, |inner| inner.driver == Driver::Unknown);
        begun.map_or(Driver::Gone, |inner| inner.driver)
    }

    /// The abilities as they are now.
    pub(in crate::vm) fn driver_now(&self) -> Driver {
        lock(&self.inner).driver
    }

    /// Maps a window.
    pub(in crate::vm) fn map(&self, number: u8, file: &OwnedFd) -> Result<(), PlugTrouble> {
        let file = file.try_clone().map_err(|_| PlugTrouble::Host)?;
        self.ask(WindowRequest { number, file: Some(file) })
    }

    /// Takes one away.
    pub(in crate::vm) fn unmap(&self, number: u8) -> Result<(), PlugTrouble> {
        self.ask(WindowRequest { number, file: None })
    }

    fn ask(&self, asked: WindowRequest) -> Result<(), PlugTrouble> {
        let mut inner = lock(&self.inner);
        // A mapper that is gone has a successor, or it is over: the other thread reports that.
        if let Some(Err(error)) = inner.mapper.as_ref().map(|mapper| asked.tell(mapper))
            && !is_gone(&error)
        {
            return Err(PlugTrouble::Host);
        }
        (inner.asked, inner.done) = (Some(asked), None);
        let until = Instant::now() + PATIENCE;
        let outcome = loop {
            if let Some(done) = inner.done.take() {
                return if done { Ok(()) } else { Err(PlugTrouble::Memory) };
            }
            if inner.driver == Driver::Gone {
                break PlugTrouble::NoMapper;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // An answer about this one must not be taken for one about the next.
                inner.mapper.take().iter().for_each(|mapper| seqpacket::shut(mapper.as_fd()));
                break PlugTrouble::Silent;
            }
            let waited = self.changed.wait_timeout(inner, left);
            inner = waited.map_err(|_| PlugTrouble::Host)?.0;
        };
        inner.asked = None;
        Err(outcome)
    }
}

/// Whether a mapper could not be told of something because it is gone.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Closes descriptors of a sender that may be hostile: that can take any time.
pub(super) fn close(files: impl IntoIterator<Item = OwnedFd>) {
    let files: Vec<OwnedFd> = files.into_iter().collect();
    if !files.is_empty() {
        let thread = std::thread::Builder::new().name("omniverb-closes".into());
        let _ = thread.spawn(move || drop(files));
    }
}
