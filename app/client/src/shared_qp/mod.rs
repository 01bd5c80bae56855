//! Shares queue pairs that receive in an XRC domain among the processes that have them open.
//!
//! The process that has made one keeps it, and all of its state, until no process has it open any
//! more: it is the *maker*, others are *openers*. Each opener has a pair of sockets with the maker
//! for each time that it has it open; which two ends these are is settled before
//! (`client/open_shared_qp.rs`). `connections_from_openers.rs`: what the maker has of an opener;
//! `connection_to_maker.rs`: what an opener has of the maker. The end of a socket, or of the
//! process behind it, is the end of either.

mod connection_to_maker;
mod connections_from_openers;

pub(crate) use self::connection_to_maker::MakerConnection;
pub(crate) use self::connections_from_openers::OpenerService;
pub use self::connections_from_openers::SharedQueuePairs;
pub(crate) use self::connections_from_openers::{Opener, Openers};

use crate::device_import::PeerSocket;
use crate::signal_free_thread::spawn_quietly;
use omniverb_sys::unsolicited_fds::{self, PlainMessage};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Another process. A child that it has forked may have its sockets, too, so their end is not
/// enough to know of its own.
pub(crate) struct WatchedProcess<T> {
    process: OwnedFd,
    of: Arc<T>,
}

/// Has to know of its end.
pub(crate) trait OnProcessEnd: Send + Sync {
    /// The other process has ended.
    fn process_ended(&self);
}

impl<T: OnProcessEnd> WatchedProcess<T> {
    /// The one at the other end of a socket, if the kernel says which it is.
    pub(crate) fn of(socket: BorrowedFd<'_>, of: &Arc<T>) -> Option<Arc<WatchedProcess<T>>> {
        let process = omniverb_sys::pidfd::of_peer(socket).ok()?;
        Some(Arc::new(WatchedProcess { process, of: of.clone() }))
    }
}

impl<T: OnProcessEnd> PeerSocket for WatchedProcess<T> {
    fn socket(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    fn hear(&self) -> bool {
        self.of.process_ended();
        false
    }
}

/// Takes one message of so many bytes at most. `Some(0)`: there is none now. `None`: the other end
/// is gone, or says what no correct one says.
fn take(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Option<usize> {
    match unsolicited_fds::receive(socket, buffer) {
        Ok(PlainMessage::Message(length)) => Some(length).filter(|length| *length > 0),
        // Left there for the thread that closes the socket (`hang_up`): this thread hears all the
        // others.
        Ok(PlainMessage::Descriptors) => None,
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Some(0),
        Err(_) => None,
    }
}

/// Ends a connection, also for other holders of its sockets, and lets go of it where no thread
/// waits for what may be behind a descriptor that the other end has sent. It is not taken up any
/// more.
fn hang_up(of: Arc<impl PeerSocket + 'static>) {
    if unsolicited_fds::is_spent(of.socket()) {
        return;
    }
    let kept = of.clone();
    let last = move || {
        // A thread that was hearing it, or has just noticed its end, is not to be the last owner.
        while Arc::strong_count(&of) > 1 {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(of);
    };
    if spawn_quietly("omniverb-spent", last).is_err() {
        // Better never than here.
        std::mem::forget(kept);
    }
}
