//! Measures how busy a connection is, and names its lanes, in four bytes
//! ([`super::lane_assignment`]).

/// Sends by a channel between two of a connection that is busy.
const NEAR: u16 = 32;
/// So many of those in a row make it busy.
const HOT: u16 = 7;
/// The clock of a channel goes up to here, and begins anew.
const CLOCK: u16 = 0x1fff;
const HEAT: u32 = CLOCK.trailing_ones();

/// How busy a connection is, and its lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Activity {
    /// When it sent last, by the channel's clock, and behind that how often it has in near
    /// succession.
    sends: u16,
    /// One more than the lane of what comes, and of what goes; 0: none.
    lanes: [u8; 2],
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// From the other end.
    In = 0,
    /// To the other end.
    Out = 1,
}

impl Activity {
    /// It has sent something by the channel, which has seen so many of that. Whether it is busy.
    #[inline]
    pub(super) fn record_send(&mut self, clock: u16) -> bool {
        let (last, heat) = (self.sends & CLOCK, self.sends >> HEAT);
        let is_near = (1..=NEAR).contains(&(clock.wrapping_sub(last) & CLOCK));
        let heat = if is_near { (heat + 1).min(HOT) } else { 0 };
        self.sends = clock & CLOCK | heat << HEAT;
        heat == HOT
    }

    /// It has to be busy anew.
    pub(super) fn cool_down(&mut self) {
        self.sends &= CLOCK;
    }

    /// The lane of what comes or goes.
    #[inline(always)]
    pub(super) fn lane(self, way: Flow) -> Option<usize> {
        usize::from(self.lanes[way as usize]).checked_sub(1)
    }

    /// It is this one from now on.
    pub(super) fn set_lane(&mut self, way: Flow, lane: Option<usize>) {
        self.lanes[way as usize] = lane.map_or(0, |lane| lane as u8 + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot() -> Activity {
        Activity::default()
    }

    #[test]
    fn few_that_send_are_busy() {
        for (count, is_busy) in [(1, true), (20, true), (33, false), (1000, false), (8192, false)] {
            let mut slots = vec![slot(); count];
            let mut clock = 0_u16;
            let mut was_busy = false;
            for turn in 0..20 * count {
                clock = clock.wrapping_add(1);
                was_busy |= slots[turn % count].record_send(clock) && turn > count;
            }
            assert_eq!(was_busy, is_busy, "{count}");
        }
    }

    #[test]
    fn an_idle_connection_has_to_be_busy_anew() {
        let mut slot = slot();
        assert_eq!((1..100).position(|clock| slot.record_send(clock)), Some(6));
        slot.cool_down();
        assert_eq!((8..100).position(|clock| slot.record_send(clock)), Some(6));
    }
}
