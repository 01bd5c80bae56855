//! Attaches queue pairs to multicast groups for the application, and detaches them.

use super::Client;
use omniverb_device::Qp;
use omniverb_terms::{Errno, Gid};

impl Client {
    /// Attaches a datagram queue pair to a group. One that cannot receive yet is attached when it
    /// can. Twice is once.
    ///
    /// # Errors
    /// errno: `ENOMEM` over a quota, `EADDRNOTAVAIL` without an address of the group's kind (IPv4
    /// or IPv6), `EHOSTUNREACH` if the daemon cannot join it, `ETIMEDOUT` if that takes too long,
    /// `EIO` in a forked child.
    pub fn attach_group(&self, qp: &Qp, group: Gid) -> Result<(), Errno> {
        if !self.is_ours() {
            return Err(Errno::EIO);
        }
        self.groups.attach(self, qp, group)
    }

    /// Whether it is attached to some group.
    pub fn is_attached(&self, qp: &Qp) -> bool {
        self.is_ours() && self.qps.is_attached(qp.number)
    }

    /// Detaches it: when this returns nothing that is sent to the group reaches it.
    ///
    /// # Errors
    /// errno: `EINVAL` if it is not attached, `EIO` in a forked child.
    pub fn detach_group(&self, qp: &Qp, group: Gid) -> Result<(), Errno> {
        if !self.is_ours() {
            return Err(Errno::EIO);
        }
        self.groups.detach(self, qp, group)
    }
}
