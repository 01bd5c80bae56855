//! What a transport does for a call that waits for several descriptors.
//!
//! The kernel is asked for all descriptors that it knows. A transport adds what the kernel cannot
//! see of its own. Both implementations are used by [`crate::readiness`]:
//! [`crate::carry::PolledLinks`] for sockets whose bytes go by memory beside the kernel's socket,
//! [`crate::light::PolledConnections`] for connections without one.

use libc::pollfd;

/// What moves bytes of some of a list of descriptors.
pub(crate) trait Transport {
    /// Takes in what has come by memory. Some descriptor of its has something to tell.
    fn is_ready(&mut self, all: &mut [pollfd]) -> bool;

    /// Adds what it knows to what the kernel has said. How many more descriptors have something.
    fn add(&mut self, all: &mut [pollfd]) -> usize;

    /// The call is about to sleep: what comes from now on wakes it. What has come before is looked
    /// for after this.
    fn arm(&mut self, all: &[pollfd]);

    /// It sleeps no more.
    fn disarm(&mut self);
}
