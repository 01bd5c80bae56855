//! What a keeper has of windows that are mapped into its machine: who does it (`mapper.rs`), a
//! process that it starts when QEMU connects.
//!
//! In: windows; that QEMU is there. Out: whether they are in the machine. One thread starts mappers
//! and hears them, another one asks them (`later.rs`).

use super::mapper::{BEGUN, DONE, MAP, OWN, UNMAP};
use super::pairs::Pairs;
use super::slots::Slots;
use super::window::Window;
use anyhow::Context;
use omniverb_session::pair::PlugTrouble;
use omniverb_sys::{lock, socket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// What a mapper is started as.
const MAPS: [&str; 2] = ["vm", "map"];
/// How long QEMU may take for a window.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a driver of the guest's can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Driver {
    /// None has begun.
    Unknown,
    /// It knows of memory that is mapped.
    Knows,
    /// It does not.
    KnowsNot,
    /// Nobody maps any more.
    Gone,
}

/// Who maps, if somebody does.
pub(super) struct Mapped {
    pub(super) slots: Slots,
    inner: Mutex<Inner>,
    changed: Condvar,
}

struct Inner {
    mapper: Option<OwnedFd>,
    driver: Driver,
    /// What was asked last was done, or not.
    done: Option<bool>,
}

/// What starts mappers.
pub(super) struct Starter {
    /// Where QEMU connects.
    pub(super) listener: OwnedFd,
    pub(super) own: Arc<Window>,
    pub(super) pairs: Arc<Pairs>,
    pub(super) program: PathBuf,
}

impl Mapped {
    /// Has a thread wait for QEMU.
    pub(super) fn start(slots: Slots, starter: Starter) -> anyhow::Result<Arc<Mapped>> {
        let inner = Inner { mapper: None, driver: Driver::Unknown, done: None };
        let mapped = Arc::new(Mapped { slots, inner: inner.into(), changed: Condvar::new() });
        let ours = mapped.clone();
        let file = slots.beginning(&starter.own.head)?;
        let thread = std::thread::Builder::new().name("omniverb-mapped".into());
        thread.spawn(move || ours.serve(&starter, &file)).context("cannot start a thread")?;
        Ok(mapped)
    }

    /// One whose mapper is played, of a guest whose driver knows of such memory.
    #[cfg(test)]
    pub(super) fn played(slots: Slots, mapper: OwnedFd) -> Arc<Mapped> {
        let inner = Inner { mapper: Some(mapper), driver: Driver::Knows, done: None };
        Arc::new(Mapped { slots, inner: inner.into(), changed: Condvar::new() })
    }

    fn serve(&self, starter: &Starter, file: &OwnedFd) {
        // Nobody but QEMU's user may connect: one that is gone may come again.
        while let Ok(qemu) = rustix::net::accept_with(
            &starter.listener,
            rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK,
        ) {
            let _ = self.serve_one(starter, file, qemu);
            let mut inner = lock(&self.inner);
            (inner.mapper, inner.driver) = (None, Driver::Gone);
            self.changed.notify_all();
        }
    }

    fn serve_one(&self, starter: &Starter, file: &OwnedFd, qemu: OwnedFd) -> anyhow::Result<()> {
        let (ours, theirs) = socket::pair()?;
        let mut mapper = Command::new(&starter.program);
        mapper.args(MAPS).arg(self.slots.bytes.to_string()).arg(self.slots.count.to_string());
        mapper.stdin(qemu).stdout(theirs).stderr(Stdio::null()).env_clear().current_dir("/");
        let mut running = starter.pairs.start_without(&mut mapper)?;
        drop(mapper);
        let ask = |number: u8, file: &OwnedFd| {
            socket::send(ours.as_fd(), &[MAP, number], &[file.as_fd()])
        };
        ask(OWN, file)?;
        let all = starter.pairs.mapped()?;
        for (number, file) in &all {
            ask(*number, file)?;
        }
        let mut unanswered = 1 + all.len();
        drop(all);
        lock(&self.inner).mapper = Some(ours.try_clone()?);
        let mut said = [0; 2];
        while let Ok((2, _)) = socket::receive(ours.as_fd(), &mut said, socket::Mode::Blocking) {
            let mut inner = lock(&self.inner);
            match said {
                // Of what it was given at first.
                [DONE, _] if unanswered > 0 => unanswered -= 1,
                [DONE, done] => inner.done = Some(done == 1),
                [BEGUN, knows] => {
                    inner.driver = if knows == 1 { Driver::Knows } else { Driver::KnowsNot };
                }
                _ => break,
            }
            self.changed.notify_all();
        }
        let _ = running.kill();
        running.wait()?;
        Ok(())
    }

    /// What the guest's driver can do, when one has begun.
    pub(super) fn driver(&self) -> Driver {
        let inner = lock(&self.inner);
        let begun = self.changed.wait_while(inner, |inner| inner.driver == Driver::Unknown);
        begun.map_or(Driver::Gone, |inner| inner.driver)
    }

    /// The same, as it is now.
    pub(super) fn driver_now(&self) -> Driver {
        lock(&self.inner).driver
    }

    /// Maps a window.
    pub(super) fn map(&self, number: u8, file: &OwnedFd) -> Result<(), PlugTrouble> {
        self.ask(MAP, number, Some(file))
    }

    /// Takes one away.
    pub(super) fn unmap(&self, number: u8) -> Result<(), PlugTrouble> {
        self.ask(UNMAP, number, None)
    }

    fn ask(&self, what: u8, number: u8, file: Option<&OwnedFd>) -> Result<(), PlugTrouble> {
        let mut inner = lock(&self.inner);
        let mapper = inner.mapper.as_ref().ok_or(PlugTrouble::NoMapper)?;
        let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        let said = socket::try_send(mapper.as_fd(), &[what, number], &files);
        said.map_err(|_| PlugTrouble::NoMapper)?;
        inner.done = None;
        let until = Instant::now() + PATIENCE;
        while inner.done.is_none() && inner.driver != Driver::Gone {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // What it says of this one must not be taken for what it says of the next.
                inner.mapper.take().iter().for_each(|mapper| socket::shut(mapper.as_fd()));
                return Err(PlugTrouble::Silent);
            }
            let waited = self.changed.wait_timeout(inner, left);
            inner = waited.map_err(|_| PlugTrouble::Host)?.0;
        }
        match inner.done.take() {
            Some(true) => Ok(()),
            Some(false) => Err(PlugTrouble::Memory),
            None => Err(PlugTrouble::NoMapper),
        }
    }
}
