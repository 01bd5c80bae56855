//! A packet thread. [`event_loop`] is its loop, [`state`] what the loop works on, joined from the
//! parts in the other files, each of which keeps its own order. What happens between these is in
//! the files below [`state`]: packets arrive, links are served, the control plane wants something.

mod attendance;
mod bell;
mod bells;
mod copies;
pub(crate) mod counted;
mod courtesy;
mod detour;
pub(crate) mod event_loop;
mod gate;
mod left;
mod link;
mod links;
pub(crate) mod outbox;
mod second_look;
mod sound;
mod spoken;
mod state;
mod tidings;
mod timers;
mod vnic;
mod vnics;
mod watcher;
