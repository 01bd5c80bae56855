//! A packet thread. [`run`] is its loop, [`state`] what the loop works on; [`arrive`], [`send`],
//! [`attach`], [`grants`] and [`faults`] are what can happen to that.

mod arrive;
mod attach;
mod bell;
mod bells;
pub(crate) mod counted;
mod faults;
mod grants;
mod link;
mod links;
pub(crate) mod outbox;
mod receive;
pub(crate) mod run;
mod send;
mod state;
mod timers;
mod vnic;
mod watcher;
