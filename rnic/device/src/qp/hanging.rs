//! Which links hang on a CQ: whether it is worth its while to poll without a pause.

use crate::cq::Cq;
use crate::peer::FarEnd;
use std::sync::Arc;

/// Counts a link on the CQs of its QP, as long as it lives.
pub(crate) struct Hanging {
    cqs: [Option<Arc<Cq>>; 2],
    far_end: FarEnd,
}

impl Hanging {
    /// A link of a QP with these CQs, which may be the same one.
    pub(super) fn new(send_cq: &Arc<Cq>, recv_cq: &Arc<Cq>, far_end: FarEnd) -> Hanging {
        let one = Arc::ptr_eq(send_cq, recv_cq);
        let cqs = [Some(recv_cq.clone()), (!one).then(|| send_cq.clone())];
        cqs.iter().flatten().for_each(|cq| cq.link_begins(far_end));
        Hanging { cqs, far_end }
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.cqs.iter().flatten().for_each(|cq| cq.link_ends(self.far_end));
    }
}
