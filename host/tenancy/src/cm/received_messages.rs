//! Dispatches messages at queue pair 1 of a vNIC to ids, and answers those that belong to none.
//!
//! Any host may have sent them. A message belongs to a connection if it has the name that we drew
//! for it and comes from the connection's peer; a request belongs to a listener. Requests wait in
//! the listener's backlog; when that is full, or its user behind, they are lost as on a busy line,
//! and come again.

use super::cm_id::{
    Exchange, Id, Key, LookupKeys, Path as CmPath, Peer, RequestSource, set_private,
};
use super::id_table::LocalMessage;
use super::message_ends::{Ends, Origin};
use crate::accounts::Receipt;
use crate::action::{Action, Audited, LinkEvent};
use crate::cm::ConnectionManager;
use crate::qp_data_path::Path;
use crate::rules::vnic_rules::RuleEnd;
use omniverb_cm::sidr::status;
use omniverb_cm::{
    Connection, Disconnected, IpHeader, Mad, Message, Reject, Rejected, Request, Resolution,
    Resolve, Resolved, ServiceId, Transport, reject_reason,
};
use omniverb_session::cm::{CmParameters, event};
use omniverb_terms::{Gid, Operations, Qkey, Qpn, Service, UnderlayRoute, VnicId};
use std::net::{IpAddr, SocketAddr};

impl ConnectionManager<'_> {
    /// A management datagram came to queue pair 1 of a vNIC, from this queue pair by this way.
    pub(crate) fn received(
        &mut self,
        at: VnicId,
        (source, underlay): (Qpn, &UnderlayRoute),
        datagram: &[u8],
        now: u64,
    ) {
        let names = self.network.names(self.tenants, at, source, underlay);
        if let (Some((own, sender)), Ok(mad)) = (names, Mad::parse(datagram)) {
            // In a virtual network, the number of its queue pair 1 is known. Others are programs'.
            let services = self.tenants.virtual_networks.services(at, sender);
            // A sender with one of our addresses would have been delivered within the vNIC.
            if services.is_none_or(|services| services == source)
                && !sender.is_loopback()
                && !self.tenants.owns(at, sender)
                && self.tenants.owns(at, own)
                && !self
                    .tenants
                    .is_foreign_address(at, self.network.address_of(self.tenants, at, sender))
            {
                self.cm_arrived(Ends { at, own, sender, from: Origin::Network }, &mad, now);
                self.carry_cm(now);
            }
        }
    }

    /// Delivers what ids of one vNIC have to say to each other, until nothing is left to say: no
    /// message is answered by more than one that is answered.
    pub(super) fn carry_cm(&mut self, now: u64) {
        while let Some(LocalMessage { at, from, to, origin, mad }) = self.connections.next_carried()
        {
            self.cm_arrived(Ends { at, own: to, sender: from, from: origin }, &mad, now);
        }
    }

    pub(super) fn cm_arrived(&mut self, ends: Ends, mad: &Mad, now: u64) {
        let remote = match &mad.message {
            Message::Request(request) => return self.cm_asked(ends, mad, request, now),
            Message::Resolve(resolve) => return self.cm_searched(ends, mad, resolve, now),
            Message::Resolved(resolved) => return self.cm_found(ends, resolved),
            Message::Wait(wait) => wait.remote,
            Message::Reject(reject) if reject.remote == 0 => {
                return self.cm_given_up(ends, mad, reject, now);
            }
            Message::Reject(reject) => reject.remote,
            Message::Reply(reply) => reply.remote,
            Message::Ready(received) | Message::Disconnected(received) => received.remote,
            Message::Disconnect(disconnect) => disconnect.remote,
        };
        match self.cm_id_of(ends, remote) {
            Some(key) => self.cm_heard(key, mad, now),
            None => {
                self.hear_of_farewell(ends, remote, &mad.message);
                self.answer_unknown_connection(ends, mad);
            }
        }
    }

    /// The requester has not waited for an answer, and knows no name of our end.
    fn cm_given_up(&mut self, ends: Ends, mad: &Mad, reject: &Reject, now: u64) {
        let [a, b, c, d, e, f, g, h, ..] = reject.information;
        let device = Some(u64::from_be_bytes([a, b, c, d, e, f, g, h]));
        let asker =
            RequestSource { at: ends.at, gid: ends.sender, device, name: reject.communication };
        match self.connections.asked_by(&asker) {
            Some(key) => self.cm_heard(key, mad, now),
            None => self.is_given_up(ends, reject.communication),
        }
    }

    /// The id that has this name, if its peer is the sender.
    fn cm_id_of(&self, ends: Ends, name: u32) -> Option<Key> {
        let key = self.connections.named(ends.at, name)?;
        let path = self.connections.get(key).ok()?.path?;
        let networks = &self.tenants.virtual_networks;
        let same = |one: Gid, other: Gid| {
            one == other
                || one.is_loopback() && other.is_loopback()
                || networks.is_same(ends.at, one, other)
        };
        (same(path.sgid, ends.own) && same(path.dgid, ends.sender)).then_some(key)
    }

    fn cm_heard(&mut self, key: Key, mad: &Mad, now: u64) {
        let Ok(id) = self.connections.get_mut(key) else { return };
        let Exchange::Connection(connection) = &mut id.exchange else { return };
        let says = match &mad.message {
            Message::Wait(wait) => wait.communication,
            Message::Reject(reject) => reject.communication,
            Message::Reply(reply) => reply.communication,
            Message::Ready(received) | Message::Disconnected(received) => received.communication,
            Message::Disconnect(disconnect) => disconnect.communication,
            _ => 0,
        };
        // A name that is missing, or not known yet, cannot be wrong.
        let (_, known) = connection.names();
        if says != 0 && known != 0 && says != known {
            return;
        }
        let mut steps = Vec::new();
        connection.arrived(mad, now, &mut steps);
        self.take_steps(key, steps);
    }

    /// A message about a connection that does not exist: answers a sender that waits for an answer.
    fn answer_unknown_connection(&mut self, ends: Ends, mad: &Mad) {
        let message = match &mad.message {
            Message::Disconnect(disconnect) => Message::Disconnected(Disconnected {
                communication: disconnect.remote,
                remote: disconnect.communication,
                private: [0; 224],
            }),
            Message::Reply(reply) => Message::Reject(Reject {
                communication: reply.remote,
                remote: reply.communication,
                rejected: Rejected::Reply,
                reason: reject_reason::INVALID_COMMUNICATION,
                ..Reject::NONE
            }),
            _ => return,
        };
        let answer = Mad { transaction: mad.transaction, modifier: 0, message };
        self.answer_stranger(ends, answer);
    }

    fn cm_found(&mut self, ends: Ends, resolved: &Resolved) {
        let Some(key) = self.cm_id_of(ends, resolved.request) else { return };
        let Ok(id) = self.connections.get_mut(key) else { return };
        let Exchange::Resolution(resolution) = &mut id.exchange else { return };
        let found = resolution.answered(resolved);
        self.take_steps(key, Vec::new());
        if let Some(found) = found {
            self.tell_found(key, &found);
        }
    }

    /// A REQ: a peer requests a connection.
    fn cm_asked(&mut self, ends: Ends, mad: &Mad, request: &Request, now: u64) {
        let Ends { at, sender: gid, .. } = ends;
        let (device, name) = (request.device, request.communication);
        let asker = RequestSource { at, gid, device: Some(device), name };
        if let Some(key) = self.connections.asked_by(&asker) {
            return self.cm_heard(key, mad, now);
        }
        if self.connections.early.was_refused(ends, mad, now) {
            return self.refuse_cm(ends, mad);
        }
        if self.is_denied(ends, request.service, Operations::CONNECT) {
            self.audit_denied(ends, request.queue_pair, (request.service, Operations::CONNECT));
            return self.refuse_cm(ends, mad);
        }
        let peer = Peer { at, gid, device, qpn: request.queue_pair };
        match self.cm_wanted(ends, mad, request, (asker, peer), now) {
            Ok(()) => {}
            Err(Refused::NoListener) => self.keep_early(ends, mad, now),
            Err(Refused::Because(reason)) => self.refuse_cm_request(ends, mad, name, reason),
        }
    }

    /// Whether rules deny a request for a service: it is answered as if no listener existed.
    fn is_denied(&self, ends: Ends, service: u64, operation: Operations) -> bool {
        if ends.from == Origin::SameVnic {
            return false;
        }
        let (from, to, port) = self.request_ends(ends, service);
        !self.tenants.rules.allowed(from, to, port).contains(operation)
    }

    /// Requester, target and port of a request, as rules see them.
    fn request_ends(&self, ends: Ends, service: u64) -> (RuleEnd, RuleEnd, Option<u16>) {
        let address = |gid| self.network.address_of(self.tenants, ends.at, gid);
        let (sender, own) = (address(ends.sender), address(ends.own));
        let from = (self.tenants.owner_of(ends.at, sender), sender);
        let port = ServiceId::from_u64(service).map(|service| service.port);
        (from, (Some(ends.at), own), port)
    }

    /// Tells the audit of a request of this queue pair that rules deny.
    fn audit_denied(&mut self, ends: Ends, asker: Qpn, (service, operation): (u64, Operations)) {
        if !self.observers.has_audit() {
            return;
        }
        let (from, to, port) = self.request_ends(ends, service);
        let audited = Audited {
            event: LinkEvent::Denied,
            refusal: self.tenants.rules.refusal(from, to, port, operation),
            service: match operation == Operations::DATAGRAM {
                true => Service::Ud,
                false => Service::Rc,
            },
            path: Path::Roce,
            qpns: [Qpn::GENERAL_SERVICES, asker],
            vnics: [to.0, from.0],
            clients: [None, None],
            addresses: [Some(to.1), Some(from.1)],
        };
        self.context.act(Action::Audit(Box::new(audited)));
    }

    fn refuse_cm_request(&mut self, ends: Ends, mad: &Mad, asker: u32, reason: u16) {
        let reject = Reject { remote: asker, rejected: Rejected::Request, reason, ..Reject::NONE };
        let message = Message::Reject(reject);
        let answer = Mad { transaction: mad.transaction, modifier: 0, message };
        self.answer_stranger(ends, answer);
    }

    /// No listener waits for this request.
    pub(super) fn refuse_cm(&mut self, ends: Ends, mad: &Mad) {
        match &mad.message {
            Message::Request(Request { communication, .. }) => {
                self.refuse_cm_request(ends, mad, *communication, reject_reason::INVALID_SERVICE);
            }
            Message::Resolve(resolve) => {
                let mut resolution = Resolution::asked(resolve, mad.transaction);
                let (mut steps, no_qp) = (Vec::new(), (Qpn(0), Qkey(0)));
                let _ = resolution.answer(status::UNSUPPORTED, no_qp, [0; 136], &mut steps);
                for step in steps {
                    if let omniverb_cm::CmAction::Send(mad) = step {
                        self.answer_stranger(ends, mad);
                    }
                }
            }
            _ => {}
        }
    }

    /// A request that was not heard before; why it is refused, if it is.
    fn cm_wanted(
        &mut self,
        ends: Ends,
        mad: &Mad,
        request: &Request,
        (asker, peer): (RequestSource, Peer),
        now: u64,
    ) -> Result<(), Refused> {
        let Transport::Of(service) = request.transport else {
            return Err(reject_reason::INVALID_TRANSPORT.into());
        };
        let service = service.opposite();
        if !(1..=5).contains(&request.path_mtu) {
            return Err(reject_reason::INVALID_MTU.into());
        }
        let called = self.cm_called(ends, request.service, &request.private, service)?;
        let Some(RequestTarget { listener, room, mut path }) = called else { return Ok(()) };
        if let Some(stale) = self.connections.with(&peer).filter(|key| self.is_cm_live(*key)) {
            // It has forgotten that connection, or it could not have another.
            self.cm_is_stale(stale, now);
            return Err(reject_reason::STALE_CONNECTION.into());
        }
        path.path_mtu = request.path_mtu;
        path.flow_label = request.primary.flow_label;
        path.traffic_class = request.primary.traffic_class;
        path.hop_limit = request.primary.hop_limit;
        let name = self.draw_cm_name(ends.at);
        let mut connection = Connection::asked(request, mad.transaction, name);
        let Ok((space, _)) = self.connections.get(listener).map(Id::kind) else { return Ok(()) };
        let found_by = LookupKeys { name: Some(name), asker: Some(asker), peer: Some(peer) };
        let connected = (ends.at, path.dgid, request.queue_pair);
        let port = ServiceId::from_u64(request.service).map(|service| service.port);
        let added = self.add_cm_id(listener.0, (space, service), |id| {
            connection.set_remote_psn(id.psn());
            id.asked(path, Exchange::Connection(Box::new(connection)), found_by)
        });
        let parameters = CmParameters {
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
            flow_control: request.has_flow_control.into(),
            retry_count: request.retry_count,
            rnr_retry: request.rnr_retry,
            srq: request.has_srq.into(),
            ece_vendor: request.vendor,
            ece_options: request.options,
            ..CmParameters::NONE
        };
        if let Ok(id) = added {
            if let Some(port) = port {
                self.tenants.connected_ports.learn(connected, (listener.0, id), port);
            }
            let private = &request.private[IpHeader::BYTES..];
            self.tell_called((listener, room), id, (request.queue_pair, parameters), private);
        }
        Ok(())
    }

    /// A SIDR_REQ: a peer requests a queue pair for datagrams.
    fn cm_searched(&mut self, ends: Ends, mad: &Mad, resolve: &Resolve, now: u64) {
        let Ends { at, sender: gid, .. } = ends;
        let asker = RequestSource { at, gid, device: None, name: resolve.request };
        let known = self.connections.asked_by(&asker);
        let mut steps = Vec::new();
        if let Some(key) = known {
            if let Ok(id) = self.connections.get(key)
                && let Exchange::Resolution(resolution) = &id.exchange
            {
                resolution.asked_again(&mut steps);
            }
            return self.take_steps(key, steps);
        }
        if self.connections.early.was_refused(ends, mad, now) {
            return self.refuse_cm(ends, mad);
        }
        if self.is_denied(ends, resolve.service, Operations::DATAGRAM) {
            let asker = Qpn::GENERAL_SERVICES;
            self.audit_denied(ends, asker, (resolve.service, Operations::DATAGRAM));
            return self.refuse_cm(ends, mad);
        }
        let called = self.cm_called(ends, resolve.service, &resolve.private, Service::Ud);
        let resolution = Resolution::asked(resolve, mad.transaction);
        let RequestTarget { listener, room, path } = match called {
            Ok(Some(called)) => called,
            Ok(None) => return,
            Err(Refused::NoListener) => return self.keep_early(ends, mad, now),
            Err(Refused::Because(_)) => return self.refuse_cm(ends, mad),
        };
        let Ok((space, _)) = self.connections.get(listener).map(Id::kind) else { return };
        let found_by = LookupKeys { asker: Some(asker), ..LookupKeys::default() };
        let added = self.add_cm_id(listener.0, (space, Service::Ud), |id| {
            id.asked(path, Exchange::Resolution(Box::new(resolution)), found_by)
        });
        if let Ok(id) = added {
            let private = &resolve.private[IpHeader::BYTES..];
            self.tell_called((listener, room), id, (Qpn(0), CmParameters::NONE), private);
        }
    }

    /// The listener that is called, and the path to the sender; `Ok(None)`: a listener whose
    /// backlog is full. An error: why there is none.
    fn cm_called(
        &mut self,
        ends: Ends,
        called: u64,
        private: &[u8],
        service: Service,
    ) -> Result<Option<RequestTarget>, Refused> {
        let no_listener = reject_reason::INVALID_SERVICE;
        let ServiceId { space, port } = ServiceId::from_u64(called).ok_or(no_listener)?;
        let header = match ends.from {
            Origin::SameVnic => IpHeader::read_at_home(private),
            Origin::Network => IpHeader::read(private),
        };
        let header = header.ok_or(no_listener)?;
        let home = ends.from == Origin::SameVnic;
        let is_right = |said: IpAddr, is: Gid| {
            let name = self.network.name_of(self.tenants, ends.at, said);
            name.is_some_and(|name| {
                name == is
                    || home && name.is_loopback()
                    || self.tenants.virtual_networks.is_same(ends.at, name, is)
            })
        };
        if !is_right(header.source, ends.sender) || !is_right(header.destination, ends.own) {
            return Err(reject_reason::INVALID_GID.into());
        }
        let entry = self.entry_of(ends.at, header.destination).map_err(|_| no_listener)?;
        let place = (ends.at, space, port);
        let listener = self.connections.listener(place, header.destination);
        let listener = listener.ok_or(Refused::NoListener)?;
        let id = self.connections.get(listener).map_err(|_| no_listener)?;
        if id.service() != service {
            return Err(reject_reason::INVALID_TRANSPORT.into());
        }
        let room = id.listening().and_then(|listening| listening.charge().ok());
        let Some(room) = room.filter(|_| self.tenants.has_time(self.context, listener.0)) else {
            return Ok(None);
        };
        let local = SocketAddr::new(header.destination, port);
        let remote = SocketAddr::new(header.source, header.port);
        let path =
            CmPath::new((local, ends.own), (remote, ends.sender), (entry.ifindex, entry.mtu));
        Ok(Some(RequestTarget { listener, room, path }))
    }

    /// Tells a listener's user of a request.
    fn tell_called(
        &mut self,
        (listener, room): (Key, Receipt),
        id: u32,
        (qpn, parameters): (Qpn, CmParameters),
        private: &[u8],
    ) {
        let key = (listener.0, id);
        let Some(number) = self.connections.announce(listener, room, key) else { return };
        let Ok(row) = self.connections.get(key) else { return };
        let mut happened = row.happened(id, event::CONNECT_REQUEST);
        (happened.listener, happened.number) = (listener.1, number);
        (happened.qpn, happened.parameters) = (qpn, parameters);
        set_private(&mut happened, private);
        self.tenants.event(self.context, listener.0, happened);
    }

    /// There is a connection, or it is on its way.
    fn is_cm_live(&self, key: Key) -> bool {
        let exchange = self.connections.get(key).map(|id| &id.exchange);
        matches!(exchange, Ok(Exchange::Connection(connection)) if connection.is_live())
    }

    /// The peer has forgotten a connection.
    fn cm_is_stale(&mut self, key: Key, now: u64) {
        let Ok(id) = self.connections.get_mut(key) else { return };
        let Exchange::Connection(connection) = &mut id.exchange else { return };
        let mut steps = Vec::new();
        connection.end_as_stale(now, &mut steps);
        self.take_steps(key, steps);
    }
}

/// The listener that a request is for.
struct RequestTarget {
    listener: Key,
    /// Its receipt as a waiting connection.
    room: Receipt,
    path: CmPath,
}

/// Why a request has no listener.
enum Refused {
    /// There is none, but there may be soon.
    NoListener,
    /// The [`reject_reason`] that the asker is told.
    Because(u16),
}

impl From<u16> for Refused {
    fn from(reason: u16) -> Refused {
        Refused::Because(reason)
    }
}
