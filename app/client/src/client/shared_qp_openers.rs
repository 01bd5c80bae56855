//! Other processes that have queue pairs of this one open: they are served by the thread that makes
//! calls, since what they ask may need the daemon.

use super::Client;
use crate::daemon_caller_trait::DaemonCaller;
use crate::deferred_daemon_calls::DeferredCall;
use crate::device_import::PeerSocketThread;
use crate::shared_qp::{Opener, OpenerService, Openers};
use omniverb_device::AsyncEvent;
use omniverb_terms::{Errno, Qpn};
use std::sync::Arc;

impl OpenerService for Client {
    fn attend_to(&self, key: u64) {
        self.defer(DeferredCall::Opened { opener: key });
    }
}

impl Client {
    /// An opener has asked something, or is gone.
    pub(super) fn serve_opener(&self, key: u64) {
        let Some(opener) = self.openers.get(key) else { return };
        if !opener.serve() {
            self.end_opener(opener);
        }
    }

    /// It has the queue pair open no longer.
    pub(super) fn end_opener(&self, opener: Arc<Opener>) {
        // Once.
        if !self.openers.remove(&opener) {
            return;
        }
        opener.ignore(&self.service);
        let (number, receivers) = opener.end();
        if let Some(qp) = receivers.as_ref().and_then(|known| known.let_go(number)) {
            self.destroy_qp(&qp);
        }
        // The domain goes with the last of these, when its queue pairs have gone.
        drop(receivers);
    }

    /// This has happened to a queue pair of ours.
    pub(super) fn tell_openers(&self, number: Qpn, event: AsyncEvent) {
        for opener in self.openers.of(number) {
            if !opener.report(event) {
                self.end_opener(opener);
            }
        }
    }
}

impl Openers {
    /// Listens to an opener, until its end.
    pub(super) fn listen(
        &self,
        service: &Arc<PeerSocketThread>,
        opener: &Arc<Opener>,
    ) -> Result<(), Errno> {
        opener.listen(service)?;
        // It may have been over before.
        if !self.has(opener) {
            opener.ignore(service);
        }
        Ok(())
    }
}
