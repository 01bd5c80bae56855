//! A packet thread: waits for whatever comes first (links with news, datagrams, timers, commands)
//! and hands it on.

mod arrive;
mod attach;
mod bell;
mod faults;
mod grants;
mod link;
mod send;
mod timers;
mod vnic;

use self::bell::Bell;
use self::timers::{Due, Timers};
use self::vnic::Vnic;
use crate::command::{Command, Event};
use crate::engine::Counters;
use crate::lock::lock;
use crate::network::passages::Passages;
use crate::network::port::Buffers;
use crate::network::train::Train;
use crate::pacing::agenda::Agenda;
use crate::pages::budget::Mappings;
use link::Link;
use omniverb_sys::pulse::Pulse;
use omniverb_sys::{EventFd, Listener, Poller, Timer, clock};
use omniverb_terms::Qpn;
use omniverb_wire::Prepared;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Links served between two looks at sockets and timers.
const LINKS_PER_TURN: usize = 32;
/// How often counters are shown, in nanoseconds.
const SHOW_EVERY: u64 = 100_000_000;
/// A bell may have been rung without our noticing for this long (see `support/ring/src/bell.rs`).
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Tokens of the poller: a kind in the top byte, a number below.
mod token {
    pub(super) const COMMANDS: u64 = 1 << 56;
    pub(super) const TIMER: u64 = 2 << 56;
    pub(super) const BELLS: u64 = 3 << 56;
    pub(super) const VNIC: u64 = 4 << 56;
    pub(super) const NUMBER: u64 = (1 << 56) - 1;
}

/// The way to the control plane.
pub(crate) struct Outbox {
    events: mpsc::SyncSender<Event>,
    ready: Arc<EventFd>,
}

impl Outbox {
    pub(crate) fn new(events: mpsc::SyncSender<Event>, ready: Arc<EventFd>) -> Outbox {
        Outbox { events, ready }
    }

    /// False: there is too much to be told.
    fn tell(&self, event: Event) -> bool {
        let told = self.events.try_send(event).is_ok();
        if told {
            self.ready.signal();
        }
        told
    }
}

/// Starts a thread that hears bells.
fn spawn(name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

/// One thread's state.
pub(crate) struct Worker {
    commands: mpsc::Receiver<Command>,
    wake: Arc<EventFd>,
    outbox: Outbox,
    counters: Counters,
    shown: u64,
    poller: Poller,
    alarm: Timer,
    spin: u64,
    bells: BTreeMap<u64, Bell>,
    /// Hears them while we sleep.
    listener: Listener,
    /// What it tells by.
    rung: Arc<EventFd>,
    vnics: BTreeMap<u64, Vnic>,
    /// A link that is being served is not here.
    links: Vec<Option<Box<Link>>>,
    free: Vec<usize>,
    /// RC and UC, by QP number.
    by_number: HashMap<Qpn, usize>,
    /// What was last found in it.
    latest: Option<(Qpn, usize)>,
    /// UD, by QP number, peer's address and peer's QP number.
    by_source: BTreeMap<(Qpn, IpAddr, Qpn), usize>,
    /// Links to be served.
    dirty: Agenda,
    /// Links whose acknowledgement waits for their application's next turn.
    held: Vec<usize>,
    /// Links whose application naps and is to be woken.
    naps: Vec<usize>,
    timers: Timers,
    passages: Passages,
    train: Option<Train>,
    buffers: Option<Buffers>,
    message: Vec<u8>,
    /// For packets as those that arrived last.
    prepared: Option<Prepared>,
    /// What all packet threads have mapped.
    mappings: Mappings,
    /// Sockets have more than was taken.
    more_arrived: bool,
    /// The control plane is gone.
    over: bool,
}

impl Worker {
    pub(crate) fn new(
        commands: mpsc::Receiver<Command>,
        wake: Arc<EventFd>,
        outbox: Outbox,
        counters: Counters,
        spin: Duration,
        mappings: Mappings,
    ) -> io::Result<Worker> {
        let (poller, alarm) = (Poller::new()?, Timer::new()?);
        poller.add(&*wake, token::COMMANDS)?;
        poller.add(&alarm, token::TIMER)?;
        let rung = Arc::new(EventFd::new()?);
        poller.add(&*rung, token::BELLS)?;
        let told = rung.clone();
        let listener = Listener::new(spawn, move || told.signal());
        Ok(Worker {
            commands,
            wake,
            outbox,
            counters,
            shown: 0,
            poller,
            alarm,
            spin: u64::try_from(spin.as_nanos()).unwrap_or_default(),
            bells: BTreeMap::new(),
            listener,
            rung,
            vnics: BTreeMap::new(),
            links: Vec::new(),
            free: Vec::new(),
            by_number: HashMap::new(),
            latest: None,
            by_source: BTreeMap::new(),
            dirty: Agenda::default(),
            held: Vec::new(),
            naps: Vec::new(),
            timers: Timers::default(),
            passages: Passages::default(),
            train: Some(Train::new()),
            buffers: Some(Buffers::new()),
            message: Vec::new(),
            prepared: None,
            mappings,
            more_arrived: false,
            over: false,
        })
    }

    /// Works until the control plane is gone.
    pub(crate) fn run(&mut self, pulse: &Pulse) {
        let mut ready = Vec::new();
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
            let timeout = if busy || self.dirty.len() > 0 {
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
            let Ok(()) = self.poller.wait(timeout, &mut ready) else { return };
            pulse.work();
            for token in &ready {
                self.awake(*token);
            }
            if !ready.is_empty() {
                busy_at = clock::now();
                quiet = 0;
            }
        }
    }

    /// How long to sleep. The first sleep is short: news may have been missed.
    fn prepare_to_sleep(&mut self, quiet: &mut u32) -> Option<Duration> {
        for bell in self.bells.values() {
            bell.page.want_kick();
        }
        if *quiet >= 2 || clock::now().saturating_sub(self.shown) > SHOW_EVERY {
            self.show_counters();
        }
        if self.bells.values().any(|bell| bell.page.has_ready()) {
            return Some(Duration::ZERO);
        }
        if let Some(at) = self.timers.first() {
            let _ = self.alarm.set(at);
        }
        *quiet = quiet.saturating_add(1);
        (*quiet < 3 && !self.bells.is_empty()).then_some(LOOK_AGAIN)
    }

    fn awake(&mut self, ready: u64) {
        let number = ready & token::NUMBER;
        match ready & !token::NUMBER {
            token::COMMANDS => self.hear_commands(),
            token::VNIC => {
                self.more_arrived |= self.receive(number >> 1, (number & 1) as usize);
            }
            // Which it was is found out by looking at their maps.
            token::BELLS => drop(self.rung.take()),
            // Which is due is found out by looking at the clock.
            _ => {
                let _ = self.alarm.set(u64::MAX / 2);
            }
        }
    }

    fn hear_commands(&mut self) {
        self.wake.take();
        loop {
            match self.commands.try_recv() {
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
        let now = clock::now();
        match command {
            Command::OpenVnic { vnic, port } => self.open_vnic(vnic, port),
            Command::CloseVnic { vnic } => self.close_vnic(vnic.0),
            Command::SetLimit { vnic, limit } => {
                if let Some(vnic) = self.vnics.get_mut(&vnic.0) {
                    vnic.set_limit(limit, now);
                    let parked = std::mem::take(&mut vnic.parked);
                    self.unpark(parked);
                }
            }
            Command::SetFaults { vnic, faults } => self.set_faults(vnic.0, faults),
            Command::Attach(attach) => self.attach(&attach),
            Command::Detach { qpn, peer_qpn } => self.detach(qpn, peer_qpn),
            Command::Grant(grant) => {
                self.granted(&grant);
                // The owner may have closed it, or it was not mapped: then nobody else has it.
                self.mappings.bury(grant.memory.file);
            }
            Command::Deny { qpn, peer_qpn, key, again, .. } => {
                self.denied((qpn, peer_qpn), key, again);
            }
            Command::Capture { vnic, intake } => {
                if let Some(vnic) = self.vnics.get_mut(&vnic.0) {
                    vnic.tap.set(intake);
                }
            }
        }
    }

    fn hear_bells(&mut self) -> bool {
        let before = self.dirty.len();
        let (links, dirty) = (&mut self.links, &mut self.dirty);
        for bell in self.bells.values().filter(|bell| bell.page.has_ready()) {
            bell.ready(|index| touch(links, dirty, index, false));
        }
        self.dirty.len() > before
    }

    /// This link is to be served.
    fn touch(&mut self, index: usize) {
        touch(&mut self.links, &mut self.dirty, index, false);
    }

    fn timers_due(&mut self, now: u64) -> bool {
        let mut any = false;
        while let Some(due) = self.timers.next(now) {
            any = true;
            match due {
                Due::Link(index) => {
                    if let Some(link) = self.links.get_mut(index).and_then(Option::as_mut) {
                        link.armed = None;
                        link.timeout(now);
                    }
                    touch(&mut self.links, &mut self.dirty, index, true);
                }
                Due::Vnic(number) => {
                    let Some(vnic) = self.vnics.get_mut(&number) else { continue };
                    vnic.armed = None;
                    let parked = std::mem::take(&mut vnic.parked);
                    self.unpark(parked);
                }
                Due::Faults(number) => {
                    if let Some(line) = self.bad_line(number) {
                        line.armed = None;
                    }
                    self.delayed(number);
                }
            }
        }
        any
    }

    /// Lets applications answer what they were given before it is acknowledged.
    fn let_answer(&mut self) -> bool {
        if self.held.is_empty() {
            return false;
        }
        std::thread::yield_now();
        for index in std::mem::take(&mut self.held) {
            touch(&mut self.links, &mut self.dirty, index, true);
        }
        true
    }

    /// Wakes applications that were given something in this turn.
    fn ring(&mut self) {
        self.bells.values().for_each(Bell::ring);
        for index in self.naps.drain(..) {
            if let Some(link) = self.links.get_mut(index).and_then(Option::as_mut) {
                link.wake_napping();
            }
        }
    }

    /// These links may send again.
    fn unpark(&mut self, parked: Vec<usize>) {
        for index in parked {
            if let Some(link) = self.links.get_mut(index).and_then(Option::as_mut) {
                link.parked = false;
            }
            self.touch(index);
        }
    }

    fn serve_dirty(&mut self) -> bool {
        let mut any = false;
        for _ in 0..LINKS_PER_TURN.min(self.dirty.len()) {
            let Some(index) = self.dirty.next() else { break };
            any = true;
            self.serve(index);
            self.deliver_passages();
        }
        if any && clock::now().saturating_sub(self.shown) > SHOW_EVERY {
            self.show_counters();
        }
        any
    }

    fn show_counters(&mut self) {
        self.shown = clock::now();
        let mut shown = lock(&self.counters);
        for link in self.links.iter().flatten() {
            shown.links.insert((link.qpn, link.peer_qpn), link.counters());
        }
        for (number, vnic) in &self.vnics {
            if let Some(line) = &vnic.bad_line {
                shown.faults.insert(*number, line.done());
            }
        }
    }

    fn forget_faults(&self, number: u64) {
        lock(&self.counters).faults.remove(&number);
    }

    fn forget_counters(&self, qpn: Qpn, peer_qpn: Qpn) {
        lock(&self.counters).links.remove(&(qpn, peer_qpn));
    }
}

/// This link is to be served; `again`: nothing is known to have happened.
fn touch(links: &mut [Option<Box<Link>>], dirty: &mut Agenda, index: usize, again: bool) {
    if let Some(link) = links.get_mut(index).and_then(Option::as_mut) {
        if std::mem::replace(&mut link.queued, true) {
            link.looked_again &= again;
        } else {
            link.looked_again = again;
            dirty.add(link.vnic, index);
        }
    }
}

impl Worker {
    /// Watches the sockets of a vNIC from now on.
    fn watch(&self, number: u64, vnic: &Vnic) -> io::Result<()> {
        // At most two: IPv4 and IPv6.
        for (socket, index) in vnic.sockets.files().zip(0..2) {
            self.poller.add(socket.as_fd(), token::VNIC | number << 1 | index)?;
        }
        Ok(())
    }
}
