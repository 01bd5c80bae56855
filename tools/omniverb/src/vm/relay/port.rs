//! An end of a machine's port: frames to a stream of bytes, and out of it.

use omniverb_session::machine::{Frame, Frames};
use rustix::event::PollFlags;
use rustix::io::{Errno, read, write};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

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

pub(super) struct Port {
    file: OwnedFd,
    frames: Frames,
    /// What waits for room, and how much of the first has gone.
    out: VecDeque<Vec<u8>>,
    sent: usize,
    reads: Reads,
    /// What the stream begins with, if it has not been found yet, and what may be its beginning.
    seek: Option<(Vec<u8>, Vec<u8>)>,
}

impl Port {
    /// `file` becomes non-blocking.
    pub(super) fn new(file: OwnedFd, reads: Reads) -> io::Result<Port> {
        rustix::io::ioctl_fionbio(&file, true)?;
        let (frames, out) = (Frames::default(), VecDeque::new());
        Ok(Port { file, frames, out, sent: 0, reads, seek: None })
    }

    /// Whether what the stream begins with has been found.
    pub(super) fn has_begun(&self) -> bool {
        self.seek.is_none()
    }

    /// How many frames wait for room.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.out.len()
    }

    /// Whether more may be said.
    pub(super) fn has_room(&self) -> bool {
        self.out.len() <= FRAMES_MAX
    }

    /// What is to be waited for.
    pub(super) fn wants(&self) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, self.has_room() || self.reads == Reads::Always);
        flags.set(PollFlags::OUT, !self.out.is_empty());
        flags
    }

    /// Whether some of what was said waits for room.
    pub(super) fn has_more_to_say(&self) -> bool {
        !self.out.is_empty()
    }

    /// Says something, when there is room.
    pub(super) fn say(&mut self, frame: &Frame) {
        self.out.push_back(frame.encode());
    }

    /// What was to be said is for nobody, but for the rest of what was half said.
    pub(super) fn restart(&mut self) {
        self.out.truncate(usize::from(self.sent > 0));
    }

    /// Begins anew: `first` is said, and what comes before the same is found in what is said to us
    /// was said to somebody else.
    pub(super) fn begin(&mut self, first: &Frame) {
        self.frames = Frames::default();
        self.out.clear();
        self.sent = 0;
        self.seek = Some((first.encode(), Vec::new()));
        self.say(first);
    }

    /// A frame at a time: in a guest what is written at once is there as a whole, or not at all.
    pub(super) fn flush(&mut self) -> anyhow::Result<()> {
        while let Some(first) = self.out.front() {
            match write(&self.file, first.get(self.sent..).unwrap_or(&[])) {
                Ok(more) if self.sent + more >= first.len() => {
                    self.out.pop_front();
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

    /// Takes what has come, for [`next_frame`](Self::next_frame); `false`: nobody is at the other
    /// end.
    pub(super) fn take(&mut self) -> anyhow::Result<bool> {
        let mut bytes = vec![0; TURN_BYTES];
        match read(&self.file, &mut bytes) {
            Ok(0) | Err(Errno::CONNRESET | Errno::NODEV | Errno::PIPE) => return Ok(false),
            Ok(length) => self.feed(bytes.get(..length).unwrap_or(&[])),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(true)
    }

    /// The next whole frame.
    pub(super) fn next_frame(&mut self) -> anyhow::Result<Option<Frame>> {
        self.frames
            .next_frame()
            .map_err(|error| anyhow::anyhow!("what comes by the port makes no sense: {error:?}"))
    }

    /// More has come.
    fn feed(&mut self, bytes: &[u8]) {
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
        self.file.as_fd()
    }
}
