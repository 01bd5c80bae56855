//! Presents the packet engine to the rest of the control plane.
//!
//! In: vNICs with their sockets, links, limits, faults. Out: events. Nothing outside this file and
//! its module names the engine's own types.

mod carried_link_memory;
mod limit_groups;

use crate::link_memory::{Memory, Shared};
use carried_link_memory::CarriedLinkMemory;
pub(crate) use limit_groups::{CommonLimits, SharedLimits};
use limit_groups::{LimitGroups, of_ops, of_rate};
use omniverb_engine::{
    Attach, Command, Denial, Engine, Event as Happened, Faults as Line, Grant, LimitUnit,
    Memory as Kept, PORT, PerUnit, PortNotice, Recipient as Addressed, Seat, Settings,
    UnderlayRelay, capture_recorder,
};
use omniverb_fairness::Holder;
use omniverb_ring::Window;
use omniverb_session::body::{GrantDenied, Granted};
use omniverb_session::network_fault_text::Faults;
use omniverb_sys::clock;
use omniverb_sys::thread_watchdog::ThreadPulses;
use omniverb_sys::udp_socket::UdpPort;
use omniverb_tenancy::{
    EngineEnd, Policy, ProbeId, Recipient, SessionId, TenantId, TracedEnd, VnicPlace,
};
use omniverb_terms::{Errno, Operations, Qpn, Rkey, UnderlayRoute, VnicId};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub(crate) use omniverb_engine::capture_recorder::Summary;
pub(crate) use omniverb_engine::{
    ENCRYPTION_BYTES, Encryption, FaultCounters, NetworkPlaces, Pages, QpCounters, Refusal, Row,
    TenantsByAddress, handshake_datagram,
};

/// What engines of other hosts can do, which are taken to be like this one.
pub(crate) const ENGINE_FEATURES: u32 = omniverb_engine::peer_features::ALL;

/// What it can besides where processes carry connections.
pub(crate) use omniverb_engine::peer_features::CARRIED;

/// Where the engine leaves packets that are captured.
pub(crate) type PacketQueue = Arc<omniverb_engine::PacketQueue>;

/// A packet that is to arrive behind others is late by up to so many nanoseconds, or four times the
/// longest delay if that is more.
const REORDER_DELAY: u64 = 1_000_000;

/// Events of the engine. A vNIC that one names may have gone meanwhile.
#[derive(Debug)]
pub(crate) enum Event {
    /// An answer to a question under way came to a vNIC.
    Answered { number: ProbeId, at: VnicId, from: IpAddr, features: Option<u32> },
    /// A management datagram for QP 1 came.
    Management { vnic: VnicId, source: Qpn, underlay: UnderlayRoute, datagram: Vec<u8> },
    /// A datagram came from a sender that its QP has no link for.
    Stranger { vnic: VnicId, qpn: Qpn, source_qpn: Qpn, underlay: UnderlayRoute },
    /// A peer names a key of a queue pair's process.
    Wanted { qpn: Qpn, peer_qpn: Qpn, key: Rkey, range: (u64, u64) },
    /// Pages that stay where they are were granted for a link, and the engine cannot map them.
    NotMapped { qpn: Qpn, peer_qpn: Qpn, key: Rkey, start: u64 },
    /// The process that carries a vNIC's port has sent a message that ends it.
    PortOver { vnic: VnicId },
    /// An address gets nothing of a vNIC whose packets are encrypted; no reason: it does again.
    Encryption { vnic: VnicId, remote: IpAddr, refusal: Option<Refusal> },
    /// The limit of a vNIC cannot be put in place: it sends nothing until another one is.
    LimitRefused { vnic: VnicId, unit: LimitUnit },
    /// A notice of ports came to a vNIC from another Omniverb.
    PortNotice { vnic: VnicId, from: IpAddr, notice: PortNotice },
    /// A link that its process gave cannot be served.
    NotServed { qpn: Qpn, peer_qpn: Qpn },
    /// A connection failed.
    Failed { qpn: Qpn, peer_qpn: Qpn, why: String },
}

/// Memory as the engine gets it, which keeps it as long as it has it mapped.
fn of_engine(memory: &Memory) -> Kept {
    Kept { extent: memory.extent.clone(), keep: memory.kept() }
}

/// The engine as the rest of the daemon speaks to it: in words of the tables, not of commands.
pub(crate) struct Packets {
    engine: Engine,
    groups: PerUnit<LimitGroups>,
    /// Memory of links that their processes carry.
    carried: CarriedLinkMemory,
    /// Started for the first vNIC that needs it.
    relay: Option<UnderlayRelay>,
    pulses: ThreadPulses,
}

impl Packets {
    /// `features`: more of those that other Omniverbs are told of than [`ENGINE_FEATURES`].
    pub(crate) fn start(
        pulses: &ThreadPulses,
        kept_bytes: usize,
        features: u32,
    ) -> io::Result<Packets> {
        let (features, pulses) = (ENGINE_FEATURES | features, pulses.clone());
        let settings = Settings { kept_bytes, features, pulses, ..Settings::default() };
        let pulses = settings.pulses.clone();
        let engine = Engine::start(&settings)?;
        let groups = PerUnit {
            bytes: LimitGroups::new(LimitUnit::Bytes),
            operations: LimitGroups::new(LimitUnit::Operations),
        };
        let carried = CarriedLinkMemory::default();
        Ok(Packets { engine, groups, carried, relay: None, pulses })
    }

    /// Readable when [`next_event`](Self::next_event) has something.
    pub(crate) fn ready(&self) -> BorrowedFd<'_> {
        self.engine.ready().as_fd()
    }

    /// Forgets that it was ready.
    pub(crate) fn take_ready(&self) {
        self.engine.ready().take();
    }

    /// Be ready again: not all events were taken.
    pub(crate) fn come_back(&self) {
        self.engine.ready().signal();
    }

    /// Serves a vNIC of this holder by these sockets. `services`: its queue pair 1 in packets.
    pub(crate) fn open(&self, vnic: VnicId, port: Arc<UdpPort>, holder: &Holder, services: Qpn) {
        self.engine.send(Command::OpenVnic { vnic, port, holder: holder.path().into(), services });
    }

    /// Has the thread there that packets at underlay addresses pass by.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn begin_underlay(&mut self) -> io::Result<()> {
        self.relay().map(drop)
    }

    /// Packets at an underlay address pass by this socket from now on, or no more.
    pub(crate) fn set_underlay_socket(&self, underlay: IpAddr, socket: Option<OwnedFd>) {
        if let Some(relay) = &self.relay {
            relay.set_socket(underlay, socket);
        }
    }

    /// The relay, which is started for the first that needs it.
    fn relay(&mut self) -> io::Result<&mut UnderlayRelay> {
        match &mut self.relay {
            Some(relay) => Ok(relay),
            none => Ok(none.insert(self.engine.start_relay(&self.pulses)?)),
        }
    }

    /// Carries packets of a vNIC with this place in its tenant's virtual network, by the other end
    /// of its port: to vNICs of this host, and over the underlay. `agent`: the port of a virtual
    /// machine's agent. `encryption`: of what passes between hosts.
    pub(crate) fn carry(
        &mut self,
        vnic: VnicId,
        (tenant, place): (TenantId, &VnicPlace),
        (end, agent): (OwnedFd, Option<Arc<UdpPort>>),
        encryption: Option<Encryption>,
        places: Arc<NetworkPlaces>,
    ) -> io::Result<()> {
        self.engine.send(Command::SetPlaces { vnic, places: places.clone() });
        let relay = self.relay()?;
        if let Some(port) = encryption.as_ref().and_then(|encryption| encryption.port.clone()) {
            relay.set_psp_port(Some(port));
        }
        let (underlay, range) = (place.underlay, place.range);
        let qpns = (Qpn(range.offset().number()), range.count());
        // A loopback address is of a tenant of one host: nothing leaves it.
        let (network, has_far_peers) = (tenant.0.into(), !underlay.is_loopback());
        relay.open(Seat {
            vnic,
            network,
            underlay,
            has_far_peers,
            qpns,
            end,
            agent,
            places,
            encryption,
        })
    }

    /// All vNICs of a virtual network are these now. `served`: those of this host with sockets.
    pub(crate) fn set_places(
        &self,
        tenant: TenantId,
        served: &[VnicId],
        places: &Arc<NetworkPlaces>,
    ) {
        let Some(relay) = &self.relay else { return };
        relay.set_places(tenant.0.into(), places.clone());
        for vnic in served {
            self.engine.send(Command::SetPlaces { vnic: *vnic, places: places.clone() });
        }
    }

    /// A vNIC without a virtual network hears such senders to groups from now on; `None`: any.
    pub(crate) fn set_group_senders(
        &self,
        vnic: VnicId,
        senders: Option<(TenantId, Arc<TenantsByAddress>)>,
    ) {
        let senders = senders.map(|(tenant, all)| (tenant.0, all));
        self.engine.send(Command::SetGroupSenders { vnic, senders });
    }

    /// A vNIC is in a group of its virtual network from now on.
    pub(crate) fn join_group(&self, vnic: VnicId, group: IpAddr) {
        if let Some(relay) = &self.relay {
            relay.join_group(vnic, group);
        }
    }

    /// It is in it no longer.
    pub(crate) fn leave_group(&self, vnic: VnicId, group: IpAddr) {
        if let Some(relay) = &self.relay {
            relay.leave_group(vnic, group);
        }
    }

    /// Encrypts what the vNICs of a virtual network exchange with other hosts, or no longer.
    pub(crate) fn encrypt_network(&self, tenant: TenantId, encryption: Option<Encryption>) {
        let Some(relay) = &self.relay else { return };
        if let Some(port) = encryption.as_ref().and_then(|encryption| encryption.port.clone()) {
            relay.set_psp_port(Some(port));
        }
        relay.encrypt(tenant.0.into(), encryption);
    }

    /// The port of PSP in the daemon's own network namespace is closed.
    pub(crate) fn close_underlay_psp_port(&self) {
        if let Some(relay) = &self.relay {
            relay.set_psp_port(None);
        }
    }

    /// Closes a vNIC's sockets; packets for it have no receiver.
    pub(crate) fn close(&mut self, vnic: VnicId) {
        if let Some(relay) = &mut self.relay {
            relay.close(vnic);
        }
        self.groups.bytes.leave(vnic);
        self.groups.operations.leave(vnic);
        self.engine.send(Command::CloseVnic { vnic });
    }

    /// Sets or lifts the limits of a served vNIC: its own, and those that it shares. Unchanged
    /// limits go on.
    pub(crate) fn limit(&mut self, vnic: VnicId, policy: &Policy, shared: SharedLimits) {
        let (now, PerUnit { bytes, operations }) = (clock::now(), &mut self.groups);
        let (limit, rate) = (policy.limit.map(of_rate), shared.rate.map(of_rate));
        let of_bytes = bytes.limit(vnic, limit, (shared.tenant, rate), now);
        let (limit, ops) = (policy.operations.map(of_ops), shared.ops.map(of_ops));
        let of_operations = operations.limit(vnic, limit, (shared.tenant, ops), now);
        for command in of_bytes.into_iter().chain(of_operations) {
            self.engine.send(command);
        }
    }

    /// Closes groups that no vNIC is in.
    pub(crate) fn close_empty_groups(&mut self) {
        let PerUnit { bytes, operations } = &mut self.groups;
        for command in bytes.close_empty().into_iter().chain(operations.close_empty()) {
            self.engine.send(command);
        }
    }

    /// Does this to packets that arrive for a vNIC, or nothing any more.
    pub(crate) fn faults(&self, vnic: VnicId, faults: Option<Faults>) {
        let faults = faults.map(|faults| {
            let (least, most) = (faults.delay - faults.jitter, faults.delay + faults.jitter);
            let line = Line {
                loss: faults.loss.into(),
                duplication: faults.duplicate.into(),
                corruption: faults.corrupt.into(),
                reordering: faults.reorder.into(),
                reorder_delay: REORDER_DELAY.max(4 * most),
                marking: faults.mark.into(),
                delay: (least, most),
                limit: faults.limit as usize,
                ..Line::default()
            };
            (line, faults.seed)
        });
        self.engine.send(Command::SetFaults { vnic, faults: faults.map(Box::new) });
    }

    /// What was done to them, since that was set.
    pub(crate) fn fault_counters(&self, vnic: VnicId) -> Option<FaultCounters> {
        self.engine.faults(vnic)
    }

    /// Encrypts what a vNIC exchanges with other hosts, or no longer.
    pub(crate) fn encryption(&self, vnic: VnicId, encryption: Option<Encryption>) {
        let encryption = encryption.map(Box::new);
        self.engine.send(Command::SetEncryption { vnic, encryption });
    }

    /// Serves a link over this memory.
    pub(crate) fn attach(&self, end: &EngineEnd, shared: &Shared) {
        // A process that carries its other links has a doorbell that the engine does not have.
        let doorbell = shared.bell.clone().or_else(|| self.carried.doorbell(end));
        self.attach_at(end, (&shared.link, doorbell.as_ref()), (PORT, None));
    }

    /// Keeps the memory of a link that its process carries, to serve it when that is wanted.
    pub(crate) fn keep_carried(&mut self, end: &EngineEnd, shared: &Shared) {
        self.carried.keep(end, shared);
    }

    /// Keeps the memory of a process's doorbell with the engine, for later links that it carries.
    pub(crate) fn keep_doorbell(&mut self, session: SessionId, shared: &Shared, bell: u64) {
        self.carried.keep_doorbell(session, bell, shared);
    }

    /// Forgets the doorbell of a process that is gone.
    pub(crate) fn forget_doorbell(&mut self, session: SessionId) {
        self.carried.forget_doorbell(session);
    }

    /// Serves a link that its process has carried. False: its memory is not there.
    pub(crate) fn attach_carried(
        &mut self,
        link: (Qpn, Qpn),
        peer_port: u16,
        state: Box<[u8]>,
    ) -> bool {
        let Some((end, memory, bell)) = self.carried.take(link) else { return false };
        self.attach_at(&end, (&memory, bell.as_ref()), (peer_port, Some(state)));
        true
    }

    /// Packets of a link go to this UDP port of its peer's from now on.
    pub(crate) fn set_peer_port(&self, vnic: VnicId, link: (Qpn, Qpn), port: u16) {
        let (qpn, peer_qpn) = link;
        self.engine.send(Command::SetPeerPort { vnic, qpn, peer_qpn, port });
    }

    fn attach_at(
        &self,
        end: &EngineEnd,
        (link, bell): (&Memory, Option<&Memory>),
        (peer_port, handover): (u16, Option<Box<[u8]>>),
    ) {
        let ready = &end.ready;
        self.engine.send(Command::Attach(Box::new(Attach {
            vnic: end.vnic,
            qpn: ready.qpn,
            peer_qpn: ready.peer_qpn,
            service: end.service,
            underlay: end.underlay,
            link: of_engine(link),
            request_bytes: ready.request_bytes as usize,
            response_bytes: ready.response_bytes as usize,
            bell: ready.bell,
            bell_memory: bell.map(of_engine),
            // The two ends of a link see its bits the other way round.
            local_slot: ready.peer_slot,
            peer_slot: ready.local_slot,
            within: end.within,
            features: end.features,
            refused: end.refused,
            peer_port,
            handover,
        })));
    }

    /// A link's queue pair may not ask for these from now on.
    pub(crate) fn refuse(&mut self, vnic: VnicId, link: (Qpn, Qpn), refused: Operations) {
        let (qpn, peer_qpn) = link;
        self.carried.refuse(link, refused);
        self.engine.send(Command::Refuse { vnic, qpn, peer_qpn, refused });
    }

    /// A link is closed.
    pub(crate) fn detach(&mut self, qpn: Qpn, peer_qpn: Qpn) {
        self.carried.forget((qpn, peer_qpn));
        self.engine.send(Command::Detach { qpn, peer_qpn });
    }

    /// Grants a link the pages that it wanted.
    pub(crate) fn grant(&self, vnic: VnicId, granted: &Granted, memory: Pages) {
        self.engine.send(Command::Grant(Box::new(Grant {
            vnic,
            qpn: granted.qpn,
            peer_qpn: granted.peer_qpn,
            key: granted.rkey,
            access: granted.access,
            region: (granted.addr, granted.length),
            start: granted.page_start,
            epoch: granted.epoch,
            memory,
        })));
    }

    /// Withdraws the grant of these pages of a vNIC: holders release them.
    pub(crate) fn withdraw(&self, vnic: VnicId, row: Arc<Row>) {
        self.engine.send(Command::Withdraw { vnic, row });
    }

    /// Refuses a link what it wanted, or postpones it.
    pub(crate) fn deny(&self, vnic: VnicId, denied: &GrantDenied) {
        let GrantDenied { qpn, peer_qpn, rkey: key, errno } = *denied;
        let denied = Denial::of(errno);
        self.engine.send(Command::Deny { vnic, qpn, peer_qpn, key, denied });
    }

    /// Leaves a vNIC's packets there, or no longer.
    pub(crate) fn capture(&self, vnic: VnicId, queue: Option<PacketQueue>) {
        self.engine.send(Command::Capture { vnic, queue });
    }

    /// Sends a management datagram of a vNIC's.
    pub(crate) fn manage(
        &self,
        vnic: VnicId,
        (underlay, services): (UnderlayRoute, Qpn),
        datagram: Box<[u8]>,
        to: Recipient,
    ) {
        let recipient = match to {
            Recipient::Known => Addressed::Known,
            Recipient::Stranger => Addressed::Stranger,
        };
        self.engine.send(Command::Manage { vnic, underlay, services, datagram, recipient });
    }

    /// A question of this number is sent from a vNIC to an address: its answer is an event,
    /// whatever else comes.
    pub(crate) fn expect(&self, number: ProbeId, asker: VnicId, asked: IpAddr) {
        self.engine.expect(number, asker, asked);
    }

    /// A question is under way no more.
    pub(crate) fn expect_no_more(&self, number: ProbeId) {
        self.engine.expect_no_more(number);
    }

    /// What was counted for a link.
    pub(crate) fn counters(&self, qpn: Qpn, peer_qpn: Qpn) -> Option<QpCounters> {
        self.engine.status(qpn, peer_qpn)
    }

    /// The counters of a vNIC's links that have ended.
    pub(crate) fn ended(&self, vnic: VnicId) -> QpCounters {
        self.engine.ended(vnic)
    }

    /// Resets the counters of a vNIC's ended links, after the links that were told to end before.
    pub(crate) fn forget_counted(&self, vnic: VnicId) {
        self.engine.send(Command::ForgetCounted { vnic });
    }

    pub(crate) fn next_event(&self) -> Option<Event> {
        let event = self.engine.next_event()?;
        Some(match event {
            Happened::Answered { number, at, from, features } => {
                Event::Answered { number, at, from, features }
            }
            Happened::Management { vnic, source, underlay, datagram, .. } => {
                Event::Management { vnic, source, underlay, datagram }
            }
            Happened::Stranger { vnic, qpn, source_qpn, underlay } => {
                Event::Stranger { vnic, qpn, source_qpn, underlay }
            }
            Happened::Wanted { qpn, peer_qpn, key, range } => {
                Event::Wanted { qpn, peer_qpn, key, range }
            }
            Happened::NotMapped { qpn, peer_qpn, key, start } => {
                Event::NotMapped { qpn, peer_qpn, key, start }
            }
            Happened::PortOver { vnic } => Event::PortOver { vnic },
            Happened::Encryption { vnic, remote, refusal } => {
                Event::Encryption { vnic, remote, refusal }
            }
            Happened::LimitRefused { vnic, unit } => Event::LimitRefused { vnic, unit },
            Happened::PortNotice { vnic, from, notice } => Event::PortNotice { vnic, from, notice },
            Happened::NotServed { qpn, peer_qpn } => Event::NotServed { qpn, peer_qpn },
            Happened::Failed { qpn, peer_qpn, status } => {
                Event::Failed { qpn, peer_qpn, why: format!("{status:?}") }
            }
        })
    }
}

/// The thread that writes captures, as the rest of the daemon speaks to it.
pub(crate) struct Recorder(capture_recorder::Recorder);

impl Recorder {
    /// `bytes`: what all captures together may keep until it is written.
    pub(crate) fn start(pulses: &ThreadPulses, bytes: usize) -> io::Result<Recorder> {
        Ok(Recorder(capture_recorder::Recorder::start(pulses.minor("recorder"), bytes)?))
    }

    /// Readable when [`next_ended`](Self::next_ended) has something.
    pub(crate) fn ready(&self) -> BorrowedFd<'_> {
        self.0.ready().as_fd()
    }

    /// Forgets that it was ready.
    pub(crate) fn take_ready(&self) {
        self.0.ready().take();
    }

    /// A capture that is over, by the number it was begun with, and how it went.
    pub(crate) fn next_ended(&self) -> Option<(u64, Summary)> {
        self.0.next_ended()
    }

    /// A capture that has begun, or the errno of its file.
    pub(crate) fn next_begun(&self) -> Option<(u64, Option<Errno>)> {
        self.0.next_begun()
    }

    /// Closes files, however long that takes.
    pub(crate) fn discard(&self, files: Vec<OwnedFd>) {
        self.0.discard(files);
    }

    /// Begins a capture of a vNIC; [`next_begun`](Self::next_begun) says how that went.
    pub(crate) fn begin(
        &self,
        capture: u64,
        vnic: VnicId,
        file: OwnedFd,
        snap_bytes: u32,
    ) -> PacketQueue {
        self.0.begin(capture, vnic, file, snap_bytes)
    }

    /// Ends it; [`next_ended`](Self::next_ended) says when it is over.
    pub(crate) fn end(&self, capture: u64) {
        self.0.end(capture);
    }

    /// Reads the reports of a session.
    pub(crate) fn read(&self, session: u64, memory: Window) {
        self.0.read(session, memory);
    }

    /// Stops reading the reports of a session.
    pub(crate) fn read_no_more(&self, session: u64) {
        self.0.read_no_more(session);
    }

    /// Trusts a session's reports about this end of a link.
    pub(crate) fn trace(&self, end: &TracedEnd) {
        let traced = capture_recorder::TracedEnd {
            qpn: end.qpn,
            peer_qpn: end.peer_qpn,
            service: end.service,
            local: end.underlay.local,
            remote: end.underlay.remote,
        };
        self.0.trace(end.session.0, traced, end.vnics);
    }

    /// Stops trusting a session's reports about a link.
    pub(crate) fn untrace(&self, session: u64, qpn: Qpn, peer_qpn: Qpn) {
        self.0.untrace(session, qpn, peer_qpn);
    }

    /// There is a session that cannot tell.
    pub(crate) fn miss(&self) {
        self.0.miss();
    }
}
