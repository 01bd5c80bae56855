//! Compares vNICs by the kernel's evidence of their attachments.
//!
//! It is made where the attachment is known, and compared in the registry only.

use omniverb_session::vm::MachineName;
use omniverb_tenancy::Access;

/// How a vNIC is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Attachment {
    /// It is the network of a namespace.
    Namespace,
    /// It is a virtual machine of this name, which an operator gave it.
    Machine(MachineName),
    /// Nothing there is: shows that nothing depends on there being namespaces only.
    #[cfg(test)]
    Double,
}

impl Attachment {
    /// Numbers that stay: tickets of daemons before depend on them.
    pub(crate) fn code(self) -> u64 {
        match self {
            Attachment::Namespace => 1,
            Attachment::Machine(_) => 2,
            #[cfg(test)]
            Attachment::Double => u64::MAX,
        }
    }

    /// How a vNIC that is attached so may be reached.
    pub(crate) fn access(self) -> Access {
        match self {
            Attachment::Namespace => Access::Any,
            Attachment::Machine(_) => Access::Window,
            #[cfg(test)]
            Attachment::Double => Access::Any,
        }
    }
}

/// What tells an attachment from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evidence {
    pub(crate) attachment: Attachment,
    /// No other of its kind has this as long as it is held, but one may later.
    pub(crate) place: [u64; 2],
    /// No other of its kind in this boot has had this or will have it, where the kernel says.
    pub(crate) serial: Option<u64>,
}

impl Evidence {
    pub(crate) fn slot(&self) -> (Attachment, [u64; 2]) {
        (self.attachment, self.place)
    }

    /// The inode number of its namespace, if it is one.
    pub(crate) fn inode(&self) -> Option<u64> {
        (self.attachment == Attachment::Namespace).then_some(self.place[1])
    }
}
