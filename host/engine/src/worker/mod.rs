//! A packet thread. [`event_loop`] is its loop, [`state`] what the loop works on, joined from the
//! parts in the other files, each of which keeps its own order. What happens between these is in
//! the files below [`state`]: packets arrive, links are served, the control plane wants something.

mod bell;
mod bells;
mod checked_packet;
mod copies;
pub(crate) mod counted;
pub(crate) mod event_loop;
mod fault_queue;
mod gate;
mod link;
mod link_clock;
mod links;
pub(crate) mod outbox;
mod recheck;
mod reports;
mod spoken_ids;
mod state;
mod timers;
mod vnic;
mod vnics;
mod watcher;
mod work_left;
mod yielding;
