//! Describes the identity of vNICs and clients, as the kernel or whatever attaches a vNIC says it.

use omniverb_fairness::Holder;
use omniverb_terms::VnicId;

/// Identity of a vNIC, the same for the next daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its name for people. No other vNIC has it, now or later.
    pub name: String,
    /// Another name that configuration may have for it.
    pub alias: Option<String>,
    /// Its node GUID, in network byte order; the same as long as it lives.
    pub guid: [u8; 8],
    /// A value that no other vNIC of this boot has or will have, where the kernel gives one. Only
    /// compared.
    pub proof: [u64; 4],
}

/// Within what processes of one user may look into each other, as far as the kernel is concerned
/// (`ptrace(2)`): their user, pid and mount namespaces, and their group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PtraceDomain {
    /// Inode numbers of the namespaces.
    pub namespaces: [u64; 3],
    /// The group, as the daemon sees it.
    pub group: u32,
}

/// The kernel's credentials of a client's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The vNIC that it has: introduced before, with [`Tenancy::introduce`](crate::Tenancy).
    pub vnic: VnicId,
    /// Its pid, as the daemon sees it.
    pub pid: i32,
    /// Its user, as the daemon sees it.
    pub uid: u32,
    /// The processes that may trace it; `None`: none, as far as is known.
    pub circle: Option<PtraceDomain>,
    /// The holder that its share of the host's quotas is counted for.
    pub holder: Holder,
}
