//! The multicast groups that a queue pair is attached to.

use omniverb_terms::{Gid, Qpn};

/// One group that a queue pair is attached to.
#[derive(Clone, Copy)]
pub(crate) struct Attachment {
    pub(crate) group: Gid,
    /// What the far end of its link is called, if the daemon has made one.
    pub(crate) peer: Option<Qpn>,
    /// Messages come by it.
    pub(crate) is_there: bool,
}

/// All groups of a queue pair.
#[derive(Clone, Default)]
pub(crate) struct Groups {
    pub(crate) list: Vec<Attachment>,
    /// The far end whose link ended since a link was asked for last.
    pub(crate) ended: Option<Qpn>,
}

impl Groups {
    /// What is known of one, if it is attached to it.
    pub(crate) fn find(&mut self, group: Gid) -> Option<&mut Attachment> {
        self.list.iter_mut().find(|attachment| attachment.group == group)
    }
}
