//! Keeps the processes that are traced, and those that ended lately.
//!
//! What a process told may have been read before it was known which link it is about, and is kept
//! back until then. A process that ends meanwhile takes its process along, but not its links.

use super::traced_process::Process;
use std::collections::{BTreeMap, VecDeque};

/// Budget: processes that have ended and are remembered: as many as tell at a time. If more end
/// while something is kept back, what the first of them told of links that were not known is lost.
const ENDED_MAX: usize = 256;

/// They are known by the numbers of their sessions.
#[derive(Default)]
pub(super) struct Processes {
    live: BTreeMap<u64, Process>,
    /// When each ended, the latest at the end.
    ended: VecDeque<(u64, u64, Process)>,
}

impl Processes {
    /// A session tells from now on.
    pub(super) fn begin(&mut self, session: u64, process: Process) {
        self.live.insert(session, process);
    }

    /// It tells no more, and all it told is read.
    pub(super) fn end(&mut self, session: u64, now: u64) {
        let Some(mut process) = self.live.remove(&session) else { return };
        process.end();
        if self.ended.len() >= ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back((now, session, process));
    }

    /// Nothing of what was told before `time` is kept back any more.
    pub(super) fn forget_before(&mut self, time: u64) {
        while self.ended.front().is_some_and(|(at, ..)| *at < time) {
            self.ended.pop_front();
        }
    }

    /// All that tell.
    pub(super) fn live(&self) -> impl Iterator<Item = &Process> {
        self.live.values()
    }

    /// The sessions of all traced processes.
    pub(super) fn sessions(&self) -> Vec<u64> {
        self.live.keys().copied().collect()
    }

    /// One that tells.
    pub(super) fn live_mut(&mut self, session: u64) -> Option<&mut Process> {
        self.live.get_mut(&session)
    }

    /// One that tells, or told until lately.
    pub(super) fn find(&self, session: u64) -> Option<&Process> {
        let ended = || self.ended.iter().rev().find(|(_, of, _)| *of == session);
        self.live.get(&session).or_else(|| ended().map(|(.., process)| process))
    }
}
