//! What one process tells: its ring, and the links it may tell of.

use super::story::TracedEnd;
use crate::command::VnicId;
use omniverb_link::{Trace, TraceReader};
use omniverb_ring::Window;
use std::collections::HashMap;
use std::sync::Arc;

/// Records of one process between two looks at others.
const RECORDS_PER_TURN: usize = 4096;

/// An end of a link, and who is concerned.
pub(super) struct Traced {
    pub(super) end: TracedEnd,
    pub(super) vnics: [VnicId; 2],
}

/// One process.
pub(super) struct Ring {
    reader: Option<TraceReader>,
    links: HashMap<(u32, u32), Arc<Traced>>,
    /// Nothing happened earlier.
    since: u64,
    lost: u64,
}

/// What came of a turn.
#[derive(Default)]
pub(super) struct Turn {
    /// There may be more.
    pub(super) more: bool,
    /// When what was read last happened.
    pub(super) last: u64,
    /// Packets that the process could not tell of.
    pub(super) lost: u64,
    /// What is in the ring is no record.
    pub(super) refused: u64,
}

impl Ring {
    pub(super) fn new(memory: &Window, keep: usize, now: u64) -> Ring {
        let reader = TraceReader::new(memory);
        if let Some(reader) = &reader {
            reader.want(keep);
        }
        Ring { reader, links: HashMap::new(), since: now, lost: 0 }
    }

    pub(super) fn want(&self, keep: usize) {
        if let Some(reader) = &self.reader {
            reader.want(keep);
        }
    }

    pub(super) fn trace(&mut self, end: TracedEnd, vnics: [VnicId; 2]) {
        self.links.insert((end.qpn, end.peer_qpn), Arc::new(Traced { end, vnics }));
    }

    pub(super) fn untrace(&mut self, qpn: u32, peer_qpn: u32) {
        self.links.remove(&(qpn, peer_qpn));
    }

    /// Whether it has a link that concerns this vNIC.
    pub(super) fn concerns(&self, vnic: VnicId) -> bool {
        self.links.values().any(|traced| traced.vnics.contains(&vnic))
    }

    /// The link that a record says it is about.
    pub(super) fn link(&self, trace: &Trace) -> Option<&Arc<Traced>> {
        self.links.get(&(trace.qpn, trace.peer_qpn))
    }

    /// Reads; calls `each` with the time, the link, the record and its payload. A link that is not
    /// known may be so in a moment: who tells of it may be quicker than who told us to expect it.
    pub(super) fn read(
        &mut self,
        now: u64,
        mut each: impl FnMut(u64, Option<&Arc<Traced>>, &Trace, &[u8]),
    ) -> Turn {
        let mut turn = Turn::default();
        let Some(reader) = &mut self.reader else { return turn };
        let mut broken = false;
        for count in 1.. {
            match reader.take() {
                Ok(Some((trace, payload))) => {
                    let traced = self.links.get(&(trace.qpn, trace.peer_qpn));
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
                turn.more = true;
                break;
            }
        }
        reader.publish();
        let lost = reader.lost();
        turn.lost = lost.saturating_sub(std::mem::replace(&mut self.lost, lost));
        if broken {
            // What comes behind cannot be understood.
            self.reader = None;
        }
        turn
    }
}
