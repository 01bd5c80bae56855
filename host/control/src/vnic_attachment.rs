//! Describes how a vNIC is attached: by a network namespace, or by a virtual machine.
//!
//! All that depends on the kind stands here: the evidence that tells vNICs apart, and what the
//! helper gets to look inside. A further kind needs another line in each function, and a source of
//! its addresses.

use crate::fnv_hash::{BASIS, fnv1a};
use crate::link_memory::Source;
use crate::running_helper_requests::Enclosed;
use crate::virtual_machines::Machine;
use crate::vnic_attachment_identity::{Attachment, Evidence};
use omniverb_sys::netns::Namespace;
use std::io;
use std::sync::Arc;

/// The attachment of a vNIC.
#[derive(Clone, Debug)]
pub(crate) enum Attached {
    /// A network namespace, and its number that never comes back, where the kernel says.
    Namespace(Arc<Namespace>, Option<u64>),
    /// A virtual machine.
    Machine(Arc<Machine>),
    /// For tests: something at a place, with a serial number, that the helper knows nothing of.
    #[cfg(test)]
    Double(u64, Option<u64>),
}

impl Attached {
    /// Our own namespace, which needs no privilege.
    pub(crate) fn home() -> io::Result<Attached> {
        let namespace = Arc::new(Namespace::current()?);
        let cookie = namespace.cookie().ok();
        Ok(Attached::Namespace(namespace, cookie))
    }

    /// The evidence that tells it from others: the kernel gives a namespace's device and inode
    /// number again once no descriptor of it is open, but never its cookie.
    pub(crate) fn evidence(&self) -> Evidence {
        match self {
            Attached::Namespace(namespace, cookie) => {
                let identity = namespace.identity();
                let place = [identity.device, identity.inode];
                Evidence { attachment: Attachment::Namespace, place, serial: *cookie }
            }
            Attached::Machine(machine) => {
                // The holder of a name is the same machine as before: operators gave the name.
                let attachment = Attachment::Machine(machine.name);
                let [one, two] = halves(&machine.name.bytes());
                Evidence { attachment, place: [one, two], serial: Some(0) }
            }
            #[cfg(test)]
            Attached::Double(place, serial) => {
                Evidence { attachment: Attachment::Double, place: [0, *place], serial: *serial }
            }
        }
    }

    /// Whether the helper can open sockets of UDP port 4791 in it: in a machine its agent does.
    pub(crate) fn may_have_port(&self) -> bool {
        !matches!(self, Attached::Machine(_))
    }

    /// Where memory comes from that its processes share.
    pub(crate) fn source(&self) -> Source {
        match self {
            Attached::Machine(machine) => Source::Window(machine.pieces.clone()),
            _ => Source::Files,
        }
    }

    /// What the helper needs to find addresses and to open sockets; `None` if it cannot.
    pub(crate) fn enclosed(&self) -> Option<Enclosed> {
        match self {
            Attached::Namespace(namespace, _) => Some(Enclosed::Namespace(namespace.clone())),
            Attached::Machine(_) => None,
            #[cfg(test)]
            Attached::Double(..) => None,
        }
    }
}

/// Two numbers that other bytes do not have, for all that can be expected.
fn halves(bytes: &[u8]) -> [u64; 2] {
    [BASIS, 0x6c62_272e_07bb_0142].map(|basis| fnv1a(basis, bytes))
}
