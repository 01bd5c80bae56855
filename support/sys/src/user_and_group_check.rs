//! Tells whether a connected process belongs to certain users or groups.

use crate::pidfd::{Peer, peer_groups};
use std::os::fd::BorrowedFd;

/// Some of them, by number as we see them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsersAndGroups {
    /// Those of a process that connects: the effective one.
    pub users: Vec<u32>,
    /// Groups: the effective one of a process, or one of the others it is in.
    pub groups: Vec<u32>,
}

impl UsersAndGroups {
    /// Whether who has connected by `socket` is one of them.
    #[must_use]
    pub fn have(&self, peer: &Peer, socket: BorrowedFd<'_>) -> bool {
        let in_group = || {
            let groups = peer_groups(socket).unwrap_or_default();
            self.groups.contains(&peer.gid) || groups.iter().any(|gid| self.groups.contains(gid))
        };
        self.users.contains(&peer.uid) || (!self.groups.is_empty() && in_group())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seqpacket;
    use std::os::fd::AsFd;

    #[test]
    fn they_are_among_them_or_not() {
        let (one, _other) = seqpacket::pair().unwrap();
        let peer = seqpacket::peer(one.as_fd()).unwrap();
        let have = |users: &[u32], groups: &[u32]| {
            let people = UsersAndGroups { users: users.to_vec(), groups: groups.to_vec() };
            people.have(&peer, one.as_fd())
        };
        assert!(!have(&[], &[]) && !have(&[peer.uid + 1], &[]) && !have(&[], &[0x7000_0000]));
        assert!(have(&[peer.uid], &[]) && have(&[], &[peer.gid]));
    }
}
