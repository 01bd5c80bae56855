//! From a message to the function that handles it.

use crate::action::{Action, Arrived, Channel};
use crate::ids::SessionId;
use crate::sessions::session::Waiting;
use crate::tenancy::Tenancy;
use omniverb_session::Message;
use omniverb_terms::Errno;

impl Tenancy {
    pub(crate) fn dispatch(&mut self, id: SessionId, arrived: &Arrived, now: u64) {
        let Some(session) = self.sessions.get(&id) else { return };
        let (tag, message) = (arrived.tag, &arrived.message);
        if arrived.channel == Channel::Events {
            return match message {
                Message::Adopted(adopted) if session.is_welcomed() => {
                    self.adopted(id, adopted, arrived.memory);
                }
                // Its machine's agent is one that does not know this, and has kept nothing.
                Message::Pinned(pinned) if session.is_welcomed() => {
                    self.pinned_in_vain(id, pinned.token, Errno::EOPNOTSUPP);
                }
                Message::Released(released) if session.is_welcomed() => {
                    self.extents_released(id, released.rkey);
                }
                _ => self.act(Action::Drop {
                    session: id,
                    reason: "sent something other than an answer on its events socket",
                }),
            };
        }
        if session.is_waiting() {
            return self.fail(id, tag, Errno::EBUSY);
        }
        if let Message::Hello(hello) = message {
            return self.hello(id, tag, hello, now);
        }
        if !session.is_welcomed() {
            return self.fail(id, tag, Errno::EPROTO);
        }
        let result = match message {
            Message::QueryGids(_) => return self.query_gids(id, tag, now),
            Message::ConnectQp(m) => return self.connect_qp(id, tag, m, now),
            Message::CreateQp(m) => self.create_qp(id, m, now).map(Message::from),
            Message::DestroyQp(m) => self.destroy_qp(id, m, now).map(Message::from),
            Message::DisconnectQp(m) => self.disconnect_qp(id, m).map(Message::from),
            Message::AttachGroup(m) => self.attach_group(id, m, now).map(Message::from),
            Message::QpFailed(m) => self.qp_failed(id, m).map(Message::from),
            Message::RegMr(m) => self.reg_mr(id, m).map(Message::from),
            Message::DeregMr(m) => self.dereg_mr(id, m).map(Message::from),
            Message::CreateCmId(m) => self.create_cm_id(id, m).map(Message::from),
            Message::BindCmId(m) => self.bind_cm_id(id, m).map(Message::from),
            Message::ListenCmId(m) => self.listen_cm_id(id, m, now).map(Message::from),
            Message::ResolveCmId(m) => self.resolve_cm_id(id, m).map(Message::from),
            Message::ConnectCmId(m) => self.connect_cm_id(id, m, now).map(Message::from),
            Message::AcceptCmId(m) => self.accept_cm_id(id, m, now).map(Message::from),
            Message::RejectCmId(m) => self.reject_cm_id(id, m, now).map(Message::from),
            Message::EstablishCmId(m) => self.establish_cm_id(id, m, now).map(Message::from),
            Message::DisconnectCmId(m) => self.disconnect_cm_id(id, m, now).map(Message::from),
            Message::DestroyCmId(m) => self.destroy_cm_id(id, m, now).map(Message::from),
            Message::QueryCmId(m) => self.query_cm_id(id, m).map(Message::from),
            Message::RequestGrant(m) => self.request_grant(id, m, now).map(Message::from),
            _ => Err(Errno::EPROTO),
        };
        match result {
            Ok(message) => self.reply(id, tag, message),
            Err(Errno::EADDRNOTAVAIL | Errno::ENODEV) if self.is_table_old(id, now) => {
                // An address may be new.
                let Some(session) = self.sessions.get_mut(&id) else { return };
                let vnic = session.client().vnic;
                session.wait(Waiting::Address { tag, message: message.clone().into() });
                self.read_addresses(vnic, Some(id));
            }
            Err(errno) => self.fail(id, tag, errno),
        }
    }
    /// Calls once more what waited for the table of GIDs, which is new now.
    pub(crate) fn dispatch_again(&mut self, id: SessionId, tag: u64, message: Message) {
        let arrived = Arrived { channel: Channel::Calls, tag, message, memory: None };
        self.dispatch(id, &arrived, self.now());
    }

    /// The table of GIDs of a session's vNIC may not be what it should be.
    pub(crate) fn is_table_old(&self, id: SessionId, now: u64) -> bool {
        let vnic =
            self.sessions.get(&id).and_then(|session| self.vnics.get(&session.client().vnic));
        vnic.is_some_and(|vnic| vnic.names.are_old(now, self.limits().gids_time_ns))
    }
}
