//! Finds other processes with the same XRC domain, and is found by them.
//!
//! A process's part of a domain stands as a socket with a name in the network namespace. What comes
//! there may come from any process: one message of known length, which counts only if it comes from
//! the socket of the part that it speaks for, and is stated in the domain's file
//! (`support/sys/src/record_lock_proofs.rs`). Nothing is kept of what does not. Only the thread
//! that hands over takes and sends; it has a turn for so many messages at a time.

use crate::errno_conversion::errno_of;
use crate::shared_qp::SharedQueuePairs;
use omniverb_device::Domain;
use omniverb_session::body::{HandOver, HandedOver, OpenQp, QpOpened};
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::{Message, decode, encode};
use omniverb_sys::unsolicited_fds::{self, PlainMessage};
use omniverb_sys::{EventFd, lock, record_lock_proofs};
use omniverb_terms::{Errno, Qpn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, SocketAddrAny, SocketAddrUnix, recv, sendto};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// First and longest pause before one asks again, in nanoseconds: the other one may have had no
/// room for the question.
pub(crate) const PAUSE: (u64, u64) = (20_000_000, 200_000_000);
/// How long a part is asked for, in nanoseconds: then there is none. The daemon may be away for a
/// while.
pub(crate) const ASKED_MAX: u64 = 10_000_000_000;
/// Messages that are taken in one turn.
const AT_ONCE: usize = 16;
/// Answers that wait to be looked at: an honest part gives one or two.
const ANSWERS_MAX: usize = 1 << 14;
/// How long the thread is waited for at its end: a little more than a call to the daemon takes.
const END_MAX: Duration = Duration::from_secs(12);

/// A part of the domain of a file.
pub struct DomainPart {
    /// What the names of the sockets of all parts begin with; their numbers follow.
    pub prefix: String,
    /// Of this one.
    pub number: u32,
    /// Has that name.
    pub socket: OwnedFd,
    /// The domain's file, in which each process states what it says to others.
    pub file: OwnedFd,
    /// What of this process others may open.
    pub receivers: Weak<dyn SharedQueuePairs>,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// It is there.
    Yes,
    /// There is no room, now.
    NotNow,
    /// There is no such part.
    Nobody,
}

/// What another process says.
pub(crate) enum DomainMessage {
    Ask(HandOver),
    /// And from which part.
    Answer(HandedOver, u32),
    Open(OpenQp),
    /// And from which part.
    Opened(QpOpened, u32),
}

/// What others tell the thread, and wait for of it.
#[derive(Default)]
struct AttendanceRequests {
    state: Mutex<State>,
    ended: Condvar,
    answered: Condvar,
}

#[derive(Default)]
struct State {
    /// Listeners at which a call waits, and what was said there, by which parts.
    doors: Vec<(u32, Vec<(QpOpened, u32)>)>,
    /// Queue pairs that look for ways to other parts.
    wishes: Vec<(Qpn, u32)>,
    running: bool,
    /// The thread, once it is at work.
    thread: Option<ThreadId>,
    over: bool,
}

/// A part of a domain that this process has, and the thread that hands over for it, while there is
/// one.
pub(crate) struct DomainMember {
    pub(crate) part: DomainPart,
    pub(crate) domain: Arc<Domain>,
    news: EventFd,
    desk: Arc<AttendanceRequests>,
}

/// A thread is there. To be dropped when it has let go of the place.
pub(crate) struct AttendanceThread(Arc<AttendanceRequests>);

impl Drop for AttendanceThread {
    fn drop(&mut self) {
        lock(&self.0.state).running = false;
        self.0.ended.notify_all();
    }
}

impl DomainMember {
    pub(crate) fn new(part: DomainPart, domain: &Arc<Domain>) -> Result<Arc<DomainMember>, Errno> {
        // Before Linux 6.16 it cannot be told; then the thread may have to wait for what is behind
        // a descriptor that was sent.
        let _ = unsolicited_fds::refuse(part.socket.as_fd());
        let news = EventFd::new().map_err(|error| errno_of(&error))?;
        let (desk, domain) = (Arc::default(), domain.clone());
        Ok(Arc::new(DomainMember { part, domain, news, desk }))
    }

    /// Has a thread there, started by `start`.
    pub(crate) fn serve(
        self: &Arc<DomainMember>,
        start: impl FnOnce(Arc<DomainMember>, AttendanceThread) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        {
            let mut state = lock(&self.desk.state);
            if state.running || state.over {
                return Ok(());
            }
            state.running = true;
        }
        start(self.clone(), AttendanceThread(self.desk.clone()))
    }

    /// A queue pair looks for the way to another part.
    pub(crate) fn wish(&self, front: Qpn, part: u32) {
        lock(&self.desk.state).wishes.push((front, part));
        self.news.signal();
    }

    /// Up to so many of those.
    pub(crate) fn take_wishes(&self, most: usize) -> Vec<(Qpn, u32)> {
        let mut state = lock(&self.desk.state);
        let count = state.wishes.len().min(most);
        state.wishes.drain(..count).collect()
    }

    /// Whether queue pairs look for ways that are not taken on yet.
    pub(crate) fn has_wishes(&self) -> bool {
        !lock(&self.desk.state).wishes.is_empty()
    }

    /// Answers to questions that name this door are kept from now on.
    pub(crate) fn attend(&self, door: u32) {
        lock(&self.desk.state).doors.push((door, Vec::new()));
    }

    /// They are not any more.
    pub(crate) fn leave(&self, door: u32) {
        lock(&self.desk.state).doors.retain(|(other, _)| *other != door);
    }

    /// Another part says what it has.
    pub(crate) fn answer(&self, answer: QpOpened, part: u32) {
        let mut state = lock(&self.desk.state);
        let mut doors = state.doors.iter_mut();
        let at = doors.find(|(door, answers)| *door == answer.door && answers.len() < ANSWERS_MAX);
        if let Some((_, answers)) = at {
            answers.push((answer, part));
            self.desk.answered.notify_all();
        }
    }

    /// What was said there meanwhile; waits so long for something.
    pub(crate) fn answers(&self, door: u32, limit: Duration) -> Vec<(QpOpened, u32)> {
        let of = |state: &mut State| {
            let found = state.doors.iter_mut().find(|(other, _)| *other == door);
            found.map(|(_, answers)| std::mem::take(answers)).unwrap_or_default()
        };
        let none = |state: &mut State| {
            let found = state.doors.iter().find(|(other, _)| *other == door);
            found.is_some_and(|(_, answers)| answers.is_empty())
        };
        let state = lock(&self.desk.state);
        let waited = self.desk.answered.wait_timeout_while(state, limit, none);
        of(&mut waited.unwrap_or_else(|e| e.into_inner()).0)
    }

    /// Ends the thread, and waits for that: then no other thread of ours has the socket. But not
    /// without end: one that is held by something keeps the part's name until it is not.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.desk.state);
        state.over = true;
        self.news.signal();
        // It may have been the last one that used the domain.
        if state.thread == Some(thread::current().id()) {
            return;
        }
        let waited = self.desk.ended.wait_timeout_while(state, END_MAX, |state| state.running);
        drop(waited.unwrap_or_else(|e| e.into_inner()));
    }

    /// This thread is the one.
    pub(crate) fn begin(&self) {
        lock(&self.desk.state).thread = Some(thread::current().id());
    }

    pub(crate) fn is_over(&self) -> bool {
        lock(&self.desk.state).over
    }

    /// Sleeps until there is something to do, or so long.
    pub(crate) fn wait(&self, limit: Option<Duration>) {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let (socket, news) = (&self.part.socket, &self.news);
        let interest = |file| PollFd::from_borrowed_fd(file, PollFlags::IN);
        // However it ends, the thread looks for itself.
        let _ = poll(&mut [interest(socket.as_fd()), interest(news.as_fd())], limit.as_ref());
        self.news.take();
    }

    /// Tells the process that has another part.
    pub(crate) fn tell(&self, part: u32, message: &Message) -> SendOutcome {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(0, message, &mut bytes);
        let name = format!("{}{part}", self.part.prefix);
        let Ok(address) = SocketAddrUnix::new_abstract_name(name.as_bytes()) else {
            return SendOutcome::Nobody;
        };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendto(&self.part.socket, &bytes[..length], flags, &address) {
            Ok(_) => SendOutcome::Yes,
            Err(rustix::io::Errno::CONNREFUSED) => SendOutcome::Nobody,
            Err(_) => SendOutcome::NotNow,
        }
    }

    /// Which part's socket has this address.
    fn part_at(&self, address: SocketAddrAny) -> Option<u32> {
        let address = SocketAddrUnix::try_from(address).ok()?;
        let name = str::from_utf8(address.abstract_name()?).ok()?;
        let digits = name.strip_prefix(self.part.prefix.as_str())?;
        digits.parse().ok().filter(|part: &u32| part.to_string() == digits)
    }

    /// What holders of the names of parts say, of which nothing more is known yet.
    pub(crate) fn hear(&self) -> Vec<DomainMessage> {
        let mut heard = Vec::new();
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        for _ in 0..AT_ONCE {
            match unsolicited_fds::receive_from(self.part.socket.as_fd(), &mut bytes) {
                Ok((PlainMessage::Message(length), from)) => {
                    let from = from.and_then(|from| self.part_at(from));
                    heard.extend(from.and_then(|from| understood(&bytes[..length], from)));
                }
                Ok((PlainMessage::Descriptors, _)) => {
                    let _ = recv(&self.part.socket, &mut [0u8; 0], RecvFlags::DONTWAIT);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(_) => {}
            }
        }
        heard
    }

    /// Whether another process that has the file states this.
    pub(crate) fn is_stated(&self, statement: Option<u64>) -> bool {
        let file = self.part.file.as_fd();
        statement.is_some_and(|number| record_lock_proofs::is_made(file, number).unwrap_or(false))
    }

    /// States it to them, until it is taken back or this process ends.
    pub(crate) fn state(&self, statement: Option<u64>) -> Result<(), Errno> {
        let number = statement.ok_or(Errno::EINVAL)?;
        record_lock_proofs::make(self.part.file.as_fd(), number).map_err(|error| errno_of(&error))
    }

    /// States it no longer.
    pub(crate) fn take_back(&self, statement: Option<u64>) {
        if let Some(number) = statement {
            let _ = record_lock_proofs::take_back(self.part.file.as_fd(), number);
        }
    }
}

/// What is said in these bytes by the holder of a part's name, if it is for us.
fn understood(bytes: &[u8], from: u32) -> Option<DomainMessage> {
    match decode(bytes) {
        Ok((_, Message::HandOver(ask))) if ask.part == from => Some(DomainMessage::Ask(ask)),
        Ok((_, Message::HandedOver(answer))) => Some(DomainMessage::Answer(answer, from)),
        Ok((_, Message::OpenQp(ask))) if ask.part == from => Some(DomainMessage::Open(ask)),
        Ok((_, Message::QpOpened(answer))) => Some(DomainMessage::Opened(answer, from)),
        _ => None,
    }
}

/// The parts of XRC domains that this process has, where others find it.
#[derive(Default)]
pub(crate) struct DomainMembers(Mutex<Vec<Arc<DomainMember>>>);

impl DomainMembers {
    /// The part that this process has of a domain.
    pub(crate) fn of(&self, domain: &Arc<Domain>) -> Option<Arc<DomainMember>> {
        lock(&self.0).iter().find(|place| Arc::ptr_eq(&place.domain, domain)).cloned()
    }

    /// Others find this one from now on.
    pub(crate) fn add(&self, place: Arc<DomainMember>) {
        lock(&self.0).push(place);
    }

    /// They do no longer.
    pub(crate) fn remove(&self, place: &Arc<DomainMember>) {
        lock(&self.0).retain(|other| !Arc::ptr_eq(other, place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_terms::Gid;
    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

    fn place(prefix: &str, number: u32) -> Arc<DomainMember> {
        let kind = (AddressFamily::UNIX, SocketType::DGRAM);
        let socket = socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None).unwrap();
        let name = format!("{prefix}{number}");
        bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        let file = memfd_create("domain", MemfdFlags::CLOEXEC).unwrap();
        let receivers = Weak::<crate::testing::hostile_opener::NoSharedQueuePairs>::new();
        let part = DomainPart { prefix: prefix.into(), number, socket, file, receivers };
        DomainMember::new(part, &Domain::part(number)).unwrap()
    }

    fn ask(part: u32) -> HandOver {
        let (from, front, sender) = (Qpn(5), Qpn(6), Qpn(7));
        HandOver { from, front, sender, part, to: 1, reserved: 0, gid: Gid::ZERO }
    }

    /// Only the holder of its name speaks for a part.
    #[test]
    fn what_others_say_is_not_heard() {
        let prefix = format!("omniverb/test/{}/", std::process::id());
        let [ours, theirs, third] = [1, 2, 3].map(|number| place(&prefix, number));
        let stranger = place(&format!("{prefix}x/"), 2);
        let answer = HandedOver { from: Qpn(5), by: Qpn(9) };
        let name = format!("{prefix}1");
        let to = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        for message in [Message::from(ask(2)), Message::from(answer)] {
            let length = encode(0, &message, &mut bytes);
            let flags = SendFlags::DONTWAIT;
            sendto(&stranger.part.socket, &bytes[..length], flags, &to).unwrap();
        }
        assert!(ours.hear().is_empty(), "a stranger");
        assert_eq!(third.tell(1, &ask(2).into()), SendOutcome::Yes);
        assert!(ours.hear().is_empty(), "another part");
        assert_eq!(third.tell(1, &answer.into()), SendOutcome::Yes);
        assert_eq!(theirs.tell(1, &ask(2).into()), SendOutcome::Yes);
        let heard = ours.hear();
        assert!(matches!(
            heard[..],
            [DomainMessage::Answer(_, 3), DomainMessage::Ask(HandOver { part: 2, .. })]
        ));
    }

    /// There may be more than one turn takes.
    #[test]
    fn wishes_stay_until_they_are_taken() {
        let place = place(&format!("omniverb/wishes/{}/", std::process::id()), 0);
        (0..65).for_each(|front| place.wish(Qpn(front), 1));
        assert_eq!(place.take_wishes(64).len(), 64);
        assert!(place.has_wishes());
        assert_eq!(place.take_wishes(64), [(Qpn(64), 1)]);
        assert!(!place.has_wishes());
    }
}
