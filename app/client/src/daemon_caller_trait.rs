//! Lets parts of the client ask the daemon, and leave calls to the thread that makes them.

use crate::deferred_daemon_calls::DeferredCall;
use omniverb_session::Message;
use omniverb_terms::Errno;

/// Asks the daemon: the client does.
pub(crate) trait DaemonCaller {
    /// Asks, and reconnects if the daemon was restarted.
    ///
    /// # Errors
    /// errno: what the daemon answers, or why it does not.
    fn call(&self, message: &Message) -> Result<Message, Errno>;
    /// Has this done by the thread that makes calls.
    fn defer(&self, call: DeferredCall);
}
