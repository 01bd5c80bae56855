//! Which links hang on a CQ: whether it is worth its while to poll without a pause.

use super::{FarEnd, Qp};
use crate::cq::Cq;
use std::sync::Arc;

/// Counts a link on the CQs of its QP, as long as it lives.
pub(crate) struct Hanging {
    cqs: [Option<Arc<Cq>>; 2],
    far_end: FarEnd,
}

impl Hanging {
    pub(super) fn new(qp: &Qp, far_end: FarEnd) -> Hanging {
        let one = Arc::ptr_eq(&qp.send_cq, &qp.recv_cq);
        let cqs = [Some(qp.recv_cq.clone()), (!one).then(|| qp.send_cq.clone())];
        cqs.iter().flatten().for_each(|cq| cq.links.add(far_end));
        Hanging { cqs, far_end }
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.cqs.iter().flatten().for_each(|cq| cq.links.remove(self.far_end));
    }
}
