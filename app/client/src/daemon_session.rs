//! Holds the two sockets to the daemon.
//!
//! Calls are strictly one at a time: a thread that calls has the turn from question to answer, and
//! gives up after [`limit`], because a daemon may be stopped or hostile. The answer that then comes
//! late is known by its tag: the next call passes it by, and what was made in it is given back. A
//! thread with the turn holds no lock, so one that only looks never waits. Events are read by the
//! progress thread alone.

use crate::daemon_call_lock::{CallGuard, CallLock};
use crate::daemon_choice;
use crate::daemon_messages_with_fds::{MessageWithFiles, WelcomeFiles};
use crate::errno_conversion::errno_of;
use crate::vnic_description::{NoDevice, VirtualNic};
use omniverb_session::body::{
    DeregMr, DestroyQp, Hello, MrRegistered, QpCreated, ROLE_VERBS, Welcome,
};
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::{Message, decode, encode};
use omniverb_sys::lock;
use omniverb_sys::{Extent, clock, seqpacket_deadline, user_daemon_socket};
use omniverb_terms::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// How long a call may take, waiting for its turn included. Tests have a daemon that never answers.
const LIMIT: Duration =
    Duration::from_millis(if cfg!(any(test, feature = "fuzz")) { 100 } else { 10_000 });
/// A smaller limit in milliseconds, for tests.
const LIMIT_VARIABLE: &str = "OMNIVERB_CALL_LIMIT_MS";
/// How many times that telling a new daemon everything may take.
const ANNOUNCING: u32 = 3;

fn limit() -> Duration {
    static CHOSEN: OnceLock<Duration> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let named = user_daemon_socket::variable(LIMIT_VARIABLE)
            .and_then(|text| text.to_str()?.parse().ok());
        named.map_or(LIMIT, |limit| Duration::from_millis(limit).min(LIMIT))
    })
}

fn deadline(after: Duration) -> u64 {
    clock::now() + after.as_nanos() as u64
}

pub(crate) struct Session {
    calls: CallLock,
    events: Mutex<Option<Arc<OwnedFd>>>,
}

/// What a call fails with when the daemon is gone. An answer of the daemon never carries it.
const LOST: Errno = Errno::EPIPE;

/// Whether an errno of a call means that the daemon is gone.
pub(crate) fn is_lost(errno: Errno) -> bool {
    errno == LOST
}

/// Tells a new daemon one thing, and hears what it says to that.
type Announcer<'a> = dyn FnMut(&Message) -> Result<Message, Errno> + 'a;

/// The first daemon of this process's, and what it says.
pub(crate) struct FirstSession {
    pub(crate) session: Session,
    pub(crate) nic: VirtualNic,
    /// Its number, another one after each start.
    pub(crate) daemon: u32,
    /// The statistics area.
    pub(crate) area: Extent<OwnedFd>,
}

impl Session {
    /// Connects to the first daemon that answers.
    pub(crate) fn connect() -> Result<FirstSession, NoDevice> {
        let (calls, WelcomeParts { files, nic, daemon }) =
            open(SessionKind::First, deadline(limit()))?;
        let events = Mutex::new(Some(Arc::new(files.events)));
        let session = Session { calls: CallLock::new(calls), events };
        Ok(FirstSession { session, nic, daemon, area: files.area })
    }

    /// Connects anew after the daemon went away, and has `announce` tell it, which has this number,
    /// what we hold, before any other call. `None`: another thread has done so meanwhile.
    pub(crate) fn reopen(
        &self,
        announce: impl FnOnce(u32, &mut Announcer<'_>) -> Result<(), Errno>,
    ) -> Result<Option<(VirtualNic, Extent<OwnedFd>)>, Errno> {
        let deadline = deadline(limit() * ANNOUNCING);
        let mut turn = self.calls.take(deadline)?;
        if self.is_open() && self.events().is_some() {
            return Ok(None);
        }
        let opened = open(SessionKind::Again, deadline).map_err(|error| match error {
            NoDevice::NoDaemon(_, Errno::ETIMEDOUT) => Errno::ETIMEDOUT,
            NoDevice::NoDaemon(_, _) => LOST,
            NoDevice::Refused(_, errno) | NoDevice::Resources(errno) => errno,
        });
        let (socket, WelcomeParts { files, nic, daemon }) = opened?;
        turn.renew(socket);
        let announced = announce(daemon, &mut |message| exchange(&mut turn, message, deadline));
        if let Err(errno) = announced {
            turn.lost();
            return Err(errno);
        }
        *lock(&self.events) = Some(Arc::new(files.events));
        turn.publish();
        Ok(Some((nic, files.area)))
    }

    /// One question, one answer, with the files that belong to it.
    pub(crate) fn call(&self, message: &Message) -> Result<MessageWithFiles<Message>, Errno> {
        let deadline = deadline(limit());
        let mut turn = self.calls.take(deadline)?;
        let answer = exchange_delivered(&mut turn, message, deadline);
        if let Err(errno) = answer
            && is_lost(errno)
        {
            turn.lost();
        }
        answer
    }

    /// Waits for answers to calls that were given up, as long as for a call.
    ///
    /// # Errors
    /// errno: there may be more to come.
    pub(crate) fn settle(&self) -> Result<(), Errno> {
        let deadline = deadline(limit());
        let mut turn = self.calls.take(deadline)?;
        while turn.owed > 0 {
            match hear(&mut turn, deadline) {
                Ok(_) => {}
                Err(errno) if is_lost(errno) => turn.lost(),
                Err(errno) => return Err(errno),
            }
        }
        give_back(&mut turn, deadline);
        Ok(())
    }

    /// The events socket, while there is a daemon.
    pub(crate) fn events(&self) -> Option<Arc<OwnedFd>> {
        lock(&self.events).clone()
    }

    /// Whether there is a daemon to call, as far as we know.
    pub(crate) fn is_open(&self) -> bool {
        self.calls.is_open()
    }

    /// The daemon closed the events socket.
    pub(crate) fn lost_events(&self, which: &Arc<OwnedFd>) {
        let mut events = lock(&self.events);
        if events.as_ref().is_some_and(|now| Arc::ptr_eq(now, which)) {
            *events = None;
            drop(events);
            self.calls.close();
        }
    }
}

/// Which daemon is met.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SessionKind {
    /// The first of this process's.
    First,
    /// The next, to which things of the last one's are announced.
    Again,
}

/// What a daemon says to a hello.
struct WelcomeParts {
    files: WelcomeFiles,
    nic: VirtualNic,
    /// Its number, another one after each start.
    daemon: u32,
}

fn open(meeting: SessionKind, deadline: u64) -> Result<(OwnedFd, WelcomeParts), NoDevice> {
    let mut failure = None;
    for place in daemon_choice::candidates() {
        let name = place.path.display().to_string();
        match place.connect(deadline) {
            Ok(socket) => {
                let welcomed = greet(&socket, meeting, deadline)
                    .map_err(|errno| NoDevice::Refused(name, errno))?;
                return Ok((socket, welcomed));
            }
            Err(error) => {
                failure.get_or_insert(NoDevice::NoDaemon(name, errno_of(&error)));
            }
        }
    }
    Err(failure.unwrap_or(NoDevice::Resources(Errno::ENOENT)))
}

fn greet(socket: &OwnedFd, meeting: SessionKind, deadline: u64) -> Result<WelcomeParts, Errno> {
    let resume = match meeting {
        SessionKind::First => 0,
        SessionKind::Again => 1,
    };
    let hello = Hello { role: ROLE_VERBS, resume, name: process_name() };
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let length = encode(0, &hello.into(), &mut bytes);
    seqpacket_deadline::send(socket.as_fd(), &bytes[..length], &[], deadline)
        .map_err(|e| errno_of(&e))?;
    let (length, descriptors) = seqpacket_deadline::receive(socket.as_fd(), &mut bytes, deadline)
        .map_err(|e| errno_of(&e))?;
    if length == 0 {
        return Err(Errno::ECONNRESET);
    }
    match decode(&bytes[..length]) {
        Ok((_, Message::Welcome(welcome))) => {
            let MessageWithFiles { said, files } = MessageWithFiles::new(welcome, descriptors)?;
            let Welcome { node_guid, qp_max, mr_max, link_max, daemon, .. } = said;
            let nic = VirtualNic { node_guid, qp_max, mr_max, link_max };
            Ok(WelcomeParts { files, nic, daemon })
        }
        Ok((_, Message::Failed(errno))) => Err(errno),
        _ => Err(Errno::EPROTO),
    }
}

fn transport(error: &std::io::Error) -> Errno {
    match errno_of(error) {
        Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN => LOST,
        other => other,
    }
}

/// Asks, and waits for the answer until `deadline`.
fn exchange(turn: &mut CallGuard<'_>, message: &Message, deadline: u64) -> Result<Message, Errno> {
    exchange_delivered(turn, message, deadline).map(|answer| answer.said)
}

fn exchange_delivered(
    turn: &mut CallGuard<'_>,
    message: &Message,
    deadline: u64,
) -> Result<MessageWithFiles<Message>, Errno> {
    let tag = ask(turn, message, deadline)?;
    let answer = loop {
        match hear(turn, deadline)? {
            TaggedAnswer { tag: answered, answer } if answered == tag => break answer,
            TaggedAnswer { tag: answered, .. } if answered > tag => return Err(Errno::EPROTO),
            _ => {}
        }
    };
    give_back(turn, deadline);
    let answer = answer?;
    match answer.said {
        // ENOTCONN, say, is about a QP, not about the connection to the daemon.
        Message::Failed(errno) if errno == LOST => Err(Errno::EIO),
        Message::Failed(errno) => Err(errno),
        _ => Ok(answer),
    }
}

fn ask(turn: &mut CallGuard<'_>, message: &Message, deadline: u64) -> Result<u64, Errno> {
    let socket = turn.socket.clone().ok_or(LOST)?;
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let length = encode(turn.tag + 1, message, &mut bytes);
    seqpacket_deadline::send(socket.as_fd(), &bytes[..length], &[], deadline)
        .map_err(|e| transport(&e))?;
    turn.tag += 1;
    turn.owed += 1;
    Ok(turn.tag)
}

/// An answer, and what it answers.
struct TaggedAnswer {
    tag: u64,
    /// `EPROTO`: other files came along than belong to it.
    answer: Result<MessageWithFiles<Message>, Errno>,
}

/// The next answer, whatever it answers.
fn hear(turn: &mut CallGuard<'_>, deadline: u64) -> Result<TaggedAnswer, Errno> {
    let socket = turn.socket.clone().ok_or(LOST)?;
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let (length, files) = seqpacket_deadline::receive(socket.as_fd(), &mut bytes, deadline)
        .map_err(|e| transport(&e))?;
    if length == 0 {
        return Err(LOST);
    }
    turn.owed = turn.owed.saturating_sub(1);
    let (tag, answer) = decode(&bytes[..length]).map_err(|_| Errno::EPROTO)?;
    if tag < turn.tag {
        // The call that asked for it has failed.
        let undo: Option<Message> = match answer {
            Message::QpCreated(QpCreated { qpn, .. }) => {
                Some(DestroyQp { qpn, reserved: 0 }.into())
            }
            Message::MrRegistered(MrRegistered { rkey, .. }) => {
                Some(DeregMr { rkey, reserved: 0 }.into())
            }
            _ => None,
        };
        turn.unwanted.extend(undo);
    }
    Ok(TaggedAnswer { tag, answer: MessageWithFiles::new(answer, files) })
}

/// Tells the daemon what is not wanted any more.
fn give_back(turn: &mut CallGuard<'_>, deadline: u64) {
    while let Some(message) = turn.unwanted.pop() {
        let Ok(tag) = ask(turn, &message, deadline) else { return turn.unwanted.push(message) };
        while matches!(hear(turn, deadline), Ok(heard) if heard.tag < tag) {}
    }
}

/// `comm`, for `omniverb status`.
fn process_name() -> [u8; 16] {
    let mut name = [0; 16];
    let comm = rustix::thread::name().unwrap_or_default();
    let bytes = comm.as_bytes();
    let length = bytes.len().min(15);
    name[..length].copy_from_slice(&bytes[..length]);
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_session::body::{Done, QueryGids};
    use omniverb_sys::seqpacket;
    use omniverb_terms::Qpn;

    fn soon() -> u64 {
        deadline(Duration::from_millis(30))
    }

    fn answer(daemon: &OwnedFd, reply: impl FnOnce(Message) -> Message) -> Message {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let (length, _) =
            seqpacket::receive(daemon.as_fd(), &mut bytes, seqpacket::BlockingMode::NonBlocking)
                .unwrap();
        let (tag, asked) = decode(&bytes[..length]).unwrap();
        let length = encode(tag, &reply(asked.clone()), &mut bytes);
        seqpacket::send(daemon.as_fd(), &bytes[..length], &[]).unwrap();
        asked
    }

    #[test]
    fn an_answer_that_comes_too_late_breaks_nothing_and_what_it_made_is_given_back() {
        let (ours, daemon) = seqpacket::pair().unwrap();
        let calls = CallLock::new(ours);
        let ask: Message = QueryGids { reserved: 7 }.into();
        let mut turn = calls.take(soon()).unwrap();
        assert_eq!(exchange(&mut turn, &ask, soon()), Err(Errno::ETIMEDOUT));
        assert_eq!(exchange(&mut turn, &ask, soon()), Err(Errno::ETIMEDOUT));
        assert_eq!(turn.owed, 2);
        drop(turn);
        let done = || Message::from(Done { take_back: 0 });
        answer(&daemon, |_| {
            QpCreated { qpn: Qpn(77), reserved: 0, issued: 0, ticket: [0; 16] }.into()
        });
        answer(&daemon, |_| Message::Failed(Errno(12)));
        let serving = std::thread::spawn(move || {
            let serve = || {
                omniverb_sys::eventfd::readable(daemon.as_fd(), None).unwrap();
                answer(&daemon, |_| done())
            };
            [serve(), serve()]
        });
        let mut turn = calls.take(soon()).unwrap();
        let long = deadline(Duration::from_secs(5));
        assert_eq!(exchange(&mut turn, &ask, long), Ok(done()));
        assert_eq!((turn.owed, turn.unwanted.len()), (0, 0));
        let destroyed = DestroyQp { qpn: Qpn(77), reserved: 0 }.into();
        assert_eq!(serving.join().unwrap(), [ask, destroyed]);
    }

    #[test]
    fn descriptors_that_belong_to_no_answer_are_closed_and_so_are_late_ones() {
        let (ours, daemon) = seqpacket::pair().unwrap();
        let calls = CallLock::new(ours);
        let ask: Message = QueryGids { reserved: 1 }.into();
        let done: Message = Done { take_back: 0 }.into();
        let mut turn = calls.take(soon()).unwrap();
        assert_eq!(exchange(&mut turn, &ask, soon()), Err(Errno::ETIMEDOUT));
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let (late, late_end) = seqpacket::pair().unwrap();
        let (file, end) = seqpacket::pair().unwrap();
        for (tag, file) in [(turn.tag, late), (turn.tag + 1, file)] {
            let length = encode(tag, &done, &mut bytes);
            seqpacket::send(daemon.as_fd(), &bytes[..length], &[file.as_fd()]).unwrap();
        }
        // No descriptor belongs to any answer that we know.
        assert_eq!(exchange(&mut turn, &ask, soon()), Err(Errno::EPROTO));
        let closed = |end: &OwnedFd| {
            matches!(
                seqpacket::receive(
                    end.as_fd(),
                    &mut [0; MESSAGE_BYTES_MAX],
                    seqpacket::BlockingMode::NonBlocking
                ),
                Ok((0, _))
            )
        };
        assert!(closed(&late_end) && closed(&end));
        // The next call goes on as if nothing had been.
        let length = encode(turn.tag + 1, &done, &mut bytes);
        seqpacket::send(daemon.as_fd(), &bytes[..length], &[]).unwrap();
        assert_eq!(exchange(&mut turn, &ask, soon()), Ok(done));
    }

    #[test]
    fn a_look_never_waits_for_a_call() {
        let (ours, daemon) = seqpacket::pair().unwrap();
        let calls = CallLock::new(ours);
        let turn = calls.take(soon()).unwrap();
        assert!(calls.is_open());
        assert_eq!(calls.take(soon()).err(), Some(Errno::ETIMEDOUT));
        calls.close();
        assert!(!calls.is_open());
        drop(turn);
        let mut turn = calls.take(soon()).unwrap();
        let ask: Message = QueryGids { reserved: 0 }.into();
        assert_eq!(exchange(&mut turn, &ask, soon()), Err(LOST));
        drop(daemon);
    }
}
