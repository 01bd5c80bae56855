//! Closes files on a thread of its own, since closing a file of another process may block.
//!
//! Letting go of the last reference to a file can take as long as its owner likes: a socket with
//! foreign descriptors in its queue, a memory file of many gigabytes. So that is done by a process
//! that may hang, the disposer. In: files. Out: nothing but how often it hung.
//!
//! A file is sent to it, our own copy is closed, and only then is the disposer told to close its
//! own: closing ours never lets go of the last reference. One that does not report a file as closed
//! in time is abandoned to its fate and replaced. While too many hang, files are kept.

use crate::helper_process::{Helper, HelperStart};
use crate::{EventFd, Poller, clock, lock, memfd, seqpacket, unsolicited_fds};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// What the disposer is called as a helper.
pub const DISPOSER: &str = "disposer";

/// How long closing one file may take.
const PATIENCE: u64 = 1_000_000_000;
/// How often those that hang are looked at, and how soon a disposer that could not be started is
/// tried again.
const AGAIN: u64 = 1_000_000_000;
/// Disposers that may hang at a time. Each is a process in memory, and a second of waiting for
/// those whose files stand behind the one it hangs with.
const ABANDONED_MAX: usize = 16;
/// Files that a disposer is given ahead: they are lost with it if it hangs.
const WINDOW: u64 = 16;

/// "Here is a file" and "close what you hold".
const TAKE: [u8; 1] = [b'T'];
const CLOSE: [u8; 1] = [b'C'];

/// Files to be closed, from any thread.
#[derive(Clone, Debug)]
pub struct CloseQueue(Arc<QueuedFiles>);

#[derive(Debug)]
struct QueuedFiles {
    files: Mutex<Vec<OwnedFd>>,
    ready: EventFd,
}

impl CloseQueue {
    /// An empty one, which no other process knows of.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> io::Result<CloseQueue> {
        Ok(CloseQueue(Arc::new(QueuedFiles { files: Mutex::default(), ready: EventFd::new()? })))
    }

    /// Has this closed. Never waits.
    pub fn put(&self, file: OwnedFd) {
        lock(&self.0.files).push(file);
        self.0.ready.signal();
    }

    /// For what is about to close this, and may have the last descriptor of a file that the kernel
    /// takes long to close.
    pub fn put_copy(&self, file: &OwnedFd) {
        if let Ok(copy) = file.try_clone() {
            self.put(copy);
        }
    }

    fn empty(&self) -> Vec<OwnedFd> {
        self.0.ready.take();
        std::mem::take(&mut *lock(&self.0.files))
    }
}

#[derive(Debug)]
struct CloseHelper {
    helper: Helper,
    /// Files that it was ever sent; that it was told to close, of these; that it has reported as
    /// closed, of those.
    sent: u64,
    told: u64,
    reported: u64,
    /// When it last reported one, or got the first.
    since: u64,
}

impl CloseHelper {
    fn new(helper: Helper) -> CloseHelper {
        CloseHelper { helper, sent: 0, told: 0, reported: 0, since: 0 }
    }

    /// Files it has not reported as closed.
    fn out(&self) -> u64 {
        self.sent.saturating_sub(self.reported)
    }

    /// Whether it has files that it was not told to close.
    fn holds(&self) -> bool {
        self.told < self.sent
    }
}

/// What is to be closed by others, and the processes that do so.
#[derive(Debug)]
pub struct DeferredClose {
    helpers: HelperStart,
    bin: CloseQueue,
    poller: Poller,
    disposer: Option<CloseHelper>,
    /// No new one before this time.
    not_before: u64,
    abandoned: Vec<Helper>,
    waiting: VecDeque<OwnedFd>,
    /// How many were ever abandoned.
    lost: u64,
    looked: u64,
}

/// How many files wait and disposers hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseCounts {
    /// Disposers that were ever abandoned.
    pub lost: u64,
    /// Of these, those that have not ended.
    pub hanging: usize,
    /// Files that wait for a disposer.
    pub kept: usize,
}

/// Something that went wrong, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseTrouble {
    /// More than one disposer is concerned.
    pub is_grave: bool,
    /// What happened, and how many disposers hang.
    pub text: String,
}

impl DeferredClose {
    /// With a first disposer, which is started in that way. Call it from a thread that lives as
    /// long, see [`HelperStart::start`].
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(helpers: HelperStart) -> io::Result<DeferredClose> {
        let bin = CloseQueue::new()?;
        let poller = Poller::new()?;
        poller.add(&bin.0.ready, 0)?;
        let mut disposal = DeferredClose {
            helpers,
            bin,
            poller,
            disposer: None,
            not_before: 0,
            abandoned: Vec::new(),
            waiting: VecDeque::new(),
            lost: 0,
            looked: 0,
        };
        disposal.start()?;
        Ok(disposal)
    }

    /// Readable when there is something to do.
    #[must_use]
    pub fn ready(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    /// For callers that have something closed.
    #[must_use]
    pub fn bin(&self) -> CloseQueue {
        self.bin.clone()
    }

    /// Has a socket closed whose other end another process has.
    pub fn close_socket(&self, socket: OwnedFd) {
        if !unsolicited_fds::is_spent(&socket) {
            self.bin.put(socket);
        }
    }

    /// Has a memory file closed. What is none stays open: closing even a copy of it may ask a file
    /// system that never answers.
    pub fn close_memory(&self, file: OwnedFd) {
        match memfd::seals(file.as_fd()) {
            Ok(_) => self.bin.put(file),
            Err(_) => std::mem::forget(file),
        }
    }

    /// What has come of it so far.
    #[must_use]
    pub fn counts(&self) -> CloseCounts {
        let (hanging, kept) = (self.abandoned.len(), self.waiting.len());
        CloseCounts { lost: self.lost, hanging, kept }
    }

    fn start(&mut self) -> io::Result<()> {
        let helper = self.helpers.start(DISPOSER, dispose)?;
        self.poller.add(helper.socket(), 1)?;
        self.disposer = Some(CloseHelper::new(helper));
        Ok(())
    }

    /// When [`turn`](Self::turn) is due even if nothing is ready: nanoseconds of [`clock::now`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let patience = self.disposer.as_ref().filter(|d| d.out() > 0).map(|d| d.since + PATIENCE);
        let again =
            (!self.abandoned.is_empty() || !self.waiting.is_empty()).then_some(self.looked + AGAIN);
        [patience, again].into_iter().flatten().min()
    }

    /// Does what there is to do; never waits.
    pub fn turn(&mut self) -> Vec<CloseTrouble> {
        let now = clock::now();
        let mut troubles = Vec::new();
        self.waiting.extend(self.bin.empty());
        self.hear(now, &mut troubles);
        if self.looked + AGAIN <= now {
            self.looked = now;
            self.abandoned.retain_mut(|helper| !helper.has_ended());
        }
        if self.disposer.is_none()
            && now >= self.not_before
            && self.abandoned.len() < ABANDONED_MAX
            && let Err(error) = self.start()
        {
            self.not_before = now + AGAIN;
            let text = format!("cannot start a disposer: {error}");
            troubles.push(CloseTrouble { is_grave: true, text });
        }
        self.hand_out(now);
        troubles
    }

    /// Takes the reports of the disposer, or gives it up.
    fn hear(&mut self, now: u64, troubles: &mut Vec<CloseTrouble>) {
        let Some(disposer) = &mut self.disposer else { return };
        let mut ended = false;
        loop {
            match seqpacket::receive(
                disposer.helper.socket(),
                &mut [0; 1],
                seqpacket::BlockingMode::NonBlocking,
            ) {
                Ok((0, _)) => ended = true,
                Ok(_) => {
                    disposer.reported += 1;
                    disposer.since = now;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => ended = true,
            }
            break;
        }
        let hangs = disposer.out() > 0 && now.saturating_sub(disposer.since) >= PATIENCE;
        if !ended && !hangs {
            return;
        }
        let Some(mut disposer) = self.disposer.take() else { return };
        let _ = self.poller.remove(disposer.helper.socket());
        disposer.helper.kill();
        self.lost += 1;
        let what = if ended { "ended" } else { "hangs with a file that a client sent" };
        let (lost, hanging) = (self.lost, self.abandoned.len() + 1);
        let text = format!("a disposer {what}: abandoned ({lost} so far, {hanging} at the moment)");
        troubles.push(CloseTrouble { is_grave: false, text });
        if hanging == ABANDONED_MAX {
            let text = "too many disposers hang: files that others sent are kept until one ends";
            troubles.push(CloseTrouble { is_grave: true, text: text.into() });
        }
        // Those that ended are dropped by the next look.
        self.abandoned.push(disposer.helper);
        if ended {
            self.not_before = now + AGAIN / 10;
        }
    }

    fn hand_out(&mut self, now: u64) {
        let Some(disposer) = &mut self.disposer else { return };
        loop {
            while disposer.holds() {
                if seqpacket::try_send(disposer.helper.socket(), &CLOSE, &[]).is_err() {
                    return;
                }
                disposer.told += 1;
            }
            if disposer.out() >= WINDOW {
                return;
            }
            let Some(file) = self.waiting.pop_front() else { return };
            if seqpacket::try_send(disposer.helper.socket(), &TAKE, &[file.as_fd()]).is_err() {
                return self.waiting.push_front(file);
            }
            // Another reference is on its way and stays until the disposer is told.
            drop(file);
            if disposer.out() == 0 {
                disposer.since = now;
            }
            disposer.sent += 1;
        }
    }
}

impl Drop for DeferredClose {
    fn drop(&mut self) {
        // Whatever is still here must not be closed by us: it ends with the process.
        let rest = self.waiting.drain(..).chain(self.bin.empty());
        rest.for_each(std::mem::forget);
    }
}

/// The disposer's own life: closes what it is sent, reports each, ends with `socket`.
pub fn dispose(socket: OwnedFd) {
    let mut files = Vec::new();
    loop {
        match seqpacket::receive(socket.as_fd(), &mut [0; 1], seqpacket::BlockingMode::Blocking) {
            Ok((0, _)) | Err(_) => return,
            Ok((_, more)) if !more.is_empty() => files.extend(more),
            Ok(_) => {
                for file in files.drain(..) {
                    drop(file);
                    if seqpacket::send(socket.as_fd(), &CLOSE, &[]).is_err() {
                        return;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventfd::readable;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    fn turn_until(
        disposal: &mut DeferredClose,
        seconds: u64,
        done: impl Fn(&DeferredClose) -> bool,
    ) -> bool {
        let begun = Instant::now();
        while !done(disposal) {
            if begun.elapsed() > Duration::from_secs(seconds) {
                return false;
            }
            disposal.turn();
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// A socket that takes `seconds` to close.
    fn lingering(seconds: u64) -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let theirs = listener.accept().unwrap().0;
        let linger = Some(Duration::from_secs(seconds));
        rustix::net::sockopt::set_socket_linger(&ours, linger).unwrap();
        ours.set_nonblocking(true).unwrap();
        use std::io::Write;
        while (&ours).write(&[0; 65536]).is_ok() {}
        (ours.into(), theirs)
    }

    #[test]
    fn many_files_are_closed() {
        let mut disposal = DeferredClose::new(HelperStart::Threads).unwrap();
        let ends: Vec<OwnedFd> = (0..200)
            .map(|_| {
                let (ours, theirs) = seqpacket::pair().unwrap();
                disposal.bin().put(ours);
                theirs
            })
            .collect();
        let idle = |d: &DeferredClose| {
            d.waiting.is_empty() && d.disposer.as_ref().is_some_and(|d| d.out() == 0)
        };
        disposal.turn();
        assert!(turn_until(&mut disposal, 10, idle));
        for end in ends {
            assert!(readable(end.as_fd(), Some(Duration::from_secs(5))).unwrap());
        }
        assert_eq!(disposal.counts(), CloseCounts { lost: 0, hanging: 0, kept: 0 });
    }

    #[test]
    fn a_hanging_helper_is_replaced_and_holds_up_no_other() {
        let mut disposal = DeferredClose::new(HelperStart::Threads).unwrap();
        let (slow, peer) = lingering(30);
        disposal.bin().put(slow);
        let begun = Instant::now();
        disposal.turn();
        assert!(begun.elapsed() < Duration::from_secs(15), "nothing is closed here");
        assert!(turn_until(&mut disposal, 10, |d| d.lost == 1 && d.disposer.is_some()));
        let (ours, theirs) = seqpacket::pair().unwrap();
        disposal.bin().put(ours);
        disposal.turn();
        assert!(readable(theirs.as_fd(), Some(Duration::from_secs(5))).unwrap());
        assert_eq!(disposal.counts().hanging, 1);
        // The connection is reset; the disposer finds its end and is forgotten.
        drop(peer);
        assert!(turn_until(&mut disposal, 10, |d| d.counts().hanging == 0));
    }

    #[test]
    fn while_too_many_hang_files_are_kept() {
        let mut disposal = DeferredClose::new(HelperStart::Threads).unwrap();
        let (_never, hanging): (Vec<_>, Vec<_>) = (0..ABANDONED_MAX)
            .map(|_| {
                fn hang(socket: OwnedFd) {
                    let _ = seqpacket::receive(
                        socket.as_fd(),
                        &mut [0; 1],
                        seqpacket::BlockingMode::Blocking,
                    );
                }
                let helper = HelperStart::Threads.start("hang", hang).unwrap();
                ((), helper)
            })
            .unzip();
        disposal.abandoned = hanging;
        let old = disposal.disposer.take().unwrap();
        disposal.poller.remove(old.helper.socket()).unwrap();
        let (ours, theirs) = seqpacket::pair().unwrap();
        disposal.bin().put(ours);
        disposal.turn();
        assert_eq!((disposal.counts().kept, disposal.disposer.is_none()), (1, true));
        assert!(!readable(theirs.as_fd(), Some(Duration::from_millis(20))).unwrap());
        disposal.abandoned.truncate(3);
        assert!(turn_until(&mut disposal, 10, |d| d.counts().kept == 0));
        assert!(readable(theirs.as_fd(), Some(Duration::from_secs(5))).unwrap());
    }
}
