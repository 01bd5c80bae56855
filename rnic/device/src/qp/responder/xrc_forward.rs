//! Forwards requests of XRC for an SRQ of another process of the domain; they stay here until it is
//! through with them.

use super::Outcome;
use crate::qp::qp_attributes::QpAttributes;
use crate::qp::xrc_relay::{RelayFault, RelayStep, may_go_on};
use crate::qp::xrc_relay_table::RelayLookup;
use crate::qp::{Inner, Qp};
use crate::verbs_constants::access;
use crate::xrc_domain::Domain;
use omniverb_link::{Broken, Request};
use omniverb_ring::Record;
use omniverb_terms::Refusal;

impl Inner {
    /// Hands the request at the head over to the process that has the SRQ of this number.
    #[cold]
    pub(super) fn hand_over_request(
        &mut self,
        qp: &Qp,
        index: usize,
        request: &Request,
        record: &Record,
        number: u32,
    ) -> Result<Outcome, Broken> {
        const REFUSED: Outcome = Outcome::Refused(Refusal::InvalidRequest, None);
        // A queue pair that receives for another process's is asked for what is here only.
        if qp.is_hidden() || !may_hand_over(self.machine.attributes(), request) {
            return Ok(REFUSED);
        }
        let part = Domain::part_of(number);
        let relay = match self.extended.relays.to(part) {
            RelayLookup::New => {
                qp.shared.host.hand_over(qp.number, part);
                return Ok(Outcome::Later);
            }
            RelayLookup::Asked => return Ok(Outcome::Later),
            RelayLookup::Gone => return Ok(REFUSED),
            RelayLookup::Open(relay) => relay,
        };
        // Answers may find no room: said before the first one, whose taker is sure to see it.
        self.links[index].endpoint.set_blocked(true);
        match relay.forward(&mut self.links[index].endpoint, request, record, number) {
            Ok(RelayStep::Passed) => {
                self.links[index].end_starving();
                Ok(Outcome::Passed)
            }
            Ok(RelayStep::Wait) => Ok(Outcome::Later),
            Ok(RelayStep::Lacks) => Ok(self.lack_receive(qp, index, 0)),
            Ok(RelayStep::Refused(refusal)) => Ok(Outcome::Refused(refusal, None)),
            Err(RelayFault::Theirs) => Ok(REFUSED),
            Err(RelayFault::Ours) => Err(Broken),
        }
    }
}

/// What peers may do is said of the queue pair that they are connected with.
fn may_hand_over(attributes: &QpAttributes, request: &Request) -> bool {
    let may = |right: u32| attributes.access_flags & right != 0;
    may_go_on(request)
        && match request {
            Request::WriteFirst { .. } => may(access::REMOTE_WRITE),
            Request::Read { .. } => may(access::REMOTE_READ) && attributes.max_dest_rd_atomic > 0,
            Request::CompareSwap { .. } | Request::FetchAdd { .. } => {
                may(access::REMOTE_ATOMIC) && attributes.max_dest_rd_atomic > 0
            }
            _ => true,
        }
}
