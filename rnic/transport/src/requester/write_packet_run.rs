//! Runs: after one packet in the middle of a WRITE, more that are like it.

use super::{QueuedRequest, Requester, RequesterState};
use crate::upper_layer::{GatherOutcome, UpperLayer};
use crate::{Config, Time};
use omniverb_wire::WritePattern;

impl Requester {
    /// Writes up to `count` packets behind the one that was made last, which is the first `length`
    /// bytes of `datagrams`: those that would differ from it in nothing but what a [`WritePattern`]
    /// says. How many.
    pub(crate) fn transmit_alike(
        &mut self,
        now: Time,
        config: &Config,
        datagrams: &mut [u8],
        length: usize,
        count: usize,
        upper: &mut impl UpperLayer,
    ) -> usize {
        let Some(job) = self.jobs.get(self.at).copied().filter(|job| job.naming(config).is_some())
        else {
            return 0;
        };
        let count = self.alike(config, &job).min(count as u64) as usize;
        let Some((first, more)) = datagrams.split_at_mut_checked(length) else { return 0 };
        let Some(pattern) = WritePattern::of(first).filter(|_| count > 0) else { return 0 };
        let mut slots = pattern.write(more, count);
        let (written, offset) = (slots.count(), (self.next - job.first) * config.path_mtu as u64);
        // What is not there now, or any more, is found out with the next packet by itself.
        if written == 0
            || upper.gather_run(job.request.id, offset, &mut slots) != GatherOutcome::Filled
        {
            return 0;
        }
        self.after_sending(now, config, self.next + written as u64 - 1);
        written
    }

    /// How many packets may follow the one that was made last of which nothing else is to be
    /// decided: they are new, full, of the same job; no acknowledgement is to be asked for; there
    /// is room.
    fn alike(&self, config: &Config, job: &QueuedRequest) -> u64 {
        let free = self.next == self.sent
            && self.standing != RequesterState::Failed
            && !self.congestion.paces();
        if !free || !(job.first + 1..=job.last).contains(&self.next) {
            return 0;
        }
        // The last one of a job may be short, end a message, or have to ask.
        let same = job.last - self.next;
        // With room for one only, it would ask.
        let room = self.room(config).saturating_sub(1);
        let unasked = (self.asked.min(self.next) + self.asks_every(config)).since(self.next + 1);
        same.min(room).min(unasked)
    }
}
