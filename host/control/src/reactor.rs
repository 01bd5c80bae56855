//! Waits for descriptors and deadlines on behalf of the daemon's thread.
//!
//! Tables, probes and helpers have deadlines of their own, which the loop asks them for.

use crate::poller_tokens::{Entrance, Wakeup};
use omniverb_sys::epoll::Interest;
use omniverb_sys::thread_watchdog::ThreadPulse;
use omniverb_sys::{Poller, clock};
use omniverb_tenancy::{SessionId, VnicId};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// Something of the server's own that happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A client should have said hello by now.
    Hello(SessionId),
    /// What waits to be sent to a client is tried again.
    Flush(SessionId),
    /// Connections are accepted again.
    Accept(Entrance),
    /// A port that was in use is tried again.
    Port(VnicId),
    /// The PSP port of a vNIC that was in use, or could not be had, is tried again.
    PspPort(VnicId),
    /// The PSP port of the daemon's own namespace that was in use, or could not be had, is tried
    /// again.
    UnderlayPspPort,
    /// Takes the addresses that a machine has sent.
    Addresses(SessionId),
    /// Checks again whether a machine has unused windows.
    Unused(SessionId),
    /// It is said how many lines of the audit were left out.
    Audit,
    /// The helper is told again which addresses of policies are needed.
    PolicyAddresses,
    /// Sockets at underlay addresses that could not be had are asked for again, and their namespace
    /// is looked at.
    UnderlaySockets,
    /// A broker that has died is started again.
    Broker,
}

/// Descriptors, times, and the pulse that shows others that this thread goes on.
#[derive(Debug)]
pub(crate) struct Reactor {
    poller: Poller,
    timers: BTreeSet<(u64, Timer)>,
    pulse: ThreadPulse,
    /// Tokens of the last wait.
    tokens: Vec<u64>,
}

impl Reactor {
    pub(crate) fn new(pulse: ThreadPulse) -> io::Result<Reactor> {
        let (poller, timers) = (Poller::new()?, BTreeSet::new());
        Ok(Reactor { poller, timers, pulse, tokens: Vec::new() })
    }

    /// Looks at a descriptor for input from now on; it is reported as `ready`.
    pub(crate) fn watch(&self, file: impl AsFd, ready: Wakeup) -> io::Result<()> {
        self.poller.add(file, ready.token())
    }

    /// Looks at a descriptor, which is watched, for something else.
    pub(crate) fn change(&self, file: impl AsFd, ready: Wakeup, interest: Interest) {
        let _ = self.poller.watch(file, ready.token(), interest);
    }

    /// No longer looks at a descriptor.
    pub(crate) fn forget(&self, file: impl AsFd) {
        let _ = self.poller.remove(file);
    }

    /// Has `timer` be due after a while.
    pub(crate) fn set(&mut self, after: Duration, timer: Timer) {
        let at = clock::now() + u64::try_from(after.as_nanos()).unwrap_or(u64::MAX / 2);
        self.timers.insert((at, timer));
    }

    /// The next timer that is due now.
    pub(crate) fn due(&mut self, now: u64) -> Option<Timer> {
        let (at, timer) = self.timers.first().copied().filter(|(at, _)| *at <= now)?;
        self.timers.remove(&(at, timer));
        Some(timer)
    }

    /// Sleeps until an event is ready, a timer is due, or `deadline` has come; then fills `ready`
    /// with the ready events.
    pub(crate) fn wait(
        &mut self,
        deadline: Option<u64>,
        ready: &mut Vec<Wakeup>,
    ) -> io::Result<()> {
        let own = self.timers.first().map(|(at, _)| *at);
        // Rounded up: epoll counts in milliseconds, and a wait that ends early would only spin.
        let timeout = own.into_iter().chain(deadline).min().map(|at| {
            Duration::from_nanos(at.saturating_sub(clock::now())) + Duration::from_micros(999)
        });
        self.pulse.rest();
        self.poller.wait(timeout, &mut self.tokens)?;
        self.pulse.work();
        ready.clear();
        ready.extend(self.tokens.iter().filter_map(|token| Wakeup::of(*token)));
        Ok(())
    }
}
