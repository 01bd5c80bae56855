//! The loop: waits for whatever comes first and hands it on.

use crate::allow::{Allow, Refusals};
use crate::arrivals::Arrival;
use crate::audit::Audit;
use crate::captures::Recording;
use crate::client::Client;
use crate::disposal::Disposal;
use crate::engine::{Packets, Recorder};
use crate::errors::StartError;
use crate::extents::Extents;
use crate::journal::{Journal, Level};
use crate::mappings;
use crate::namespaces::{self, Namespaces};
use crate::naming::Marks;
use crate::operators::Operator;
use crate::pids::Unnamed;
use crate::place::Place;
use crate::probes::{Due, Probes};
use crate::registry::Registry;
use crate::secret;
use crate::watchdog::{SignOfLife, Watchdog};
use omniverb_link::layout::{REQUEST_BYTES, RESPONSE_BYTES};
use omniverb_sys::child::Helpers;
use omniverb_sys::privileges::{Privilege, keep_only};
use omniverb_sys::pulse::{Pulse, Pulses};
use omniverb_sys::{Poller, clock, descriptors, random};
use omniverb_tenancy::{
    Action, Apart, Entropy, Holders, Layout, Limits, Policies, SessionId, Tenancy, VnicId,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// How a daemon is to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Quotas.
    pub limits: Limits,
    /// Datapaths and rate limits of vNICs.
    pub policies: Policies,
    /// Descriptors that may wait to be taken by the processes of one vNIC. They are the daemon's
    /// own until then.
    pub queued_descriptors: usize,
    /// Who may use the tenants' socket; nothing: everybody.
    pub allow: Option<Allow>,
    /// Log who is linked with whom.
    pub audit: bool,
    /// End after this time without a client.
    pub idle_exit: Option<Duration>,
    /// What helpers are. If they are processes, this one gives up its privileges to them.
    pub helpers: Helpers,
    /// Have the kernel refuse descriptors at their senders, where it can. Off: as on kernels
    /// before 6.16 (tests).
    pub refuse_descriptors: bool,
    /// How long a turn of a thread's loop may last until that is said; nobody looks if not given.
    pub watchdog: Option<Duration>,
    /// What the service manager wants to hear.
    pub sign_of_life: Option<SignOfLife>,
    /// The threads that are looked at; more can be added.
    pub pulses: Pulses,
    /// Where the memory is that regions' pages are moved to.
    pub layout: fn() -> Box<dyn Layout>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            limits: Limits::default(),
            policies: Policies::default(),
            queued_descriptors: 8192,
            allow: None,
            audit: false,
            idle_exit: None,
            helpers: Helpers::Threads,
            refuse_descriptors: true,
            watchdog: Some(Duration::from_secs(5)),
            sign_of_life: None,
            pulses: Pulses::default(),
            layout: || Box::<Apart>::default(),
        }
    }
}

/// Why a daemon ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to.
    Terminated,
    /// Nobody needed it.
    Idle,
}

/// What the daemon itself needs, of all that its helper has.
const KEPT: [Privilege; 1] = [Privilege::ManyDescriptors];

/// What is ready, as a token of the poller: a kind in the top byte, a number below.
pub(crate) mod token {
    pub(crate) const LISTENER: u64 = 1;
    pub(crate) const NAMESPACES: u64 = 2;
    pub(crate) const TERMINATION: u64 = 3;
    pub(crate) const CALLS: u64 = 4;
    pub(crate) const EVENTS: u64 = 5;
    pub(crate) const PROCESS: u64 = 6;
    pub(crate) const ENGINE: u64 = 7;
    pub(crate) const RECORDER: u64 = 8;
    pub(crate) const DISPOSAL: u64 = 9;
    pub(crate) const OPERATORS: u64 = 10;
    pub(crate) const OPERATOR: u64 = 11;

    pub(crate) const fn new(kind: u64, number: u64) -> u64 {
        kind << 56 | number
    }

    pub(crate) const fn parts(token: u64) -> (u64, u64) {
        (token >> 56, token & ((1 << 56) - 1))
    }
}

/// Something of the server's own that happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A client should have said hello by now.
    Hello(SessionId),
    /// What waits to be sent to a client is tried again.
    Flush(SessionId),
    /// Connections are accepted again.
    Accept,
    /// A port that was in use is tried again.
    Port(VnicId),
    /// Operators' connections are.
    AcceptOperators,
    /// It is said how many lines of the audit were left out.
    Audit,
}

/// The daemon.
pub struct Server {
    pub(crate) settings: Settings,
    pub(crate) place: Place,
    pub(crate) operators_place: Place,
    pub(crate) journal: Journal,
    pub(crate) disposal: Disposal,
    pub(crate) watchdog: Watchdog,
    pulse: Pulse,
    pub(crate) poller: Poller,
    pub(crate) tenancy: Tenancy,
    pub(crate) audit: Audit,
    pub(crate) refusals: Refusals,
    /// Connections that wait to be told that they are refused.
    pub(crate) refused: usize,
    pub(crate) registry: Registry,
    pub(crate) namespaces: Namespaces,
    pub(crate) engine: Packets,
    pub(crate) recorder: Recorder,
    pub(crate) probes: Probes,
    /// vNICs whose sockets could not be opened, once this was said.
    pub(crate) warned: BTreeSet<VnicId>,
    /// Connections of processes that are not identified yet, and whose they are.
    pub(crate) arrivals: BTreeMap<SessionId, Arrival>,
    pub(crate) arrivals_of: Holders<SessionId>,
    /// Calls that wait until it is known what they name.
    pub(crate) unnamed: BTreeMap<SessionId, Unnamed>,
    pub(crate) clients: BTreeMap<SessionId, Client>,
    /// By numbers that no session has.
    pub(crate) operators: BTreeMap<SessionId, Operator>,
    pub(crate) timers: BTreeSet<(u64, Timer)>,
    pub(crate) recordings: BTreeMap<SessionId, Recording>,
    /// Captures whose file is looked at, and the calls that wait for it.
    pub(crate) beginning: BTreeMap<SessionId, u64>,
    /// Captures that end, and the calls that wait for it.
    pub(crate) finishing: BTreeMap<SessionId, u64>,
    /// Who has memory to tell through what is captured.
    pub(crate) tracing: BTreeSet<SessionId>,
    /// What the tables want done.
    pub(crate) work: VecDeque<Action>,
    /// Clients to part with once the work is done.
    pub(crate) parting: Vec<(SessionId, &'static str)>,
    /// Memory files that owners' pages are on.
    pub(crate) extents: Extents,
    /// May look into other network namespaces.
    pub(crate) privileged: bool,
    pub(crate) last_session: u64,
    /// Whose connections have not said hello yet.
    pub(crate) half_open_of: Holders<SessionId>,
    pub(crate) started: u64,
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
        let home = namespaces::home().map_err(os("find its own namespace"))?;
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
            settings,
            place,
            operators_place: operators,
            journal,
            disposal,
            watchdog,
            pulse,
            poller,
            tenancy,
            audit: Audit::default(),
            refusals: Refusals::default(),
            refused: 0,
            registry,
            namespaces,
            engine,
            recorder,
            probes,
            warned: BTreeSet::new(),
            recordings: BTreeMap::new(),
            beginning: BTreeMap::new(),
            finishing: BTreeMap::new(),
            tracing: BTreeSet::new(),
            arrivals: BTreeMap::new(),
            arrivals_of: Holders::default(),
            unnamed: BTreeMap::new(),
            clients: BTreeMap::new(),
            operators: BTreeMap::new(),
            timers: BTreeSet::new(),
            work: VecDeque::new(),
            parting: Vec::new(),
            extents: Extents::default(),
            privileged,
            last_session: 0,
            half_open_of: Holders::default(),
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
    pub(crate) fn settle(&mut self) {
        loop {
            while let Some(action) = self.work.pop_front() {
                self.execute(action);
            }
            let Some((session, reason)) = self.parting.pop() else { break };
            self.end(session, reason);
        }
    }

    pub(crate) fn set_timer(&mut self, after: Duration, timer: Timer) {
        let at = clock::now() + u64::try_from(after.as_nanos()).unwrap_or(u64::MAX / 2);
        self.timers.insert((at, timer));
    }

    fn timeout(&self) -> Option<Duration> {
        let own = self.timers.first().map(|(at, _)| *at);
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
        while let Some((at, timer)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, timer));
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
