//! Says how the names of a light connection are shown, and which part of its own `bind` chose.

use super::frame::Endpoint;

/// That, in a byte. All zeros: as names of IPv4, and nothing was chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Naming(u8);

const SIX: u8 = 1;
const PORT: u8 = 2;
const ADDRESS: u8 = 4;

impl Naming {
    /// Names are shown as those of IPv4.
    pub const FOUR: Self = Self(0);
    /// Names are shown as those of IPv6, whatever they are.
    pub const SIX: Self = Self(SIX);

    /// The same, where `bind` chose a port, and an address unless that is any.
    #[must_use]
    pub fn bound_to(self, name: &Endpoint) -> Self {
        let address = if name.is_any() { 0 } else { ADDRESS };
        Self(self.0 | PORT | address)
    }

    /// Names are shown as those of IPv6.
    #[must_use]
    pub fn is_six(self) -> bool {
        self.0 & SIX != 0
    }

    /// What is left of a connection's own name when it is undone: what `bind` chose. `None`: that
    /// was nothing.
    #[must_use]
    pub fn chosen(self, own: Endpoint) -> Option<Endpoint> {
        if self.0 & PORT == 0 {
            return None;
        }
        let any = if self.is_six() { Endpoint::default() } else { Endpoint::v4([0; 4], 0) };
        let address = if self.0 & ADDRESS == 0 { any.address } else { own.address };
        Some(Endpoint { address, port: own.port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_bind_chose_is_left_when_the_connection_is_undone() {
        let (own, any) = (Endpoint::v4([127, 0, 0, 1], 7000), Endpoint::v4([0; 4], 7000));
        assert_eq!(Naming::FOUR.chosen(own), None);
        assert_eq!(Naming::FOUR.bound_to(&any).chosen(own), Some(any));
        assert_eq!(Naming::FOUR.bound_to(&own).chosen(own), Some(own));
        let six = Naming::SIX.bound_to(&Endpoint { port: 7000, ..Endpoint::default() });
        assert!(six.is_six() && six.chosen(own).is_some_and(|name| !name.is_v4()));
    }
}
