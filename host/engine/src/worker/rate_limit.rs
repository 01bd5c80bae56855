//! Applies a vNIC's rate limit, and keeps the links that wait for it.
//!
//! A link that may not send is put down here once, and comes out when the limit lets the vNIC send
//! again, or is another. What is sent is taken from the limit, and so is what peers are told of the
//! wait.

use super::link::Link;
use super::timers::{Alarm, Due, Timers};
use crate::pacing::token_bucket::{Bucket, Limit};
use omniverb_terms::VnicId;
use std::net::IpAddr;

/// How long a vNIC that has used up its limit waits at least, in nanoseconds: then it has earned
/// several packets, which are sent in one go.
const QUANTUM: u64 = 1_000_000;
/// What may be spent on telling peers that answers wait for a limit: a part of the limit itself, so
/// that whatever they do most of it is left for the answers; and bytes at once.
const NOTICES: (u64, u64) = (8, 512);

/// Bytes that Ethernet, IP and UDP put around a packet to this address.
pub(super) const fn framing(to: IpAddr) -> u64 {
    14 + if to.is_ipv6() { 40 } else { 20 } + 8
}

/// What is left of a limit, and what of that for notices.
struct Limited {
    bucket: Bucket,
    notices: Bucket,
}

/// What a limit leaves for notices.
fn notices(limit: Limit) -> Limit {
    Limit { bits_per_second: limit.bits_per_second / NOTICES.0, burst_bytes: NOTICES.1 }
}

/// The limit of one vNIC, if it has one, and its links that wait for that.
#[derive(Default)]
pub(super) struct Gate {
    limited: Option<Limited>,
    /// By their indices, in the order in which they came.
    waiting: Vec<usize>,
    /// Goes off when they may go on.
    alarm: Alarm,
}

impl Gate {
    /// Another limit, or none; who has waited.
    pub(super) fn set_limit(&mut self, limit: Option<Limit>, now: u64) -> Vec<usize> {
        match (limit, &mut self.limited) {
            (Some(limit), Some(limited)) => {
                limited.bucket.change(limit, now);
                limited.notices.change(notices(limit), now);
            }
            (limit, limited) => {
                *limited = limit.map(|limit| Limited {
                    bucket: Bucket::new(limit, now),
                    notices: Bucket::new(notices(limit), now),
                });
            }
        }
        std::mem::take(&mut self.waiting)
    }

    /// Whether anything limits what the vNIC sends.
    pub(super) fn is_limited(&self) -> bool {
        self.limited.is_some()
    }

    /// Whether a link may send a packet now. If not it waits here until the time that is returned,
    /// or longer.
    pub(super) fn pass(
        &mut self,
        (index, link): (usize, &mut Link),
        timers: &mut Timers,
        now: u64,
    ) -> Result<(), u64> {
        let Some(limited) = &mut self.limited else { return Ok(()) };
        let Err(at) = limited.bucket.ready(now) else { return Ok(()) };
        let at = at.max(now + QUANTUM);
        if link.park() {
            self.waiting.push(index);
        }
        self.alarm.set(timers, Due::Vnic(link.ends().vnic), Some(at));
        Err(at)
    }

    /// A packet of so many bytes has passed.
    pub(super) fn passed(&mut self, bytes: u64) {
        if let Some(limited) = &mut self.limited {
            limited.bucket.take(bytes);
        }
    }

    /// How long a link waits that may not pass before `at`, if its peer may be told that now: all
    /// that wait take turns.
    pub(super) fn notice(&mut self, at: u64, now: u64) -> Option<u64> {
        let may = self.limited.as_mut()?.notices.ready(now).is_ok();
        may.then(|| at.saturating_sub(now).saturating_mul(self.waiting.len() as u64))
    }

    /// A notice of so many bytes was sent. It counts as a packet as well, on account.
    pub(super) fn noticed(&mut self, bytes: u64) {
        if let Some(limited) = &mut self.limited {
            limited.notices.take(bytes);
            limited.bucket.take(bytes);
        }
    }

    /// The alarm went off; who may go on.
    pub(super) fn open(&mut self) -> Vec<usize> {
        self.alarm.went_off();
        std::mem::take(&mut self.waiting)
    }

    /// A link is gone.
    pub(super) fn forget(&mut self, index: usize) {
        self.waiting.retain(|waiting| *waiting != index);
    }

    /// The vNIC is gone.
    pub(super) fn close(&mut self, vnic: VnicId, timers: &mut Timers) {
        self.alarm.cancel(timers, Due::Vnic(vnic));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept_memory::Allowance;
    use crate::queue_pair::datagram::Datagrams;
    use crate::testing::fuzz::end;
    use crate::worker::link::{Ends, Kind};
    use omniverb_link::layout::{REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN, link_bytes};
    use omniverb_ring::Window;
    use omniverb_terms::{Qpn, Service};
    use omniverb_wire::Flow;
    use std::net::Ipv4Addr;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn link(number: u32) -> Link {
        let memory = Window::private(link_bytes(REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN));
        let (qpn, peer_qpn, endpoint) = (Qpn(number), Qpn(99), end(&memory, 1).unwrap());
        let datagrams = Datagrams::new(
            endpoint,
            qpn,
            peer_qpn,
            0,
            Allowance::default(),
            std::sync::Arc::default(),
        );
        let ends = Ends {
            vnic: VnicId(1),
            qpn,
            peer_qpn,
            service: Service::Ud,
            flow: Flow { source: HERE, destination: HERE, source_port: 7 },
            interface: 0,
            within: None,
        };
        Link::new(ends, Kind::Datagrams(Box::new(datagrams)), (1, number))
    }

    #[test]
    fn who_may_not_pass_waits_once_until_the_alarm() {
        let (mut gate, mut timers) = (Gate::default(), Timers::default());
        let (mut one, mut other) = (link(1), link(2));
        assert_eq!(gate.pass((1, &mut one), &mut timers, 0), Ok(()), "no limit");
        let limit = Limit { bits_per_second: 8_000_000, burst_bytes: 1000 };
        assert!(gate.set_limit(Some(limit), 0).is_empty());
        assert_eq!(gate.pass((1, &mut one), &mut timers, 0), Ok(()));
        gate.passed(5000);
        let at = gate.pass((1, &mut one), &mut timers, 0).unwrap_err();
        for (index, link) in [(2, &mut other), (1, &mut one)] {
            assert_eq!(gate.pass((index, link), &mut timers, 0), Err(at));
        }
        assert_eq!(timers.first(), Some(at));
        assert_eq!(gate.notice(at, 0), Some(2 * at), "all that wait take turns");
        assert_eq!(timers.next(at), Some(Due::Vnic(VnicId(1))));
        assert_eq!(gate.open(), [1, 2]);
        [&mut one, &mut other].into_iter().for_each(Link::unpark);
        assert_eq!(gate.pass((1, &mut one), &mut timers, at), Ok(()));
        gate.passed(50_000);
        for (index, link) in [(2, &mut other), (1, &mut one)] {
            assert!(gate.pass((index, link), &mut timers, at).is_err());
        }
        gate.forget(2);
        gate.close(VnicId(1), &mut timers);
        assert_eq!(timers.first(), None);
        assert_eq!(gate.set_limit(None, at), [1], "without a limit nobody waits");
        assert!(!gate.is_limited());
    }
}
