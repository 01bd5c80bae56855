//! Carries out steps of a connection: messages to its peer, events for its user, its timer.

use super::cm_id::{Exchange, Id, Key, Path, set_private};
use super::id_table::LocalMessage;
use super::message_ends::{Ends, Origin};
use crate::action::{Action, Recipient};
use crate::cm::ConnectionManager;
use crate::row_keys::SessionId;
use crate::timers::Timer;
use crate::virtual_networks::Destination;
use omniverb_cm::{CmAction, Event, Mad, Resolved, SidrOutcome};
use omniverb_session::cm::{CmHappened, event};
use omniverb_terms::{Errno, Gid, Qpn, VnicId};

impl ConnectionManager<'_> {
    /// Carries out what follows for an id, and for all that hear of it here.
    pub(super) fn do_cm(&mut self, key: Key, steps: Vec<CmAction>, now: u64) {
        self.take_steps(key, steps);
        self.carry_cm(now);
    }

    /// Executes steps for the id alone, without its queue pair.
    pub(super) fn take_steps(&mut self, key: Key, steps: Vec<CmAction>) {
        let Ok(id) = self.connections.get(key) else { return };
        let (vnic, path) = (id.vnic(), id.path);
        for step in steps {
            match step {
                CmAction::Send(mad) => {
                    if let Some(path) = &path {
                        self.send_cm(vnic, path, mad);
                    }
                }
                CmAction::Tell(what) => self.tell_cm(key, what),
            }
        }
        self.set_cm_timer(key);
    }

    fn set_cm_timer(&mut self, key: Key) {
        let timer = Timer::Connection(key.0, key.1);
        match self.connections.get(key).ok().and_then(Id::deadline) {
            Some(at) => self.context.timers.set(timer, at),
            None => self.context.timers.clear(timer),
        }
    }

    fn send_cm(&mut self, vnic: VnicId, path: &Path, mad: Mad) {
        self.send_mad(vnic, (path.sgid, path.dgid), mad, Recipient::Known);
    }

    /// Answers a sender that no id leads to.
    pub(super) fn answer_stranger(&mut self, ends: Ends, mad: Mad) {
        self.send_mad(ends.at, (ends.own, ends.sender), mad, Recipient::Stranger);
    }

    /// Sends a message from one name of a vNIC's to another, or beyond.
    pub(super) fn send_mad(
        &mut self,
        vnic: VnicId,
        (from, to): (Gid, Gid),
        mad: Mad,
        addressee: Recipient,
    ) {
        if to.is_loopback() || self.tenants.owns(vnic, to) {
            let (at, from, to, origin) = (vnic, from, to, Origin::SameVnic);
            return self.connections.carry(LocalMessage { at, from, to, origin, mad });
        }
        let services = match self.tenants.virtual_networks.destination(vnic, to) {
            None => Qpn::GENERAL_SERVICES,
            Some(Destination::Nowhere) => return,
            Some(Destination::Here(at)) => {
                if self.tenants.has_vnic(at) {
                    let origin = Origin::Network;
                    self.connections.carry(LocalMessage { at, from, to, origin, mad });
                }
                return;
            }
            Some(Destination::There(_)) => match self.tenants.virtual_networks.services(vnic, to) {
                Some(services) => services,
                None => return,
            },
        };
        if let Some(underlay) = self.network.route_to(self.tenants, vnic, from, to) {
            let datagram = Box::from(mad.to_bytes());
            self.context.act(Action::Manage { vnic, underlay, services, datagram, to: addressee });
        }
    }

    /// Something is due for an id.
    pub(crate) fn connection_due(&mut self, session: SessionId, id: u32, now: u64) {
        let key = (session, id);
        let Ok(row) = self.connections.get_mut(key) else { return };
        let mut steps = Vec::new();
        let found = match &mut row.exchange {
            Exchange::None => None,
            Exchange::Connection(connection) => {
                connection.tick(now, &mut steps);
                None
            }
            Exchange::Resolution(resolution) => resolution.tick(now, &mut steps),
        };
        self.take_steps(key, steps);
        if let Some(found) = found {
            self.tell_found(key, &found);
        }
        self.carry_cm(now);
    }

    /// Removes an id and tells its peer.
    pub(super) fn remove_cm_id(&mut self, key: Key, now: u64) {
        self.context.timers.clear(Timer::Connection(key.0, key.1));
        let Some(mut id) = self.connections.remove(key) else { return };
        let (vnic, mut steps) = (id.vnic(), Vec::new());
        if let (Some(path), Exchange::Connection(connection)) = (&id.path, &id.exchange) {
            let peer = connection.terms().remote_qpn;
            self.tenants.connected_ports.forget((vnic, path.dgid, peer), key);
        }
        match &mut id.exchange {
            Exchange::None => {}
            Exchange::Connection(connection) => {
                if let (Some(mad), Some(path)) = (connection.farewell(), &id.path) {
                    self.keep_farewell(vnic, (path.sgid, path.dgid), &mad, now);
                }
                connection.destroy(&mut steps);
            }
            Exchange::Resolution(resolution) => resolution.destroy(&mut steps),
        }
        for step in steps {
            if let (CmAction::Send(mad), Some(path)) = (step, &id.path) {
                self.send_cm(vnic, path, mad);
            }
        }
    }

    /// A session ends, and all its ids with it.
    pub(crate) fn end_connections(&mut self, session: SessionId, now: u64) {
        for key in self.connections.of(session) {
            self.remove_cm_id(key, now);
        }
        self.carry_cm(now);
    }

    /// Tells the user of a connection.
    fn tell_cm(&mut self, key: Key, what: Event) {
        let Ok(id) = self.connections.get(key) else { return };
        let base = |event| id.happened(key.1, event);
        let happened = match what {
            Event::Answered(reply) => {
                let mut happened = base(event::CONNECT_RESPONSE);
                happened.qpn = reply.peer(omniverb_cm::Kind::of(id.service()));
                if let Some(path) = &id.path {
                    let peer = (id.vnic(), path.dgid, happened.qpn);
                    self.tenants.connected_ports.learn(peer, key, path.remote.port());
                }
                let parameters = &mut happened.parameters;
                parameters.responder_resources = reply.initiator_depth;
                parameters.initiator_depth = reply.responder_resources;
                parameters.flow_control = reply.has_flow_control.into();
                parameters.rnr_retry = reply.rnr_retry;
                parameters.srq = reply.has_srq.into();
                (parameters.ece_vendor, parameters.ece_options) = (reply.vendor, reply.options);
                set_private(&mut happened, &reply.private);
                happened
            }
            Event::Established => base(event::ESTABLISHED),
            Event::Rejected { reason, private } => {
                let mut happened = base(event::REJECTED);
                happened.status = reason.into();
                set_private(&mut happened, &private);
                happened
            }
            Event::Unreachable => CmHappened { status: TIMED_OUT, ..base(event::UNREACHABLE) },
            Event::Disconnected => base(event::DISCONNECTED),
            Event::Over => base(event::TIMEWAIT_EXIT),
        };
        self.tenants.event(self.context, key.0, happened);
    }

    /// Answers the requester of a queue pair for datagrams.
    pub(super) fn tell_found(&mut self, key: Key, found: &SidrOutcome) {
        let Ok(id) = self.connections.get(key) else { return };
        let happened = match found {
            SidrOutcome::Silence => {
                CmHappened { status: TIMED_OUT, ..id.happened(key.1, event::UNREACHABLE) }
            }
            SidrOutcome::Answer(Resolved { status: 0, queue_pair, queue_key, private, .. }) => {
                let mut happened = id.happened(key.1, event::ESTABLISHED);
                (happened.qpn, happened.parameters.qkey) = (*queue_pair, *queue_key);
                set_private(&mut happened, private);
                happened
            }
            SidrOutcome::Answer(Resolved { status, private, .. }) => {
                let mut happened = id.happened(key.1, event::UNREACHABLE);
                happened.status = i32::from(*status);
                set_private(&mut happened, private);
                happened
            }
        };
        self.tenants.event(self.context, key.0, happened);
    }
}

/// The status of `rdma_cm` for a peer that did not answer, in `rdma_cm_event::status`.
const TIMED_OUT: i32 = -Errno::ETIMEDOUT.raw();
