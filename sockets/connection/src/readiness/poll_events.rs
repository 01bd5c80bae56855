//! Says what `poll` tells of a descriptor whose bytes do not go by the kernel.

use crate::light::connection_slot;

/// Bits of `poll`, as Linux numbers them.
pub const IN: i16 = 1;
/// There is urgent data.
pub const PRI: i16 = 2;
/// There is room.
pub const OUT: i16 = 4;
/// An error, which is told of whether it was asked for or not.
pub const ERR: i16 = 8;
/// Both directions are over, told in the same way.
pub const HUP: i16 = 16;
/// It is no descriptor.
pub const NVAL: i16 = 32;
/// Data, by another name.
pub const RDNORM: i16 = 64;
/// Room, by another name.
pub const WRNORM: i16 = 256;
/// The other end sends no more.
pub const RDHUP: i16 = 0x2000;
/// What says that there are bytes.
pub const READABLE: i16 = IN | RDNORM;
/// What says that there is room.
pub const WRITABLE: i16 = OUT | WRNORM;
/// What says that a connection ends.
pub const ENDING: i16 = ERR | HUP | RDHUP;

/// Events that `poll` reports of a connection with these of [`connection_slot`]'s, which are all
/// that it has.
#[must_use]
pub fn of_connection(events: u32, asked: i16) -> i16 {
    let mut all =
        (events & (connection_slot::RDHUP | connection_slot::ERR | connection_slot::HUP)) as i16;
    if events & connection_slot::IN != 0 {
        all |= READABLE;
    }
    if events & connection_slot::OUT != 0 {
        all |= WRITABLE;
    }
    all & (asked | ERR | HUP)
}

/// What is added to what the kernel says of a socket that has bytes in memory ([`READABLE`]), or an
/// error of its own ([`ERR`]).
#[must_use]
#[inline]
pub fn of_ring(events: i16, asked: i16) -> i16 {
    events & (asked & READABLE | ERR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_and_room_have_two_names_each() {
        let all = connection_slot::IN | connection_slot::OUT | connection_slot::RDHUP;
        assert_eq!(of_connection(all, RDNORM | WRNORM), RDNORM | WRNORM);
        assert_eq!(of_connection(all, IN | RDHUP | PRI), IN | RDHUP);
        assert_eq!(of_connection(connection_slot::OUT, READABLE), 0);
    }

    #[test]
    fn an_error_and_the_end_are_told_unasked() {
        assert_eq!(
            of_connection(connection_slot::ERR | connection_slot::HUP | connection_slot::RDHUP, 0),
            ERR | HUP
        );
        assert_eq!(of_ring(READABLE | ERR, 0), ERR);
    }

    #[test]
    fn bytes_in_memory_are_told_only_if_asked_for() {
        assert_eq!(of_ring(READABLE, OUT | RDNORM), RDNORM);
        assert_eq!(of_ring(READABLE, OUT), 0);
        assert_eq!(of_ring(0, IN), 0);
    }
}
