//! Serves calls that connect, accept, reject, establish, disconnect and query ids.

use super::cm_id::{Exchange, Id, private};
use crate::cm::ConnectionManager;
use crate::row_keys::SessionId;
use omniverb_cm::sidr::status;
use omniverb_cm::{
    CmAction, Connection, IpHeader, NegotiatedParameters, Path as Way, Reply, Request, Resolution,
    Resolve, ServiceId, State, Transport, WrongState, reject_reason,
};
use omniverb_session::body::Done;
use omniverb_session::cm::{
    AcceptCmId, CM_KNOWN_INIT, CM_KNOWN_RTR, CM_KNOWN_RTS, CM_QUEUE_KEY, CmIdQueried, ConnectCmId,
    DisconnectCmId, EstablishCmId, QueryCmId, RejectCmId,
};
use omniverb_session::page_rights::{FLUSH_GLOBAL, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};
use omniverb_terms::{Errno, Gid, Qkey, Qpn, Service};

/// How long managers may take to answer each other, 5 bits: 4.3 s, as kernels say.
const MANAGER_TIMEOUT: u8 = 20;
/// How often managers repeat themselves, as kernels say.
const MANAGER_RETRIES: u8 = 15;
/// Local ACK timeout, 5 bits, unless the user sets another: 537 ms, as kernels have it.
const ACK_TIMEOUT: u8 = 17;
/// How long our device takes to acknowledge, 5 bits, as kernels' software devices say.
const ACK_DELAY: u8 = 15;
/// LIDs are not used where packets are routed.
const NO_LID: u16 = 0xffff;
const PARTITION_KEY: u16 = 0xffff;
/// Vendors are numbers of 24 bits.
const VENDOR: u32 = 0xff_ffff;
/// Retry counts are numbers of 3 bits.
const RETRIES_MAX: u8 = 7;

const DONE: Done = Done { take_back: 0 };

impl ConnectionManager<'_> {
    pub(crate) fn connect_cm_id(
        &mut self,
        session: SessionId,
        m: &ConnectCmId,
        now: u64,
    ) -> Result<Done, Errno> {
        let key = (session, m.id);
        let id = self.connections.get(key)?;
        // The end of XRC that receives is asked, and does not ask.
        if !id.is_fresh() || id.service() == Service::XrcRecv {
            return Err(Errno::EINVAL);
        }
        self.check_cm_qp(session, id, m.qpn)?;
        let mut path = id.path.ok_or(Errno::EINVAL)?;
        path.traffic_class = m.parameters.tos;
        let vnic = id.vnic();
        let header = IpHeader {
            port: path.local.port(),
            source: path.local.ip(),
            destination: path.remote.ip(),
        };
        let head = header.to_bytes();
        let length = usize::from(m.parameters.private_length);
        let (mut steps, name) = (Vec::new(), self.draw_cm_name(vnic));
        let transaction = transaction(name);
        let id = self.connections.get(key)?;
        let exchange = if id.service().is_connected() {
            let private = private(&head, &m.private, length)?;
            let request = Request { communication: name, private, ..self.request(id, &path, m) };
            let connection = Connection::ask(request, transaction, now, &mut steps);
            Exchange::Connection(Box::new(connection))
        } else {
            let resolve = Resolve {
                request: name,
                partition_key: PARTITION_KEY,
                service: ServiceId { space: id.kind().0, port: path.remote.port() }.to_u64(),
                private: private(&head, &m.private, length)?,
            };
            let resolution = Resolution::ask(resolve, transaction, now, &mut steps);
            Exchange::Resolution(Box::new(resolution))
        };
        let id = self.connections.get_mut(key)?;
        (id.path, id.exchange) = (Some(path), exchange);
        self.connections.give_name(key, name);
        self.tenants.open_port(self.context, vnic);
        self.do_cm(key, steps, now);
        Ok(DONE)
    }

    /// Connections are found by their queue pairs: a process that could name another's could end
    /// them. Numbers without owner are allowed: some programs connect without a queue pair.
    fn check_cm_qp(&self, session: SessionId, id: &Id, qpn: Qpn) -> Result<(), Errno> {
        let owner = self.queue_pairs.session_of(qpn);
        let fine = !id.service().is_connected() || owner.is_none_or(|owner| owner == session);
        if fine { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// The REQ of an id, but for names and private data.
    fn request(&self, id: &Id, path: &super::cm_id::Path, m: &ConnectCmId) -> Request {
        let parameters = &m.parameters;
        let ack_timeout = match parameters.ack_timeout {
            0 => ACK_TIMEOUT,
            chosen => chosen.min(31),
        };
        Request {
            communication: 0,
            vendor: parameters.ece_vendor & VENDOR,
            options: parameters.ece_options,
            service: ServiceId { space: id.kind().0, port: path.remote.port() }.to_u64(),
            device: u64::from_be_bytes(self.tenants.node_guid(id.vnic())),
            queue_key: Qkey(0),
            queue_pair: Qpn(m.qpn.0 & 0xff_ffff),
            responder_resources: served(id.service(), parameters.responder_resources),
            initiator_depth: parameters.initiator_depth,
            contexts: (0, 0),
            remote_timeout: MANAGER_TIMEOUT,
            local_timeout: MANAGER_TIMEOUT,
            transport: Transport::Of(id.service()),
            has_flow_control: parameters.flow_control != 0,
            psn: id.psn(),
            retry_count: parameters.retry_count.min(RETRIES_MAX),
            partition_key: PARTITION_KEY,
            path_mtu: path.path_mtu,
            has_datagram_channels: false,
            rnr_retry: parameters.rnr_retry.min(RETRIES_MAX),
            manager_retries: MANAGER_RETRIES,
            has_srq: parameters.srq != 0,
            primary: Way {
                local_lid: NO_LID,
                remote_lid: NO_LID,
                local_gid: path.sgid,
                remote_gid: path.dgid,
                flow_label: path.flow_label,
                rate: 0,
                traffic_class: path.traffic_class,
                hop_limit: path.hop_limit,
                service_level: 0,
                is_subnet_local: false,
                ack_timeout,
            },
            alternate: Way::default(),
            may_propose_path: false,
            private: [0; 92],
        }
    }

    /// A random name for a connection.
    pub(super) fn draw_cm_name(&mut self, vnic: omniverb_terms::VnicId) -> u32 {
        loop {
            let name = self.context.entropy.next() as u32;
            if name != 0 && self.connections.named(vnic, name).is_none() {
                return name;
            }
        }
    }

    pub(crate) fn accept_cm_id(
        &mut self,
        session: SessionId,
        m: &AcceptCmId,
        now: u64,
    ) -> Result<Done, Errno> {
        let key = (session, m.id);
        let (parameters, length) = (&m.parameters, usize::from(m.parameters.private_length));
        let id = self.connections.get(key)?;
        self.check_cm_qp(session, id, m.qpn)?;
        let vnic = id.vnic();
        let device = u64::from_be_bytes(self.tenants.node_guid(vnic));
        let id = self.connections.get_mut(key)?;
        let (extended, psn) = (id.service().is_extended(), id.psn());
        let mut steps = Vec::new();
        match &mut id.exchange {
            Exchange::Connection(connection) => {
                let own = Qpn(m.qpn.0 & 0xff_ffff);
                let reply = Reply {
                    communication: 0,
                    remote: 0,
                    queue_key: Qkey(0),
                    queue_pair: if extended { Qpn(0) } else { own },
                    vendor: parameters.ece_vendor & VENDOR,
                    options: parameters.ece_options,
                    context: if extended { own.0 } else { 0 },
                    psn,
                    responder_resources: parameters.responder_resources,
                    initiator_depth: parameters.initiator_depth,
                    ack_delay: ACK_DELAY,
                    failover: 0,
                    has_flow_control: parameters.flow_control != 0,
                    rnr_retry: parameters.rnr_retry.min(RETRIES_MAX),
                    has_srq: extended || parameters.srq != 0,
                    device,
                    private: private(&[], &m.private, length)?,
                };
                connection.accept(reply, now, &mut steps).map_err(wrong_state)?;
            }
            Exchange::Resolution(resolution) => {
                let key = if parameters.qkey == Qkey(0) { CM_QUEUE_KEY } else { parameters.qkey };
                id.served = (m.qpn, key);
                let private = private(&[], &m.private, length)?;
                let served = (m.qpn, key);
                resolution
                    .answer(status::VALID, served, private, &mut steps)
                    .map_err(wrong_state)?;
            }
            Exchange::None => return Err(Errno::EINVAL),
        }
        self.connections.answer(key);
        self.do_cm(key, steps, now);
        Ok(DONE)
    }

    pub(crate) fn reject_cm_id(
        &mut self,
        session: SessionId,
        m: &RejectCmId,
        now: u64,
    ) -> Result<Done, Errno> {
        let (key, length) = ((session, m.id), usize::from(m.private_length));
        let id = self.connections.get_mut(key)?;
        let mut steps = Vec::new();
        match &mut id.exchange {
            Exchange::Connection(connection) => {
                let reason = if m.reason == 0 { reject_reason::CONSUMER } else { m.reason };
                let private = private(&[], &m.private, length)?;
                connection.reject(reason, private, &mut steps).map_err(wrong_state)?;
            }
            Exchange::Resolution(resolution) => {
                let private = private(&[], &m.private, length)?;
                resolution
                    .answer(status::REJECTED, (Qpn(0), Qkey(0)), private, &mut steps)
                    .map_err(wrong_state)?;
            }
            Exchange::None => return Err(Errno::EINVAL),
        }
        self.connections.answer(key);
        self.do_cm(key, steps, now);
        Ok(DONE)
    }

    pub(crate) fn establish_cm_id(
        &mut self,
        session: SessionId,
        m: &EstablishCmId,
        now: u64,
    ) -> Result<Done, Errno> {
        self.with_connection((session, m.id), now, |connection, steps| connection.establish(steps))
    }

    pub(crate) fn disconnect_cm_id(
        &mut self,
        session: SessionId,
        m: &DisconnectCmId,
        now: u64,
    ) -> Result<Done, Errno> {
        self.with_connection((session, m.id), now, |connection, steps| {
            connection.disconnect(now, steps)
        })
    }

    fn with_connection(
        &mut self,
        key: super::cm_id::Key,
        now: u64,
        what: impl FnOnce(&mut Connection, &mut Vec<CmAction>) -> Result<(), WrongState>,
    ) -> Result<Done, Errno> {
        let mut steps = Vec::new();
        match &mut self.connections.get_mut(key)?.exchange {
            Exchange::Connection(connection) => {
                what(connection, &mut steps).map_err(wrong_state)?;
            }
            Exchange::Resolution(_) | Exchange::None => return Err(Errno::EINVAL),
        }
        self.do_cm(key, steps, now);
        Ok(DONE)
    }

    pub(crate) fn query_cm_id(
        &self,
        session: SessionId,
        m: &QueryCmId,
    ) -> Result<CmIdQueried, Errno> {
        let id = self.connections.get((session, m.id))?;
        let mut queried = CmIdQueried {
            id: m.id,
            known: 0,
            access: 0,
            qkey: Qkey(0),
            path_mtu: 0,
            dest_qpn: Qpn(0),
            rq_psn: 0,
            ifindex: 0,
            flow_label: 0,
            sq_psn: 0,
            sgid: Gid::ZERO,
            dgid: Gid::ZERO,
            traffic_class: 0,
            hop_limit: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            max_rd_atomic: 0,
        };
        // An address of its own is enough for a queue pair: it is a device's.
        if id.address().is_some_and(|address| !address.ip().is_unspecified()) {
            queried.known |= CM_KNOWN_INIT;
        }
        if let Some(path) = &id.path {
            queried.known |= CM_KNOWN_INIT;
            (queried.sgid, queried.dgid) = (path.sgid, path.dgid);
            (queried.ifindex, queried.path_mtu) = (path.interface, path.path_mtu.into());
            queried.flow_label = path.flow_label;
            (queried.traffic_class, queried.hop_limit) = (path.traffic_class, path.hop_limit);
        }
        if id.service().is_connected() {
            queried.access = REMOTE_WRITE;
        } else {
            queried.qkey = if id.served.1 == Qkey(0) { CM_QUEUE_KEY } else { id.served.1 };
            queried.known |= CM_KNOWN_INIT | CM_KNOWN_RTR | CM_KNOWN_RTS;
        }
        if let Exchange::Connection(connection) = &id.exchange {
            tell_terms(&mut queried, connection);
        }
        Ok(queried)
    }
}

/// READs and atomics that the end which asks can serve: of XRC it serves none.
fn served(service: Service, resources: u8) -> u8 {
    if service.is_extended() { 0 } else { resources }
}

fn tell_terms(queried: &mut CmIdQueried, connection: &Connection) {
    let terms: &NegotiatedParameters = connection.terms();
    if terms.responder_resources > 0 {
        queried.access |= REMOTE_READ | REMOTE_ATOMIC | FLUSH_GLOBAL;
    }
    queried.path_mtu = terms.path_mtu.into();
    queried.max_dest_rd_atomic = terms.responder_resources;
    queried.max_rd_atomic = terms.initiator_depth;
    queried.timeout = terms.ack_timeout;
    (queried.retry_count, queried.rnr_retry) = (terms.retry_count, terms.rnr_retry);
    if !matches!(connection.state(), State::RequestSent | State::Closed) {
        queried.known |= CM_KNOWN_RTR | CM_KNOWN_RTS;
        queried.dest_qpn = terms.remote_qpn;
        (queried.rq_psn, queried.sq_psn) = (terms.remote_psn.number(), terms.local_psn.number());
    }
}

fn wrong_state(WrongState: WrongState) -> Errno {
    Errno::EINVAL
}

/// The number that all messages of one connection have, as kernels make it: agent, then name.
fn transaction(name: u32) -> u64 {
    1 << 32 | u64::from(name)
}
