//! Dispatches messages of clients to the functions that handle them.

use crate::action::{Action, Arrived, Channel};
use crate::policy::control_call_rate_limits::CallKind;
use crate::row_keys::SessionId;
use crate::sessions::session::Waiting;
use crate::tenancy::Tenancy;
use crate::timers::Timer;
use omniverb_session::Message;
use omniverb_terms::Errno;

impl Tenancy {
    pub(crate) fn dispatch(&mut self, id: SessionId, arrived: &Arrived, now: u64) {
        let Some(session) = self.tenants.sessions.get(&id) else { return };
        let (tag, message) = (arrived.tag, &arrived.message);
        if arrived.channel == Channel::Events {
            return match message {
                Message::Adopted(adopted) if session.is_welcomed() => {
                    self.grants().adopted(id, adopted, arrived.memory);
                }
                // Its machine's agent is one that does not know this, and has kept nothing.
                Message::Pinned(pinned) if session.is_welcomed() => {
                    self.grants().pinned_in_vain(id, pinned.token, Errno::EOPNOTSUPP);
                }
                Message::Released(released) if session.is_welcomed() => {
                    self.grants().extents_released(id, released.rkey);
                }
                _ => self.context.act(Action::Drop {
                    session: id,
                    reason: "sent something other than an answer on its events socket",
                }),
            };
        }
        if session.is_waiting() {
            return self.context.fail(id, tag, Errno::EBUSY);
        }
        if let Message::Hello(hello) = message {
            return self.hello(id, tag, hello, now);
        }
        if !session.is_welcomed() {
            return self.context.fail(id, tag, Errno::EPROTO);
        }
        if let Some(at) = self.pace(id, message, now).transpose() {
            return match at {
                Ok(at) => {
                    let Some(session) = self.tenants.sessions.get_mut(&id) else { return };
                    session.wait(Waiting::Paced { tag, message: message.clone().into() });
                    self.context.timers.set(Timer::PacedCall(id), at);
                }
                Err(errno) => self.context.fail(id, tag, errno),
            };
        }
        self.execute(id, tag, message, now);
    }

    /// When a call is to be handled, if that is later.
    ///
    /// # Errors
    /// `EAGAIN`: its vNIC has asked for too much.
    fn pace(&mut self, id: SessionId, message: &Message, now: u64) -> Result<Option<u64>, Errno> {
        let Some(session) = self.tenants.sessions.get(&id) else { return Ok(None) };
        // What outlived a daemon is announced at once: it was counted when it was made.
        if session.resumes() && self.queue_pairs.takes_announcements(now) {
            return Ok(None);
        }
        let vnic = session.client().vnic;
        let limits = self.tenants.policy(vnic).control;
        if limits.operations.is_none() && limits.queue_pairs_per_second.is_none() {
            return Ok(None);
        }
        let kind = match message {
            // A datagram's destination, which sending asks for.
            Message::ConnectQp(m) if self.queue_pairs.is_datagram(m.qpn) => CallKind::Uncounted,
            message => CallKind::of(message),
        };
        let pace = self.tenants.control_paces.entry(vnic).or_default();
        let at = pace.admit(limits, kind, now).ok_or(Errno::EAGAIN)?;
        Ok(Some(at).filter(|at| *at > now))
    }

    /// It is the turn of a call that was over a rate.
    pub(crate) fn paced_call_due(&mut self, id: SessionId, now: u64) {
        let Some(session) = self.tenants.sessions.get_mut(&id) else { return };
        match session.take_waiting() {
            Some(Waiting::Paced { tag, message }) => self.execute(id, tag, &message, now),
            Some(other) => session.wait(other),
            None => {}
        }
    }

    /// Handles a call of a process.
    fn execute(&mut self, id: SessionId, tag: u64, message: &Message, now: u64) {
        let result = match message {
            Message::QueryGids(_) => {
                return self.tenants.query_gids(&mut self.context, id, tag, now);
            }
            Message::ConnectQp(m) => return self.pairing().connect_qp(id, tag, m, now),
            Message::CreateQp(m) => self.pairing().create_qp(id, m, now).map(Message::from),
            Message::DestroyQp(m) => self.unlinker().destroy_qp(id, m, now).map(Message::from),
            Message::DisconnectQp(m) => self.unlinker().disconnect_qp(id, m).map(Message::from),
            Message::AttachGroup(m) => self.linker().attach_group(id, m, now).map(Message::from),
            Message::QpFailed(m) => self.unlinker().qp_failed(id, m).map(Message::from),
            Message::CarriedPort(m) => self.unlinker().carried_port(id, m, now).map(Message::from),
            Message::AttachLink(m) => self.unlinker().attach_link(id, m, now).map(Message::from),
            Message::RegMr(m) => self.tenants.reg_mr(&mut self.context, id, m).map(Message::from),
            Message::DeregMr(m) => self.grants().dereg_mr(id, m).map(Message::from),
            Message::CreateCmId(m) => self.cm().create_cm_id(id, m).map(Message::from),
            Message::BindCmId(m) => self.cm().bind_cm_id(id, m).map(Message::from),
            Message::ListenCmId(m) => self.cm().listen_cm_id(id, m, now).map(Message::from),
            Message::ResolveCmId(m) => self.cm().resolve_cm_id(id, m).map(Message::from),
            Message::ConnectCmId(m) => self.cm().connect_cm_id(id, m, now).map(Message::from),
            Message::AcceptCmId(m) => self.cm().accept_cm_id(id, m, now).map(Message::from),
            Message::RejectCmId(m) => self.cm().reject_cm_id(id, m, now).map(Message::from),
            Message::EstablishCmId(m) => self.cm().establish_cm_id(id, m, now).map(Message::from),
            Message::DisconnectCmId(m) => self.cm().disconnect_cm_id(id, m, now).map(Message::from),
            Message::DestroyCmId(m) => self.cm().destroy_cm_id(id, m, now).map(Message::from),
            Message::QueryCmId(m) => self.cm().query_cm_id(id, m).map(Message::from),
            Message::RequestGrant(m) => self.grants().request_grant(id, m, now).map(Message::from),
            _ => Err(Errno::EPROTO),
        };
        match result {
            Ok(message) => self.context.reply(id, tag, message),
            Err(Errno::EADDRNOTAVAIL | Errno::ENODEV)
                if self.tenants.is_table_old(&self.context, id, now) =>
            {
                // An address may be new.
                let Some(session) = self.tenants.sessions.get_mut(&id) else { return };
                let vnic = session.client().vnic;
                session.wait(Waiting::Address { tag, message: message.clone().into() });
                self.tenants.read_addresses(&mut self.context, vnic, Some(id));
            }
            Err(errno) => self.context.fail(id, tag, errno),
        }
    }

    /// Calls once more what waited for the table of GIDs, which is new now.
    pub(crate) fn dispatch_again(&mut self, id: SessionId, tag: u64, message: Message) {
        self.execute(id, tag, &message, self.context.now());
    }
}
