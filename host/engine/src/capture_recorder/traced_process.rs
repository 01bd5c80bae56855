//! Reads one process's traces: its ring, and the links it may report.

use super::packets_of_traces::TracedEnd;
use omniverb_link::{Trace, TraceReader};
use omniverb_ring::Window;
use omniverb_terms::{Qpn, VnicId};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Records of one process between two looks at others.
const RECORDS_PER_TURN: usize = 4096;

/// How long links that have ended are known still, in nanoseconds: of their end one process learns
/// later than we do, and tells of them until then.
const ENDED_TIME: u64 = 1_000_000_000;
/// Budget: how many of one process. A process that ends more of them in that time loses packets of
/// the others.
const ENDED_MAX: usize = 1024;

/// An end of a link, and its two vNICs.
pub(super) struct TracedLink {
    pub(super) end: TracedEnd,
    pub(super) vnics: [VnicId; 2],
}

/// The links that a process may tell of.
#[derive(Default)]
struct Links {
    live: HashMap<(Qpn, Qpn), Arc<TracedLink>>,
    /// Those that ended lately, and when, the latest at the end.
    ended: VecDeque<(u64, Arc<TracedLink>)>,
}

impl Links {
    fn find(&self, qpn: Qpn, peer_qpn: Qpn) -> Option<&Arc<TracedLink>> {
        let same =
            |traced: &&Arc<TracedLink>| (traced.end.qpn, traced.end.peer_qpn) == (qpn, peer_qpn);
        let ended = || self.ended.iter().rev().map(|(_, traced)| traced).find(same);
        self.live.get(&(qpn, peer_qpn)).or_else(ended)
    }

    fn end(&mut self, qpn: Qpn, peer_qpn: Qpn, now: u64) {
        let over = |(at, _): &(u64, _)| at.saturating_add(ENDED_TIME) < now;
        while self.ended.len() >= ENDED_MAX || self.ended.front().is_some_and(over) {
            self.ended.pop_front();
        }
        let ended = self.live.remove(&(qpn, peer_qpn));
        self.ended.extend(ended.map(|traced| (now, traced)));
    }
}

/// One process's traces: their ring, and the links that it may report on.
pub(super) struct Process {
    reader: Option<TraceReader>,
    links: Links,
    /// Nothing happened earlier.
    since: u64,
    lost: u64,
}

/// The result of a turn.
#[derive(Default)]
pub(super) struct Turn {
    /// There may be more to read than one turn takes.
    pub(super) has_more: bool,
    /// When what was read last happened.
    pub(super) last: u64,
    /// Packets that the process could not tell of.
    pub(super) lost: u64,
    /// The ring holds a malformed record.
    pub(super) refused: u64,
}

impl Process {
    pub(super) fn new(memory: &Window, keep: usize, now: u64) -> Process {
        let reader = TraceReader::new(memory);
        if let Some(reader) = &reader {
            reader.want(keep);
        }
        Process { reader, links: Links::default(), since: now, lost: 0 }
    }

    /// Nothing is read any more; its links stay known.
    pub(super) fn end(&mut self) {
        self.reader = None;
    }

    pub(super) fn want(&self, keep: usize) {
        if let Some(reader) = &self.reader {
            reader.want(keep);
        }
    }

    pub(super) fn trace(&mut self, end: TracedEnd, vnics: [VnicId; 2]) {
        self.links.live.insert((end.qpn, end.peer_qpn), Arc::new(TracedLink { end, vnics }));
    }

    /// A link has ended, or no capture wants its traces any more.
    pub(super) fn untrace(&mut self, qpn: Qpn, peer_qpn: Qpn, now: u64) {
        self.links.end(qpn, peer_qpn, now);
    }

    /// Whether it has a link that concerns this vNIC.
    pub(super) fn concerns(&self, vnic: VnicId) -> bool {
        self.links.live.values().any(|traced| traced.vnics.contains(&vnic))
    }

    /// The link that a record says it is about.
    pub(super) fn link(&self, trace: &Trace) -> Option<&Arc<TracedLink>> {
        self.links.find(trace.qpn, trace.peer_qpn)
    }

    /// Reads; calls `each` with the time, the link, the record and its payload. A link that is not
    /// known may be so in a moment: its process may be quicker than the control plane.
    pub(super) fn read(
        &mut self,
        now: u64,
        mut each: impl FnMut(u64, Option<&Arc<TracedLink>>, &Trace, &[u8]),
    ) -> Turn {
        let mut turn = Turn::default();
        let Some(reader) = &mut self.reader else { return turn };
        let mut broken = false;
        for count in 1.. {
            match reader.take() {
                Ok(Some((trace, payload))) => {
                    let traced = self.links.find(trace.qpn, trace.peer_qpn);
                    // It may claim any time, as long as it is one that can be.
                    let time = trace.time.max(self.since).min(now);
                    turn.last = time;
                    each(time, traced, &trace, payload);
                }
                Ok(None) => break,
                Err(_) => {
                    turn.refused += 1;
                    broken = true;
                    break;
                }
            }
            if count == RECORDS_PER_TURN {
                turn.has_more = true;
                break;
            }
        }
        reader.publish();
        let lost = reader.lost();
        turn.lost = lost.saturating_sub(std::mem::replace(&mut self.lost, lost));
        if broken {
            // Records behind it cannot be decoded.
            self.reader = None;
        }
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_terms::Service;

    const PEER: Qpn = Qpn(7);

    #[test]
    fn a_link_that_has_ended_is_known_for_a_moment() {
        let (local, remote) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let end = |qpn| TracedEnd { qpn, peer_qpn: PEER, service: Service::Rc, local, remote };
        let mut links = Links::default();
        let begin = |links: &mut Links, qpn| {
            let traced = Arc::new(TracedLink { end: end(qpn), vnics: [VnicId(1), VnicId(2)] });
            links.live.insert((qpn, PEER), traced);
        };
        for qpn in 1..=3 {
            begin(&mut links, Qpn(qpn));
        }
        links.end(Qpn(1), PEER, 100);
        links.end(Qpn(9), PEER, 100); // no link
        assert!(
            (1..=3).all(|qpn| links.find(Qpn(qpn), PEER).is_some())
                && links.find(Qpn(9), PEER).is_none()
        );
        links.end(Qpn(2), PEER, 100 + ENDED_TIME);
        assert!(links.find(Qpn(1), PEER).is_some());
        links.end(Qpn(3), PEER, 101 + ENDED_TIME);
        assert!(links.find(Qpn(1), PEER).is_none() && links.find(Qpn(2), PEER).is_some());
        for qpn in 0..2 * ENDED_MAX as u32 {
            begin(&mut links, Qpn(100 + qpn));
            links.end(Qpn(100 + qpn), PEER, 102 + ENDED_TIME);
        }
        assert_eq!(links.ended.len(), ENDED_MAX);
        assert!(links.live.is_empty());
    }
}
