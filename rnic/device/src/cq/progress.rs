//! Progress without polling: what the progress thread does on every turn.
//!
//! A NIC delivers whether or not the program polls. While some thread polls a CQ, that poll does
//! the work and this stays out of its way; what nobody polls, this serves. It also drives the
//! timers of requests that wait.

use crate::cq::Cq;
use crate::cq::poller::answer_all;
use crate::lock::lock;
use crate::qp::Qp;
use crate::shared::Shared;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// What a turn found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Something happened, or somebody polls: look again in a moment.
    pub busy: bool,
    /// Somebody polls, and will see what peers announce without being woken.
    pub polled: bool,
    /// Look again at this time at the latest.
    pub deadline: Option<u64>,
}

impl Shared {
    /// One turn of the progress thread.
    pub fn progress(&self) -> Turn {
        // Only what cooled off before this turn: the point is to look later.
        let cooling = std::mem::take(&mut *lock(&self.cooling));
        let cqs: Vec<Arc<Cq>> = lock(&self.cqs).iter().filter_map(Weak::upgrade).collect();
        let (mut polled, mut armed, mut busy) = (false, false, false);
        for cq in &cqs {
            let polls = cq.polls.load(Ordering::Relaxed);
            let is_polled = cq.polls_seen.swap(polls, Ordering::Relaxed) != polls;
            let is_armed = cq.is_armed.load(Ordering::Acquire);
            polled |= is_polled;
            armed |= is_armed;
            if !is_polled || is_armed {
                busy |= cq.look_for_progress(!is_polled);
            }
        }
        if !polled || armed {
            busy |= answer_all(&self.bells.all());
        }
        for qp in cooling.iter().filter_map(Weak::upgrade) {
            qp.try_pump();
        }
        let (moved, deadline) = self.serve_waiting();
        let cooling = !cooling.is_empty() || !lock(&self.cooling).is_empty();
        Turn { busy: busy | polled | moved | cooling, polled: polled && !armed, deadline }
    }

    /// A peer woke this process: serves what is announced, also if somebody polls. True if
    /// something was.
    pub fn rung(&self) -> bool {
        answer_all(&self.bells.all())
    }

    /// QPs with unfinished sends.
    fn serve_waiting(&self) -> (bool, Option<u64>) {
        let list = std::mem::take(&mut *lock(&self.waiting));
        let (mut moved, mut deadline) = (false, None);
        let mut keep = Vec::new();
        for qp in list.iter().filter_map(Weak::upgrade) {
            match qp.serve_wait() {
                Waiting::Over => moved = true,
                Waiting::On { moved: this, deadline: due } => {
                    moved |= this;
                    deadline = [deadline, due].into_iter().flatten().min();
                    keep.push(Arc::downgrade(&qp));
                }
            }
        }
        lock(&self.waiting).append(&mut keep);
        (moved, deadline)
    }
}

enum Waiting {
    Over,
    On { moved: bool, deadline: Option<u64> },
}

impl Qp {
    fn try_pump(&self) {
        match self.try_inner() {
            Some(mut inner) => inner.pump_all(self),
            None => lock(&self.shared.cooling).push(self.me.clone()),
        }
    }

    fn serve_wait(&self) -> Waiting {
        let Some(mut inner) = self.try_inner() else {
            return Waiting::On { moved: true, deadline: None };
        };
        let before = inner.sends.mark();
        inner.pump_all(self);
        if inner.sends.is_empty() && !inner.is_starved(self) {
            inner.waiting.unlist();
            return Waiting::Over;
        }
        let deadline = inner.next_deadline(self);
        Waiting::On { moved: inner.sends.mark() != before, deadline }
    }
}
