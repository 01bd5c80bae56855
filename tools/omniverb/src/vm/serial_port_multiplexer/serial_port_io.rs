//! Reads and writes frames at one end of a machine's port.

use omniverb_session::vm::{Frame, Frames};
use omniverb_sys::lock;
use rustix::event::PollFlags;
use rustix::io::{Errno, read, write};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// Frames that may wait for room before there is no room for more.
pub(super) const FRAMES_MAX: usize = 64;
/// Bytes read in a turn.
pub(super) const TURN_BYTES: usize = 32 << 10;

/// When an end of a port reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::vm) enum Reads {
    Always,
    /// While there is room for what it may have to answer. Of the two ends one at most does so.
    WithRoom,
}

/// Writes to a port: from its own thread, when there is room, and from other threads at once.
pub(in crate::vm) struct Voice {
    file: OwnedFd,
    waiting: Mutex<Waiting>,
}

/// Frames that wait for room, and how much of the first has gone.
#[derive(Default)]
struct Waiting {
    frames: VecDeque<Vec<u8>>,
    sent: usize,
}

impl Voice {
    /// Sends a frame now, if none waits for room. False: the port's thread is to send it, or the
    /// rest of it.
    pub(in crate::vm) fn say_now(&self, frame: &Frame) -> bool {
        let mut waiting = lock(&self.waiting);
        let idle = waiting.frames.is_empty();
        if idle {
            waiting.frames.push_back(frame.encode());
            let written = waiting.flush(&self.file);
            if waiting.sent == 0 {
                // Not begun, or said as a whole.
                let said = written.is_ok() && waiting.frames.is_empty();
                waiting.frames.clear();
                return said;
            }
        }
        false
    }
}

impl Waiting {
    /// A frame at a time: in a guest what is written at once is there as a whole, or not at all.
    fn flush(&mut self, file: &OwnedFd) -> anyhow::Result<()> {
        while let Some(first) = self.frames.front() {
            match write(file, first.get(self.sent..).unwrap_or(&[])) {
                Ok(more) if self.sent + more >= first.len() => {
                    self.frames.pop_front();
                    self.sent = 0;
                }
                Ok(more) => self.sent += more,
                Err(Errno::AGAIN | Errno::INTR) => break,
                // Reading says so, too.
                Err(Errno::PIPE | Errno::NODEV) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

pub(super) struct Port {
    voice: Arc<Voice>,
    frames: Frames,
    /// The buffer for reading.
    bytes: Box<[u8]>,
    reads: Reads,
    /// The frame that the stream begins with, if it has not been found yet, and bytes that may be
    /// its beginning.
    seek: Option<(Vec<u8>, Vec<u8>)>,
}

impl Port {
    /// `file` becomes non-blocking.
    pub(super) fn new(file: OwnedFd, reads: Reads) -> io::Result<Port> {
        rustix::io::ioctl_fionbio(&file, true)?;
        let voice = Arc::new(Voice { file, waiting: Mutex::default() });
        let (frames, bytes) = (Frames::default(), vec![0; TURN_BYTES].into());
        Ok(Port { voice, frames, bytes, reads, seek: None })
    }

    /// Lets other threads write.
    pub(super) fn voice(&self) -> &Arc<Voice> {
        &self.voice
    }

    /// Whether what the stream begins with has been found.
    pub(super) fn has_begun(&self) -> bool {
        self.seek.is_none()
    }

    /// How many frames wait for room.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.voice.waiting).frames.len()
    }

    /// Whether more may be said.
    pub(super) fn has_room(&self) -> bool {
        self.waiting() <= FRAMES_MAX
    }

    /// The events to poll for.
    pub(super) fn wants(&self) -> PollFlags {
        let mut flags = PollFlags::empty();
        let waiting = self.waiting();
        flags.set(PollFlags::IN, waiting <= FRAMES_MAX || self.reads == Reads::Always);
        flags.set(PollFlags::OUT, waiting > 0);
        flags
    }

    /// Says something, when there is room.
    pub(super) fn say(&mut self, frame: &Frame) {
        lock(&self.voice.waiting).frames.push_back(frame.encode());
    }

    /// Drops unsent frames, but for the rest of one half sent.
    pub(super) fn restart(&mut self) {
        let mut waiting = lock(&self.voice.waiting);
        let begun = usize::from(waiting.sent > 0);
        waiting.frames.truncate(begun);
    }

    /// Begins anew: `first` is sent, and frames received before its echo were meant for an earlier
    /// process.
    pub(super) fn begin(&mut self, first: &Frame) {
        self.frames = Frames::default();
        self.seek = Some((first.encode(), Vec::new()));
        *lock(&self.voice.waiting) = Waiting { frames: [first.encode()].into(), sent: 0 };
    }

    /// Says what waits, as far as there is room.
    pub(super) fn flush(&mut self) -> anyhow::Result<()> {
        lock(&self.voice.waiting).flush(&self.voice.file)
    }

    /// Reads bytes, for [`next_frame`](Self::next_frame); `false`: the port has no other end.
    pub(super) fn take(&mut self) -> anyhow::Result<bool> {
        match read(&self.voice.file, &mut *self.bytes) {
            Ok(0) | Err(Errno::CONNRESET | Errno::NODEV | Errno::PIPE) => return Ok(false),
            Ok(length) => self.feed(length),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(true)
    }

    /// The next whole frame.
    pub(super) fn next_frame(&mut self) -> anyhow::Result<Option<Frame>> {
        self.frames
            .next_frame()
            .map_err(|error| anyhow::anyhow!("malformed frame on the machine's port: {error:?}"))
    }

    /// More has come: so many bytes.
    fn feed(&mut self, length: usize) {
        let bytes = self.bytes.get(..length).unwrap_or(&[]);
        let Some((first, mut found)) = self.seek.take() else { return self.frames.feed(bytes) };
        found.extend_from_slice(bytes);
        match found.windows(first.len()).position(|part| part == first) {
            Some(at) => self.frames.feed(&found[at + first.len()..]),
            None => {
                found.drain(..found.len().saturating_sub(first.len() - 1));
                self.seek = Some((first, found));
            }
        }
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.voice.file.as_fd()
    }
}
