//! Decides which pages may be granted between two vNICs.

use omniverb_session::operator::{ADOPTION_EXACT, ADOPTION_OFF, ADOPTION_TRUSTING};

/// Which pages of a vNIC's processes may be mapped by others, and theirs by them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Adoption {
    /// Where page protection expresses exactly what the verbs flags allow.
    Exact,
    /// Also where it expresses more: the default, since a tenant is one owner's.
    #[default]
    Trusting,
    /// No pages at all.
    Off,
}

impl Adoption {
    /// Every one, in the order of their numbers.
    pub const ALL: [Adoption; 3] = [Adoption::Exact, Adoption::Trusting, Adoption::Off];

    /// The word for it in configuration and commands.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Adoption::Exact => "exact",
            Adoption::Trusting => "trusting",
            Adoption::Off => "off",
        }
    }

    /// The setting of this name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Adoption> {
        Adoption::ALL.into_iter().find(|adoption| adoption.name() == name)
    }

    /// Its number in messages, an `ADOPTION_*`.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            Adoption::Exact => ADOPTION_EXACT,
            Adoption::Trusting => ADOPTION_TRUSTING,
            Adoption::Off => ADOPTION_OFF,
        }
    }

    /// The setting of this number, if there is one.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Adoption> {
        Adoption::ALL.into_iter().find(|adoption| adoption.code() == code)
    }

    /// The setting between two vNICs: the more careful one decides.
    #[must_use]
    pub fn with(self, other: Adoption) -> Adoption {
        match (self, other) {
            (Adoption::Off, _) | (_, Adoption::Off) => Adoption::Off,
            (Adoption::Trusting, Adoption::Trusting) => Adoption::Trusting,
            _ => Adoption::Exact,
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
