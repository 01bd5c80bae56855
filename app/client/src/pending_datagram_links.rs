//! Keeps datagram destinations whose way the daemon is still finding out.
//!
//! The network takes its time to answer, 0.3 s if there is no peer. Meanwhile the socket to the
//! daemon, of which there is one for all threads, does not wait for it: each destination is asked
//! for again, at first after a millisecond, then less and less often. A peer that does not take
//! what it is told may take for ever, so what is asked for long makes room for others.

use omniverb_device::send_work_request::Destination;
use omniverb_sys::clock;
use omniverb_terms::Qpn;
use std::collections::VecDeque;

/// Destinations that are being asked for at a time; further ones wait. The daemon asks the network
/// for no more than some hundreds of a vNIC.
const AT_ONCE: usize = 32;
/// First and longest pause between two questions, in nanoseconds.
const PAUSE: (u64, u64) = (1_000_000, 50_000_000);
/// When a question makes room for others that wait, in nanoseconds: the network has answered by
/// then, if it answers.
const LONG: u64 = 1_000_000_000;

/// What the daemon says to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkReply {
    /// It does not know yet where to: ask again.
    NotYet,
    /// That was the end of it: a link will come, or cannot.
    Over,
}

/// A question; times are those of the clock, in nanoseconds.
struct LinkQuestion {
    /// Our queue pair, which sends there.
    qpn: Qpn,
    destination: Destination,
    /// When to ask next.
    at: u64,
    /// How long to wait after that.
    pause: u64,
    /// When it was asked first, in its present turn. `None`: not yet.
    since: Option<u64>,
}

/// The questions that are open, those asked next at the front.
#[derive(Default)]
pub(crate) struct LinkRequests {
    open: VecDeque<LinkQuestion>,
}

impl LinkRequests {
    /// A queue pair of ours wants to send to a new destination.
    pub(crate) fn add(&mut self, qpn: Qpn, destination: Destination) {
        self.open.push_back(LinkQuestion { qpn, destination, at: 0, pause: PAUSE.0, since: None });
    }

    /// Asks where it is time to.
    pub(crate) fn go_on(&mut self, ask: impl FnMut(Qpn, Destination) -> LinkReply) {
        self.ask(clock::now(), ask);
    }

    /// When to go on; `None` if nothing is open.
    pub(crate) fn next_at(&self) -> Option<u64> {
        self.open.iter().take(AT_ONCE).map(|question| question.at).min()
    }

    /// Asks where it is time to. Says whether questions are left.
    fn ask(&mut self, now: u64, mut ask: impl FnMut(Qpn, Destination) -> LinkReply) -> bool {
        let mut index = 0;
        for _ in 0..self.open.len() {
            let Some(question) = self.open.get_mut(index).filter(|_| index < AT_ONCE) else {
                break;
            };
            if question.at > now {
                index += 1;
            } else if ask(question.qpn, question.destination) == LinkReply::Over {
                let _ = self.open.remove(index);
            } else {
                question.at = now + question.pause;
                question.pause = (2 * question.pause).min(PAUSE.1);
                if now - *question.since.get_or_insert(now) < LONG {
                    index += 1;
                } else if let Some(mut question) = self.open.remove(index) {
                    question.since = None;
                    self.open.push_back(question);
                }
            }
        }
        !self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{AT_ONCE, LinkReply, LinkRequests};
    use omniverb_device::send_work_request::Destination;
    use omniverb_terms::{Gid, Qpn};

    const PROBER: Qpn = Qpn(7);
    const NOBODY: fn(u32) -> Destination =
        |qpn| Destination { dgid: Gid::ZERO, sgid: Gid::ZERO, qpn: Qpn(qpn) };

    #[test]
    fn a_slow_helper_holds_up_no_other_and_is_asked_for_less() {
        let mut asking = LinkRequests::default();
        (0..3).for_each(|qpn| asking.add(PROBER, NOBODY(qpn)));
        let mut asked = Vec::new();
        let mut over_at = None;
        for millisecond in 0..400 {
            let open = asking.ask(millisecond * 1_000_000, |_, destination| {
                asked.push(destination.qpn.0);
                let known = destination.qpn != Qpn(0) || millisecond >= 290;
                if known { LinkReply::Over } else { LinkReply::NotYet }
            });
            over_at = over_at.or((!open).then_some(millisecond));
        }
        assert_eq!(asked[..3], [0, 1, 2]);
        assert!((8..16).contains(&asked.len()), "{asked:?}");
        assert!(over_at.is_some_and(|at| (290..=340).contains(&at)), "{over_at:?}");
    }

    #[test]
    fn silent_peers_hold_up_no_other_for_long() {
        let mut asking = LinkRequests::default();
        (0..100).for_each(|qpn| asking.add(PROBER, NOBODY(qpn)));
        let mut reached = false;
        for step in 0..500 {
            let at = asking.next_at();
            assert!(at.is_some());
            asking.ask(step * 10_000_000, |_, destination| {
                reached |= destination.qpn == Qpn(99);
                LinkReply::NotYet
            });
        }
        assert!(reached);
    }

    #[test]
    fn only_so_many_are_asked_for_at_a_time() {
        let mut asking = LinkRequests::default();
        (0..100).for_each(|qpn| asking.add(PROBER, NOBODY(qpn)));
        let mut asked = 0;
        assert!(asking.ask(0, |_, _| {
            asked += 1;
            LinkReply::NotYet
        }));
        assert_eq!(asked, AT_ONCE);
    }
}
