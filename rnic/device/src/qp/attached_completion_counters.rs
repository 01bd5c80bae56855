//! Tracks the counters of a queue pair, and which of its requests need no place in the send queue
//! any more though no poll was made.

use crate::completion_counter::Counter;
use crate::verbs_constants::counted;
use std::sync::Arc;

/// The counters of a queue pair: one for each kind of operation at most.
#[derive(Default)]
pub(crate) struct Counters {
    of: [Option<Arc<Counter>>; counted::KINDS as usize],
    pub(super) places: CountedPositions,
}

/// Counts operations of a queue pair, if counters are attached to it.
#[derive(Default)]
pub(crate) struct AttachedCounters(pub(super) Option<Box<Counters>>);

/// Positions in the send queue.
#[derive(Default)]
pub(super) struct CountedPositions {
    /// Of the last request that is complete, and of the last one of them that has an entry in the
    /// CQ.
    completed: u64,
    entered: u64,
    /// What was complete when that entry, or an older one that was not polled then, was made.
    before: u64,
}

/// Why a counter is not attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// No operation is named, or the state is neither RESET nor INIT.
    Invalid,
    /// There are no such operations, or none of such a queue pair is counted.
    NotOffered,
    /// One of the operations has a counter.
    Taken,
}

/// How a send request completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendCompletion {
    /// With an entry in the CQ.
    InCq,
    /// With none: it succeeded, and is not flagged.
    Silently,
}

fn indices(operations: u32) -> impl Iterator<Item = usize> {
    (0..counted::KINDS).filter(move |bit| operations & (1 << bit) != 0).map(|bit| bit as usize)
}

impl Counters {
    /// Counts an operation of one kind, a bit of [`counted`]; 0 is none. It moved so many bytes;
    /// `None`: it has failed.
    pub(super) fn count(&self, kind: u32, moved: Option<u64>) {
        for counter in indices(kind).filter_map(|index| self.of[index].as_ref()) {
            counter.count(moved);
        }
    }

    /// Whether one of these has a counter.
    pub(super) fn counts_some(&self, operations: u32) -> bool {
        indices(operations).any(|index| self.of[index].is_some())
    }

    /// These have this one from now on.
    pub(super) fn set(&mut self, operations: u32, counter: &Arc<Counter>) {
        for index in indices(operations) {
            self.of[index] = Some(counter.clone());
        }
    }

    /// All that it has.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Counter>> {
        self.of.iter().flatten()
    }
}

impl CountedPositions {
    /// A request is complete. Of the entries in the CQ those up to `polled` were polled.
    pub(super) fn complete(&mut self, position: u64, completes: SendCompletion, polled: u64) {
        if completes == SendCompletion::InCq {
            if polled >= self.entered {
                self.before = self.completed;
            }
            self.entered = position;
        }
        self.completed = position;
    }

    /// Up to where nothing needs a place any more. What has an entry in the CQ does until that is
    /// polled, and so does what came after it.
    pub(super) fn over(&self, polled: u64) -> u64 {
        if polled >= self.entered { self.completed } else { polled.max(self.before) }
    }
}
