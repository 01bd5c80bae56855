//! Fails operations between two queue pairs whose attributes do not fit, as a wire does (strict
//! mode).
//!
//! On a direct link there are no packets, so it does not matter whether both ends count from the
//! same PSN and cut messages at the same length. A user that tests a program without an RNIC wants
//! to know before there is one. What would fail on a wire only if there was enough of it at once,
//! READs beyond the responder's resources, fails always, so that it is found.

use super::{CompletionCondition, RequestHeader, TryOutcome};
use crate::platform::ToleratedMismatch;
use crate::qp::Qp;
use crate::qp::link_table::LinkEnd;
use crate::qp::qp_attributes::QpAttributes;
use crate::verbs_constants::status;
use omniverb_link::qp_attributes_for_engine::{ReceiveAttributes, SendAttributes};
use omniverb_terms::Service;

impl RequestHeader {
    /// What is to become of a request that a wire would not let pass; `None`: it would.
    #[cold]
    pub(super) fn unforgiven(
        &self,
        qp: &Qp,
        link: Option<&LinkEnd>,
        attributes: &QpAttributes,
    ) -> Option<TryOutcome> {
        // The engine speaks for the peer, and forgives nothing.
        let link = link.filter(|link| !link.peer.is_beyond_engine())?;
        if self.has_begun || qp.service == Service::Ud || !link.endpoint.peer_is_open() {
            return None;
        }
        let peer = link.endpoint.peer_receiving()?;
        let what = forgiven(qp.service, self, &attributes.into(), &attributes.into(), &peer)?;
        qp.shared.host.forgiven(qp.number, what);
        Some(match what {
            // There is no answer: the message is lost.
            _ if !qp.service.is_reliable() => TryOutcome::Started(CompletionCondition::Done),
            ToleratedMismatch::Psn { .. } => TryOutcome::Fail(status::RETRY_EXC_ERR),
            // The answer has other packets than expected.
            ToleratedMismatch::PathMtu { .. } if self.brings_back() => {
                TryOutcome::Fail(status::BAD_RESP_ERR)
            }
            ToleratedMismatch::PathMtu { .. } | ToleratedMismatch::RdAtomic { .. } => {
                TryOutcome::Fail(status::REM_INV_REQ_ERR)
            }
        })
    }
}

/// What of this request only a direct link forgives.
fn forgiven(
    service: Service,
    order: &RequestHeader,
    receiving: &ReceiveAttributes,
    sending: &SendAttributes,
    peer: &ReceiveAttributes,
) -> Option<ToleratedMismatch> {
    // A UC responder takes the first packet of a message whatever its PSN (9.8.2.2).
    if service.is_reliable() && sending.sq_psn != peer.rq_psn {
        return Some(ToleratedMismatch::Psn { ours: sending.sq_psn, theirs: peer.rq_psn });
    }
    // All packets of a message but the last are as long as the path MTU (9.7.4.1.6).
    let (ours, theirs) = (receiving.path_mtu, peer.path_mtu);
    if ours != theirs && order.length > 128 << ours.min(theirs) {
        return Some(ToleratedMismatch::PathMtu { ours: 128 << ours, theirs: 128 << theirs });
    }
    // More at once than the responder has resources for is an invalid request (9.7.4.1.5).
    let (ours, theirs) = (sending.max_rd_atomic, peer.max_dest_rd_atomic);
    if order.needs_answer() && ours > theirs {
        return Some(ToleratedMismatch::RdAtomic { ours, theirs });
    }
    None
}
