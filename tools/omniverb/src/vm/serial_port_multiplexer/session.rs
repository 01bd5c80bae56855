//! Serves one process at an end of a port: its two sockets and its unsent messages.

use omniverb_session::vm::FrameKind;
use omniverb_sys::seqpacket;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Bytes that a waiting message takes beside its own, more or less.
const MESSAGE_COST: usize = 256;

/// One of the two sockets of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::vm) enum Channel {
    Calls,
    Events,
}

impl Channel {
    /// The kind of frames with its messages.
    pub(in crate::vm) fn frame(self) -> FrameKind {
        match self {
            Channel::Calls => FrameKind::Call,
            Channel::Events => FrameKind::Event,
        }
    }

    /// The channel whose messages such frames have.
    pub(in crate::vm) fn of(kind: FrameKind) -> Option<Channel> {
        [Channel::Calls, Channel::Events].into_iter().find(|channel| channel.frame() == kind)
    }
}

/// A message that waits for room.
pub(super) struct Waiting {
    pub(super) channel: Channel,
    pub(super) bytes: Vec<u8>,
    pub(super) files: Vec<Arc<OwnedFd>>,
}

impl Waiting {
    fn cost(&self) -> usize {
        self.bytes.len() + MESSAGE_COST
    }
}

pub(super) struct Session {
    calls: OwnedFd,
    pub(super) events: Option<OwnedFd>,
    waiting: VecDeque<Waiting>,
    /// Bytes that these take.
    cost: usize,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Gone,
    Lost,
}

impl Session {
    pub(super) fn new(calls: OwnedFd) -> Session {
        Session { calls, events: None, waiting: VecDeque::new(), cost: 0 }
    }

    pub(super) fn socket(&self, channel: Channel) -> Option<&OwnedFd> {
        match channel {
            Channel::Calls => Some(&self.calls),
            Channel::Events => self.events.as_ref(),
        }
    }

    /// Bytes that waiting messages take.
    pub(super) fn cost(&self) -> usize {
        self.cost
    }

    /// The socket that what waits longest is for.
    pub(super) fn wants(&self) -> Option<Channel> {
        self.waiting.front().map(|waiting| waiting.channel)
    }

    /// Another message waits.
    pub(super) fn push(&mut self, waiting: Waiting) {
        self.cost += waiting.cost();
        self.waiting.push_back(waiting);
    }

    /// Sends what waits, in order.
    pub(super) fn flush(&mut self) -> Result<(), End> {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, WouldBlock};
        while let Some(first) = self.waiting.front() {
            let Some(socket) = self.socket(first.channel) else { return Err(End::Lost) };
            let files: Vec<_> = first.files.iter().map(AsFd::as_fd).collect();
            match seqpacket::try_send(socket.as_fd(), &first.bytes, &files) {
                Ok(()) => {
                    self.cost -= first.cost();
                    self.waiting.pop_front();
                }
                Err(error) if error.kind() == WouldBlock => break,
                Err(error) if matches!(error.kind(), BrokenPipe | ConnectionReset) => {
                    return Err(End::Gone);
                }
                Err(_) => return Err(End::Lost),
            }
        }
        Ok(())
    }
}
