//! Lets the network thread sleep until packets come, a queue pair wakes it, or a time is over.

use omniverb_sys::{EventFd, Poller};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The number of a socket, and of the descriptor that ends a sleep.
const SOCKET: u64 = 1;
const WAKE: u64 = 0;
/// How long it sleeps where the kernel does not let it wait for descriptors.
const PAUSE: Duration = Duration::from_millis(1);

/// Ends the thread's sleep.
pub(super) struct Waker {
    event: EventFd,
    /// It sleeps without a limit.
    is_asleep: AtomicBool,
}

impl Waker {
    /// Ends its sleep, or the next one.
    pub(super) fn wake(&self) {
        self.is_asleep.store(false, Ordering::SeqCst);
        self.event.signal();
    }

    /// Ends its sleep, if that has no limit.
    #[inline]
    pub(super) fn wake_from_long_sleep(&self) {
        if self.is_asleep.load(Ordering::Relaxed) && self.is_asleep.swap(false, Ordering::SeqCst) {
            self.event.signal();
        }
    }
}

/// What the thread sleeps on.
pub(super) struct Sleep {
    poller: Poller,
    pub(super) waker: Arc<Waker>,
}

impl Sleep {
    pub(super) fn new() -> io::Result<Sleep> {
        let (poller, event) = (Poller::new()?, EventFd::new()?);
        poller.add(&event, WAKE)?;
        let waker = Waker { event, is_asleep: AtomicBool::new(false) };
        Ok(Sleep { poller, waker: waker.into() })
    }

    /// Packets at this socket end it, too, until the socket is closed.
    pub(super) fn add(&self, socket: impl AsFd) -> io::Result<()> {
        self.poller.add(socket, SOCKET)
    }

    /// Sleeps. True: something ended that before the time.
    pub(super) fn wait(&self, limit: Option<Duration>, ready: &mut Vec<u64>) -> bool {
        self.waker.is_asleep.store(limit.is_none(), Ordering::SeqCst);
        // What cannot be waited for is looked at in a moment.
        if self.poller.wait(limit, ready).is_err() {
            std::thread::sleep(PAUSE);
        }
        self.waker.is_asleep.store(false, Ordering::SeqCst);
        if ready.contains(&WAKE) {
            self.waker.event.take();
        }
        !ready.is_empty()
    }
}
