//! Packet sequence numbers (9.7.1): 24 bits on the wire, 64 bits inside.
//!
//! Inside, a PSN never wraps: the low 24 bits are those on the wire. A number from the wire is
//! taken to be the one nearest to a number we know.

/// PSNs on the wire.
pub const SPACE: u64 = 1 << 24;
/// Half of them: how far apart two PSNs that are in use at the same time may be (9.7.1).
pub const HALF: u64 = SPACE / 2;

/// A starting PSN as a number inside: far enough from zero for duplicates to exist before it.
pub fn start(wire: u32) -> u64 {
    SPACE + u64::from(wire) % SPACE
}

/// The number nearest to `near` that looks like `wire`.
pub fn extend(near: u64, wire: u32) -> u64 {
    let ahead = u64::from(wire).wrapping_sub(near) % SPACE;
    if ahead < HALF { near + ahead } else { (near + ahead).saturating_sub(SPACE) }
}

/// The 24 bits on the wire.
pub fn wire(psn: u64) -> u32 {
    (psn % SPACE) as u32
}

#[cfg(test)]
mod tests {
    use super::{HALF, SPACE, extend, start, wire};

    #[test]
    fn nearest_number_is_found_across_the_wrap() {
        let near = start(0xff_fffe);
        for distance in [0, 1, 2, 100, HALF - 1] {
            assert_eq!(extend(near, wire(near + distance)), near + distance);
            assert_eq!(extend(near, wire(near - distance)), near - distance);
        }
        assert_eq!(extend(near, wire(near + HALF)), near - HALF);
        assert_eq!(extend(SPACE * 7, 0xff_ffff), SPACE * 7 - 1);
    }
}
