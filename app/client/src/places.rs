//! Where this process can be found by others that have the same XRC domain, and they by it.
//!
//! A process's part of a domain stands as a socket with a name in the network namespace. What comes
//! there comes from anybody: one message of known length, which counts only if it is stated of the
//! domain's file, too (`support/sys/src/statement.rs`), and nothing is kept of what does not. Only
//! the thread that hands over takes and sends; it has a turn for so many messages at a time.

use crate::errno::errno_of;
use omniverb_device::Domain;
use omniverb_session::body::{HandOver, HandedOver};
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::{Message, decode, encode};
use omniverb_sys::descriptors::{self, Plain};
use omniverb_sys::{EventFd, lock, statement};
use omniverb_terms::{Errno, Qpn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix, recv, sendto};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Messages that are taken in one turn.
const AT_ONCE: usize = 16;

/// A part of the domain of a file.
pub struct Part {
    /// What the names of the sockets of all parts begin with; their numbers follow.
    pub prefix: String,
    /// Of this one.
    pub number: u32,
    /// Has that name.
    pub socket: OwnedFd,
    /// The file.
    pub file: OwnedFd,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Yes,
    /// There is no room, now.
    NotNow,
    /// Nobody has that part.
    Nobody,
}

/// What another process says.
pub(crate) enum Heard {
    Ask(HandOver),
    Answer(HandedOver),
}

/// What others tell the thread, and wait for of it.
#[derive(Default)]
struct Desk {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Queue pairs that look for ways to other parts.
    wishes: Vec<(Qpn, u32)>,
    running: bool,
    over: bool,
}

/// A part of a domain that this process has, and the thread that hands over for it, while there is
/// one.
pub(crate) struct Place {
    pub(crate) part: Part,
    pub(crate) domain: Arc<Domain>,
    news: EventFd,
    desk: Arc<Desk>,
}

/// A thread is there. To be dropped when it has let go of the place.
pub(crate) struct Attendance(Arc<Desk>);

impl Drop for Attendance {
    fn drop(&mut self) {
        lock(&self.0.state).running = false;
        self.0.ended.notify_all();
    }
}

impl Place {
    pub(crate) fn new(part: Part, domain: &Arc<Domain>) -> Result<Arc<Place>, Errno> {
        // Before Linux 6.16 it cannot be told; then the thread may have to wait for what is behind
        // a descriptor that somebody sent.
        let _ = descriptors::refuse(part.socket.as_fd());
        let news = EventFd::new().map_err(|error| errno_of(&error))?;
        let (desk, domain) = (Arc::default(), domain.clone());
        Ok(Arc::new(Place { part, domain, news, desk }))
    }

    /// Has a thread there, started by `start`.
    pub(crate) fn serve(
        self: &Arc<Place>,
        start: impl FnOnce(Arc<Place>, Attendance) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        {
            let mut state = lock(&self.desk.state);
            if state.running || state.over {
                return Ok(());
            }
            state.running = true;
        }
        start(self.clone(), Attendance(self.desk.clone()))
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

    /// Ends the thread, and waits for that: then nobody else of us has the socket.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.desk.state);
        state.over = true;
        self.news.signal();
        while state.running {
            state = self.desk.ended.wait(state).unwrap_or_else(|e| e.into_inner());
        }
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
    pub(crate) fn tell(&self, part: u32, message: &Message) -> Told {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(0, message, &mut bytes);
        let name = format!("{}{part}", self.part.prefix);
        let Ok(address) = SocketAddrUnix::new_abstract_name(name.as_bytes()) else {
            return Told::Nobody;
        };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendto(&self.part.socket, &bytes[..length], flags, &address) {
            Ok(_) => Told::Yes,
            Err(rustix::io::Errno::CONNREFUSED) => Told::Nobody,
            Err(_) => Told::NotNow,
        }
    }

    /// What others say, of which nothing is believed yet.
    pub(crate) fn hear(&self) -> Vec<Heard> {
        let mut heard = Vec::new();
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        for _ in 0..AT_ONCE {
            match descriptors::receive(self.part.socket.as_fd(), &mut bytes) {
                Ok(Plain::Message(length)) => heard.extend(understood(&bytes[..length])),
                Ok(Plain::Descriptors) => {
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
        statement.is_some_and(|number| statement::is_made(file, number).unwrap_or(false))
    }

    /// States it.
    pub(crate) fn state(&self, statement: Option<u64>) -> Result<(), Errno> {
        let number = statement.ok_or(Errno::EINVAL)?;
        statement::make(self.part.file.as_fd(), number).map_err(|error| errno_of(&error))
    }

    /// States it no longer.
    pub(crate) fn take_back(&self, statement: Option<u64>) {
        if let Some(number) = statement {
            let _ = statement::take_back(self.part.file.as_fd(), number);
        }
    }
}

/// What is said in these bytes, if it is for us.
pub(crate) fn understood(bytes: &[u8]) -> Option<Heard> {
    match decode(bytes) {
        Ok((_, Message::HandOver(ask))) => Some(Heard::Ask(ask)),
        Ok((_, Message::HandedOver(answer))) => Some(Heard::Answer(answer)),
        _ => None,
    }
}
