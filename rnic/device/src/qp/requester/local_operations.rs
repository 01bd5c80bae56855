//! Executes requests in which the peer has no part: keys of memory windows begin and end.

use super::{CompletionCondition, RequestHeader, TryOutcome};
use crate::memory_window::Bind;
use crate::qp::Qp;
use crate::verbs_constants::{opcode, status};
use omniverb_terms::{Lkey, Rkey};

impl RequestHeader {
    /// Binds a window, or ends its key. `has_bound` is set if the queue pair may have bound one.
    #[cold]
    pub(super) fn do_locally(&self, qp: &Qp, has_bound: &mut bool) -> TryOutcome {
        let regions = &qp.shared.regions;
        let (done, why) = match self.opcode {
            opcode::BIND_MW => {
                let bind = Bind {
                    rkey: self.rkey,
                    lkey: Lkey(self.immediate),
                    address: self.address,
                    length: self.swap,
                    access: self.compare_add as u32,
                };
                *has_bound = true;
                (regions.bind(qp.number, qp.pd, &bind), status::MW_BIND_ERR)
            }
            _ => {
                let ended = regions.invalidate(qp.number, Rkey(self.immediate));
                (ended, status::LOC_QP_OP_ERR)
            }
        };
        if done { TryOutcome::Started(CompletionCondition::Done) } else { TryOutcome::Fail(why) }
    }
}
