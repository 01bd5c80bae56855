//! Requests in which the peer has no part: keys of memory windows begin and end.

use super::{Finish, Order, Step};
use crate::memory_window::Bind;
use crate::qp::{Inner, Qp};
use crate::verbs_constants::{opcode, status};
use omniverb_terms::{Lkey, Rkey};

impl Inner {
    /// Binds a window, or ends its key.
    #[cold]
    pub(super) fn do_locally(&mut self, qp: &Qp, order: &Order) -> Step {
        let regions = &qp.shared.regions;
        let (done, why) = match order.opcode {
            opcode::BIND_MW => {
                let bind = Bind {
                    rkey: order.rkey,
                    lkey: Lkey(order.immediate),
                    address: order.address,
                    length: order.swap,
                    access: order.compare_add as u32,
                };
                self.has_bound = true;
                (regions.bind(qp.number, qp.pd, &bind), status::MW_BIND_ERR)
            }
            _ => {
                let ended = regions.invalidate(qp.number, Rkey(order.immediate));
                (ended, status::LOC_QP_OP_ERR)
            }
        };
        if done { Step::Started(Finish::Done) } else { Step::Fail(why) }
    }
}
