//! Links to the engine: their memory, and the sockets the engine needs for them.

use crate::client::Origin;
use crate::daemon_log::Level;
use crate::engine::NetworkPlaces;
use crate::link_memory::Shared;
use crate::reactor::Timer;
use crate::roce_port::{GroupScope, PAUSE};
use crate::server::operation_contexts::EnginePorts;
use omniverb_sys::clock;
use omniverb_sys::proxied_udp::ProxiedSocket;
use omniverb_sys::udp_socket::UdpPort;
use omniverb_tenancy::{EngineEnd, TenantId, VnicId, VnicPlace};
use omniverb_terms::Qpn;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

impl EnginePorts<'_> {
    pub(super) fn attach_engine(&mut self, end: EngineEnd) {
        if !self.want_port(end.vnic) {
            return self.wire_failed(&end);
        }
        let Some(port) = self.vnics.port_mut(end.vnic) else { return };
        if port.open().is_none() {
            return port.wait(end);
        }
        if end.ready.peer_qpn.is_group()
            && let Err(error) = self.join_group(&end)
        {
            let group = end.underlay.remote;
            // Its process tries again and again.
            if self.vnics.is_warning_due(end.vnic) {
                let text = format_args!("group {group} could not be joined: {error}");
                self.journal.log(Level::Warning, text);
            }
            return self.wire_failed(&end);
        }
        match Shared::make(&self.clients.source(end.session), &end.ready) {
            Ok(shared) => {
                self.clients.keep_link(end.session, end.ready.qpn, &shared, Origin::ItsMachine);
                if self.tables.has_carried_links() {
                    self.engine.keep_doorbell(end.session, &shared, end.ready.bell);
                }
                match end.ready.carried {
                    0 => self.engine.attach(&end, &shared),
                    _ => self.engine.keep_carried(&end, &shared),
                }
                self.delivery().tell(end.session, shared.letter(&end.ready));
            }
            Err(error) => {
                self.journal.log(Level::Warning, format_args!("no memory for a link: {error}"));
                self.wire_failed(&end);
            }
        }
    }

    pub(super) fn wire_failed(&mut self, end: &EngineEnd) {
        let (qpn, peer_qpn) = (end.ready.qpn, end.ready.peer_qpn);
        self.leave_group(end.vnic, (qpn, peer_qpn));
        self.tables.decide(|tables| tables.engine_link_failed(qpn, peer_qpn));
    }

    pub(super) fn detach_engine(&mut self, vnic: VnicId, qpn: Qpn, peer_qpn: Qpn) {
        if let Some(port) = self.vnics.port_mut(vnic)
            && port.wait_no_more(qpn, peer_qpn)
        {
            return;
        }
        self.leave_group(vnic, (qpn, peer_qpn));
        self.engine.detach(qpn, peer_qpn);
    }

    /// A link is there by which a queue pair is attached to a group.
    fn join_group(&mut self, end: &EngineEnd) -> io::Result<()> {
        let link = (end.ready.qpn, end.ready.peer_qpn);
        let scope = match self.tables.place(end.vnic) {
            Some(_) => GroupScope::Virtual,
            None => GroupScope::Namespace,
        };
        if scope == GroupScope::Namespace {
            // Before a packet to the group comes.
            self.tell_group_senders(end.vnic);
        }
        let Some(port) = self.vnics.port_mut(end.vnic) else { return Ok(()) };
        let change = port.join(link, end.underlay, scope)?;
        if scope == GroupScope::Virtual {
            change.joined.into_iter().for_each(|group| self.engine.join_group(end.vnic, group));
            change.left.into_iter().for_each(|group| self.engine.leave_group(end.vnic, group));
        }
        Ok(())
    }

    /// A link by which a queue pair may have been attached to a group is no more.
    fn leave_group(&mut self, vnic: VnicId, link: (Qpn, Qpn)) {
        let Some(port) = self.vnics.port_mut(vnic) else { return };
        let left = port.leave(link);
        if self.tables.place(vnic).is_some() {
            left.into_iter().for_each(|group| self.engine.leave_group(vnic, group));
        }
    }

    /// The vNICs of a tenant's virtual network.
    pub(super) fn places_in(&self, tenant: TenantId) -> Arc<NetworkPlaces> {
        let names = self.tables.names_in(tenant).into_iter();
        Arc::new(NetworkPlaces::new(names.map(|(place, gid)| {
            let (first, count) = (place.range.offset().number(), place.range.count());
            (place.underlay, Qpn(first), count, gid)
        })))
    }

    /// The helper has opened a vNIC's sockets, or could not.
    pub(super) fn port_found(&mut self, vnic: VnicId, port: io::Result<Arc<UdpPort>>) {
        let now = clock::now();
        // Those of the namespace were asked for before the vNIC had a virtual address.
        let is_flat = |port: &Arc<UdpPort>| port.carried().is_none();
        let port = match self.tables.place(vnic) {
            Some(_) if port.as_ref().is_ok_and(is_flat) => self.underlay_port(),
            _ => port,
        };
        let in_use = port.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::AddrInUse);
        let closed = self.vnics.closed();
        if let Ok(port) = &port
            && self.waits_for_psp_port(vnic, port)
        {
            return;
        }
        let Some(own) = self.vnics.port_mut(vnic) else { return };
        if in_use && own.tries_again(closed) {
            return self.reactor.set(PAUSE, Timer::Port(vnic));
        }
        match port {
            Ok(port) => {
                let Some(waiting) = own.opened(port.clone()) else { return };
                // What came while the machine had no process is for none that it has now.
                port.carried().into_iter().for_each(ProxiedSocket::forget);
                let holder = self.vnics.holder(vnic);
                let services = self.tables.services_of(vnic);
                let end = port.carried().map(ProxiedSocket::carriers_end);
                self.engine.open(vnic, port, &holder, services);
                if let Some((place, end)) = self.tables.place(vnic).zip(end) {
                    self.carry(vnic, place, end);
                }
                let policy = self.tables.policy(vnic);
                self.engine.limit(vnic, &policy, self.objects.shared_limits(vnic));
                // A virtual network's is said with the place.
                if policy.encryption.is_some() && self.tables.place(vnic).is_none() {
                    self.set_encryption(vnic);
                }
                if policy.faults.is_some() {
                    self.engine.faults(vnic, policy.faults);
                    // Those that were set at run time are in the log already.
                    if !self.vnics.registry().is_kept(vnic) {
                        self.warn_of_faults(vnic);
                    }
                }
                self.record(vnic);
                self.probes.start_again(vnic, now);
                for end in waiting {
                    self.attach_engine(end);
                }
            }
            Err(error) => {
                let Some(waiting) = own.failed(now) else { return };
                self.warn_of_port(vnic, &error);
                for id in self.probes.of(vnic) {
                    self.tables.decide(|tables| tables.probe_failed(id, now));
                }
                for end in waiting {
                    self.wire_failed(&end);
                }
            }
        }
    }

    /// Has packets of a vNIC with a virtual address carried.
    fn carry(
        &mut self,
        vnic: VnicId,
        (tenant, place): (TenantId, VnicPlace),
        end: io::Result<OwnedFd>,
    ) {
        let (encryption, places) = (self.underlay_encryption(vnic), self.places_in(tenant));
        let agent = self.machines.of_vnic(vnic).and_then(|it| it.port.clone());
        let carried = end.and_then(|end| {
            self.engine.carry(vnic, (tenant, &place), (end, agent), encryption, places)
        });
        if let Err(error) = carried
            && self.vnics.is_warning_due(vnic)
        {
            let name = self.vnics.registry().name(vnic);
            let text = format_args!("vNIC {name}: {error}; it reaches no other vNIC");
            self.journal.log(Level::Warning, text);
        }
    }

    /// Says that a vNIC's sockets could not be opened, once for each vNIC.
    pub(super) fn warn_of_port(&mut self, vnic: VnicId, error: &io::Error) {
        if self.vnics.is_warning_due(vnic) {
            let name = self.vnics.registry().name(vnic);
            let text = format_args!(
                "UDP port 4791 of vNIC {name}: {error}; \
                 its processes reach nobody outside their network namespace"
            );
            self.journal.log(Level::Warning, text);
        }
    }

    /// The vNIC has no processes any more.
    pub(super) fn close_port(&mut self, vnic: VnicId) {
        if let Some(port) = self.vnics.port_mut(vnic) {
            port.forget_waiting_links();
        }
        if !self.captures.is_recorded(vnic) {
            self.end_port(vnic);
        }
    }

    /// The vNIC has no port any more.
    pub(super) fn end_port(&mut self, vnic: VnicId) {
        let Some(port) = self.vnics.port_mut(vnic) else { return };
        port.forget_waiting_links();
        if let Some(port) = port.close() {
            self.engine.close(vnic);
            self.vnics.let_go(&port);
        }
        self.end_psp_port(vnic);
    }
}
