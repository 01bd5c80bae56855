//! Takes the state of a requester out, and puts it into another one that goes on with it.
//!
//! Requests may be under way: the layer above, which has the memory of these requests,
//! submits them to the new requester again, and they get the PSNs that they had.

use super::probe_after_timeout::ProbeWindow;
use super::{Extent, OpenMessage, QueuedRequest, Requester, RequesterState};
use crate::snapshot::{PSNS_MAX, RequesterSnapshot, SentExtent, SnapshotError};
use crate::unwrapped_psn::Sequence;
use crate::{Config, MESSAGE_MAX, Operation};

impl Requester {
    /// The state; `None`: the connection is failing, or the layer above has not heard everything.
    pub(crate) fn snapshot(&self) -> Option<RequesterSnapshot> {
        if self.standing != RequesterState::Going || !self.events.is_empty() {
            return None;
        }
        let oldest = self.jobs.front();
        let (first, open) = oldest.map_or((self.tail, self.open), |job| (job.first, job.before()));
        let packets = |psn: Sequence| u32::try_from(psn.since(first)).ok();
        let mut extents = Vec::new();
        for extent in &self.extents {
            let count = packets(extent.last)?.checked_sub(packets(extent.first)?)? + 1;
            extents.push(SentExtent { first: packets(extent.first)?, count });
        }
        let (acknowledged, sent) = (packets(self.unacked)?, packets(self.sent)?);
        Some(RequesterSnapshot { first: first.psn(), acknowledged, sent, open, extents })
    }

    /// Begins as another requester has ended: what was under way is to be submitted again, then
    /// [`Self::resume_sent`] follows.
    pub(crate) fn restore(
        &mut self,
        config: &Config,
        snapshot: &RequesterSnapshot,
    ) -> Result<(), SnapshotError> {
        let mtu = config.path_mtu as u64;
        let is_whole = |bytes: u64| bytes.is_multiple_of(mtu) && (1..MESSAGE_MAX).contains(&bytes);
        let open_fits = match snapshot.open {
            None => true,
            Some(OpenMessage::Send { bytes }) => is_whole(bytes),
            Some(OpenMessage::Write { left }) => (1..MESSAGE_MAX).contains(&left),
        };
        if !open_fits || !self.jobs.is_empty() {
            return Err(SnapshotError);
        }
        let first = Sequence::first(snapshot.first);
        (self.unacked, self.next, self.sent, self.tail) = (first, first, first, first);
        (self.asked, self.open) = (first, snapshot.open);
        Ok(())
    }

    /// What was under way has been submitted again: it counts as sent, and goes again as far as it
    /// is not acknowledged.
    pub(crate) fn resume_sent(
        &mut self,
        config: &Config,
        snapshot: &RequesterSnapshot,
    ) -> Result<(), SnapshotError> {
        let RequesterSnapshot { acknowledged, sent, .. } = *snapshot;
        let first = Sequence::first(snapshot.first);
        let (unacked, end) = (first + u64::from(acknowledged), first + u64::from(sent));
        let fits = acknowledged <= sent
            && u64::from(sent) <= PSNS_MAX
            && end <= self.tail
            && snapshot.extents.iter().all(|extent| extent.count > 0)
            && self.jobs.front().map_or(sent == 0, |job| job.first == first && unacked <= job.last);
        let extents = snapshot.extents.iter().map(|extent| {
            let begin = first + u64::from(extent.first);
            Extent { first: begin, last: begin + u64::from(extent.count) - 1 }
        });
        self.extents = extents.collect();
        if !fits || !self.extents_fit(config, unacked, end) {
            return Err(SnapshotError);
        }
        (self.unacked, self.sent) = (unacked, end);
        self.go_back();
        // The peer has all of it, as a rule, and only its answers went to the other one.
        self.probing = (unacked < end).then(|| ProbeWindow::new(end));
        Ok(())
    }

    /// Whether the extents are those of the READs and the like between the two, without a gap.
    fn extents_fit(&self, config: &Config, unacked: Sequence, end: Sequence) -> bool {
        if self.extents.len() > config.max_rd_atomic {
            return false;
        }
        let mut extents = self.extents.iter();
        for job in self.jobs.iter().take_while(|job| job.first < end) {
            if !job.request.operation.has_response() {
                continue;
            }
            let mut at = job.first.max(unacked);
            while at <= job.last && at < end {
                let Some(extent) = extents.next() else { return false };
                let begins =
                    extent.first == at || at == unacked && (job.first..at).contains(&extent.first);
                if !begins || extent.last < at || extent.last > job.last || extent.last >= end {
                    return false;
                }
                at = extent.last + 1;
            }
        }
        extents.next().is_none()
    }
}

impl QueuedRequest {
    /// What the pieces before it have left open.
    fn before(&self) -> Option<OpenMessage> {
        match self.request.operation {
            _ if self.request.place.begins() => None,
            Operation::Send { .. } => Some(OpenMessage::Send { bytes: self.offset }),
            Operation::Write { total, .. } => {
                Some(OpenMessage::Write { left: total - self.offset })
            }
            _ => None,
        }
    }
}
