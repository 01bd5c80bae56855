//! Runs a packet thread's loop: waits for the next event and dispatches it.

use super::pending_work::WorkLeft;
use super::shared_counters::{Counters, Showing};
use super::state::State;
use super::state::receive_datagrams::Receiving;
use super::thread_sleep::{Awake, Watcher};
use crate::command::Command;
use crate::event_outbox::Outbox;
use crate::kept_memory_limits::Store;
use crate::network::pending_probes::Questions;
use crate::pages::mapped_memory_budget::Mappings;
use omniverb_sys::thread_watchdog::ThreadPulse;
use omniverb_sys::{EventFd, clock};
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// A doorbell may have been rung without our noticing for this long (see
/// `support/ring/src/doorbell.rs`).
const LOOK_AGAIN: Duration = Duration::from_nanos(LOOK_AGAIN_TIME);
const LOOK_AGAIN_TIME: u64 = 1_000_000;

/// Where commands come from.
pub(crate) struct Inbox {
    pub(crate) commands: mpsc::Receiver<Command>,
    /// Signalled when there are some.
    pub(crate) wake: Arc<EventFd>,
}

/// A packet thread: what wakes it, and what it works on.
pub(crate) struct Worker {
    inbox: Inbox,
    watcher: Watcher,
    state: State,
    receiving: Receiving,
    /// How long to look for more work before a sleep, in nanoseconds.
    spin: u64,
    /// Work left in the sockets, at the last look.
    left: WorkLeft,
    /// The control plane is gone.
    over: bool,
}

impl Worker {
    pub(crate) fn new(
        inbox: Inbox,
        outbox: Outbox,
        counters: Counters,
        spin: Duration,
        (store, mappings, questions): (Store, Mappings, (Questions, u32)),
    ) -> io::Result<Worker> {
        let state = State::new(outbox, Showing::new(counters), store, mappings, questions)?;
        Ok(Worker {
            watcher: Watcher::new(&inbox.wake, state.rung())?,
            inbox,
            state,
            receiving: Receiving::new(),
            spin: u64::try_from(spin.as_nanos()).unwrap_or_default(),
            left: WorkLeft::Nothing,
            over: false,
        })
    }

    /// Works until the control plane is gone.
    pub(crate) fn run(&mut self, pulse: &ThreadPulse) {
        let mut busy_at = clock::now();
        // Quiet looks since the last news.
        let mut quiet = 0_u32;
        while !self.over {
            let now = self.state.now();
            let timeout = if self.state.turn(now) == WorkLeft::Something {
                busy_at = now.clock;
                quiet = 0;
                Some(Duration::ZERO)
            } else if std::mem::replace(&mut self.left, WorkLeft::Nothing) == WorkLeft::Something {
                // If only noise: giving the processor away between two batches of a flood would let
                // it fill the sockets' buffers, where it pushes out what is not noise.
                Some(Duration::ZERO)
            } else if now.clock.saturating_sub(busy_at) < self.spin && self.state.give_way() {
                // (Sleeping at once instead, with a higher priority or shorter turns, made
                // everything slower on two processors.)
                Some(Duration::ZERO)
            } else {
                self.prepare_to_sleep(&mut quiet)
            };
            pulse.rest();
            let Ok(()) = self.watcher.wait(timeout) else { return };
            pulse.work();
            let (mut awake, mut datagrams) = (false, WorkLeft::Nothing);
            while let Some(what) = self.watcher.next() {
                awake = true;
                if matches!(what, Awake::Socket(..)) {
                    datagrams = WorkLeft::Something;
                }
                self.came(what);
            }
            self.state.has_read(datagrams);
            if awake {
                busy_at = clock::now();
                quiet = 0;
            }
        }
    }

    /// How long to sleep. The first sleep is short: news may have been missed.
    fn prepare_to_sleep(&mut self, quiet: &mut u32) -> Option<Duration> {
        self.state.prepare_to_sleep(*quiet);
        if self.state.has_news() {
            return Some(Duration::ZERO);
        }
        let deadline = self.state.next_deadline();
        if let Some(at) = deadline {
            self.watcher.set_alarm(at);
        }
        *quiet = quiet.saturating_add(1);
        let short = (*quiet < 3 && self.state.has_bells()).then_some(LOOK_AGAIN);
        let over = short.map(|_| clock::now().saturating_add(LOOK_AGAIN_TIME));
        self.state.sleeps(deadline.into_iter().chain(over).min());
        short
    }

    /// Something has come.
    fn came(&mut self, what: Awake) {
        match what {
            Awake::Commands => self.hear_commands(),
            Awake::Socket(vnic, socket) => {
                let left = self.receiving.receive(&mut self.state, vnic, socket);
                self.left = self.left.or(left);
                if self.receiving.take_over() {
                    self.state.forget_sockets(vnic, &self.watcher);
                }
            }
            // Which it was is found out by looking at their maps.
            Awake::Bells => drop(self.state.rung().take()),
            // Which is due is found out by looking at the clock.
            Awake::Alarm => {}
        }
    }

    fn hear_commands(&mut self) {
        self.inbox.wake.take();
        loop {
            match self.inbox.commands.try_recv() {
                Ok(command) => self.state.apply(command, &self.watcher),
                Err(mpsc::TryRecvError::Empty) => return,
                Err(mpsc::TryRecvError::Disconnected) => {
                    self.over = true;
                    return;
                }
            }
        }
    }
}
