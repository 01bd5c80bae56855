//! Flow control of unreliable messages between two Omniverbs.
//!
//! UC and UD have no acknowledgements, so a sender does not know when its receiver falls behind,
//! and on one machine, where both compete for processors, it falls behind by whole scheduling
//! periods. Hence the receiver reports how far it got (`omniverb_wire::write_report`), and the
//! sender keeps no more than a window under way. Nothing is sent again: what is lost stays lost,
//! and a sender that hears nothing goes on after a moment.

use omniverb_wire::Bth;

/// Packets under way at most: they fit into the buffers on the way, however long a thread sleeps.
const WINDOW: u32 = 256;
/// And before the first report: the receiver may not even have a link for us yet.
const WINDOW_FIRST: u32 = 32;
/// A report is asked for with every so manieth packet.
const ASK_EVERY: u32 = 32;
/// A sender that hears nothing for so long, in nanoseconds, takes what is under way for lost.
const PATIENCE: u64 = 30_000_000;
const PSN_MASK: u32 = 0xff_ffff;

/// A sender's side.
#[derive(Debug, Default)]
pub(crate) struct Outflow {
    /// One past the last PSN sent, and one past the last reported.
    ends: Option<(u32, u32)>,
    /// Since when the window is full.
    full_since: Option<u64>,
    /// The receiver has reported.
    known: bool,
}

impl Outflow {
    /// Whether a packet may leave; if not, when we shall be tired of waiting.
    pub(crate) fn may_send(&mut self, now: u64) -> Result<(), u64> {
        let Some((sent, reported)) = self.ends else { return Ok(()) };
        let window = if self.known { WINDOW } else { WINDOW_FIRST };
        if sent.wrapping_sub(reported) & PSN_MASK < window {
            self.full_since = None;
            return Ok(());
        }
        let since = *self.full_since.get_or_insert(now);
        if now < since + PATIENCE {
            return Err(since + PATIENCE);
        }
        self.ends = Some((sent, sent));
        self.full_since = None;
        Ok(())
    }

    /// This packet leaves.
    pub(crate) fn on_send(&mut self, datagram: &mut [u8]) {
        let Some([high, middle, low]) = datagram.get(9..12) else { return };
        let psn = u32::from_be_bytes([0, *high, *middle, *low]);
        let reported = self.ends.map_or(psn, |(_, reported)| reported);
        self.ends = Some((psn.wrapping_add(1) & PSN_MASK, reported));
        if psn.is_multiple_of(ASK_EVERY) {
            Bth::request_report(datagram);
        }
    }

    /// The receiver got as far as this PSN. One that was not sent says nothing.
    pub(crate) fn on_report(&mut self, psn: u32) {
        let Some((sent, reported)) = self.ends else { return };
        let after = psn.wrapping_add(1) & PSN_MASK;
        let under_way = sent.wrapping_sub(reported) & PSN_MASK;
        if after.wrapping_sub(reported) & PSN_MASK <= under_way {
            self.ends = Some((sent, after));
            self.full_since = None;
            self.known = true;
        }
    }
}

/// A receiver's side.
#[derive(Debug, Default)]
pub(crate) struct Inflow {
    last: u32,
    asked: bool,
}

impl Inflow {
    /// A packet arrived.
    pub(crate) fn on_packet(&mut self, header: &Bth) {
        self.last = header.psn();
        self.asked |= header.is_report_requested();
    }

    /// What is to be reported, if it was asked for and the application has taken it.
    pub(crate) fn report(&mut self, taken: bool) -> Option<u32> {
        (taken && std::mem::take(&mut self.asked)).then_some(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::{Inflow, Outflow, PATIENCE, WINDOW, WINDOW_FIRST};
    use omniverb_wire::Bth;
    use zerocopy::FromBytes;

    fn packet(psn: u32) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[8..12].copy_from_slice(&psn.to_be_bytes());
        bytes
    }

    #[test]
    fn no_more_than_a_window_until_the_receiver_reports() {
        let (mut out, mut into) = (Outflow::default(), Inflow::default());
        let mut psn = 0xff_ff80;
        let mut sent = 0;
        for window in [WINDOW_FIRST, WINDOW] {
            while out.may_send(5).is_ok() {
                let mut bytes = packet(psn);
                out.on_send(&mut bytes);
                into.on_packet(Bth::ref_from_prefix(&bytes).unwrap().0);
                psn = (psn + 1) & 0xff_ffff;
                sent += 1;
            }
            assert_eq!(sent, window);
            if window == WINDOW_FIRST {
                out.on_report(into.report(true).unwrap());
                sent = 0;
            }
        }
        assert_eq!(into.report(false), None, "the application has not taken it");
        let reported = into.report(true).unwrap();
        assert_eq!(into.report(true), None, "once");
        out.on_report(0x1234);
        assert!(out.may_send(6).is_err(), "never sent");
        out.on_report(reported);
        assert_eq!(out.may_send(6), Ok(()));
    }

    #[test]
    fn silence_does_not_last_for_ever() {
        let mut out = Outflow::default();
        for psn in 0..WINDOW_FIRST {
            out.on_send(&mut packet(psn));
        }
        assert_eq!(out.may_send(100), Err(100 + PATIENCE));
        assert_eq!(out.may_send(100 + PATIENCE), Ok(()));
    }
}
