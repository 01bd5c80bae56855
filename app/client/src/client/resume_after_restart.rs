//! After the daemon was restarted: tell the new one what this process holds.

use super::Client;
use super::carried_links::port_message;
use super::qp_lifecycle::{Purpose, connect_message};
use crate::queue_pair_records::{Connection, QueuePairs};
use crate::region_extents_by_rkey::Keys;
use omniverb_session::Message;
use omniverb_session::body::{ConnectQp, CreateQp, RESUME_CARRIED, RegMr};
use omniverb_terms::{Errno, Qpn, Service};

impl Client {
    /// Connects to the daemon that is there now and announces queue pairs, links and keys. Links
    /// work on meanwhile, they need no daemon.
    pub(super) fn reconnect(&self) -> Result<(), Errno> {
        if self.session.events().is_some() && self.session.is_open() {
            return Ok(()); // another thread has done so
        }
        let carried = self.carried.all();
        let announcements = announcements(&self.pages.keys, &self.qps, &carried);
        let mut refused = Vec::new();
        let nic = self.session.reopen(|daemon, call| {
            // What it makes is its own, and what others made has no owner any more.
            self.shared.set_daemon(daemon);
            for message in &announcements {
                let answer = call(message);
                if let (
                    Message::ConnectQp(ConnectQp { qpn, resume: RESUME_CARRIED, .. }),
                    Err(errno),
                ) = (message, &answer)
                    && !crate::daemon_session::is_lost(*errno)
                {
                    refused.push(*qpn);
                }
                match answer {
                    // Refused: we are too late, or the daemon has lost what our tickets were made
                    // with. The object works on with its peer; it cannot be connected anew.
                    Ok(_) | Err(Errno::EPERM | Errno::EADDRINUSE) => {}
                    Err(errno) if crate::daemon_session::is_lost(errno) => return Err(errno),
                    Err(_) => {}
                }
            }
            Ok(())
        })?;
        if let Some((nic, area)) = nic {
            // If that fails the counts are ours alone from now on.
            let _ = self.statistics.move_to(&area);
            *self.nic.write().unwrap_or_else(|e| e.into_inner()) = nic;
        }
        // What may be carried no longer ends as what an engine served.
        refused.into_iter().for_each(|qpn| self.fail_carried(qpn));
        self.progress.attend();
        Ok(())
    }
}

/// What the next daemon is to know.
fn announcements(keys: &Keys, qps: &QueuePairs, carried: &[(Qpn, Qpn, u16)]) -> Vec<Message> {
    let mut list = Vec::new();
    for region in keys.regions() {
        list.push(
            RegMr {
                pd: region.pd,
                access: region.access,
                addr: region.iova,
                length: region.memory.len() as u64,
                rkey: region.rkey,
                reserved: 0,
            }
            .into(),
        );
    }
    for record in qps.records() {
        let qp = &record.qp;
        list.push(
            CreateQp {
                qpn: qp.number,
                issued: record.ticket.issued,
                ticket: record.ticket.proof,
                ..CreateQp::new(qp.service, qp.pd, record.statistics_slot)
            }
            .into(),
        );
        let linked = qp.peers();
        if let Some(port) = carried.iter().find(|(qpn, _, _)| *qpn == qp.number) {
            if let Some(connection) = &record.connection {
                list.push(connect_message(qp, connection, Purpose::RecordCarried));
                list.push(port_message(*port));
            }
            continue;
        }
        // A link to the engine died with the daemon; so did, or does now, the connection.
        if qp.service != Service::Ud && linked.iter().any(|peer| peer.is_beyond_engine()) {
            continue;
        }
        if let Some(connection) = &record.connection {
            // Linked already: only to be recorded. Not yet: the old daemon forgot the wish.
            let purpose = match linked.is_empty() {
                true => Purpose::Connect,
                false => Purpose::Record,
            };
            list.push(connect_message(qp, connection, purpose));
        } else {
            for peer in linked.iter().filter(|peer| !peer.is_beyond_engine()) {
                let (dgid, sgid, dest_qpn) = (peer.dgid, peer.sgid, peer.qpn);
                let connection = Connection { dgid, sgid, dest_qpn };
                list.push(connect_message(qp, &connection, Purpose::Record));
            }
        }
    }
    list
}
