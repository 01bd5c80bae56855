//! Which pages may be granted: what is said for each vNIC, and what follows for two of them.
//!
//! In: what an administrator set. Out: whether an owner may be asked for pages, and who has to take
//! pages back when that changes. A switch that was turned off concerns what was granted before as
//! well: a peer cannot be made to give a mapping back, so owners are told to take the pages.

use crate::ids::{SessionId, VnicId};
use crate::path::Policy;
use crate::tenancy::Tenancy;
use omniverb_session::body::{ROLE_VERBS, TAKE_ALL, TakeBack};
use omniverb_session::operator::{ADOPTION_EXACT, ADOPTION_OFF, ADOPTION_TRUSTING};
use omniverb_terms::Rkey;
use std::collections::BTreeSet;

/// Which pages of a vNIC's processes may be mapped by others, and theirs by them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Adoption {
    /// Where page protection expresses exactly what the verbs flags allow.
    #[default]
    Exact,
    /// Also where it expresses more.
    Trusting,
    /// None.
    Off,
}

impl Adoption {
    /// All there are.
    pub const ALL: [Adoption; 3] = [Adoption::Exact, Adoption::Trusting, Adoption::Off];

    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Adoption::Exact => "exact",
            Adoption::Trusting => "trusting",
            Adoption::Off => "off",
        }
    }

    /// From what is written.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Adoption> {
        Adoption::ALL.into_iter().find(|adoption| adoption.name() == name)
    }

    /// `ADOPTION_*`.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            Adoption::Exact => ADOPTION_EXACT,
            Adoption::Trusting => ADOPTION_TRUSTING,
            Adoption::Off => ADOPTION_OFF,
        }
    }

    /// From `ADOPTION_*`.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Adoption> {
        Adoption::ALL.into_iter().find(|adoption| adoption.code() == code)
    }

    /// What holds between two vNICs: the more careful one decides.
    #[must_use]
    pub fn with(self, other: Adoption) -> Adoption {
        match (self, other) {
            (Adoption::Off, _) | (_, Adoption::Off) => Adoption::Off,
            (Adoption::Trusting, Adoption::Trusting) => Adoption::Trusting,
            _ => Adoption::Exact,
        }
    }
}

impl Tenancy {
    /// What holds for pages between two vNICs.
    pub(crate) fn adoption_between(&self, one: VnicId, other: VnicId) -> Adoption {
        self.policy(one).adoption.with(self.policy(other).adoption)
    }

    /// What holds for a vNIC has changed from `before`: where less is allowed than was, its
    /// processes and all that are linked with them take back what they granted. One event for each
    /// process, however many links it has.
    pub(crate) fn adoption_changed(&mut self, key: VnicId, before: Policy) {
        let now = self.policy(key).adoption;
        if before.adoption.with(now) == before.adoption {
            return;
        }
        let own = self.sessions.iter().filter(|(_, session)| session.client.vnic == key);
        let mut told: BTreeSet<SessionId> = own.map(|(id, _)| *id).collect();
        let linked = self.links.values().filter(|link| link.vnics.contains(&key));
        told.extend(linked.flat_map(|link| link.sessions));
        for session in told {
            self.event(session, TakeBack { what: TAKE_ALL, rkey: Rkey(0), start: 0, number: 0 });
        }
    }

    /// A process that outlived the daemon may have granted what is not allowed any more: the
    /// configuration may be another one. With whom it has links is not known yet.
    pub(crate) fn take_back_after_restart(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else { return };
        let resumed = session.resume && session.role == ROLE_VERBS;
        if resumed && self.policies.any(Adoption::Off) {
            self.event(id, TakeBack { what: TAKE_ALL, rkey: Rkey(0), start: 0, number: 0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_careful_one_decides() {
        use Adoption::{Exact, Off, Trusting};
        for (one, other, both) in [
            (Exact, Exact, Exact),
            (Trusting, Trusting, Trusting),
            (Trusting, Exact, Exact),
            (Off, Trusting, Off),
            (Off, Exact, Off),
            (Off, Off, Off),
        ] {
            assert_eq!((one.with(other), other.with(one)), (both, both));
        }
    }

    #[test]
    fn names_and_codes_come_back() {
        for adoption in Adoption::ALL {
            assert_eq!(Adoption::from_name(adoption.name()), Some(adoption));
            assert_eq!(Adoption::from_code(adoption.code()), Some(adoption));
        }
        assert_eq!((Adoption::from_name("on"), Adoption::from_code(3)), (None, None));
    }
}
