//! Starts a machine's mapper (`window_mapper.rs`) for its supervisor, and starts it again when it
//! was killed.
//!
//! QEMU drops a device that has lost its other end, and takes no other. So QEMU's sockets are kept
//! here, unread, as long as a mapper lives, and one that is killed has a successor, which goes on
//! where that one was; if that one was busy, the successor ends at once, and so does the device. A
//! mapper that ends by itself, because of a message of QEMU's or because QEMU or the supervisor is
//! gone, has no successor.
//!
//! In: QEMU's sockets; messages of mappers, which serve a hostile QEMU; windows. Out: the first
//! message and descriptors of a mapper; whether windows are in the machine. One thread starts
//! mappers and reads their messages, another one sends requests (`window_hotplug.rs`, by
//! `window_requests.rs`).

#[cfg(test)]
mod tests;
mod window_requests;

pub(super) use self::window_requests::{Driver, Mapped};

use self::window_requests::{Inner, close, is_gone};
use super::machine_window::Window;
use super::pair_windows::Pairs;
use super::window_mapper::{BEGUN, CHANNEL, DONE, HAS, NOTES, OWN, REFUSED, beginning, notes};
use super::window_slots::Slots;
use anyhow::Context;
use omniverb_sys::{eventfd, lock, pidfd, seqpacket};
use rustix::net::SocketFlags;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A mapper's command line.
const MAPS: [&str; 2] = ["vm", "map"];
/// How long a mapper may take to be gone that has closed its socket.
const GOES: Duration = Duration::from_secs(10);
/// A mapper that lives for less is useless; the pause before another one; and the number of such in
/// a row before it is over, since QEMU waits meanwhile.
const SOON: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 250 });
const IN_VAIN: u32 = 16;

/// Starts mappers when QEMU connects.
pub(super) struct Starter {
    /// Where QEMU connects.
    pub(super) listener: OwnedFd,
    pub(super) own: Arc<Window>,
    pub(super) pairs: Arc<Pairs>,
    pub(super) program: PathBuf,
}

/// Descriptors that all of a QEMU's mappers have.
struct MapperFiles<'a> {
    qemu: &'a OwnedFd,
    /// The machine's own file.
    own: &'a OwnedFd,
    /// Their notes for each other.
    notes: OwnedFd,
}

/// How one has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Killed,
    ByItself,
}

/// A process that ends with its owner.
struct Running {
    /// Until it is waited for.
    child: Option<Child>,
    life: OwnedFd,
}

impl Running {
    fn new(mut child: Child) -> io::Result<Running> {
        match pidfd::of(child.id().cast_signed()) {
            Ok(life) => Ok(Running { child: Some(child), life }),
            Err(error) => {
                let _ = child.kill();
                wait_elsewhere(child);
                Err(error)
            }
        }
    }

    /// How it has ended, if it does in time.
    fn ends(&mut self) -> io::Result<Option<ExitStatus>> {
        if !eventfd::readable(self.life.as_fd(), Some(GOES))? {
            return Ok(None);
        }
        self.child.take().map(|mut child| child.wait()).transpose()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = child.kill();
        // Two of them are not to have QEMU's sockets at a time.
        let _ = eventfd::readable(self.life.as_fd(), Some(GOES));
        wait_elsewhere(child);
    }
}

/// Waits for one that was killed. It closes what QEMU has sent it: that can take as long as QEMU,
/// which may be taken over, likes.
fn wait_elsewhere(mut child: Child) {
    let thread = std::thread::Builder::new().name("omniverb-waits".into());
    let _ = thread.spawn(move || child.wait());
}

impl Mapped {
    /// Has a thread wait for QEMU.
    pub(super) fn start(slots: Slots, starter: Starter) -> anyhow::Result<Arc<Mapped>> {
        let mapped = Mapped::new(slots);
        let ours = mapped.clone();
        let own = slots.beginning(&starter.own.head)?;
        // Before any guest writes there.
        let begins = beginning(&own)?;
        let thread = std::thread::Builder::new().name("omniverb-mapped".into());
        thread
            .spawn(move || ours.serve(&starter, &own, &begins))
            .context("cannot start a thread")?;
        Ok(mapped)
    }

    /// Serves QEMU, and the next one. `own`: the machine's own file, and what it began with.
    fn serve(&self, starter: &Starter, own: &OwnedFd, begins: &[u8]) {
        // Only QEMU's user may connect: a connection that ended may come again.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while let Ok(qemu) = rustix::net::accept_with(&starter.listener, flags) {
            if let Ok(notes) = notes(begins) {
                let _ = self.serve_qemu(starter, &MapperFiles { qemu: &qemu, own, notes });
            }
            // QEMU is not to wait for an answer that will not come, nor by copies of its socket
            // that others may have.
            seqpacket::shut(qemu.as_fd());
            self.is_over();
            close([qemu]);
        }
    }

    /// Starts a mapper, and another one as long as they are killed.
    fn serve_qemu(&self, starter: &Starter, kept: &MapperFiles<'_>) -> io::Result<()> {
        {
            // Windows removed from here on are removed by its mappers.
            let mut inner = lock(&self.inner);
            inner.windows = starter.pairs.mapped()?.into_iter().collect();
            inner.driver = Driver::Unknown;
        }
        let mut in_vain = 0;
        while in_vain < IN_VAIN {
            let begun = Instant::now();
            // One that cannot be started now may be in a moment.
            if self.serve_one(starter, kept).is_ok_and(|end| end == End::ByItself) {
                break;
            }
            lock(&self.inner).mapper = None;
            in_vain += 1;
            if begun.elapsed() >= SOON {
                in_vain = 0;
            } else {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    fn serve_one(&self, starter: &Starter, kept: &MapperFiles<'_>) -> anyhow::Result<End> {
        let (ours, theirs) = seqpacket::pair()?;
        let mut mapper = Command::new(&starter.program);
        mapper.args(MAPS).arg(self.slots.bytes.to_string()).arg(self.slots.count.to_string());
        mapper.stdin(kept.qemu.try_clone()?).stdout(theirs).stderr(Stdio::null());
        mapper.env_clear().current_dir("/");
        let mut running = Running::new(starter.pairs.start_without(&mut mapper)?)?;
        drop(mapper);
        self.tell_all(ours.try_clone()?, kept)?;
        if !self.hear(&ours)? {
            return Ok(End::ByItself);
        }
        let is_killed = running.ends()?.is_some_and(|status| status.signal().is_some());
        Ok(if is_killed { End::Killed } else { End::ByItself })
    }

    /// Tells a mapper what there is, and what is to be done: from here on it is the one that maps.
    fn tell_all(&self, ours: OwnedFd, kept: &MapperFiles<'_>) -> io::Result<()> {
        let mut inner = lock(&self.inner);
        match inner.tell_all(&ours, kept) {
            // One that does not go on is gone before it has heard all: that is heard from itself.
            Err(error) if is_gone(&error) => seqpacket::shut(ours.as_fd()),
            // A message that cannot be sent now can be in a moment, to another one.
            told => told?,
        }
        inner.mapper = Some(ours);
        Ok(())
    }

    /// Hears a mapper until its socket is closed: whether all that it said makes sense.
    fn hear(&self, ours: &OwnedFd) -> io::Result<bool> {
        loop {
            let mut said = [0; 2];
            let heard =
                seqpacket::receive(ours.as_fd(), &mut said, seqpacket::BlockingMode::Blocking);
            let (length, mut files) = match heard {
                // Said once if it has left something unread, before what it had said itself.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => continue,
                // A word that is longer, or with more beside it, than any.
                Err(error) if seqpacket::is_lost(&error) => return Ok(false),
                heard => heard?,
            };
            let mut inner = lock(&self.inner);
            match (&said[..length], files.pop()) {
                ([], None) => return Ok(true),
                ([DONE, done], None) => inner.is_done(*done == 1),
                ([BEGUN, knows], None) => {
                    inner.driver = if *knows == 1 { Driver::Knows } else { Driver::KnowsNot };
                }
                ([REFUSED, number], None) => _ = inner.windows.remove(number),
                ([CHANNEL, 0], Some(file))
                    if files.is_empty() && inner.channel.is_none() && is_stream(&file) =>
                {
                    inner.channel = Some(file);
                }
                (_, file) => {
                    drop(inner);
                    files.extend(file);
                    close(files);
                    return Ok(false);
                }
            }
            self.changed.notify_all();
        }
    }
}

impl Inner {
    /// Says it: what the other end has to hear before anything else.
    fn tell_all(&self, mapper: &OwnedFd, kept: &MapperFiles<'_>) -> io::Result<()> {
        let count = 1 + self.windows.len();
        let count = u8::try_from(count).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut beside = vec![kept.notes.as_fd()];
        beside.extend(self.channel.as_ref().map(AsFd::as_fd));
        seqpacket::try_send(mapper.as_fd(), &[NOTES, count], &beside)?;
        for (number, file) in std::iter::once((&OWN, kept.own)).chain(&self.windows) {
            seqpacket::try_send(mapper.as_fd(), &[HAS, *number], &[file.as_fd()])?;
        }
        // An unanswered request was not read, or its reader is gone.
        self.asked.as_ref().map_or(Ok(()), |asked| asked.tell(mapper))
    }
}

/// Whether it is a socket as QEMU makes them. No file system is asked: what is behind it may be a
/// file that never answers.
fn is_stream(file: &OwnedFd) -> bool {
    use rustix::net::{AddressFamily, SocketType, sockopt};
    let kind = sockopt::socket_domain(file).and_then(|of| Ok((of, sockopt::socket_type(file)?)));
    kind == Ok((AddressFamily::UNIX, SocketType::STREAM))
}
