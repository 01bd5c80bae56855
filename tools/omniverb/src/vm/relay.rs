//! Messages of many processes on one stream of bytes: what the two ends of a machine's port have in
//! common.
//!
//! In: frames from the port, messages from sockets of sessions. Out: the same the other way round.
//! Whoever is at either end may say anything and take nothing: what sessions do not take is kept up
//! to a bound, then the one that takes least is over; while the port takes nothing, no socket is
//! read. The porter does not read the port either then; the agent always does.

use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::machine::{Frame, FrameKind, Frames};
use omniverb_sys::socket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, write};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Frames that may wait for room in the port before sockets are read no more.
const FRAMES_MAX: usize = 64;
/// Bytes of messages that may wait for room in sockets, of all sessions together.
const WAITING_MAX: usize = 16 << 20;
/// What a message that waits takes beside its bytes, more or less.
const MESSAGE_COST: usize = 256;
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
    /// A session is over: its socket was closed at the other end.
    Gone(u32),
    /// A session is over: it took nothing, or could not be told something.
    Lost(u32),
    /// The other descriptor has something.
    Other,
    /// Nobody is at the other end of the port.
    PortOver,
}

/// A message that waits for room.
struct Waiting {
    channel: Channel,
    bytes: Vec<u8>,
    files: Vec<Arc<OwnedFd>>,
}

impl Waiting {
    fn cost(&self) -> usize {
        self.bytes.len() + MESSAGE_COST
    }
}

struct Session {
    calls: OwnedFd,
    events: Option<OwnedFd>,
    waiting: VecDeque<Waiting>,
    /// What these take.
    cost: usize,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Gone,
    Lost,
}

impl Session {
    fn socket(&self, channel: Channel) -> Option<&OwnedFd> {
        match channel {
            Channel::Calls => Some(&self.calls),
            Channel::Events => self.events.as_ref(),
        }
    }

    /// Sends what waits, in order.
    fn flush(&mut self) -> Result<(), End> {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, WouldBlock};
        while let Some(first) = self.waiting.front() {
            let Some(socket) = self.socket(first.channel) else { return Err(End::Lost) };
            let files: Vec<_> = first.files.iter().map(AsFd::as_fd).collect();
            match socket::try_send(socket.as_fd(), &first.bytes, &files) {
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

/// One end of a port.
pub(super) struct Relay {
    port: OwnedFd,
    frames: Frames,
    /// What waits for room in the port, and how much of the first is in it.
    out: VecDeque<Vec<u8>>,
    sent: usize,
    sessions: BTreeMap<u32, Session>,
    /// What waits in all of them.
    cost: usize,
    /// What is still to be said of those that are over.
    over: Vec<News>,
    /// Reads the port only while there is room in it for what is to be said.
    polite: bool,
    /// What the stream begins with, if it has not been found yet, and what may be its beginning.
    seek: Option<(Vec<u8>, Vec<u8>)>,
}

impl Relay {
    /// `port`: a stream; it becomes non-blocking. `polite`: reads nothing that it could not answer;
    /// of the two ends one at most.
    pub(super) fn new(port: OwnedFd, polite: bool) -> io::Result<Relay> {
        rustix::io::ioctl_fionbio(&port, true)?;
        Ok(Relay {
            port,
            frames: Frames::default(),
            out: VecDeque::new(),
            sent: 0,
            sessions: BTreeMap::new(),
            cost: 0,
            over: Vec::new(),
            polite,
            seek: None,
        })
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
        self.sessions.insert(session, Session { calls, events, waiting, cost: 0 });
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
            self.cost -= session.cost;
        }
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

    /// Somebody else is at the other end now: what was to be said is for nobody, but for the rest
    /// of what was half said.
    pub(super) fn restart(&mut self) {
        self.clear();
        self.out.truncate(usize::from(self.sent > 0));
    }

    /// Begins anew: `first` is said, and what comes before the same is found in what is said to us
    /// was said to somebody else.
    pub(super) fn begin(&mut self, first: Frame) {
        self.clear();
        self.frames = Frames::default();
        self.out.clear();
        self.sent = 0;
        let bytes = first.encode();
        self.seek = Some((bytes.clone(), Vec::new()));
        self.out.push_back(bytes);
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
        files: Vec<Arc<OwnedFd>>,
    ) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let waiting = Waiting { channel, bytes, files };
        self.cost += waiting.cost();
        session.cost += waiting.cost();
        session.waiting.push_back(waiting);
        self.flush(number);
        if self.cost > WAITING_MAX {
            let most = self.sessions.iter().max_by_key(|(_, session)| session.cost);
            if let Some((number, _)) = most {
                self.end(*number, End::Lost);
            }
        }
    }

    /// Sends what waits in a session.
    fn flush(&mut self, number: u32) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let before = session.cost;
        let flushed = session.flush();
        self.cost -= before - session.cost;
        if let Err(how) = flushed {
            self.end(number, how);
        }
    }

    /// Sleeps until something has come, by `other`, too, if there is one, or so many milliseconds
    /// have passed.
    pub(super) fn wait(
        &mut self,
        other: Option<BorrowedFd<'_>>,
        limit: Option<i64>,
    ) -> anyhow::Result<Vec<News>> {
        let over = std::mem::take(&mut self.over);
        if !over.is_empty() {
            return Ok(over);
        }
        let listens = self.out.len() <= FRAMES_MAX;
        let (mut files, mut whose) = (Vec::new(), Vec::new());
        let mut port = PollFlags::empty();
        port.set(PollFlags::IN, listens || !self.polite);
        port.set(PollFlags::OUT, !self.out.is_empty());
        files.push(PollFd::new(&self.port, port));
        let input = if listens { PollFlags::IN } else { PollFlags::empty() };
        files.extend(other.map(|other| PollFd::from_borrowed_fd(other, input)));
        let first_session = files.len();
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
        if first_session > 1 && !found[1].is_empty() {
            news.push(News::Other);
        }
        for ((number, channel), flags) in whose.into_iter().zip(&found[first_session..]) {
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
            Ok(length) => self.feed(bytes.get(..length).unwrap_or(&[])),
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

    /// More has come by the port.
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
        let relay = |end: UnixStream| Relay::new(end.into(), false).unwrap();
        (relay(one), relay(other), socket::pair().unwrap())
    }

    fn turn(relay: &mut Relay, quiet: &OwnedFd) -> Vec<News> {
        relay.wait(Some(quiet.as_fd()), Some(10)).unwrap()
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
        assert!(news.iter().all(|news| matches!(news, News::Lost(1))) && !news.is_empty());
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
    fn who_computes_for_a_while_is_not_parted_with() {
        let (mut relay, _other, _quiet) = ends();
        let (ours, far) = socket::pair().unwrap();
        relay.add(1, ours);
        for _ in 0..10_000 {
            relay.tell(1, Channel::Calls, vec![7; 128], Vec::new());
        }
        assert!(relay.has(1));
        let mut bytes = [0; 256];
        for _ in 0..10_000 {
            relay.flush(1);
            let got = socket::receive(far.as_fd(), &mut bytes, socket::Mode::NonBlocking);
            assert_eq!(got.unwrap().0, 128);
        }
        assert_eq!(relay.cost, 0);
    }

    #[test]
    fn all_sessions_together_have_a_bound() {
        let (mut relay, _other, (quiet, _far)) = ends();
        let pairs: Vec<_> = (0..64).map(|_| socket::pair().unwrap()).collect();
        let mut theirs = Vec::new();
        for (number, (ours, far)) in (0..).zip(pairs) {
            relay.add(number, ours);
            theirs.push(far);
        }
        for round in 0..64_000 {
            relay.tell(round % 64, Channel::Calls, vec![0; 4096], Vec::new());
            assert!(relay.cost <= WAITING_MAX);
        }
        assert!(turn(&mut relay, &quiet).iter().all(|news| matches!(news, News::Lost(_))));
    }

    #[test]
    fn who_takes_no_answers_is_not_heard() {
        let (one, other) = UnixStream::pair().unwrap();
        let mut relay = Relay::new(one.into(), true).unwrap();
        let (quiet, _far) = socket::pair().unwrap();
        other.set_nonblocking(true).unwrap();
        let frame = Frame { kind: FrameKind::Open, session: 7, bytes: vec![0; 8] }.encode();
        let turns = |relay: &mut Relay| {
            for _ in 0..2000 {
                for _ in 0..100 {
                    let _ = rustix::io::write(&other, &frame);
                }
                for news in turn(relay, &quiet) {
                    assert!(matches!(news, News::Frame(_)), "{news:?}");
                    relay.say(FrameKind::Close, 7, Vec::new());
                }
                if relay.out.len() > FRAMES_MAX {
                    break;
                }
            }
        };
        turns(&mut relay);
        let most = relay.out.len();
        assert!(most > FRAMES_MAX && most < FRAMES_MAX + TURN_BYTES / 8, "{most}");
        assert!(turn(&mut relay, &quiet).is_empty(), "nothing is read");
        let mut bytes = vec![0; 1 << 20];
        while relay.out.len() > FRAMES_MAX {
            let _ = read(&other, &mut bytes);
            turn(&mut relay, &quiet);
        }
    }

    #[test]
    fn who_comes_later_hears_nothing_of_what_was_said_before() {
        let (one, other) = UnixStream::pair().unwrap();
        let mut porter = Relay::new(one.into(), true).unwrap();
        let (quiet, _far) = socket::pair().unwrap();
        for session in 0..200 {
            porter.say(FrameKind::Call, session, vec![session as u8; 4096]);
        }
        turn(&mut porter, &quiet);
        // The agent that dies has half of a frame.
        read(&other, &mut [0; 1000]).unwrap();
        let mut agent = Relay::new(other.into(), false).unwrap();
        agent.begin(Frame { kind: FrameKind::Begin, session: 0, bytes: vec![9; 16] });
        let mut heard = Vec::new();
        for _ in 0..1000 {
            heard.extend(turn(&mut agent, &quiet));
            for news in turn(&mut porter, &quiet) {
                let News::Frame(frame) = news else { panic!("{news:?}") };
                porter.restart();
                porter.say(frame.kind, frame.session, frame.bytes);
                porter.say(FrameKind::Close, 5, Vec::new());
            }
            if !heard.is_empty() {
                break;
            }
        }
        let [News::Frame(frame)] = &heard[..] else { panic!("{heard:?}") };
        assert_eq!((frame.kind, frame.session), (FrameKind::Close, 5));
    }

    #[test]
    fn nonsense_by_the_port_is_an_error() {
        let (one, mut relay, (quiet, _far)) = ends();
        write(&one.port, &[0xff; 64]).unwrap();
        assert!(relay.wait(Some(quiet.as_fd()), Some(1000)).is_err());
        drop(one);
    }
}
