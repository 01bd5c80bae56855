//! Keeps what waits in an event channel, behind its descriptor.
//!
//! The descriptor is an eventfd whose count is the number of events, so that programs can poll it
//! and set `O_NONBLOCK` as on the kernel's device file. A thread that wants an event reads one off
//! the count, and comes for the event then. All else changes with the
//! [`registry`](crate::id_registry) locked, and waits for nothing.
//!
//! A child of fork() has the descriptor, too, and a copy of the events: the count is its parent's,
//! and it leaves it alone.

use core::time::Duration;
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Mutex;

use omniverb_session::cm::CmHappened;
use omniverb_sys::eventfd::{self, EventFd};
use omniverb_sys::lock;
use omniverb_terms::Errno;
use rustix::fs::OFlags;
use rustix::io::{self, ReadWriteFlags, preadv2};

use crate::errno::last;
use crate::process_id_across_fork;

/// An event that no program has taken yet.
pub(crate) struct PendingEvent {
    /// Whose: the number of an identifier in the registry, of a request the listener's.
    pub(crate) token: u64,
    pub(crate) what: EventSource,
}

/// What an event is made of when the program takes it.
pub(crate) enum EventSource {
    /// The daemon told it.
    Happened(Box<CmHappened>),
    /// The daemon told of a request; with the number of the identifier that it is to get.
    Request(Box<CmHappened>, u64),
    /// Known here without being told.
    Own { event: u32, status: i32 },
    /// The program told it itself.
    User { status: i32, argument: u64 },
    /// The group of this number was joined, or was not.
    Group { number: u64, status: i32 },
}

/// The events of a channel.
pub(crate) struct Queue {
    /// How many there are, but for those that a thread is about to come for.
    semaphore: EventFd,
    events: Mutex<Events>,
    /// Whose the count is.
    process: i32,
}

#[derive(Default)]
struct Events {
    waiting: VecDeque<PendingEvent>,
    /// Events taken out whose count a thread had read already, which is yet to come and finds none.
    missed: usize,
}

impl Queue {
    /// Nothing in it.
    pub(crate) fn new() -> Result<Queue, Errno> {
        let semaphore = EventFd::semaphore().map_err(|_| Errno::EMFILE)?;
        // Blocking, like a device file, until the program says otherwise.
        let blocks = rustix::fs::fcntl_getfl(&semaphore)
            .and_then(|flags| rustix::fs::fcntl_setfl(&semaphore, flags - OFlags::NONBLOCK));
        blocks.map_err(|_| Errno::EMFILE)?;
        Ok(Queue { semaphore, events: Mutex::default(), process: process_id_across_fork::this() })
    }

    /// The descriptor that the program polls: readable while there are events.
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.semaphore.as_fd().as_raw_fd()
    }

    fn is_ours(&self) -> bool {
        self.process == process_id_across_fork::this()
    }

    /// Adds one at the end.
    pub(crate) fn push(&self, pending: PendingEvent) {
        lock(&self.events).waiting.push_back(pending);
        if self.is_ours() {
            self.semaphore.signal();
        }
    }

    /// The oldest, for a thread that has [waited](Self::wait) for it.
    pub(crate) fn pop(&self) -> Option<PendingEvent> {
        let mut events = lock(&self.events);
        if events.missed > 0 {
            events.missed -= 1;
            return None;
        }
        events.waiting.pop_front()
    }

    /// Whether there is none, at this moment.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.events).waiting.is_empty()
    }

    /// Takes out all of one identifier.
    pub(crate) fn extract(&self, token: u64) -> Vec<PendingEvent> {
        let mut events = lock(&self.events);
        let (out, rest): (VecDeque<_>, _) =
            events.waiting.drain(..).partition(|pending| pending.token == token);
        events.waiting = rest;
        if self.is_ours() {
            events.missed += out.iter().filter(|_| !self.count_down()).count();
        }
        out.into()
    }

    /// One less, if the count says that there is one. The descriptor may be one that blocks, and
    /// others read it: this does not wait, whatever they do.
    fn count_down(&self) -> bool {
        let mut count = [0; 8];
        let mut place = [IoSliceMut::new(&mut count)];
        loop {
            // At no place: it is no file with places.
            match preadv2(&self.semaphore, &mut place, u64::MAX, ReadWriteFlags::NOWAIT) {
                Ok(_) => return true,
                Err(io::Errno::INTR) => {}
                // Linux before 5.8. There, of two takers at a time one may wait.
                Err(io::Errno::OPNOTSUPP) => {
                    let file = self.semaphore.as_fd();
                    return eventfd::readable(file, Some(Duration::ZERO)).unwrap_or(false)
                        && self.semaphore.take().is_some();
                }
                Err(_) => return false,
            }
        }
    }

    /// Waits until there is something, if the program did not say that it will not wait. The caller
    /// then has one event coming, and [takes](Self::pop) it.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`: as a read says, which goes on after a signal whose handler was installed
    /// with `SA_RESTART`. `EIO` in a forked child, which has no events but its copies.
    pub(crate) fn wait(&self) -> Result<(), Errno> {
        if !self.is_ours() {
            let is_empty = lock(&self.events).waiting.is_empty();
            return if is_empty { Err(Errno::EIO) } else { Ok(()) };
        }
        let mut count = 0_u64;
        // The C library's, where a thread that is cancelled ends.
        // SAFETY: a place for so many bytes.
        match unsafe { libc::read(self.raw_fd(), (&raw mut count).cast(), size_of::<u64>()) } {
            0.. => Ok(()),
            _ => Err(last()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::thread::JoinHandleExt;
    use std::sync::{Arc, mpsc};

    fn pending(token: u64) -> PendingEvent {
        PendingEvent { token, what: EventSource::User { status: 0, argument: 0 } }
    }

    fn is_readable(queue: &Queue) -> bool {
        eventfd::readable(queue.semaphore.as_fd(), Some(Duration::ZERO)).unwrap()
    }

    #[test]
    fn an_event_taken_from_under_a_reader_leaves_the_count_right() {
        let queue = Queue::new().unwrap();
        queue.push(pending(1));
        queue.wait().unwrap();
        assert_eq!(queue.extract(1).len(), 1);
        queue.push(pending(2));
        assert!(queue.pop().is_none(), "it is another reader's");
        queue.wait().unwrap();
        assert_eq!(queue.pop().map(|pending| pending.token), Some(2));
        assert!(!is_readable(&queue));
    }

    #[test]
    fn a_forked_child_leaves_the_count_alone() {
        let queue = Queue::new().unwrap();
        queue.push(pending(1));
        // SAFETY: the child uses what this test made, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_right = queue.wait().is_ok()
                && queue.extract(1).len() == 1
                && queue.wait() == Err(Errno::EIO);
            queue.push(pending(2));
            // SAFETY: no preconditions.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mut status = -1;
        // SAFETY: our child; a place for a number.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        queue.wait().unwrap();
        assert!(queue.pop().is_some() && !is_readable(&queue));
    }

    #[test]
    fn waiting_goes_on_after_a_signal_if_its_handler_says_so() {
        extern "C" fn nothing(_: libc::c_int) {}
        let _alone = crate::testing::c_call_helpers::alone();
        let queue = Arc::new(Queue::new().unwrap());
        // Other tests ask for all handlers: what is left has the flag.
        for (flags, goes_on) in [(0, false), (libc::SA_RESTART, true)] {
            // SAFETY: numbers and a handler: zero is valid for the rest. The signal is used only
            // here.
            unsafe {
                let mut action: libc::sigaction = core::mem::zeroed();
                action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
                action.sa_flags = flags;
                let signal = libc::SIGUSR1;
                assert_eq!(libc::sigaction(signal, &action, core::ptr::null_mut()), 0);
            }
            let (over, is_over) = mpsc::channel();
            let waits = queue.clone();
            let thread = std::thread::spawn(move || over.send(waits.wait()).unwrap());
            let mut signals = 0;
            let said = loop {
                signals += 1;
                // SAFETY: not joined yet.
                unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
                // Long enough to be asleep in the call at the next signal.
                match is_over.recv_timeout(Duration::from_millis(50)) {
                    Ok(said) => break said,
                    Err(_) if goes_on && signals == 3 => {
                        queue.push(pending(1));
                        break is_over.recv_timeout(Duration::from_secs(60)).unwrap();
                    }
                    Err(_) => {}
                }
            };
            assert_eq!(said, if goes_on { Ok(()) } else { Err(Errno(libc::EINTR.unsigned_abs())) });
            thread.join().unwrap();
        }
    }
}
