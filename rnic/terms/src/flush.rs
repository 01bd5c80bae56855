//! Defines what a FLUSH is to reach (A19; `ibv_wr_flush(3)`).

/// How far what was written before is to have got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement(u8);

impl Placement {
    /// Every reader of the memory finds it.
    pub const GLOBAL: Placement = Placement(1);
    /// It survives the loss of power.
    pub const PERSISTENT: Placement = Placement(2);

    /// From its four bits; `None` if one is set that means nothing, or none is.
    pub fn from_bits(bits: u8) -> Option<Placement> {
        (1..=3).contains(&bits).then_some(Placement(bits))
    }
    /// Its four bits.
    pub fn bits(self) -> u8 {
        self.0
    }
    /// Whether it asks for this.
    pub fn asks(self, what: Placement) -> bool {
        self.0 & what.0 == what.0
    }
}

/// How much of a region is to be flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Selectivity {
    /// What address and length say.
    #[default]
    Range,
    /// All of it; address and length count for nothing.
    Region,
}

impl Selectivity {
    /// From its code; `None`: there is none such.
    pub fn from_code(code: u8) -> Option<Selectivity> {
        match code {
            0 => Some(Selectivity::Range),
            1 => Some(Selectivity::Region),
            _ => None,
        }
    }
    /// The number that stands for it in a FETH (A19).
    pub fn code(self) -> u8 {
        u8::from(self == Selectivity::Region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_are_one_or_both() {
        for bits in (0..=255).filter(|bits| !(1..=3).contains(bits)) {
            assert_eq!(Placement::from_bits(bits), None, "{bits}");
        }
        let both = Placement::from_bits(3).unwrap();
        assert!(both.asks(Placement::PERSISTENT) && both.asks(Placement::GLOBAL));
        assert!(!Placement::GLOBAL.asks(Placement::PERSISTENT) && !Placement::GLOBAL.asks(both));
    }
}
