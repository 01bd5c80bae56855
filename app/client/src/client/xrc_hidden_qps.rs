//! Queue pairs of XRC that are not the application's: requests of one that is go on by them.

use super::Client;
use crate::daemon_caller_trait::DaemonCaller;
use crate::deferred_daemon_calls::DeferredCall;
use crate::queue_pair_records::Connection;
use crate::xrc_domain_discovery::DomainMember;
use omniverb_device::qp_attributes::State;
use omniverb_device::{Qp, QpAttributes, QpMask, QpSpec, access};
use omniverb_session::body::HandOver;
use omniverb_terms::{Errno, Service};
use std::sync::Arc;

/// A queue pair whose link to another part will be that of `front`.
pub(super) fn sender(client: &Client, front: &Arc<Qp>, part: u32) -> Result<Arc<Qp>, Errno> {
    let qp = client.create_qp(QpSpec::bare(&client.shared, Service::XrcSend, None))?;
    qp.stand_for(front, part);
    Ok(qp)
}

/// A queue pair that waits for another process's hidden one. What peers may do that has seen to,
/// which knows what they may do with the front.
pub(super) fn receiver(
    client: &Arc<Client>,
    place: &DomainMember,
    ask: &HandOver,
) -> Result<Arc<Qp>, Errno> {
    let domain = Some(place.domain.clone());
    let qp = client.create_qp(QpSpec::bare(&client.shared, Service::XrcRecv, domain))?;
    qp.receive_for(ask.front, ask.sender);
    let attributes = QpAttributes {
        port: 1,
        access_flags: access::REMOTE | access::LOCAL_WRITE,
        path_mtu: 1,
        dest_qpn: ask.from,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 1,
        ..QpAttributes::default()
    };
    let begin = QpMask::STATE | QpMask::PKEY_INDEX | QpMask::PORT | QpMask::ACCESS_FLAGS;
    let go = QpMask::STATE
        | QpMask::AV
        | QpMask::PATH_MTU
        | QpMask::DEST_QPN
        | QpMask::RQ_PSN
        | QpMask::MAX_DEST_RD_ATOMIC
        | QpMask::MIN_RNR_TIMER;
    let connection = Connection { dgid: ask.gid, sgid: ask.gid, dest_qpn: ask.from };
    let made = client
        .modify_qp(&qp, begin, State::Init, &attributes, None, None)
        .and_then(|()| client.modify_qp(&qp, go, State::Rtr, &attributes, None, Some(connection)));
    match made {
        Ok(()) => Ok(qp),
        Err(errno) => {
            client.defer(DeferredCall::Discard { qpn: qp.number });
            Err(errno)
        }
    }
}
