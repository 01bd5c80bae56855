//! Datagrams to destinations whose link is still being made: held back in copies, as a network
//! stack holds packets back while it resolves an address, so that they complete at once and others
//! do not wait for them.

use crate::limits::{
    ANSWER_WAIT, UNREACHABLE_WAIT, UNRESOLVED_BYTES_MAX, UNRESOLVED_MAX, UNRESOLVED_OVERHEAD,
};
use crate::send_work_request::{DatagramAddress, Destination};
use omniverb_link::Request;
use omniverb_link::qp_attributes_for_engine::GlobalRoute;
use omniverb_ring::UserMemory;
use std::collections::HashMap;

/// Destinations without a link, and what goes to them.
#[derive(Default)]
pub(crate) struct UnresolvedDatagrams {
    /// What waits, by destination. One that is here has been asked for.
    lines: HashMap<Destination, HeldDatagrams>,
    /// Datagrams in all lines.
    count: usize,
    /// Known to lead nowhere, until a time.
    unreachable: Vec<(Destination, u64)>,
}

/// A datagram that waits, and its payload.
type Datagram = (Request, Box<[u8]>);

/// What waits for one link.
#[derive(Default)]
struct HeldDatagrams {
    asked_at: u64,
    /// Of all that waits, with what a ring needs for it: it must fit when the link comes.
    bytes: usize,
    /// The route of the latest.
    route: GlobalRoute,
    list: Vec<Datagram>,
}

/// What is known of a destination without a link.
pub(super) enum Resolution {
    /// It leads nowhere: what goes there is lost.
    Unreachable,
    /// Its link is to be asked for now.
    Ask,
    /// Its link has been asked for.
    Asked,
}

impl UnresolvedDatagrams {
    /// A datagram goes to this destination. What waited there is lost if there was no answer.
    pub(super) fn resolve(&mut self, destination: &Destination, now: u64) -> Resolution {
        self.unreachable.retain(|(_, until)| *until > now);
        if self.unreachable.iter().any(|(other, _)| other == destination) {
            return Resolution::Unreachable;
        }
        let line = self.lines.get(destination);
        if line.is_some_and(|line| !line.is_expired(now)) {
            return Resolution::Asked;
        }
        self.lose(destination);
        self.lines
            .insert(*destination, HeldDatagrams { asked_at: now, ..HeldDatagrams::default() });
        Resolution::Ask
    }

    /// Keeps a datagram until its link is there. False: there is no room.
    pub(super) fn keep(
        &mut self,
        &DatagramAddress { destination, route, .. }: &DatagramAddress,
        request: Request,
        length: usize,
        parts: &[UserMemory],
        now: u64,
    ) -> bool {
        if self.count >= UNRESOLVED_MAX {
            self.lose_expired(now);
        }
        let needed = length + UNRESOLVED_OVERHEAD;
        let Some(line) = self.lines.get_mut(&destination) else { return false };
        if self.count >= UNRESOLVED_MAX || line.bytes + needed > UNRESOLVED_BYTES_MAX {
            return false;
        }
        let mut bytes = vec![0; length];
        let mut at = 0;
        for part in parts {
            part.read(&mut bytes[at..at + part.len()]);
            at += part.len();
        }
        line.bytes += needed;
        line.route = route;
        line.list.push((request, bytes.into()));
        self.count += 1;
        true
    }

    /// The link is there: what waited for it, oldest first, and the route of the latest.
    pub(super) fn take(&mut self, destination: &Destination) -> (GlobalRoute, Vec<Datagram>) {
        let line = self.lines.remove(destination).unwrap_or_default();
        self.count -= line.list.len();
        (line.route, line.list)
    }

    /// Whether something waits for the link to a multicast group.
    pub(crate) fn waits_for_group(&self, now: u64) -> bool {
        let mut lines = self.lines.iter();
        lines.any(|(to, line)| {
            to.dgid.is_multicast() && !line.list.is_empty() && !line.is_expired(now)
        })
    }

    /// What waits there is lost, and the next datagram asks again.
    pub(crate) fn lose(&mut self, destination: &Destination) {
        self.take(destination);
    }

    /// There is no way to that destination, for a while.
    pub(crate) fn lead_nowhere(&mut self, destination: Destination, now: u64) {
        self.lose(&destination);
        self.unreachable.retain(|(other, _)| *other != destination);
        self.unreachable.push((destination, now + UNREACHABLE_WAIT));
    }

    /// There was no answer for these, and they were not asked for again.
    fn lose_expired(&mut self, now: u64) {
        self.lines.retain(|_, line| !line.is_expired(now));
        self.count = self.lines.values().map(|line| line.list.len()).sum();
    }
}

impl HeldDatagrams {
    fn is_expired(&self, now: u64) -> bool {
        now.saturating_sub(self.asked_at) >= ANSWER_WAIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_terms::{Gid, Qkey, Qpn};

    fn to(qpn: u32) -> DatagramAddress {
        let destination = Destination { dgid: Gid::ZERO, sgid: Gid::ZERO, qpn: Qpn(qpn) };
        DatagramAddress { destination, qkey: Qkey(1), route: GlobalRoute::default() }
    }

    fn keep(unresolved: &mut UnresolvedDatagrams, qpn: u32, now: u64) -> bool {
        let request = Request::Datagram { flags: 0, immediate: 0, qkey: Qkey(1) };
        unresolved.keep(&to(qpn), request, 0, &[], now)
    }

    #[test]
    fn a_destination_is_asked_for_once_until_it_has_not_answered_for_long() {
        let mut unresolved = UnresolvedDatagrams::default();
        let DatagramAddress { destination, .. } = to(5);
        assert!(matches!(unresolved.resolve(&destination, 10), Resolution::Ask));
        assert!(keep(&mut unresolved, 5, 10));
        assert!(matches!(unresolved.resolve(&destination, 11), Resolution::Asked));
        let later = 10 + ANSWER_WAIT;
        assert!(matches!(unresolved.resolve(&destination, later), Resolution::Ask));
        assert_eq!(unresolved.take(&destination).1.len(), 0, "lost");
        unresolved.lead_nowhere(destination, later);
        assert!(matches!(unresolved.resolve(&destination, later), Resolution::Unreachable));
        let again = later + UNREACHABLE_WAIT;
        assert!(matches!(unresolved.resolve(&destination, again), Resolution::Ask));
    }

    #[test]
    fn the_count_is_that_of_what_is_kept() {
        let mut unresolved = UnresolvedDatagrams::default();
        for qpn in 0..2 {
            let _ = unresolved.resolve(&to(qpn).destination, 0);
        }
        for index in 0..UNRESOLVED_MAX as u32 {
            assert!(keep(&mut unresolved, index % 2, 0), "{index}");
        }
        assert!(!keep(&mut unresolved, 0, 0), "full");
        unresolved.lose(&to(1).destination);
        assert_eq!(unresolved.count, UNRESOLVED_MAX / 2);
        assert!(keep(&mut unresolved, 0, 0));
        assert!(!keep(&mut unresolved, 1, 0), "nobody asked for it");
    }

    #[test]
    fn what_waits_for_a_group_is_known() {
        let mut unresolved = UnresolvedDatagrams::default();
        let group = Gid::from(core::net::Ipv4Addr::new(239, 1, 2, 3));
        let to_group = |qpn| {
            let destination = Destination { dgid: group, ..to(qpn).destination };
            DatagramAddress { destination, ..to(qpn) }
        };
        for (to, waits) in [(to(1), false), (to_group(2), true)] {
            let _ = unresolved.resolve(&to.destination, 0);
            assert!(!unresolved.waits_for_group(0), "nothing was sent");
            let request = Request::Datagram { flags: 0, immediate: 0, qkey: Qkey(1) };
            assert!(unresolved.keep(&to, request, 0, &[], 0));
            assert_eq!(unresolved.waits_for_group(0), waits);
        }
        assert!(!unresolved.waits_for_group(ANSWER_WAIT), "nobody answered");
        let _ = unresolved.take(&to_group(2).destination);
        assert!(!unresolved.waits_for_group(0));
    }
}
