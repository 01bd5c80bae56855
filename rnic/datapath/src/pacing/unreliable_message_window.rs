//! Controls the flow of unreliable messages between two Omniverbs.
//!
//! UC and UD have no acknowledgements, so a sender does not know when its receiver falls behind,
//! and on one machine, where both compete for processors, it falls behind by whole scheduling
//! periods. Hence the receiver reports how far it got (`omniverb_wire::write_report`), and the
//! sender keeps no more than a window under way. Nothing is sent again: what is lost stays lost,
//! and a sender that hears nothing goes on after a moment.
//!
//! Reports also say when a sender may take a shorter way: from one queue pair of an engine to
//! another packets need no network, but as long as the other has no link that is not known, and
//! what left through the network must not be overtaken by what does not.

use omniverb_terms::Psn;
use omniverb_wire::Bth;

/// Packets under way at most: they fit into the buffers on the way, however long a thread sleeps.
const WINDOW: u32 = 256;
/// And before the first report: the receiver may not even have a link for us yet.
const WINDOW_FIRST: u32 = 32;
/// A report is asked for with every so manieth packet.
const ASK_EVERY: u32 = 32;
/// A sender that hears nothing for so long, in nanoseconds, takes what is under way for lost.
const PATIENCE: u64 = 30_000_000;

/// How packets get to their peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PacketRoute {
    /// There is no other.
    #[default]
    Only,
    /// Through the network, although the peer is in this engine: it has no link yet.
    Long,
    /// Straight to the peer's link.
    Short,
}

/// A sender's side.
#[derive(Debug, Default)]
pub struct Outflow {
    /// One past the last PSN sent, and one past the last reported.
    ends: Option<(Psn, Psn)>,
    /// Since when the window is full.
    full_since: Option<u64>,
    /// The receiver has reported.
    known: bool,
    /// Which way what is under way took.
    taken: PacketRoute,
    /// Since when what is to take the shorter one waits for that.
    waits_since: Option<u64>,
}

impl Outflow {
    /// Whether a packet may leave; if not, when we shall be tired of waiting.
    pub fn may_send(&mut self, way: PacketRoute, now: u64) -> Result<(), u64> {
        self.may_take(way, now)?;
        let Some((sent, reported)) = self.ends else { return Ok(()) };
        let window = if self.known { WINDOW } else { WINDOW_FIRST };
        if sent.since(reported) < window {
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

    /// Whether what leaves now by this way overtakes nothing; if it might, when we shall be tired
    /// of waiting.
    fn may_take(&mut self, way: PacketRoute, now: u64) -> Result<(), u64> {
        if way == PacketRoute::Short && self.taken == PacketRoute::Long {
            let arrived = self.ends.is_none_or(|(sent, reported)| sent == reported);
            let since = *self.waits_since.get_or_insert(now);
            if !arrived && now < since + PATIENCE {
                return Err(since + PATIENCE);
            }
        }
        (self.taken, self.waits_since) = (way, None);
        Ok(())
    }

    /// This packet leaves.
    pub fn on_send(&mut self, datagram: &mut [u8]) {
        let Some([high, middle, low]) = datagram.get(9..12) else { return };
        let psn = Psn::new(u32::from_be_bytes([0, *high, *middle, *low]));
        let reported = self.ends.map_or(psn, |(_, reported)| reported);
        self.ends = Some((psn.next(), reported));
        // Before the first report each may be the last that takes the longer way.
        let may_be_last = self.taken == PacketRoute::Long && !self.known;
        if may_be_last || psn.number().is_multiple_of(ASK_EVERY) {
            Bth::request_report(datagram);
        }
    }

    /// The receiver got as far as this PSN. One that was not sent says nothing.
    pub fn on_report(&mut self, psn: Psn) {
        let Some((sent, reported)) = self.ends else { return };
        let after = psn.next();
        if after.since(reported) <= sent.since(reported) {
            self.ends = Some((sent, after));
            self.full_since = None;
            self.known = true;
        }
    }
}

/// Bytes that the application at a receiver has not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendPermission {
    /// It has taken all of them.
    Nothing,
    /// Some wait for it.
    Something,
}

/// A receiver's side.
#[derive(Debug, Default)]
pub struct Inflow {
    last: Psn,
    asked: bool,
}

impl Inflow {
    /// A packet arrived.
    pub fn on_packet(&mut self, header: &Bth) {
        self.last = header.psn();
        self.asked |= header.is_report_requested();
    }

    /// The report that was asked for, once the backlog is empty.
    pub fn report(&mut self, backlog: SendPermission) -> Option<Psn> {
        let all_taken = backlog == SendPermission::Nothing;
        (all_taken && std::mem::take(&mut self.asked)).then_some(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::{Inflow, Outflow, PATIENCE, PacketRoute, SendPermission, WINDOW, WINDOW_FIRST};
    use omniverb_terms::Psn;
    use omniverb_wire::Bth;
    use zerocopy::FromBytes;

    fn packet(psn: Psn) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[8..12].copy_from_slice(&psn.number().to_be_bytes());
        bytes
    }

    #[test]
    fn no_more_than_a_window_until_the_receiver_reports() {
        let (mut out, mut into) = (Outflow::default(), Inflow::default());
        let mut psn = Psn::new(0xff_ff80);
        let mut sent = 0;
        for window in [WINDOW_FIRST, WINDOW] {
            while out.may_send(PacketRoute::Only, 5).is_ok() {
                let mut bytes = packet(psn);
                out.on_send(&mut bytes);
                into.on_packet(Bth::ref_from_prefix(&bytes).unwrap().0);
                psn = psn.next();
                sent += 1;
            }
            assert_eq!(sent, window);
            if window == WINDOW_FIRST {
                out.on_report(into.report(SendPermission::Nothing).unwrap());
                sent = 0;
            }
        }
        assert_eq!(
            into.report(SendPermission::Something),
            None,
            "the application has not taken it"
        );
        let reported = into.report(SendPermission::Nothing).unwrap();
        assert_eq!(into.report(SendPermission::Nothing), None, "once");
        out.on_report(Psn::new(0x1234));
        assert!(out.may_send(PacketRoute::Only, 6).is_err(), "never sent");
        out.on_report(reported);
        assert_eq!(out.may_send(PacketRoute::Only, 6), Ok(()));
    }

    #[test]
    fn packets_on_a_longer_path_are_not_overtaken() {
        let (mut out, mut into) = (Outflow::default(), Inflow::default());
        assert_eq!(out.may_send(PacketRoute::Short, 1), Ok(()), "nothing was sent");
        for psn in 1..=3 {
            assert_eq!(out.may_send(PacketRoute::Long, 4), Ok(()));
            let mut bytes = packet(Psn::new(psn));
            out.on_send(&mut bytes);
            assert_eq!(out.may_send(PacketRoute::Short, 5), Err(5 + PATIENCE));
            into.on_packet(Bth::ref_from_prefix(&bytes).unwrap().0);
        }
        // Each asked: it was not known which would be the last of them.
        out.on_report(Psn::new(2));
        assert_eq!(out.may_send(PacketRoute::Short, 6), Err(5 + PATIENCE));
        out.on_report(into.report(SendPermission::Nothing).unwrap());
        assert_eq!(out.may_send(PacketRoute::Short, 7), Ok(()));
        // A lost packet is waited for no longer than any other.
        assert_eq!(out.may_send(PacketRoute::Long, 9), Ok(()));
        out.on_send(&mut packet(Psn::new(4)));
        assert_eq!(out.may_send(PacketRoute::Short, 10), Err(10 + PATIENCE));
        assert_eq!(out.may_send(PacketRoute::Short, 9 + PATIENCE), Err(10 + PATIENCE));
        assert_eq!(out.may_send(PacketRoute::Short, 10 + PATIENCE), Ok(()));
        out.on_send(&mut packet(Psn::new(5)));
        assert_eq!(out.may_send(PacketRoute::Short, 10 + PATIENCE), Ok(()), "in order");
    }

    #[test]
    fn silence_does_not_last_for_ever() {
        let mut out = Outflow::default();
        for psn in 0..WINDOW_FIRST {
            out.on_send(&mut packet(Psn::new(psn)));
        }
        assert_eq!(out.may_send(PacketRoute::Only, 100), Err(100 + PATIENCE));
        assert_eq!(out.may_send(PacketRoute::Only, 100 + PATIENCE), Ok(()));
    }
}
