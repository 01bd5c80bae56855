//! Writes traces of what happens on direct links, while packets are captured.

use omniverb_link::Tracer;
use omniverb_sys::lock;
use std::sync::{Arc, Mutex};

/// Where to write traces, while there is somewhere.
#[derive(Default)]
pub(crate) struct TraceRing {
    tracer: Mutex<Option<Arc<Tracer>>>,
}

impl TraceRing {
    /// What writes traces, during a capture.
    pub(crate) fn tracer(&self) -> Option<Arc<Tracer>> {
        lock(&self.tracer).clone()
    }

    /// There, from now on. `None`: nowhere. Says whether it went somewhere before.
    pub(crate) fn set(&self, tracer: Option<Tracer>) -> bool {
        std::mem::replace(&mut *lock(&self.tracer), tracer.map(Arc::new)).is_some()
    }
}
