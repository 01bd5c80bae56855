//! Starts a daemon: makes its parts, in the order in which that is safe.

use crate::allowed_processes::Admission;
use crate::captures::Captures;
use crate::clients::Clients;
use crate::daemon_log::{Journal, Level};
use crate::disconnected_pair_window_users::Departed;
use crate::engine::{CARRIED, Packets, Recorder};
use crate::extent_memory::Extents;
use crate::fnv_hash::{BASIS, fnv1a};
use crate::guest_memory::Pins;
use crate::handshake_probe_schedule::Probes;
use crate::helper_requests::HelperRequests;
use crate::idle_exit::Idle;
use crate::lingering_file_watch::WatchedFiles;
use crate::link_audit_rate_limit::Audit;
use crate::listener::Listener;
use crate::max_map_count;
use crate::objects::Objects;
use crate::operators::Operators;
use crate::poller_tokens::{Entrance, Wakeup};
use crate::qp_counters::Counters;
use crate::reactor::Reactor;
use crate::runtime_folder::RuntimeFolder;
use crate::server::Server;
use crate::settings::{Settings, Unwanted};
use crate::socket_broker_supervisor::Broker;
use crate::socket_relations::SocketRelations;
use crate::start_errors::StartError;
use crate::tenancy_and_pending_actions::Tables;
use crate::ticket_secret;
use crate::underlay_sockets::UnderlaySockets;
use crate::unidentified_connections::Arrivals;
use crate::virtual_machines::Machines;
use crate::vnic_attachment::Attached;
use crate::vnic_identities::Registry;
use crate::vnic_names::Marks;
use crate::vnics::Vnics;
use crate::vnics_by_policy_address::VnicsByPolicyAddress;
use crate::watchdog::Watchdog;
use omniverb_broker::{Range, StartupParameters};
use omniverb_link::layout::{REQUEST_BYTES, RESPONSE_BYTES};
use omniverb_sys::deferred_close::DeferredClose;
use omniverb_sys::helper_process::HelperStart;
use omniverb_sys::privileges::{Privilege, keep_only};
use omniverb_sys::{clock, heap_trim, random, unsolicited_fds};
use omniverb_tenancy::{Entropy, Limits, Tenancy};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

/// The privileges that the daemon itself needs, of its helper's.
const KEPT: [Privilege; 1] = [Privilege::ManyDescriptors];

struct Kernel;

impl Entropy for Kernel {
    fn next(&mut self) -> u64 {
        random::number()
    }
}

impl Server {
    /// A daemon at `place`, ready to run. Clients may connect from now on; a process that may
    /// connect to the socket of `operators` may do everything.
    ///
    /// # Errors
    /// [`StartError::Os`].
    pub fn new(
        place: RuntimeFolder,
        operators: RuntimeFolder,
        mut settings: Settings,
        mut journal: Journal,
    ) -> Result<Server, StartError> {
        let os = |what| move |source| StartError::Os { what, source };
        let home = Attached::home().map_err(os("find its own namespace"))?;
        fit(&mut settings.limits, settings.queued_descriptors);
        let (memory, limits) = (settings.memory, &mut settings.limits);
        limits.fit_memory(memory.connections, memory.datagrams, memory.tables);
        heap_trim::map_large_allocations();
        // First the processes that keep privileges, then everything that can be attacked.
        let helper = HelperRequests::start(&settings.helpers, settings.pulses.minor("helper"))
            .map_err(os("start its helper"))?;
        if settings.helpers != HelperStart::Threads {
            keep_only(&KEPT).map_err(os("give up its privileges"))?;
        }
        let disposal =
            DeferredClose::new(settings.helpers.clone()).map_err(os("start its disposer"))?;
        if settings.unwanted == Unwanted::Refused {
            // Before 6.16 the kernel does not know how; then we look before we take.
            let _ = unsolicited_fds::refuse(place.listener().as_fd());
        }
        let features = if settings.has_carried_queue_pairs { CARRIED } else { 0 };
        let engine = Packets::start(&settings.pulses, settings.memory.kept, features)
            .map_err(os("start its engine"))?;
        let recorder = Recorder::start(&settings.pulses, settings.memory.captures)
            .map_err(os("start its recorder"))?;
        let captures = Captures::new(recorder);
        let pulse = settings.pulses.vital("control");
        let probes = Probes::new(settings.pulses.clone());
        let (patience, sign) = (settings.watchdog, settings.sign_of_life);
        let watchdog = Watchdog::start(&settings.pulses, patience, sign, journal.another())
            .map_err(os("start its watchdog"))?;
        let marks = Marks { boot: boot(), daemon: random::number() };
        let configured = std::mem::take(&mut settings.objects);
        let state_file = settings.state_file.take();
        let objects = Objects::new(settings.policies.general, configured, state_file);
        for problem in objects.problems() {
            journal.log(Level::Error, format_args!("{problem}"));
        }
        if let Some(problem) = objects.keys_problem() {
            let text = format_args!("{problem}; encrypted tenants exchange nothing between hosts");
            journal.log(Level::Error, text);
        }
        if let Some(problem) = objects.unplaced() {
            let text = "vNICs of virtual networks have no device before this is right";
            journal.log(Level::Error, format_args!("{problem}; {text}"));
        }
        settings.policies.general = objects.general();
        let names = settings.policies.named.keys().chain(objects.vnic_names());
        let registry = Registry::new(marks, &home.evidence(), names);
        let now = clock::now();
        let tables = tables(&settings, marks, place.files(), now, &mut journal);
        let reactor = Reactor::new(pulse).map_err(os("make an epoll descriptor"))?;
        let listener = Listener::open(place, Entrance::Tenants, &reactor);
        let arrivals = Arrivals::new(
            listener.map_err(os("watch its socket"))?,
            Admission::new(settings.allow.clone()),
        );
        let listener = Listener::open(operators, Entrance::Operators, &reactor);
        let operators = Operators::new(listener.map_err(os("watch its socket"))?);
        reactor.watch(helper.socket(), Wakeup::Helper).map_err(os("watch its helper"))?;
        reactor.watch(engine.ready(), Wakeup::Engine).map_err(os("watch its engine"))?;
        reactor.watch(disposal.ready(), Wakeup::Disposal).map_err(os("watch its disposer"))?;
        reactor.watch(captures.ready(), Wakeup::Recorder).map_err(os("watch its recorder"))?;
        let watched_files = WatchedFiles::new();
        if let Some(file) = watched_files.ready() {
            reactor.watch(file, Wakeup::Held).map_err(os("watch its files"))?;
        }
        let mut server = Server {
            reactor,
            tables,
            arrivals,
            clients: Clients::new(
                settings.queued_descriptors,
                settings.memory.waiting,
                settings.unwanted,
            ),
            counted: Counters::default(),
            operators,
            helpers: settings.helpers,
            broker: None,
            related: SocketRelations::default(),
            machines: Machines::default(),
            objects,
            reload: None,
            departed: Departed::default(),
            looks: Default::default(),
            vnics: Vnics::new(registry),
            helper,
            addresses: VnicsByPolicyAddress::new(),
            underlay: UnderlaySockets::new(settings.underlay_namespace),
            group_senders: Default::default(),
            has_said_rules_are_vain: false,
            engine,
            probes,
            captures,
            extents: Extents::default(),
            watched_files,
            pins: Pins::default(),
            journal,
            audit: Audit::default(),
            disposal,
            watchdog,
            idle: Idle::new(settings.idle_exit, now),
            started: now,
            last_session: 0,
        };
        server.engine_ports().apply_networks();
        server.engine_ports().apply_underlay();
        server.engine_ports().tell_registered();
        server.watch_containers();
        server.tell_addresses();
        Ok(server)
    }

    /// Starts the broker, a helper that brings sockets together for processes that may use the
    /// tenants' socket; at the place that `take` takes, if it can. `light`: the addresses to which
    /// connections are light.
    ///
    /// # Errors
    /// [`StartError::Os`]; also if the rules depend on cgroups: the broker does not inspect
    /// processes. Those of `take`.
    pub fn bring_sockets_together(
        &mut self,
        light: Vec<Range>,
        take: impl FnOnce() -> Result<RuntimeFolder, StartError>,
    ) -> Result<(), StartError> {
        let os = |source| StartError::Os { what: "start its broker", source };
        let allow = self.arrivals.admission().allow();
        if allow.is_some_and(|allow| !allow.cgroups.is_empty()) {
            let text = "cgroups in [allow] are not known to it: name users and groups";
            return Err(os(io::Error::new(io::ErrorKind::Unsupported, text)));
        }
        let allowed = allow.map(|allow| allow.people.clone());
        let order = StartupParameters { helpers: self.helpers.clone(), allowed, light }
            .encode()
            .map_err(os)?;
        let mut broker = Broker::new(self.helpers.clone(), take()?, order);
        if let Err(error) = broker.start(&self.reactor) {
            broker.close(&self.disposal);
            return Err(os(error));
        }
        self.broker = Some(broker);
        Ok(())
    }

    /// Whether it can serve other network namespaces than its own.
    #[must_use]
    pub fn is_privileged(&self) -> bool {
        self.helper.enters()
    }
}

/// Quotas that are no more than what this process itself may have.
fn fit(limits: &mut Limits, queued_descriptors: usize) {
    limits.request_bytes = REQUEST_BYTES as u32;
    limits.response_bytes = RESPONSE_BYTES as u32;
    // Every extent is a descriptor of ours.
    limits.extents = limits.extents.min(queued_descriptors);
    // So is the memory of every link that its process carries.
    limits.carried_links = limits.carried_links.min(queued_descriptors);
    // Every link to the engine is a mapping of ours, and every process has some.
    limits.fit_mappings(max_map_count::allowed());
}

/// The tables of a daemon, which go on where the last one at this place ended. `files`: the prefix
/// of its files' names.
fn tables(
    settings: &Settings,
    marks: Marks,
    files: &Path,
    now: u64,
    journal: &mut Journal,
) -> Tables {
    let mut tenancy = Tenancy::new(settings.limits.clone(), Box::new(Kernel), marks.boot);
    tenancy.configure(settings.policies.clone());
    tenancy.lay_out((settings.layout)());
    if settings.has_audit {
        tenancy.begin_audit();
    }
    if settings.has_carried_queue_pairs {
        tenancy.let_processes_carry();
    }
    let found = ticket_secret::take(files);
    if let Some(error) = found.problem {
        let text = format_args!("cannot keep a secret, so no links outlive it: {error}");
        journal.log(Level::Warning, text);
    }
    // Where there was no daemon before, nothing can have survived it.
    let window = match found.source {
        ticket_secret::Source::Inherited => settings.limits.resume_window_ns,
        ticket_secret::Source::Drawn => 0,
    };
    tenancy.count(ticket_secret::count(files));
    tenancy.inherit(found.secret, now.saturating_add(window));
    Tables::new(tenancy)
}

/// The same after a restart of the daemon, another after a restart of the machine.
fn boot() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    fnv1a(BASIS, text.trim().as_bytes())
}
