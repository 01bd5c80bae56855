//! Queue pairs as the daemon knows them.

use super::Client;
use super::explain_unreachable_peer::explain_qp;
use super::multicast_group_requests::await_last_words;
use crate::daemon_caller_trait::DaemonCaller;
use crate::deferred_daemon_calls::{CallOutcome, Caller, DeferredCall};
use crate::pending_datagram_links::LinkReply;
use crate::queue_pair_records::{Connection, QueuePairs, Ticket};
use omniverb_device::qp_attributes::State;
use omniverb_device::send_work_request::Destination;
use omniverb_device::{PostError, Qp, QpAttributes, QpMask, QpSpec, access};
use omniverb_session::Message;
use omniverb_session::body::{
    CONNECT_AGAIN, ConnectQp, Connected, CreateQp, DestroyQp, DisconnectQp, QpCreated, QpFailed,
    RESUME_CARRIED, RESUME_LINK,
};
use omniverb_terms::{Errno, Qpn, Service};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Budget: how long requests that were posted hold up the end of their connection: as long as it
/// takes to make a link where many processes want the processors, and as a lost packet of a network
/// is repeated. A peer that takes nothing delays `rdma_disconnect` by as much.
const LEAVE_MAX: Duration = Duration::from_millis(500);
/// Budget: the same while the peer has no receive for them. It may not have got its end of the link
/// yet, with those that it has posted.
const UNREADY_MAX: Duration = Duration::from_millis(50);
/// How often it is looked whether they have left.
const LEAVE_LOOK: Duration = Duration::from_micros(100);

impl Client {
    /// Makes a queue pair, with a number of the daemon's and a place for its counters.
    ///
    /// # Errors
    /// errno: `ENOMEM` over a quota.
    pub fn create_qp(&self, spec: QpSpec) -> Result<Arc<Qp>, Errno> {
        let (slot, statistics) = self.statistics.take().ok_or(Errno::ENOMEM)?;
        let made = number_qp(self, &spec, slot).and_then(|(number, ticket)| {
            let qp = Qp::new(&self.shared, spec, number, statistics);
            if qp.is_none() {
                let _ = self.call(&DestroyQp { qpn: number, reserved: 0 }.into());
            }
            Ok((qp.ok_or(Errno::ENOMEM)?, ticket))
        });
        match made {
            Ok((qp, ticket)) => {
                self.qps.add(qp.clone(), slot, ticket);
                Ok(qp)
            }
            Err(errno) => {
                self.statistics.give(slot);
                Err(errno)
            }
        }
    }

    /// Changes a queue pair; connects and disconnects it as its state demands.
    ///
    /// `current`: where the application believes it to be, if it says so. `connection`: the peer
    /// that it is to be connected with, if the application says so now.
    ///
    /// # Errors
    /// errno: `EINVAL` if the transition is not allowed, `EIO` in a forked child, and what the
    /// daemon answers.
    pub fn modify_qp(
        self: &Arc<Self>,
        qp: &Arc<Qp>,
        mask: QpMask,
        to: State,
        attributes: &QpAttributes,
        current: Option<State>,
        connection: Option<Connection>,
    ) -> Result<(), Errno> {
        if !self.is_ours() {
            return Err(Errno::EIO);
        }
        let (from, before) = qp.query();
        qp.modify(mask, to, attributes, current).map_err(|error| match error {
            PostError::Invalid(_) => Errno::EINVAL,
            PostError::Full => Errno::ENOMEM,
        })?;
        let lost = before.access_flags & !attributes.access_flags;
        let mut revoked = Ok(());
        if mask.contains(QpMask::ACCESS_FLAGS) && takes_back(qp.service, from, lost) {
            revoked = self.pages.revoke_all();
        }
        match to {
            State::Rtr => {
                self.start_progress()?;
                if qp.service == Service::Ud {
                    self.groups.attach_all(&**self, qp);
                }
                if let Some(connection) = connection.filter(|_| qp.service != Service::Ud) {
                    self.qps.connect_by(&**self, qp, connection)?;
                }
            }
            State::Reset => {
                self.qps.group_unlinked(qp.number, None);
                self.carried.end(qp.number);
                let connected = self.qps.disconnect(qp.number);
                if connected || qp.service == Service::Ud {
                    let answer =
                        self.call(&DisconnectQp { qpn: qp.number, peer_qpn: Qpn(0) }.into());
                    self.pages.link_ended(answer);
                }
            }
            _ => {}
        }
        revoked
    }

    /// Waits until what was posted to a queue pair has left, for [`LEAVE_MAX`] at most: its
    /// connection is about to end, which a NIC hears of after it has begun what was posted before.
    pub fn let_leave(&self, qp: &Qp) {
        if !self.is_ours() {
            return;
        }
        let begin = Instant::now();
        while qp.has_to_leave() {
            let most = if qp.waits_for_receive() { UNREADY_MAX } else { LEAVE_MAX };
            if begin.elapsed() >= most {
                break;
            }
            std::thread::sleep(LEAVE_LOOK);
        }
    }

    /// Destroys a queue pair: nothing of it is left, here or in the daemon. In a forked child it is
    /// the parent's, and stays.
    pub fn destroy_qp(&self, qp: &Arc<Qp>) {
        if !self.is_ours() {
            return;
        }
        await_last_words(qp);
        qp.destroy();
        self.carried.end(qp.number);
        let slot = self.qps.remove(qp.number);
        self.pages.link_ended(self.call(&DestroyQp { qpn: qp.number, reserved: 0 }.into()));
        if let Some(slot) = slot {
            self.statistics.give(slot);
        }
    }
}

/// Has the daemon give a queue pair its number.
fn number_qp(
    daemon: &impl DaemonCaller,
    spec: &QpSpec,
    statistics_slot: u32,
) -> Result<(Qpn, Ticket), Errno> {
    let ask = CreateQp::new(spec.service, spec.pd, statistics_slot);
    match daemon.call(&ask.into())? {
        Message::QpCreated(QpCreated { qpn, issued, ticket, .. }) => {
            Ok((qpn, Ticket { issued, proof: ticket }))
        }
        _ => Err(Errno::EPROTO),
    }
}

fn request_datagram_link(
    daemon: &impl DaemonCaller,
    qps: &QueuePairs,
    qpn: Qpn,
    destination: Destination,
) -> LinkReply {
    let Some(qp) = qps.get(qpn) else { return LinkReply::Over };
    let Destination { dgid, sgid, qpn: dest_qpn } = destination;
    let connection = Connection { dgid, sgid, dest_qpn };
    match daemon.call(&connect_message(&qp, &connection, Purpose::Connect)) {
        Ok(Message::Connected(Connected { ready: CONNECT_AGAIN, .. })) => return LinkReply::NotYet,
        Ok(_) => {}
        Err(errno) => {
            not_sent(qpn, &destination, errno);
            qp.unreachable(destination);
        }
    }
    LinkReply::Over
}

impl QueuePairs {
    /// Has a queue pair connected by the daemon.
    pub(super) fn connect_by(
        &self,
        daemon: &impl DaemonCaller,
        qp: &Qp,
        connection: Connection,
    ) -> Result<(), Errno> {
        self.connect(qp.number, connection);
        daemon.call(&connect_message(qp, &connection, Purpose::Connect))?;
        Ok(())
    }
}

impl Caller for Client {
    fn make(&self, call: DeferredCall) -> CallOutcome {
        match call {
            DeferredCall::Grant { qpn, peer_qpn, rkey, range } => {
                self.request_grant(qpn, peer_qpn, rkey, range);
            }
            DeferredCall::DatagramLink { qpn, destination } => {
                request_datagram_link(self, &self.qps, qpn, destination);
            }
            DeferredCall::Failed { qpn } => {
                self.pages.link_ended(self.call(&QpFailed { qpn, reserved: 0 }.into()));
            }
            DeferredCall::OwnPages { rkey } => self.pages.own(rkey),
            DeferredCall::HandOver { qpn, part } => self.hand_over(qpn, part),
            DeferredCall::Tell { qpn, event } => self.tell_openers(qpn, event),
            DeferredCall::Opened { opener } => self.serve_opener(opener),
            DeferredCall::Discard { qpn } => self.discard(qpn),
            DeferredCall::Attach { qpn } => return self.groups.attach_again(self, qpn),
            DeferredCall::Leave { qpn, peer_qpn } => return self.groups.leave(self, qpn, peer_qpn),
            DeferredCall::TellPort { qpn } => self.tell_port(qpn),
            DeferredCall::SettleCarried => self.settle_carried(),
            DeferredCall::Explain { qpn } => explain_qp(self, qpn),
            DeferredCall::Reconnect => drop(self.reconnect()),
            DeferredCall::Settle if self.session.settle().is_err() => return CallOutcome::Again,
            DeferredCall::Settle => {}
        }
        CallOutcome::Done
    }

    fn ask_for_link(&self, qpn: Qpn, destination: Destination) -> LinkReply {
        request_datagram_link(self, &self.qps, qpn, destination)
    }
}

/// Datagrams to a destination go nowhere: says why, if that is wanted. Their completions do not.
#[cold]
fn not_sent(qpn: Qpn, to: &Destination, errno: Errno) {
    let why = match errno {
        Errno::ENOENT => "no process there has such a queue pair for datagrams",
        Errno::EHOSTUNREACH => "that is in another network, and the daemon may not use this one",
        Errno::ENOMEM => "over a quota of links",
        errno if crate::daemon_session::is_lost(errno) => "there is no daemon",
        _ => "the daemon refuses it",
    };
    let (from, peer, at) = (qpn.0, to.qpn.0, to.dgid);
    let _ = omniverb_sys::refused!(
        errno,
        "datagrams of queue pair {from} to queue pair {peer} at {at} go nowhere: {why}"
    );
}

/// Whether pages may be with peers that are not to have them any more, when a queue pair loses
/// these rights. By way of XRC none are granted; other processes may change such a queue pair,
/// again and again, and what others were granted is not theirs to take.
fn takes_back(service: Service, from: State, lost: u32) -> bool {
    service != Service::XrcRecv && from != State::Reset && lost & access::REMOTE != 0
}

/// What the daemon is told of a connection for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It is to be made.
    Connect,
    /// It was made by the daemon before, and is only to be recorded.
    Record,
    /// It was made by the daemon before, and this process carries it: only to be recorded.
    RecordCarried,
}

pub(super) fn connect_message(qp: &Qp, connection: &Connection, purpose: Purpose) -> Message {
    let Connection { dgid, sgid, dest_qpn } = *connection;
    let resume = match purpose {
        Purpose::Connect => 0,
        Purpose::Record => RESUME_LINK,
        Purpose::RecordCarried => RESUME_CARRIED,
    };
    let carries = u32::from(qp.service == Service::Rc);
    ConnectQp { qpn: qp.number, dest_qpn, sgid, dgid, resume, carries }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opener_takes_nothing_back_from_others() {
        for service in [Service::Rc, Service::Uc, Service::XrcRecv] {
            let granted = service != Service::XrcRecv;
            assert_eq!(takes_back(service, State::Rts, access::REMOTE), granted);
            assert!(!takes_back(service, State::Reset, access::REMOTE));
            assert!(!takes_back(service, State::Rts, access::LOCAL_WRITE));
        }
    }
}
