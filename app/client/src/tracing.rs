//! While somebody captures packets: telling the daemon what happens on direct links.

use crate::lock::lock;
use crate::{Client, memory};
use omniverb_link::Tracer;
use omniverb_link::trace::TRACE_BYTES;
use omniverb_session::body::{TraceBegin, TraceLink};
use std::os::fd::OwnedFd;
use std::sync::Arc;

impl Client {
    /// The daemon gave us memory to tell through. Without it nothing is told, and the daemon sees
    /// that nothing comes.
    pub(crate) fn trace_begin(&self, begin: &TraceBegin, files: Vec<OwnedFd>) {
        let extent = memory::next(&mut files.into_iter(), begin.memory);
        let mapped = extent.and_then(|extent| memory::map(&extent, TRACE_BYTES));
        *lock(&self.tracer) = mapped.ok().and_then(|memory| Tracer::new(&memory)).map(Arc::new);
    }

    /// A link is to be told of, or no longer.
    pub(crate) fn trace_link(&self, m: &TraceLink) {
        let tracer = lock(&self.tracer).clone();
        let Some(qp) = self.qp(m.qpn) else { return };
        match tracer.filter(|_| m.on != 0) {
            Some(tracer) => qp.trace(m.peer_qpn, &tracer),
            None => qp.untrace(Some(m.peer_qpn)),
        }
    }

    /// Nobody wants to know any more.
    pub(crate) fn trace_end(&self) {
        if lock(&self.tracer).take().is_some() {
            let qps: Vec<_> = lock(&self.qps).values().map(|record| record.qp.clone()).collect();
            qps.iter().for_each(|qp| qp.untrace(None));
        }
    }
}
