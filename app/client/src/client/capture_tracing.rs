//! Starts and stops the tracing of links while the daemon captures packets.

use crate::daemon_messages_with_fds::MessageWithFiles;
use crate::link_trace_writer::TraceRing;
use crate::memory_from_daemon;
use crate::queue_pair_records::QueuePairs;
use omniverb_link::Tracer;
use omniverb_link::captured_operations_ring::TRACE_BYTES;
use omniverb_session::body::{TraceBegin, TraceLink};

impl TraceRing {
    /// The daemon gave us memory for traces. Without it nothing is traced, and the daemon sees
    /// that nothing comes.
    pub(super) fn begin(&self, begin: Option<MessageWithFiles<TraceBegin>>) {
        let mapped =
            begin.and_then(|begin| memory_from_daemon::map(&begin.files, TRACE_BYTES).ok());
        self.set(mapped.and_then(|memory| Tracer::new(&memory)));
    }

    /// A link is to be traced, or no longer.
    pub(super) fn trace_link(&self, qps: &QueuePairs, m: &TraceLink) {
        let tracer = self.tracer();
        let Some(qp) = qps.get(m.qpn) else { return };
        match tracer.filter(|_| m.on != 0) {
            Some(tracer) => qp.trace(m.peer_qpn, &tracer),
            None => qp.untrace(Some(m.peer_qpn)),
        }
    }

    /// Ends tracing: no capture wants to know any more.
    pub(super) fn end(&self, qps: &QueuePairs) {
        if self.set(None) {
            qps.all().iter().for_each(|qp| qp.untrace(None));
        }
    }
}
