//! Multiplexes messages of many processes on one byte stream, for both ends of a machine's port.
//!
//! In: frames from the port, messages from sockets of sessions. Out: the same the other way round.
//! Either end may send anything and read nothing: unread messages of sessions are kept up to a
//! bound, then the session that reads least ends; while the port takes nothing, no socket is read.
//! The proxy does not read the port either then; the agent always does.

mod serial_port_io;
mod session;
#[cfg(test)]
mod tests;

use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::vm::{Frame, FrameKind};
use omniverb_sys::seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serial_port_io::Port;
pub(super) use serial_port_io::{Reads, Voice};
pub(super) use session::Channel;
use session::{End, Session, Waiting};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Bytes of messages that may wait for room in sockets, of all sessions together.
const WAITING_MAX: usize = 16 << 20;

/// A received event.
#[derive(Debug)]
pub(super) enum News {
    /// A frame, by the port.
    Frame(Frame),
    /// A message, by a socket of a session.
    Said { session: u32, channel: Channel, bytes: Vec<u8>, files: Vec<OwnedFd> },
    /// A session is over: its socket was closed at the other end.
    Gone(u32),
    /// A session is over: it took nothing, or could not be told something.
    Lost(u32),
    /// One of the other descriptors has something: that of this index.
    Other(usize),
    /// The port has no other end.
    PortOver,
}

/// One end of a port.
pub(super) struct Relay {
    port: Port,
    sessions: BTreeMap<u32, Session>,
    /// Bytes that wait in all of them.
    cost: usize,
    /// Ends of sessions that are still to be sent.
    over: Vec<News>,
}

impl Relay {
    /// `port`: a stream; it becomes non-blocking.
    pub(super) fn new(port: OwnedFd, reads: Reads) -> io::Result<Relay> {
        let (port, sessions) = (Port::new(port, reads)?, BTreeMap::new());
        Ok(Relay { port, sessions, cost: 0, over: Vec::new() })
    }

    /// How many sessions there are.
    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    pub(super) fn has(&self, session: u32) -> bool {
        self.sessions.contains_key(&session)
    }

    pub(super) fn add(&mut self, session: u32, calls: OwnedFd) {
        self.sessions.insert(session, Session::new(calls));
    }

    /// The first socket of a session.
    pub(super) fn calls(&self, session: u32) -> Option<BorrowedFd<'_>> {
        let session = self.sessions.get(&session)?;
        session.socket(Channel::Calls).map(AsFd::as_fd)
    }

    /// A session has its second socket.
    pub(super) fn set_events(&mut self, session: u32, events: OwnedFd) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.events = Some(events);
        }
    }

    /// A session is over: its sockets are closed.
    pub(super) fn remove(&mut self, session: u32) {
        if let Some(session) = self.sessions.remove(&session) {
            self.cost -= session.cost();
        }
    }

    /// All sessions are over: which these were.
    pub(super) fn remove_all(&mut self) -> Vec<u32> {
        let all = self.sessions.keys().copied().collect();
        self.clear();
        all
    }

    /// Whether something is still to be said by the port.
    pub(super) fn has_more_to_say(&self) -> bool {
        self.port.waiting() > 0
    }

    fn end(&mut self, session: u32, how: End) {
        self.remove(session);
        self.over.push(match how {
            End::Gone => News::Gone(session),
            End::Lost => News::Lost(session),
        });
    }

    /// All sessions are over.
    fn clear(&mut self) {
        self.sessions.clear();
        self.over.clear();
        self.cost = 0;
    }

    /// Another process is at the other end now: unsent frames are dropped, but for the rest of one
    /// half sent.
    pub(super) fn restart(&mut self) {
        self.clear();
        self.port.restart();
    }

    /// Begins anew: `first` is sent, and frames received before its echo were meant for an earlier
    /// process.
    pub(super) fn begin(&mut self, first: &Frame) {
        self.clear();
        self.port.begin(first);
    }

    /// Whether the other end has echoed our first frame since we began.
    pub(super) fn has_begun(&self) -> bool {
        self.port.has_begun()
    }

    /// Says something by the port, when there is room.
    pub(super) fn say(&mut self, kind: FrameKind, session: u32, bytes: Vec<u8>) {
        self.port.say(&Frame { kind, session, bytes });
    }

    /// By which other threads say something at once.
    pub(super) fn voice(&self) -> Arc<Voice> {
        self.port.voice().clone()
    }

    /// Says something by a session's socket, when there is room.
    pub(super) fn tell(
        &mut self,
        number: u32,
        channel: Channel,
        bytes: Vec<u8>,
        files: Vec<Arc<OwnedFd>>,
    ) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let before = session.cost();
        session.push(Waiting { channel, bytes, files });
        self.cost += session.cost() - before;
        self.flush(number);
        if self.cost > WAITING_MAX {
            let most = self.sessions.iter().max_by_key(|(_, session)| session.cost());
            if let Some((number, _)) = most {
                self.end(*number, End::Lost);
            }
        }
    }

    /// Sends what waits in a session.
    fn flush(&mut self, number: u32) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let before = session.cost();
        let flushed = session.flush();
        self.cost -= before - session.cost();
        if let Err(how) = flushed {
            self.end(number, how);
        }
    }

    /// Sleeps until something has come, by one of `others`, too, or so many milliseconds have
    /// passed.
    pub(super) fn wait(
        &mut self,
        others: &[BorrowedFd<'_>],
        limit: Option<i64>,
    ) -> anyhow::Result<Vec<News>> {
        let over = std::mem::take(&mut self.over);
        if !over.is_empty() {
            return Ok(over);
        }
        let listens = self.port.has_room();
        let (mut files, mut whose) = (Vec::new(), Vec::new());
        files.push(PollFd::new(&self.port, self.port.wants()));
        let input = if listens { PollFlags::IN } else { PollFlags::empty() };
        files.extend(others.iter().map(|other| PollFd::from_borrowed_fd(*other, input)));
        let first_session = files.len();
        for (number, session) in &self.sessions {
            for channel in [Channel::Calls, Channel::Events] {
                let Some(socket) = session.socket(channel) else { continue };
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, listens);
                flags.set(PollFlags::OUT, session.wants() == Some(channel));
                files.push(PollFd::new(socket, flags));
                whose.push((*number, channel));
            }
        }
        let limit =
            limit.map(|limit| Timespec { tv_sec: limit / 1000, tv_nsec: limit % 1000 * 1_000_000 });
        match poll(&mut files, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let found: Vec<PollFlags> = files.iter().map(PollFd::revents).collect();
        drop(files);
        let mut news = Vec::new();
        if found[0].contains(PollFlags::OUT) {
            self.port.flush()?;
        }
        if found[0].intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            self.read_port(&mut news)?;
        }
        let others = found[1..first_session].iter().enumerate();
        let ready = others.filter(|(_, flags)| !flags.is_empty());
        news.extend(ready.map(|(index, _)| News::Other(index)));
        for ((number, channel), flags) in whose.into_iter().zip(&found[first_session..]) {
            if !flags.is_empty() {
                self.look_at(number, channel, *flags, &mut news);
            }
        }
        Ok(news)
    }

    fn read_port(&mut self, news: &mut Vec<News>) -> anyhow::Result<()> {
        if !self.port.take()? {
            news.push(News::PortOver);
        }
        while let Some(frame) = self.port.next_frame()? {
            news.push(News::Frame(frame));
        }
        Ok(())
    }

    /// One message of a socket, then others get their turn.
    fn look_at(&mut self, number: u32, channel: Channel, flags: PollFlags, news: &mut Vec<News>) {
        if flags.contains(PollFlags::OUT) {
            self.flush(number);
        }
        if !flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return;
        }
        let session = self.sessions.get(&number);
        let Some(socket) = session.and_then(|session| session.socket(channel)) else { return };
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        match seqpacket::receive(socket.as_fd(), &mut bytes, seqpacket::BlockingMode::NonBlocking) {
            Ok((0, _)) => {}
            Ok((length, files)) => {
                bytes.truncate(length);
                return news.push(News::Said { session: number, channel, bytes, files });
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            // No room for a descriptor that came along, which none of ours sends.
            Err(error) if seqpacket::is_lost(&error) => return,
            Err(_) => {}
        }
        self.remove(number);
        news.push(News::Gone(number));
    }
}
