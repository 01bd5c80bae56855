//! The opener's side: what leads to the process that has made the queue pair.

use super::{Mortal, take};
use crate::imports::Party;
use crate::thread::spawn_quietly;
use omniverb_device::attributes::State;
use omniverb_device::{AsyncEvent, Qp};
use omniverb_session::opened::{self, Ask, Attributes, Told};
use omniverb_sys::{clock, descriptors, lock, socket};
use omniverb_terms::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// How long an answer may take: as long as a call to the daemon, which the maker may have to make.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// What leads to the maker.
pub(crate) struct Line {
    socket: OwnedFd,
    /// What this process has in the queue pair's place: its number, and where its events go.
    pub(super) qp: Arc<Qp>,
    /// One question at a time.
    asking: Mutex<()>,
    state: Mutex<Known>,
    change: Condvar,
}

struct Known {
    tag: u64,
    came: Option<Told>,
    /// The attributes, as they were told last.
    attributes: Attributes,
    /// The program has been told that it is over with the queue pair.
    fatal: bool,
    /// The maker is gone.
    lost: bool,
}

impl Party for Line {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn hear(&self) -> bool {
        let mut bytes = [0; opened::BYTES_MAX];
        let taken = take(self.socket.as_fd(), &mut bytes);
        let goes_on = taken.is_some_and(|length| length == 0 || self.take(&bytes[..length]));
        if !goes_on {
            self.has_ended();
        }
        goes_on
    }
}

impl Mortal for Line {
    /// The queue pair has ended with its maker.
    fn has_ended(&self) {
        let tells = {
            let mut known = lock(&self.state);
            known.lost = true;
            known.attributes.state = State::Err as u32;
            !std::mem::replace(&mut known.fatal, true)
        };
        self.change.notify_all();
        if tells {
            self.qp.tell(AsyncEvent::QpFatal);
        }
    }
}

impl Line {
    pub(crate) fn new(socket: OwnedFd, qp: Arc<Qp>) -> Line {
        let attributes = Attributes::NONE;
        let known = Known { tag: 0, came: None, attributes, fatal: false, lost: false };
        let (asking, state, change) = (Mutex::default(), Mutex::new(known), Condvar::new());
        Line { socket, qp, asking, state, change }
    }

    /// Whether that is something to be told.
    pub(super) fn take(&self, datagram: &[u8]) -> bool {
        let Some(told) = Told::read(datagram) else { return false };
        let event = match told.what {
            opened::ANSWER => None,
            opened::EVENT => match AsyncEvent::of_qp(told.event) {
                None => return false,
                event => event,
            },
            _ => return false,
        };
        let tells = {
            let mut known = lock(&self.state);
            known.attributes = told.attributes;
            // It may have been brought back.
            known.fatal &= told.attributes.state == State::Err as u32;
            match event {
                // One that came too late is nobody's.
                None => {
                    if told.tag == known.tag {
                        known.came = Some(told);
                        self.change.notify_all();
                    }
                    false
                }
                Some(AsyncEvent::QpFatal) => !std::mem::replace(&mut known.fatal, true),
                Some(_) => true,
            }
        };
        if let Some(event) = event.filter(|_| tells) {
            self.qp.tell(event);
        }
        true
    }

    /// What is known of it, now that nobody can be asked any more.
    pub(crate) fn remains(&self) -> Option<Attributes> {
        let known = lock(&self.state);
        known.lost.then_some(known.attributes)
    }

    /// Asks the maker.
    ///
    /// # Errors
    /// errno: of the answer; `EIO`: there is no maker any more; `ETIMEDOUT`: it does not answer.
    pub(crate) fn ask(&self, ask: &Ask) -> Result<Attributes, Errno> {
        let _mine = lock(&self.asking);
        let until = clock::now() + ANSWER_MAX.as_nanos() as u64;
        let mut known = lock(&self.state);
        known.tag += 1;
        known.came = None;
        if known.lost {
            return Err(Errno::EIO);
        }
        let ask = Ask { tag: known.tag, ..*ask };
        socket::try_send(self.socket.as_fd(), ask.bytes(), &[]).map_err(|error| {
            let full = error.kind() == std::io::ErrorKind::WouldBlock;
            if full { Errno::ETIMEDOUT } else { Errno::EIO }
        })?;
        loop {
            if let Some(told) = known.came.take() {
                return match told.errno {
                    Errno::NONE => Ok(told.attributes),
                    errno => Err(errno),
                };
            }
            let left = until.saturating_sub(clock::now());
            if known.lost || left == 0 {
                // What comes later is nobody's.
                known.tag += 1;
                return Err(if known.lost { Errno::EIO } else { Errno::ETIMEDOUT });
            }
            let waited = self.change.wait_timeout(known, Duration::from_nanos(left));
            known = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    /// It is open no longer.
    pub(crate) fn end(self: Arc<Self>) {
        {
            // Nobody is told of what is the program's own doing.
            let mut known = lock(&self.state);
            (known.fatal, known.lost) = (true, true);
        }
        hang_up(self);
    }
}

/// Ends a connection, for whoever else has its sockets, too, and lets go of it where nobody waits
/// for what may be behind a descriptor that somebody has sent.
pub(super) fn hang_up(of: Arc<impl Party + 'static>) {
    if !descriptors::is_spent(of.socket()) {
        let _ = spawn_quietly("omniverb-spent", move || drop(of));
    }
}
