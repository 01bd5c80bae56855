//! Messages of many processes on one stream of bytes: what the two ends of a machine's port have in
//! common.
//!
//! In: frames from the port, messages from sockets of sessions. Out: the same the other way round.
//! Whoever is at either end may say anything and take nothing: what a session does not take is kept
//! up to a bound, then the session is over; while the port takes nothing, no socket is read.

use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::machine::{Frame, FrameKind, Frames};
use omniverb_sys::socket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, write};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Frames that may wait for room in the port before sockets are read no more.
const FRAMES_MAX: usize = 64;
/// Messages that may wait for room in the sockets of a session.
const MESSAGES_MAX: usize = 256;
/// Bytes read from the port in a turn.
const TURN_BYTES: usize = 32 << 10;

/// One of the two sockets of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    Calls,
    Events,
}

impl Channel {
    /// What frames with its messages are.
    pub(super) fn frame(self) -> FrameKind {
        match self {
            Channel::Calls => FrameKind::Call,
            Channel::Events => FrameKind::Event,
        }
    }

    /// Whose messages such frames have.
    pub(super) fn of(kind: FrameKind) -> Option<Channel> {
        [Channel::Calls, Channel::Events].into_iter().find(|channel| channel.frame() == kind)
    }
}

/// What has come.
#[derive(Debug)]
pub(super) enum News {
    /// A frame, by the port.
    Frame(Frame),
    /// A message, by a socket of a session.
    Said { session: u32, channel: Channel, bytes: Vec<u8>, files: Vec<OwnedFd> },
    /// A session is over: its socket was closed at the other end, or it took nothing.
    Gone(u32),
    /// The other descriptor has something.
    Other,
    /// Nobody is at the other end of the port.
    PortOver,
}

/// A message that waits for room.
struct Waiting {
    channel: Channel,
    bytes: Vec<u8>,
    files: Vec<OwnedFd>,
}

struct Session {
    calls: OwnedFd,
    events: Option<OwnedFd>,
    waiting: VecDeque<Waiting>,
}

impl Session {
    fn socket(&self, channel: Channel) -> Option<&OwnedFd> {
        match channel {
            Channel::Calls => Some(&self.calls),
            Channel::Events => self.events.as_ref(),
        }
    }

    /// Sends what waits, in order; whether it goes on.
    fn flush(&mut self) -> bool {
        while let Some(first) = self.waiting.front() {
            let Some(socket) = self.socket(first.channel) else { return false };
            let files: Vec<_> = first.files.iter().map(AsFd::as_fd).collect();
            match socket::try_send(socket.as_fd(), &first.bytes, &files) {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return false,
            }
        }
        self.waiting.len() <= MESSAGES_MAX
    }
}

/// One end of a port.
pub(super) struct Relay {
    port: OwnedFd,
    frames: Frames,
    /// What waits for room in the port, and how much of the first is in it.
    out: VecDeque<Vec<u8>>,
    sent: usize,
    sessions: BTreeMap<u32, Session>,
    /// Those that took nothing.
    over: Vec<u32>,
}

impl Relay {
    /// `port`: a stream; it becomes non-blocking.
    pub(super) fn new(port: OwnedFd) -> io::Result<Relay> {
        rustix::io::ioctl_fionbio(&port, true)?;
        let (out, sessions) = (VecDeque::new(), BTreeMap::new());
        Ok(Relay { port, frames: Frames::default(), out, sent: 0, sessions, over: Vec::new() })
    }

    /// How many sessions there are.
    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    pub(super) fn has(&self, session: u32) -> bool {
        self.sessions.contains_key(&session)
    }

    pub(super) fn add(&mut self, session: u32, calls: OwnedFd) {
        let (events, waiting) = (None, VecDeque::new());
        self.sessions.insert(session, Session { calls, events, waiting });
    }

    /// A session has its second socket.
    pub(super) fn set_events(&mut self, session: u32, events: OwnedFd) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.events = Some(events);
        }
    }

    /// A session is over: its sockets are closed.
    pub(super) fn remove(&mut self, session: u32) {
        self.sessions.remove(&session);
    }

    /// All sessions are over, and the stream begins anew.
    pub(super) fn clear(&mut self) {
        self.sessions.clear();
        self.over.clear();
    }

    /// Nobody was there, and now somebody else is.
    pub(super) fn begin(&mut self) {
        self.clear();
        self.frames = Frames::default();
        self.out.clear();
        self.sent = 0;
    }

    /// Says something by the port, when there is room.
    pub(super) fn say(&mut self, kind: FrameKind, session: u32, bytes: Vec<u8>) {
        self.out.push_back(Frame { kind, session, bytes }.encode());
    }

    /// Says something by a session's socket, when there is room.
    pub(super) fn tell(
        &mut self,
        number: u32,
        channel: Channel,
        bytes: Vec<u8>,
        files: Vec<OwnedFd>,
    ) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        session.waiting.push_back(Waiting { channel, bytes, files });
        if !session.flush() {
            self.over.push(number);
        }
    }

    /// Sleeps until something has come, by `other`, too, or so many milliseconds have passed.
    pub(super) fn wait(
        &mut self,
        other: BorrowedFd<'_>,
        limit: Option<i64>,
    ) -> anyhow::Result<Vec<News>> {
        let over = std::mem::take(&mut self.over);
        if !over.is_empty() {
            over.iter().for_each(|session| self.remove(*session));
            return Ok(over.into_iter().map(News::Gone).collect());
        }
        let listens = self.out.len() <= FRAMES_MAX;
        let (mut files, mut whose) = (Vec::new(), Vec::new());
        let mut port = PollFlags::IN;
        port.set(PollFlags::OUT, !self.out.is_empty());
        files.push(PollFd::new(&self.port, port));
        files.push(PollFd::from_borrowed_fd(
            other,
            if listens { PollFlags::IN } else { PollFlags::empty() },
        ));
        for (number, session) in &self.sessions {
            for channel in [Channel::Calls, Channel::Events] {
                let Some(socket) = session.socket(channel) else { continue };
                let first = session.waiting.front().map(|waiting| waiting.channel);
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, listens);
                flags.set(PollFlags::OUT, first == Some(channel));
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
            self.flush_port()?;
        }
        if found[0].intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            self.read_port(&mut news)?;
        }
        if !found[1].is_empty() {
            news.push(News::Other);
        }
        for ((number, channel), flags) in whose.into_iter().zip(&found[2..]) {
            if !flags.is_empty() {
                self.look_at(number, channel, *flags, &mut news);
            }
        }
        Ok(news)
    }

    /// A frame at a time: in a guest what is written at once is there as a whole, or not at all.
    fn flush_port(&mut self) -> anyhow::Result<()> {
        while let Some(first) = self.out.front() {
            match write(&self.port, first.get(self.sent..).unwrap_or(&[])) {
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

    fn read_port(&mut self, news: &mut Vec<News>) -> anyhow::Result<()> {
        let mut bytes = vec![0; TURN_BYTES];
        match read(&self.port, &mut bytes) {
            Ok(0) | Err(Errno::CONNRESET | Errno::NODEV | Errno::PIPE) => news.push(News::PortOver),
            Ok(length) => self.frames.feed(bytes.get(..length).unwrap_or(&[])),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        while let Some(frame) = self
            .frames
            .next_frame()
            .map_err(|error| anyhow::anyhow!("what comes by the port makes no sense: {error:?}"))?
        {
            news.push(News::Frame(frame));
        }
        Ok(())
    }

    /// One message of a socket, then others get their turn.
    fn look_at(&mut self, number: u32, channel: Channel, flags: PollFlags, news: &mut Vec<News>) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        if flags.contains(PollFlags::OUT) && !session.flush() {
            self.over.push(number);
        }
        if !flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return;
        }
        let Some(socket) = session.socket(channel) else { return };
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        match socket::receive(socket.as_fd(), &mut bytes, socket::Mode::NonBlocking) {
            Ok((0, _)) => {}
            Ok((length, files)) => {
                bytes.truncate(length);
                return news.push(News::Said { session: number, channel, bytes, files });
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => {}
        }
        self.remove(number);
        news.push(News::Gone(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// Two ends of a port, and something that is never ready.
    fn ends() -> (Relay, Relay, (OwnedFd, OwnedFd)) {
        let (one, other) = UnixStream::pair().unwrap();
        let relay = |end: UnixStream| Relay::new(end.into()).unwrap();
        (relay(one), relay(other), socket::pair().unwrap())
    }

    fn turn(relay: &mut Relay, quiet: &OwnedFd) -> Vec<News> {
        relay.wait(quiet.as_fd(), Some(10)).unwrap()
    }

    #[test]
    fn messages_of_sessions_come_out_where_they_belong() {
        let (mut one, mut other, (quiet, _far)) = ends();
        let pairs: Vec<_> = (0..3).map(|_| socket::pair().unwrap()).collect();
        let mut theirs = Vec::new();
        for (number, (ours, far)) in (1..).zip(pairs) {
            one.add(number, ours);
            socket::send(far.as_fd(), format!("from {number}").as_bytes(), &[]).unwrap();
            theirs.push(far);
        }
        let mut found = Vec::new();
        while found.len() < 3 {
            for news in turn(&mut one, &quiet) {
                let News::Said { session, channel, bytes, .. } = news else { panic!("{news:?}") };
                one.say(channel.frame(), session, bytes);
            }
            for news in turn(&mut other, &quiet) {
                let News::Frame(frame) = news else { panic!("{news:?}") };
                assert_eq!(frame.bytes, format!("from {}", frame.session).as_bytes());
                assert_eq!(Channel::of(frame.kind), Some(Channel::Calls));
                found.push(frame.session);
            }
        }
        drop(theirs.remove(1));
        let gone = (0..100).flat_map(|_| turn(&mut one, &quiet)).next();
        assert!(matches!(gone, Some(News::Gone(2))) && one.len() == 2 && !one.has(2));
    }

    #[test]
    fn who_takes_nothing_is_parted_with_and_others_are_not() {
        let (mut relay, _other, (quiet, _far)) = ends();
        let (slow, lively) = (socket::pair().unwrap(), socket::pair().unwrap());
        relay.add(1, slow.0);
        relay.add(2, lively.0);
        for _ in 0..10_000 {
            relay.tell(1, Channel::Calls, vec![0; 4096], Vec::new());
        }
        let news = turn(&mut relay, &quiet);
        assert!(news.iter().all(|news| matches!(news, News::Gone(1))) && !news.is_empty());
        relay.tell(2, Channel::Calls, b"still".to_vec(), Vec::new());
        let mut bytes = [0; 16];
        let (length, _) =
            socket::receive(lively.1.as_fd(), &mut bytes, socket::Mode::NonBlocking).unwrap();
        assert_eq!(&bytes[..length], b"still");
    }

    #[test]
    fn while_the_port_takes_nothing_no_socket_is_read() {
        let (mut relay, _other, (quiet, _far)) = ends();
        let (ours, far) = socket::pair().unwrap();
        relay.add(1, ours);
        let mut read = 0;
        for _ in 0..2000 {
            let _ = socket::try_send(far.as_fd(), &[0; 4096], &[]);
            for news in turn(&mut relay, &quiet) {
                let News::Said { session, channel, bytes, .. } = news else { panic!("{news:?}") };
                relay.say(channel.frame(), session, bytes);
                read += 1;
            }
            if read > 0 && relay.out.len() > FRAMES_MAX {
                break;
            }
        }
        assert!(relay.out.len() > FRAMES_MAX);
        assert!(turn(&mut relay, &quiet).is_empty());
    }

    #[test]
    fn nonsense_by_the_port_is_an_error() {
        let (one, mut relay, (quiet, _far)) = ends();
        write(&one.port, &[0xff; 64]).unwrap();
        assert!(relay.wait(quiet.as_fd(), Some(1000)).is_err());
        drop(one);
    }
}
