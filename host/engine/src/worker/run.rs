//! The loop of a packet thread: waits for whatever comes first (links with news, datagrams, timers,
//! commands) and hands it on.

use super::counted::Counters;
use super::links::Reason;
use super::outbox::Outbox;
use super::receive::{Left, Receiving};
use super::state::State;
use super::timers::Due;
use super::watcher::{Awake, Watcher};
use crate::command::Command;
use crate::pages::budget::Mappings;
use omniverb_sys::pulse::Pulse;
use omniverb_sys::{EventFd, clock};
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Links served between two looks at sockets and timers.
const LINKS_PER_TURN: usize = 32;
/// How often counters are shown, in nanoseconds.
const SHOW_EVERY: u64 = 100_000_000;
/// A bell may have been rung without our noticing for this long (see `support/ring/src/bell.rs`).
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Where commands come from.
pub(crate) struct Inbox {
    pub(crate) commands: mpsc::Receiver<Command>,
    /// Signalled when there are some.
    pub(crate) wake: Arc<EventFd>,
}

/// One thread.
pub(crate) struct Worker {
    inbox: Inbox,
    watcher: Watcher,
    state: State,
    receiving: Receiving,
    /// How long to look for more work before a sleep, in nanoseconds.
    spin: u64,
    /// When counters were shown last.
    shown: u64,
    /// Sockets have more than was taken.
    more_arrived: bool,
    /// The control plane is gone.
    over: bool,
}

impl Worker {
    pub(crate) fn new(
        inbox: Inbox,
        outbox: Outbox,
        counters: Counters,
        spin: Duration,
        mappings: Mappings,
    ) -> io::Result<Worker> {
        let state = State::new(outbox, counters, mappings)?;
        Ok(Worker {
            watcher: Watcher::new(&inbox.wake, state.bells.rung())?,
            inbox,
            state,
            receiving: Receiving::new(),
            spin: u64::try_from(spin.as_nanos()).unwrap_or_default(),
            shown: 0,
            more_arrived: false,
            over: false,
        })
    }

    /// Works until the control plane is gone.
    pub(crate) fn run(&mut self, pulse: &Pulse) {
        let mut busy_at = clock::now();
        // Quiet looks since the last news.
        let mut quiet = 0_u32;
        while !self.over {
            let now = clock::now();
            let mut busy = self.hear_bells();
            busy |= self.timers_due(now);
            busy |= self.serve_dirty();
            self.ring();
            busy |= self.let_answer();
            let timeout = if busy || self.state.links.waiting() > 0 {
                busy_at = now;
                quiet = 0;
                Some(Duration::ZERO)
            } else if std::mem::take(&mut self.more_arrived) {
                // If only noise: giving the processor away between two batches of a flood would let
                // it fill the sockets' buffers, where it pushes out what is not noise.
                Some(Duration::ZERO)
            } else if now.saturating_sub(busy_at) < self.spin {
                // Whoever we wait for may need this processor. (Sleeping at once instead, with a
                // higher priority or shorter turns, made everything slower on two processors.)
                std::thread::yield_now();
                Some(Duration::ZERO)
            } else {
                self.prepare_to_sleep(&mut quiet)
            };
            pulse.rest();
            let Ok(()) = self.watcher.wait(timeout) else { return };
            pulse.work();
            let mut awake = false;
            while let Some(what) = self.watcher.next() {
                awake = true;
                self.awake(what);
            }
            if awake {
                busy_at = clock::now();
                quiet = 0;
            }
        }
    }

    /// How long to sleep. The first sleep is short: news may have been missed.
    fn prepare_to_sleep(&mut self, quiet: &mut u32) -> Option<Duration> {
        self.state.bells.want_kicks();
        if *quiet >= 2 || clock::now().saturating_sub(self.shown) > SHOW_EVERY {
            self.show_counters();
        }
        let State { bells, timers, .. } = &self.state;
        if bells.have_news() {
            return Some(Duration::ZERO);
        }
        if let Some(at) = timers.first() {
            self.watcher.set_alarm(at);
        }
        *quiet = quiet.saturating_add(1);
        (*quiet < 3 && !bells.is_empty()).then_some(LOOK_AGAIN)
    }

    fn awake(&mut self, what: Awake) {
        match what {
            Awake::Commands => self.hear_commands(),
            Awake::Socket(vnic, socket) => {
                let left = self.receiving.receive(&mut self.state, vnic, socket);
                self.more_arrived |= left == Left::Something;
            }
            // Which it was is found out by looking at their maps.
            Awake::Bells => drop(self.state.bells.rung().take()),
            // Which is due is found out by looking at the clock.
            Awake::Alarm => {}
        }
    }

    fn hear_commands(&mut self) {
        self.inbox.wake.take();
        loop {
            match self.inbox.commands.try_recv() {
                Ok(command) => self.obey(command),
                Err(mpsc::TryRecvError::Empty) => return,
                Err(mpsc::TryRecvError::Disconnected) => {
                    self.over = true;
                    return;
                }
            }
        }
    }

    fn obey(&mut self, command: Command) {
        let Worker { state, watcher, .. } = self;
        match command {
            Command::OpenVnic { vnic, port } => state.open_vnic(vnic, port, watcher),
            Command::CloseVnic { vnic } => state.close_vnic(vnic, watcher),
            Command::SetLimit { vnic, limit } => {
                if let Some(vnic) = state.vnics.get_mut(&vnic) {
                    vnic.set_limit(limit, clock::now());
                    state.links.unpark(std::mem::take(&mut vnic.parked));
                }
            }
            Command::SetFaults { vnic, faults } => state.set_faults(vnic, faults),
            Command::Attach(attach) => state.attach(&attach),
            Command::Detach { qpn, peer_qpn } => state.detach(qpn, peer_qpn),
            Command::Grant(grant) => {
                state.granted(&grant);
                // The owner may have closed it, or it was not mapped: then nobody else has it.
                state.mappings.bury(grant.memory.file);
            }
            Command::Deny { qpn, peer_qpn, key, again, .. } => {
                state.denied((qpn, peer_qpn), key, again);
            }
            Command::Capture { vnic, intake } => {
                if let Some(vnic) = state.vnics.get_mut(&vnic) {
                    vnic.tap.set(intake);
                }
            }
        }
    }

    fn hear_bells(&mut self) -> bool {
        let State { bells, links, .. } = &mut self.state;
        let before = links.waiting();
        bells.take_news(|index| links.touch(index, Reason::News));
        links.waiting() > before
    }

    fn timers_due(&mut self, now: u64) -> bool {
        let state = &mut self.state;
        let mut any = false;
        while let Some(due) = state.timers.next(now) {
            any = true;
            match due {
                Due::Link(index) => {
                    if let Some(link) = state.links.get_mut(index) {
                        link.armed = None;
                        link.timeout(now);
                    }
                    state.links.touch(index, Reason::Look);
                }
                Due::Vnic(vnic) => {
                    let Some(vnic) = state.vnics.get_mut(&vnic) else { continue };
                    vnic.armed = None;
                    state.links.unpark(std::mem::take(&mut vnic.parked));
                }
                Due::Faults(vnic) => {
                    if let Some(line) = state.bad_line(vnic) {
                        line.armed = None;
                    }
                    state.delayed(vnic);
                }
            }
        }
        any
    }

    /// Lets applications answer what they were given before it is acknowledged.
    fn let_answer(&mut self) -> bool {
        let state = &mut self.state;
        if state.acknowledge_later.is_empty() {
            return false;
        }
        std::thread::yield_now();
        for index in std::mem::take(&mut state.acknowledge_later) {
            state.links.touch(index, Reason::Look);
        }
        true
    }

    /// Wakes applications that were given something in this turn.
    fn ring(&mut self) {
        let State { bells, naps, links, .. } = &mut self.state;
        bells.ring();
        for index in naps.drain(..) {
            if let Some(link) = links.get_mut(index) {
                link.wake_napping();
            }
        }
    }

    fn serve_dirty(&mut self) -> bool {
        let mut any = false;
        for _ in 0..LINKS_PER_TURN.min(self.state.links.waiting()) {
            let Some(index) = self.state.links.next() else { break };
            any = true;
            self.state.serve(index);
            self.state.deliver_passages();
        }
        if any && clock::now().saturating_sub(self.shown) > SHOW_EVERY {
            self.show_counters();
        }
        any
    }

    fn show_counters(&mut self) {
        self.shown = clock::now();
        let State { counters, links, vnics, .. } = &self.state;
        let links = links.iter().map(|link| ((link.qpn, link.peer_qpn), link.counters()));
        let lines = vnics.iter().filter_map(|(id, vnic)| Some((id, vnic.bad_line.as_ref()?)));
        counters.show(links, lines.map(|(id, line)| (*id, line.done())));
    }
}
