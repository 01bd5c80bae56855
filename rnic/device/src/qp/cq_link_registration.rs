//! Registers a queue pair's links with its CQs, which decide by them whether to poll without a
//! pause.

use crate::link_peer::FarEnd;
use std::sync::Arc;

/// A CQ, which counts the links that hang on it.
pub(crate) trait CountsLinks: Send + Sync {
    /// A link of a QP that uses it begins.
    fn link_begins(&self, far_end: FarEnd);
    /// One that began has ended.
    fn link_ends(&self, far_end: FarEnd);
}

/// Counts a link on the CQs of its QP, as long as it lives.
pub(crate) struct CqLinkRegistration {
    cqs: [Option<Arc<dyn CountsLinks>>; 2],
    far_end: FarEnd,
}

impl CqLinkRegistration {
    /// A link of a QP with these CQs, which may be the same one.
    pub(super) fn new<C: CountsLinks + 'static>(
        send_cq: &Arc<C>,
        recv_cq: &Arc<C>,
        far_end: FarEnd,
    ) -> CqLinkRegistration {
        let one = Arc::ptr_eq(send_cq, recv_cq);
        let counts = |cq: &Arc<C>| cq.clone() as Arc<dyn CountsLinks>;
        let cqs = [Some(counts(recv_cq)), (!one).then(|| counts(send_cq))];
        cqs.iter().flatten().for_each(|cq| cq.link_begins(far_end));
        CqLinkRegistration { cqs, far_end }
    }
}

impl Drop for CqLinkRegistration {
    fn drop(&mut self) {
        self.cqs.iter().flatten().for_each(|cq| cq.link_ends(self.far_end));
    }
}
