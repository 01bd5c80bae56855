//! Makes progress without polls: what the progress thread does on every turn.
//!
//! A NIC delivers whether or not the program polls. While some thread polls a CQ without a break,
//! those polls do the work and this stays out of their way; all else, this serves. It also drives
//! the timers of requests that wait.

use crate::cq::empty_poll::answer_all;
use crate::cq::poll_rate::PollRate;
use crate::device_shared::Shared;
use crate::qp::WaitOutcome;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// What a turn found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgressReport {
    /// Something happened, or polls serve: look again in a moment.
    pub is_busy: bool,
    /// A thread polls without a break, and will see what peers announce without being woken.
    pub is_polled: bool,
    /// Look again at this time at the latest, in nanoseconds of the host's clock. `None`: there is
    /// no timer.
    pub deadline: Option<u64>,
}

impl Shared {
    /// One turn of the progress thread.
    pub fn progress(&self) -> ProgressReport {
        let now = self.host.now();
        let again = self.take_again(now);
        let cqs = self.cqs();
        let (mut polled, mut armed, mut busy) = (false, false, false);
        let mut remind = None;
        for cq in &cqs {
            let polls = cq.attendance.judge(now);
            // One poll may be at it for longer than many take.
            let is_polled =
                polls == PollRate::Often || polls == PollRate::Seldom && cq.is_looked_at();
            let is_armed = cq.is_armed.load(Ordering::Acquire);
            polled |= is_polled;
            armed |= is_armed;
            if is_armed {
                remind = [remind, cq.remind(now)].into_iter().flatten().min();
            }
            if !is_polled || is_armed {
                busy |= cq.look_for_progress(polls);
            }
        }
        if !polled || armed {
            busy |= answer_all(&self.bells.all());
        }
        for qp in again.iter().filter_map(Weak::upgrade) {
            qp.try_pump();
        }
        let (moved, deadline) = self.serve_waiting();
        let due = self.again_due();
        let again = !again.is_empty() || due.is_some_and(|due| due <= now);
        let deadline = [deadline, due, remind].into_iter().flatten().min();
        ProgressReport {
            is_busy: busy | polled | moved | again,
            is_polled: polled && !armed,
            deadline,
        }
    }

    /// Whether a program waits for the event of a CQ, or is about to.
    pub fn awaits_events(&self) -> bool {
        self.cqs().iter().any(|cq| cq.is_armed.load(Ordering::Acquire))
    }

    /// A peer woke this process: serves what is announced, also if a thread polls. True if
    /// something was.
    pub fn rung(&self) -> bool {
        answer_all(&self.bells.all())
    }

    /// QPs with unfinished sends.
    fn serve_waiting(&self) -> (bool, Option<u64>) {
        let list = self.take_waiting();
        let (mut moved, mut deadline) = (false, None);
        let mut keep = Vec::new();
        for qp in list.iter().filter_map(Weak::upgrade) {
            match qp.serve_wait() {
                WaitOutcome::Over => moved = true,
                WaitOutcome::On { moved: this, deadline: due } => {
                    moved |= this;
                    deadline = [deadline, due].into_iter().flatten().min();
                    keep.push(Arc::downgrade(&qp));
                }
            }
        }
        self.keep_waiting(keep);
        (moved, deadline)
    }
}
