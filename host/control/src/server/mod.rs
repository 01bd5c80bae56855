//! The loop: waits for whatever comes first and hands it on.

mod accept;
mod audit;
mod captures;
mod deliver;
mod execute;
mod identify;
mod operators;
mod packets;
mod parting;
mod status;
mod told;
mod vnics;
mod wires;

use crate::allow::Admission;
use crate::arrivals::Arrivals;
use crate::attached::Attached;
use crate::audit::Audit;
use crate::captures::Captures;
use crate::clients::Clients;
use crate::disposal::Disposal;
use crate::engine::{Packets, Recorder};
use crate::errors::StartError;
use crate::extents::Extents;
use crate::journal::{Journal, Level};
use crate::mappings;
use crate::namespaces::Namespaces;
use crate::naming::Marks;
use crate::operators::Operators;
use crate::place::Place;
use crate::probes::{Due, Probes};
use crate::registry::Registry;
use crate::secret;
use crate::settings::{Ended, Settings};
use crate::timers::{Timer, Timers};
use crate::token;
use crate::watchdog::Watchdog;
use omniverb_link::layout::{REQUEST_BYTES, RESPONSE_BYTES};
use omniverb_sys::child::Helpers;
use omniverb_sys::privileges::{Privilege, keep_only};
use omniverb_sys::pulse::Pulse;
use omniverb_sys::{Poller, clock, descriptors, random};
use omniverb_tenancy::{Action, Entropy, SessionId, Tenancy, VnicId};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// What the daemon itself needs, of all that its helper has.
const KEPT: [Privilege; 1] = [Privilege::ManyDescriptors];

/// The daemon.
pub struct Server {
    settings: Settings,
    place: Place,
    operators_place: Place,
    journal: Journal,
    disposal: Disposal,
    watchdog: Watchdog,
    pulse: Pulse,
    poller: Poller,
    timers: Timers,
    tenancy: Tenancy,
    /// What the tables want done.
    work: VecDeque<Action>,
    /// Clients to part with once the work is done.
    parting: Vec<(SessionId, &'static str)>,
    admission: Admission,
    arrivals: Arrivals,
    clients: Clients,
    operators: Operators,
    captures: Captures,
    audit: Audit,
    /// Who the vNICs are.
    registry: Registry,
    /// How they are reached.
    namespaces: Namespaces,
    /// May look into other network namespaces.
    privileged: bool,
    /// vNICs whose sockets could not be opened, once this was said.
    warned: BTreeSet<VnicId>,
    engine: Packets,
    recorder: Recorder,
    probes: Probes,
    /// Memory files that owners' pages are on.
    extents: Extents,
    last_session: u64,
    started: u64,
    idle_since: u64,
}

struct Kernel;

impl Entropy for Kernel {
    fn next(&mut self) -> u64 {
        random::number()
    }
}

/// The same after a restart of the daemon, another after a restart of the machine.
fn boot() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    // FNV-1a: short, fixed for ever, and nothing depends on its strength.
    text.trim().bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Server {
    /// A daemon at `place`, ready to run. Clients may connect from now on; who may connect to the
    /// socket of `operators` may do everything.
    ///
    /// # Errors
    /// [`StartError::Os`].
    pub fn new(
        place: Place,
        operators: Place,
        mut settings: Settings,
        mut journal: Journal,
    ) -> Result<Server, StartError> {
        let os = |what| move |source| StartError::Os { what, source };
        let home = Attached::home().map_err(os("find its own namespace"))?;
        settings.limits.request_bytes = REQUEST_BYTES as u32;
        settings.limits.response_bytes = RESPONSE_BYTES as u32;
        // Every extent is a descriptor of ours.
        settings.limits.extents = settings.limits.extents.min(settings.queued_descriptors);
        // Every link to the engine is a mapping of ours, and every process has some.
        settings.limits.fit_mappings(mappings::allowed());
        // First those who keep privileges, then everything that can be attacked.
        let namespaces =
            Namespaces::new(&settings.helpers, &settings.pulses).map_err(os("start its helper"))?;
        if settings.helpers != Helpers::Threads {
            keep_only(&KEPT).map_err(os("give up its privileges"))?;
        }
        let disposal = Disposal::new(settings.helpers.clone()).map_err(os("start its disposer"))?;
        if settings.refuse_descriptors {
            // Before 6.16 the kernel does not know how; then we look before we take.
            let _ = descriptors::refuse(place.listener().as_fd());
        }
        let engine = Packets::start(&settings.pulses).map_err(os("start its engine"))?;
        let recorder = Recorder::start(&settings.pulses).map_err(os("start its recorder"))?;
        let pulse = settings.pulses.vital("control");
        let probes = Probes::new(settings.pulses.clone());
        let (patience, sign) = (settings.watchdog, settings.sign_of_life);
        let watchdog = Watchdog::start(&settings.pulses, patience, sign, journal.another())
            .map_err(os("start its watchdog"))?;
        let poller = Poller::new().map_err(os("make an epoll descriptor"))?;
        let watch = |fd: BorrowedFd<'_>, kind| poller.add(fd, token::new(kind, 0));
        watch(place.listener().as_fd(), token::LISTENER).map_err(os("watch its socket"))?;
        watch(namespaces.socket(), token::NAMESPACES).map_err(os("watch its helper"))?;
        watch(operators.listener().as_fd(), token::OPERATORS).map_err(os("watch its socket"))?;
        watch(engine.ready(), token::ENGINE).map_err(os("watch its engine"))?;
        watch(disposal.ready(), token::DISPOSAL).map_err(os("watch its disposer"))?;
        watch(recorder.ready(), token::RECORDER).map_err(os("watch its recorder"))?;
        let marks = Marks { boot: boot(), daemon: random::number() };
        let registry = Registry::new(marks, &home.evidence(), settings.policies.named.keys());
        let mut tenancy = Tenancy::new(settings.limits.clone(), Box::new(Kernel), marks.boot);
        tenancy.configure(settings.policies.clone());
        tenancy.lay_out((settings.layout)());
        let (now, privileged) = (clock::now(), namespaces.others_too());
        tenancy.audit(settings.audit);
        let found = secret::take(place.files());
        if let Some(error) = found.problem {
            let text = format_args!("cannot keep a secret, so no links outlive it: {error}");
            journal.log(Level::Warning, text);
        }
        // Where there was no daemon before, nothing can have survived it.
        let window = if found.inherited { settings.limits.resume_window_ns } else { 0 };
        tenancy.count(secret::count(place.files()));
        tenancy.inherit(found.secret, now.saturating_add(window));
        let mut server = Server {
            admission: Admission::new(settings.allow.clone()),
            settings,
            place,
            operators_place: operators,
            journal,
            disposal,
            watchdog,
            pulse,
            poller,
            timers: Timers::default(),
            tenancy,
            work: VecDeque::new(),
            parting: Vec::new(),
            arrivals: Arrivals::default(),
            clients: Clients::default(),
            operators: Operators::default(),
            captures: Captures::default(),
            audit: Audit::default(),
            registry,
            namespaces,
            privileged,
            warned: BTreeSet::new(),
            engine,
            recorder,
            probes,
            extents: Extents::default(),
            last_session: 0,
            started: now,
            idle_since: now,
        };
        server.tell_registered();
        Ok(server)
    }

    /// True if it can serve other network namespaces than its own.
    #[must_use]
    pub fn is_privileged(&self) -> bool {
        self.privileged
    }

    /// Serves until `termination` is readable or nobody needs it.
    ///
    /// # Errors
    /// If the kernel refuses to wait, or the helper is gone for good: without it no new client can
    /// be served, and only whoever started this daemon can give it another one.
    pub fn run(&mut self, termination: Option<BorrowedFd<'_>>) -> io::Result<Ended> {
        let ended = self.serve(termination);
        self.close();
        ended
    }

    fn serve(&mut self, termination: Option<BorrowedFd<'_>>) -> io::Result<Ended> {
        if let Some(file) = termination {
            self.poller.add(file, token::new(token::TERMINATION, 0))?;
        }
        let mut ready = Vec::new();
        loop {
            let timeout = self.timeout();
            self.pulse.rest();
            self.poller.wait(timeout, &mut ready)?;
            self.pulse.work();
            // First: whoever ends us may have ended our helper as well.
            if ready.contains(&token::new(token::TERMINATION, 0)) {
                return Ok(Ended::Terminated);
            }
            for token in &ready {
                let (kind, number) = token::parts(*token);
                match kind {
                    token::LISTENER => self.accept(),
                    token::NAMESPACES => self.namespaces_found()?,
                    token::CALLS => self.calls_ready(SessionId(number)),
                    token::EVENTS => self.events_ready(SessionId(number)),
                    token::PROCESS => self.part(SessionId(number), "its process has ended"),
                    token::ENGINE => self.engine_ready(),
                    token::RECORDER => self.recorder_ready(),
                    token::DISPOSAL => self.disposal.turn(&mut self.journal),
                    token::OPERATORS => self.accept_operators(),
                    token::OPERATOR => self.operator_ready(SessionId(number)),
                    _ => {}
                }
                self.settle();
            }
            self.timers_due();
            if self.is_idle() {
                return Ok(Ended::Idle);
            }
        }
    }

    /// Does everything that follows from what has happened.
    fn settle(&mut self) {
        loop {
            self.carry_on();
            let Some((session, reason)) = self.parting.pop() else { break };
            self.end(session, reason);
        }
    }

    /// Does what the tables want done.
    fn carry_on(&mut self) {
        while let Some(action) = self.work.pop_front() {
            self.execute(action);
        }
    }

    /// A number for a connection, which no other has.
    fn next_session(&mut self) -> SessionId {
        self.last_session += 1;
        SessionId(self.last_session)
    }

    fn timeout(&self) -> Option<Duration> {
        let own = self.timers.next_deadline();
        let idle = self.idle_deadline();
        let tables = [self.tenancy.next_deadline(), self.probes.next_deadline()];
        let others = [own, idle, self.namespaces.next_deadline(), self.disposal.next_deadline()];
        let deadlines = others.into_iter().chain(tables);
        let next = deadlines.flatten().min()?;
        // Rounded up: epoll counts in milliseconds, and a wait that ends early would only spin.
        Some(Duration::from_nanos(next.saturating_sub(clock::now())) + Duration::from_micros(999))
    }

    fn idle_deadline(&self) -> Option<u64> {
        let patience = u64::try_from(self.settings.idle_exit?.as_nanos()).ok()?;
        self.is_alone().then(|| self.idle_since.saturating_add(patience))
    }

    fn is_alone(&self) -> bool {
        self.clients.is_empty() && self.arrivals.is_empty() && self.operators.is_empty()
    }

    fn is_idle(&mut self) -> bool {
        let now = clock::now();
        if !self.is_alone() {
            self.idle_since = now;
        }
        self.idle_deadline().is_some_and(|at| at <= now)
    }

    fn timers_due(&mut self) {
        let now = clock::now();
        while let Some(timer) = self.timers.due(now) {
            match timer {
                Timer::Hello(session) => self.hello_due(session),
                Timer::Flush(session) => self.flush_due(session),
                Timer::Accept => self.accept_again(),
                Timer::Port(vnic) => self.namespaces.try_port_again(vnic, now),
                Timer::AcceptOperators => self.accept_operators_again(),
                Timer::Audit => self.audit_due(),
            }
        }
        if self.tenancy.next_deadline().is_some_and(|at| at <= now) {
            let actions = self.tenancy.tick(now);
            self.work.extend(actions);
        }
        for told in self.namespaces.late(now) {
            self.helper_told(told);
        }
        for due in self.probes.due(now) {
            match due {
                Due::Send(id, vnic, to, interface) => {
                    self.send_probe(id, vnic, to, interface);
                }
                Due::GiveUp(id) => {
                    let actions = self.tenancy.probe_unanswered(id, now);
                    self.work.extend(actions);
                }
            }
        }
        if self.disposal.next_deadline().is_some_and(|at| at <= now) {
            self.disposal.turn(&mut self.journal);
        }
        self.settle();
    }
}

#[cfg(test)]
mod tests;
