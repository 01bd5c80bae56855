//! Where pages go that are lent: to memory that their owner and whoever is granted them both have.
//!
//! In: who they are. Out: a file of its own, one of the windows of virtual machines, or, for the
//! engine, where they are in a virtual machine's memory. An extent
//! is in one place, which whoever is granted it first decides: those who cannot have that are
//! mediated as long as it is there.

use super::pending::Grantee;
use crate::directory::Common;
use crate::ids::SessionId;
use crate::limits::Limits;
use crate::memory::extents::ExtentId;
use crate::memory::layout::Home;
use crate::tenancy::Tenancy;
use omniverb_session::rights::{self, Trust};
use omniverb_terms::{Errno, VnicId};

/// Bytes of a part of a region that goes to a pair window at a time: these are small, and for more
/// regions than one.
const PAIR_EXTENT_BYTES: u64 = 512 << 10;

impl Home {
    /// What holds for parts of regions there.
    pub(super) fn limits(&self, limits: &Limits) -> Limits {
        let extent_bytes = match self {
            Home::File | Home::Window | Home::InPlace => limits.extent_bytes,
            Home::Pair { .. } => limits.extent_bytes.min(PAIR_EXTENT_BYTES),
        };
        Limits { extent_bytes, ..limits.clone() }
    }

    /// What pages of a region with this access may be used for there.
    pub(super) fn mappable(&self, access: u32, trust: Trust) -> u32 {
        match self {
            // In place nobody has them but the engine, which keeps to the flags.
            Home::File | Home::InPlace => rights::mappable(access, trust),
            Home::Window | Home::Pair { .. } => rights::mappable_in_window(access, trust),
        }
    }
}

impl Tenancy {
    /// Where pages of an owner's are lent to somebody.
    pub(super) fn home(&self, initiator: Grantee, owner: SessionId) -> Result<Home, Errno> {
        let vnic_of =
            |id| Ok::<_, Errno>(self.sessions.get(&id).ok_or(Errno::ENOENT)?.client().vnic);
        let home = vnic_of(owner)?;
        let in_machine = self.network.is_machine(home);
        let peer = match initiator {
            Grantee::Session(peer) => peer,
            Grantee::Engine if self.stay_in_place(home) => return Ok(Home::InPlace),
            Grantee::Engine if in_machine => return Err(Errno::EOPNOTSUPP),
            Grantee::Engine => return Ok(Home::File),
        };
        let (vnics, sessions) = ([home, vnic_of(peer)?], [owner, peer]);
        match self.common(vnics) {
            Common::Any if in_machine => Ok(Home::Window),
            Common::Any => Ok(Home::File),
            Common::Nothing => Err(Errno::EOPNOTSUPP),
            Common::Window(end) => {
                let neighbour = self.neighbour(sessions[1 - end]).ok_or(Errno::EOPNOTSUPP)?;
                Ok(Home::Pair { machine: vnics[end], neighbour })
            }
        }
    }

    /// Nothing came of a grant. In a pair window nothing stays that nobody has: there is little
    /// room, and whoever else wants the pages cannot have them there.
    pub(super) fn drop_unused(&mut self, id: ExtentId) {
        let extent = self.memory.extents.get(id);
        let in_pair = extent.is_some_and(|extent| matches!(extent.home, Home::Pair { .. }));
        let granted = self.memory.grantees.links_of(id).next().is_some();
        if in_pair && !granted && !self.memory.pending().any(|grant| grant.extent == id) {
            self.take_extent_back(None, id);
        }
    }

    /// The windows of a machine are over: what lies in them is nobody's to be granted.
    pub(crate) fn take_back_of(&mut self, machine: VnicId) {
        for extent in self.memory.in_pairs_of(machine) {
            self.take_extent_back(None, extent);
        }
    }
}
