//! Groups the parts of the [`Server`] that one operation needs.

use crate::captures::Captures;
use crate::clients::Clients;
use crate::daemon_log::Journal;
use crate::engine::Packets;
use crate::extent_memory::Extents;
use crate::guest_memory::Pins;
use crate::handshake_probe_schedule::Probes;
use crate::helper_requests::HelperRequests;
use crate::link_audit_rate_limit::Audit;
use crate::multicast_senders_told_to_engine::GroupSenders;
use crate::objects::Objects;
use crate::qp_counters::Counters;
use crate::reactor::Reactor;
use crate::server::Server;
use crate::socket_broker_supervisor::Broker;
use crate::socket_relations::SocketRelations;
use crate::tenancy_and_pending_actions::Tables;
use crate::underlay_sockets::UnderlaySockets;
use crate::unidentified_connections::Arrivals;
use crate::virtual_machines::Machines;
use crate::vnics::Vnics;
use crate::vnics_by_policy_address::VnicsByPolicyAddress;
use crate::watchdog::Watchdog;
use omniverb_sys::deferred_close::DeferredClose;

/// Answers clients, and tells them what they did not ask for.
pub(super) struct Delivery<'a> {
    pub(super) clients: &'a mut Clients,
    pub(super) reactor: &'a mut Reactor,
    pub(super) tables: &'a mut Tables,
}

/// Hands memory for pages to owners, and to those that are granted them.
pub(super) struct PageLender<'a> {
    pub(super) clients: &'a mut Clients,
    pub(super) extents: &'a mut Extents,
    pub(super) machines: &'a mut Machines,
    pub(super) reactor: &'a mut Reactor,
    pub(super) tables: &'a mut Tables,
}

/// Finds out for the broker which sockets may be brought together.
pub(super) struct SocketPairs<'a> {
    pub(super) broker: &'a mut Option<Broker>,
    pub(super) helper: &'a mut HelperRequests,
    pub(super) related: &'a mut SocketRelations,
    pub(super) reactor: &'a mut Reactor,
    pub(super) tables: &'a mut Tables,
}

/// Takes pair windows in, and makes links in them.
pub(super) struct PairWindows<'a> {
    pub(super) captures: &'a Captures,
    pub(super) clients: &'a mut Clients,
    pub(super) disposal: &'a DeferredClose,
    pub(super) journal: &'a mut Journal,
    pub(super) machines: &'a mut Machines,
    pub(super) reactor: &'a mut Reactor,
    pub(super) tables: &'a mut Tables,
    pub(super) vnics: &'a Vnics,
}

/// Keeps vNICs' sockets, and what the engine does with them: links, probes, captures.
pub(super) struct EnginePorts<'a> {
    pub(super) addresses: &'a mut VnicsByPolicyAddress,
    pub(super) captures: &'a mut Captures,
    pub(super) clients: &'a mut Clients,
    pub(super) counted: &'a mut Counters,
    pub(super) engine: &'a mut Packets,
    pub(super) group_senders: &'a mut GroupSenders,
    pub(super) helper: &'a mut HelperRequests,
    pub(super) journal: &'a mut Journal,
    pub(super) machines: &'a Machines,
    pub(super) objects: &'a mut Objects,
    pub(super) probes: &'a mut Probes,
    pub(super) reactor: &'a mut Reactor,
    pub(super) tables: &'a mut Tables,
    pub(super) underlay: &'a mut UnderlaySockets,
    pub(super) vnics: &'a mut Vnics,
}

/// Hears what virtual machines say of themselves.
pub(super) struct Guests<'a> {
    pub(super) captures: &'a Captures,
    pub(super) clients: &'a mut Clients,
    pub(super) disposal: &'a DeferredClose,
    pub(super) engine: &'a mut Packets,
    pub(super) journal: &'a mut Journal,
    pub(super) machines: &'a mut Machines,
    pub(super) pins: &'a mut Pins,
    pub(super) reactor: &'a mut Reactor,
    pub(super) tables: &'a mut Tables,
}

/// Makes rows of what there is to see.
pub(super) struct StatusRows<'a> {
    pub(super) addresses: &'a VnicsByPolicyAddress,
    pub(super) arrivals: &'a Arrivals,
    pub(super) clients: &'a Clients,
    pub(super) counted: &'a Counters,
    pub(super) disposal: &'a DeferredClose,
    pub(super) engine: &'a Packets,
    pub(super) helper: &'a HelperRequests,
    pub(super) machines: &'a Machines,
    pub(super) objects: &'a Objects,
    pub(super) pins: &'a Pins,
    pub(super) tables: &'a Tables,
    pub(super) underlay: &'a UnderlaySockets,
    pub(super) vnics: &'a Vnics,
    pub(super) watchdog: &'a Watchdog,
    /// When the daemon was started, in nanoseconds of the monotonic clock.
    pub(super) started: u64,
}

/// Writes lines of the audit.
pub(super) struct AuditLines<'a> {
    pub(super) audit: &'a mut Audit,
    pub(super) journal: &'a mut Journal,
    pub(super) reactor: &'a mut Reactor,
    pub(super) vnics: &'a Vnics,
    pub(super) objects: &'a Objects,
}

impl Server {
    pub(super) fn delivery(&mut self) -> Delivery<'_> {
        Delivery {
            clients: &mut self.clients,
            reactor: &mut self.reactor,
            tables: &mut self.tables,
        }
    }

    pub(super) fn page_lender(&mut self) -> PageLender<'_> {
        PageLender {
            clients: &mut self.clients,
            extents: &mut self.extents,
            machines: &mut self.machines,
            reactor: &mut self.reactor,
            tables: &mut self.tables,
        }
    }

    pub(super) fn socket_pairs(&mut self) -> SocketPairs<'_> {
        SocketPairs {
            broker: &mut self.broker,
            helper: &mut self.helper,
            related: &mut self.related,
            reactor: &mut self.reactor,
            tables: &mut self.tables,
        }
    }

    pub(super) fn pair_windows(&mut self) -> PairWindows<'_> {
        PairWindows {
            captures: &self.captures,
            clients: &mut self.clients,
            disposal: &self.disposal,
            journal: &mut self.journal,
            machines: &mut self.machines,
            reactor: &mut self.reactor,
            tables: &mut self.tables,
            vnics: &self.vnics,
        }
    }

    pub(super) fn engine_ports(&mut self) -> EnginePorts<'_> {
        EnginePorts {
            addresses: &mut self.addresses,
            captures: &mut self.captures,
            clients: &mut self.clients,
            counted: &mut self.counted,
            engine: &mut self.engine,
            group_senders: &mut self.group_senders,
            helper: &mut self.helper,
            journal: &mut self.journal,
            machines: &self.machines,
            objects: &mut self.objects,
            probes: &mut self.probes,
            reactor: &mut self.reactor,
            tables: &mut self.tables,
            underlay: &mut self.underlay,
            vnics: &mut self.vnics,
        }
    }

    pub(super) fn guests(&mut self) -> Guests<'_> {
        Guests {
            captures: &self.captures,
            clients: &mut self.clients,
            disposal: &self.disposal,
            engine: &mut self.engine,
            journal: &mut self.journal,
            machines: &mut self.machines,
            pins: &mut self.pins,
            reactor: &mut self.reactor,
            tables: &mut self.tables,
        }
    }

    pub(super) fn status_rows(&self) -> StatusRows<'_> {
        StatusRows {
            addresses: &self.addresses,
            arrivals: &self.arrivals,
            clients: &self.clients,
            counted: &self.counted,
            disposal: &self.disposal,
            engine: &self.engine,
            helper: &self.helper,
            machines: &self.machines,
            objects: &self.objects,
            pins: &self.pins,
            tables: &self.tables,
            underlay: &self.underlay,
            vnics: &self.vnics,
            watchdog: &self.watchdog,
            started: self.started,
        }
    }

    pub(super) fn audit_lines(&mut self) -> AuditLines<'_> {
        AuditLines {
            audit: &mut self.audit,
            journal: &mut self.journal,
            reactor: &mut self.reactor,
            vnics: &self.vnics,
            objects: &self.objects,
        }
    }
}

impl PageLender<'_> {
    pub(super) fn delivery(&mut self) -> Delivery<'_> {
        Delivery { clients: self.clients, reactor: self.reactor, tables: self.tables }
    }
}

impl PairWindows<'_> {
    pub(super) fn delivery(&mut self) -> Delivery<'_> {
        Delivery { clients: self.clients, reactor: self.reactor, tables: self.tables }
    }
}

impl EnginePorts<'_> {
    pub(super) fn delivery(&mut self) -> Delivery<'_> {
        Delivery { clients: self.clients, reactor: self.reactor, tables: self.tables }
    }
}
