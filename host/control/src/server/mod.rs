//! Runs the daemon's loop: waits for the next event and dispatches it.
//!
//! [`Server`] joins parts that know nothing of each other; each keeps its own order, in a file of
//! its own beside this folder. The files in here connect them: [`accept`],
//! [`identify_connections`], [`operators`], [`virtual_machines`], [`pair_windows`],
//! [`probe_and_cm_packets`], [`engine_links`] and [`helper_answers`] take input, the tables decide,
//! [`execute_actions`] executes their decisions, [`disconnection`] ends clients. An operation over
//! several parts gets those that it needs ([`operation_contexts`]).

mod accept;
mod ask_helper_for_addresses;
mod broker_questions;
mod captures;
mod containers;
mod disconnection;
mod encryption;
mod engine_links;
mod execute_actions;
mod guest_memory;
mod helper_answers;
mod identify_connections;
mod link_audit_lines;
mod object_change_calls;
mod open_underlay_sockets;
mod operation_contexts;
mod operator_vnic_calls;
mod operators;
mod page_loans;
mod pair_windows;
mod probe_and_cm_packets;
mod start;
mod status;
mod tell_engine_multicast_senders;
mod virtual_machines;

use crate::captures::Captures;
use crate::clients::Clients;
use crate::daemon_log::Journal;
use crate::disconnected_pair_window_users::Departed;
use crate::engine::Packets;
use crate::extent_memory::Extents;
use crate::guest_memory::Pins;
use crate::handshake_probe_schedule::{Due, Probes};
use crate::helper_requests::HelperRequests;
use crate::idle_exit::Idle;
use crate::lingering_file_watch::WatchedFiles;
use crate::link_audit_rate_limit::Audit;
use crate::multicast_senders_told_to_engine::GroupSenders;
use crate::objects::Objects;
use crate::operators::Operators;
use crate::pending_namespace_inspections::PendingInspections;
use crate::poller_tokens::{Entrance, Wakeup};
use crate::qp_counters::Counters;
use crate::reactor::{Reactor, Timer};
use crate::settings::Ended;
use crate::socket_broker_supervisor::Broker;
use crate::socket_relations::SocketRelations;
use crate::tenancy_and_pending_actions::Tables;
use crate::underlay_sockets::UnderlaySockets;
use crate::unidentified_connections::Arrivals;
use crate::virtual_machines::Machines;
use crate::vnics::Vnics;
use crate::vnics_by_policy_address::VnicsByPolicyAddress;
use crate::watchdog::Watchdog;
use omniverb_broker::broker_daemon_messages::FromDaemon;
use omniverb_sys::clock;
use omniverb_sys::deferred_close::DeferredClose;
use omniverb_sys::helper_process::HelperStart;
use omniverb_tenancy::SessionId;
use std::io;
use std::os::fd::BorrowedFd;

pub use object_change_calls::{Configured, Reload};

/// The daemon's one thread, with everything that it looks after.
pub struct Server {
    /// Descriptors that it waits for, and its timers.
    reactor: Reactor,
    /// The decision tables, and their actions.
    tables: Tables,
    /// New and served connections.
    arrivals: Arrivals,
    clients: Clients,
    /// Counters of queue pairs that are gone.
    counted: Counters,
    operators: Operators,
    /// How helpers are started.
    helpers: HelperStart,
    /// Introduces the ends of sockets to each other, if that was wanted.
    broker: Option<Broker>,
    /// The broker's requests.
    related: SocketRelations,
    machines: Machines,
    /// Tenants, policies and vNICs as operators describe them.
    objects: Objects,
    /// Reads the configuration again, if that can be done.
    reload: Option<Reload>,
    departed: Departed,
    /// Namespaces that the helper looks at, for rules.
    looks: PendingInspections,
    /// The vNICs: their identity and attachments.
    vnics: Vnics,
    /// Inspects other network namespaces.
    helper: HelperRequests,
    /// Addresses of policies that the helper adds to interfaces.
    addresses: VnicsByPolicyAddress,
    /// Sockets at underlay addresses, which the helper opens.
    underlay: UnderlaySockets,
    /// Senders to groups that vNICs hear.
    group_senders: GroupSenders,
    /// Links that are not direct, and what travels on them.
    engine: Packets,
    probes: Probes,
    captures: Captures,
    /// Memory files that owners' pages are on.
    extents: Extents,
    /// Files that are closed here, and that a process may still have.
    watched_files: WatchedFiles,
    /// Those that are in the memory of virtual machines.
    pins: Pins,
    /// The log and the audit, for operators.
    journal: Journal,
    audit: Audit,
    /// What keeps it going, and ends it.
    disposal: DeferredClose,
    watchdog: Watchdog,
    idle: Idle,
    /// It was said that `[[container]]` rules are about no namespace.
    has_said_rules_are_vain: bool,
    /// When it was started, in nanoseconds of the monotonic clock.
    started: u64,
    /// The number that a connection was given last.
    last_session: u64,
}

impl Server {
    /// Serves until `termination` is readable or the daemon is idle.
    ///
    /// # Errors
    /// If the kernel refuses to wait, or the helper is gone for good: without it no new client can
    /// be served, and only the starter of this daemon can give it another one.
    pub fn run(&mut self, termination: Option<BorrowedFd<'_>>) -> io::Result<Ended> {
        let ended = self.serve(termination);
        self.close();
        ended
    }

    fn serve(&mut self, termination: Option<BorrowedFd<'_>>) -> io::Result<Ended> {
        if let Some(file) = termination {
            self.reactor.watch(file, Wakeup::Termination)?;
        }
        let mut ready = Vec::new();
        loop {
            self.reactor.wait(self.next_deadline(), &mut ready)?;
            // First: the sender of our signal may have ended our helper as well.
            if ready.contains(&Wakeup::Termination) {
                return Ok(Ended::Terminated);
            }
            for what in ready.drain(..) {
                self.came(what)?;
                self.settle();
            }
            self.time_passes();
            if self.is_idle() {
                return Ok(Ended::Idle);
            }
        }
    }

    /// Dispatches a ready descriptor.
    fn came(&mut self, what: Wakeup) -> io::Result<()> {
        match what {
            Wakeup::Connection(Entrance::Tenants) => self.accept(),
            Wakeup::Connection(Entrance::Operators) => self.accept_operator(),
            Wakeup::Calls(session) => self.calls_ready(session),
            Wakeup::Events(session) => self.events_ready(session),
            Wakeup::Process(session) => self.clients.part(session, "its process has ended"),
            Wakeup::Operator(session) => self.operator_ready(session),
            Wakeup::Machine(machine) => self.door_ready(machine),
            Wakeup::DepartedProcess(session) => {
                self.departed.ended(session, &self.reactor);
                self.pair_windows().look_for_unused();
            }
            Wakeup::Helper => self.helper_ready()?,
            Wakeup::Engine => self.engine_ready(),
            Wakeup::Recorder => self.recorder_ready(),
            Wakeup::Disposal => self.dispose(),
            Wakeup::Broker => self.broker_ready(),
            Wakeup::Held => self.files_gone(),
            Wakeup::Reload => self.reload_signalled(),
            Wakeup::Termination => {}
        }
        Ok(())
    }

    /// Does everything that follows from what has happened.
    fn settle(&mut self) {
        loop {
            self.carry_on();
            let Some((session, reason)) = self.clients.next_parting() else { break };
            self.end(session, reason);
        }
        self.tell_addresses();
        self.tell_of_group_senders();
    }

    /// Executes the tables' actions.
    fn carry_on(&mut self) {
        loop {
            while let Some(action) = self.tables.next_action() {
                self.execute(action);
            }
            // The last one's namespace is known until here: the engine must hear of what is closed.
            if let Some(hold) = self.related.ended() {
                drop(hold);
                self.engine_ports().tell_registered();
                continue;
            }
            let Some(session) = self.related.end_next() else { break };
            self.tables.decide(|tables| tables.end(session, clock::now()));
        }
        self.tell_pairs();
    }

    /// When something is due that nothing wakes us for.
    fn next_deadline(&self) -> Option<u64> {
        let idle = self.idle.deadline().filter(|_| self.is_alone());
        let tables = [self.tables.next_deadline(), self.probes.next_deadline()];
        let others = [idle, self.helper.next_deadline(), self.disposal.next_deadline()];
        tables.into_iter().chain(others).flatten().min()
    }

    /// Does what is due by now.
    fn time_passes(&mut self) {
        let now = clock::now();
        while let Some(timer) = self.reactor.due(now) {
            match timer {
                Timer::Hello(session) => self.hello_due(session),
                Timer::Flush(session) => self.clients.flush_due(session, &mut self.reactor),
                Timer::Accept(Entrance::Tenants) => {
                    self.arrivals.listener().look_again(&mut self.reactor);
                }
                Timer::Accept(Entrance::Operators) => {
                    self.operators.listener().look_again(&mut self.reactor);
                }
                Timer::Port(vnic) => self.vnics.try_port_again(vnic, &mut self.helper, now),
                Timer::PspPort(vnic) => self.engine_ports().try_psp_port_again(vnic),
                Timer::UnderlayPspPort => self.engine_ports().try_underlay_psp_port_again(),
                Timer::Addresses(machine) => self.guests().hear_addresses(machine),
                Timer::Unused(machine) => self.pair_windows().look_again_for_unused(machine),
                Timer::PolicyAddresses => self.tell_addresses_again(),
                Timer::UnderlaySockets => self.engine_ports().look_at_underlay(),
                Timer::Audit => self.audit_lines().audit_due(),
                Timer::Broker => {
                    if let Some(broker) = &mut self.broker {
                        broker.again(&mut self.reactor, &mut self.journal);
                    }
                }
            }
        }
        if self.tables.next_deadline().is_some_and(|at| at <= now) {
            self.tables.decide(|tables| tables.tick(now));
        }
        for news in self.helper.late(now) {
            self.heard_from_helper(news);
        }
        for due in self.probes.due(now) {
            match due {
                Due::Send(id, vnic, to, interface) => {
                    self.engine_ports().send_probe(id, vnic, to, interface)
                }
                Due::GiveUp(id, vnic) => self.engine_ports().give_up(id, vnic, now),
            }
        }
        if self.disposal.next_deadline().is_some_and(|at| at <= now) {
            self.dispose();
        }
        self.settle();
    }

    /// Clients of the broker are not known here.
    fn is_alone(&self) -> bool {
        let no_client = self.clients.is_empty() && self.arrivals.is_empty();
        no_client && self.operators.is_empty() && self.machines.is_empty()
    }

    fn is_idle(&mut self) -> bool {
        let now = clock::now();
        if !self.is_alone() {
            self.idle.client_connected(now);
            return false;
        }
        if self.idle.deadline().is_none_or(|at| at > now) {
            return false;
        }
        match &mut self.broker {
            Some(broker) if broker.is_there() && self.idle.asks(now) => {
                broker.tell(FromDaemon::AskIdle, None, &mut self.reactor);
                false
            }
            _ => true,
        }
    }

    /// A number for a connection, which no other has.
    fn next_session(&mut self) -> SessionId {
        self.last_session += 1;
        SessionId(self.last_session)
    }
}

#[cfg(test)]
mod tests;
