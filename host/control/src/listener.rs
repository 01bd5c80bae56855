//! Listens at one of the daemon's unix sockets, and removes its path at the end.
//!
//! When descriptors run out, new connections wait in the kernel's queue; the listener is polled
//! again a moment later. Accepted connections go on.

use crate::daemon_log::{Journal, Level};
use crate::poller_tokens::{Entrance, Wakeup};
use crate::reactor::{Reactor, Timer};
use crate::runtime_folder::RuntimeFolder;
use omniverb_sys::seqpacket;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// Delay before a listener is polled again after it could accept no connection.
const AGAIN: Duration = Duration::from_millis(100);

/// One of the two, open.
#[derive(Debug)]
pub(crate) struct Listener {
    place: RuntimeFolder,
    entrance: Entrance,
}

impl Listener {
    /// Lets people in from now on.
    pub(crate) fn open(
        place: RuntimeFolder,
        entrance: Entrance,
        reactor: &Reactor,
    ) -> io::Result<Listener> {
        reactor.watch(place.listener(), Wakeup::Connection(entrance))?;
        Ok(Listener { place, entrance })
    }

    /// The socket's path.
    pub(crate) fn path(&self) -> &Path {
        self.place.path()
    }

    /// The next connection.
    pub(crate) fn accept(&self, reactor: &mut Reactor, journal: &mut Journal) -> Option<OwnedFd> {
        match seqpacket::accept(self.place.listener().as_fd()) {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely. Others keep what they have.
                journal.log(Level::Warning, format_args!("cannot accept: {error}"));
                reactor.forget(self.place.listener());
                reactor.set(AGAIN, Timer::Accept(self.entrance));
                None
            }
        }
    }

    /// The delay after a failed accept is over.
    pub(crate) fn look_again(&self, reactor: &mut Reactor) {
        let ready = Wakeup::Connection(self.entrance);
        if reactor.watch(self.place.listener(), ready).is_err() {
            reactor.set(AGAIN, Timer::Accept(self.entrance));
        }
    }

    /// Closes the socket for new connections. Those in its queue may have sent messages:
    /// [`next_left`](Self::next_left) still accepts them.
    pub(crate) fn close(&mut self) {
        self.place.close();
    }

    /// The next connection that was made before the socket was closed.
    pub(crate) fn next_left(&self) -> Option<OwnedFd> {
        seqpacket::accept(self.place.listener().as_fd()).ok().flatten()
    }
}
