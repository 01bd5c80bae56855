//! Queue pairs as the daemon knows them.

use crate::Client;
use crate::queue_pairs::{Connection, Ticket};
use omniverb_device::attributes::State;
use omniverb_device::work::Destination;
use omniverb_device::{PostError, Qp, QpAttributes, QpMask, QpSpec};
use omniverb_session::Message;
use omniverb_session::body::{
    CONNECT_AGAIN, ConnectQp, Connected, CreateQp, DestroyQp, DisconnectQp, QpCreated, QpFailed,
};
use omniverb_terms::{Errno, Qpn, Service};
use std::sync::Arc;

impl Client {
    /// Makes a queue pair.
    ///
    /// # Errors
    /// errno: `ENOMEM` over a quota.
    pub fn create_qp(&self, spec: QpSpec) -> Result<Arc<Qp>, Errno> {
        let (slot, statistics) = self.statistics.take().ok_or(Errno::ENOMEM)?;
        let made = self.number_qp(&spec, slot).and_then(|(number, ticket)| {
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

    fn number_qp(&self, spec: &QpSpec, statistics_slot: u32) -> Result<(Qpn, Ticket), Errno> {
        let (qp_type, pd) = (spec.service.qp_type(), spec.pd);
        let ask =
            CreateQp { qp_type, pd, statistics_slot, qpn: Qpn(0), issued: 0, ticket: [0; 16] };
        match self.call(&ask.into())? {
            Message::QpCreated(QpCreated { qpn, issued, ticket, .. }) => {
                Ok((qpn, Ticket { issued, proof: ticket }))
            }
            _ => Err(Errno::EPROTO),
        }
    }

    /// Changes a queue pair; connects and disconnects it as its state demands.
    ///
    /// # Errors
    /// errno.
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
            PostError::Invalid => Errno::EINVAL,
            PostError::Full => Errno::ENOMEM,
        })?;
        let lost = before.access_flags & !attributes.access_flags;
        let mut revoked = Ok(());
        if mask.contains(QpMask::ACCESS_FLAGS) && from != State::Reset && lost != 0 {
            revoked = self.revoke_all();
        }
        match to {
            State::Rtr => {
                self.progress.start(self)?;
                if let Some(connection) = connection.filter(|_| qp.service != Service::Ud) {
                    self.connect_qp(qp, connection)?;
                }
            }
            State::Reset => {
                let connected = self.qps.disconnect(qp.number);
                if connected || qp.service == Service::Ud {
                    let answer =
                        self.call(&DisconnectQp { qpn: qp.number, peer_qpn: Qpn(0) }.into());
                    self.link_ended(answer);
                }
            }
            _ => {}
        }
        revoked
    }

    fn connect_qp(&self, qp: &Qp, connection: Connection) -> Result<(), Errno> {
        self.qps.connect(qp.number, connection);
        self.call(&connect_message(qp.number, &connection, false))?;
        Ok(())
    }

    /// Asks for a datagram link. False: the daemon does not know yet where to; ask again.
    pub(crate) fn request_datagram_link(&self, qpn: Qpn, destination: Destination) -> bool {
        let Some(qp) = self.qp(qpn) else { return true };
        let Destination { dgid, sgid, qpn: dest_qpn } = destination;
        let connection = Connection { dgid, sgid, dest_qpn };
        match self.call(&connect_message(qpn, &connection, false)) {
            Ok(Message::Connected(Connected { ready: CONNECT_AGAIN, .. })) => return false,
            Ok(_) => {}
            Err(_) => qp.unreachable(destination),
        }
        true
    }

    /// A queue pair that peers were granted something by is in ERR.
    pub(crate) fn qp_failed(&self, qpn: Qpn) {
        self.link_ended(self.call(&QpFailed { qpn, reserved: 0 }.into()));
    }

    /// Destroys a queue pair.
    pub fn destroy_qp(&self, qp: &Arc<Qp>) {
        if !self.is_ours() {
            return;
        }
        qp.destroy();
        let slot = self.qps.remove(qp.number);
        self.link_ended(self.call(&DestroyQp { qpn: qp.number, reserved: 0 }.into()));
        if let Some(slot) = slot {
            self.statistics.give(slot);
        }
    }
}

pub(crate) fn connect_message(qpn: Qpn, connection: &Connection, resume: bool) -> Message {
    let Connection { dgid, sgid, dest_qpn } = *connection;
    ConnectQp { qpn, dest_qpn, sgid, dgid, resume: u32::from(resume), reserved: 0 }.into()
}
