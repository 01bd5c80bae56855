//! Runs a packet thread: [`event_loop`] is its loop, [`state`] joins the parts in the other files.
//!
//! Each part keeps its own order. The files below [`state`] connect them: packets arrive, links are
//! served, commands of the control plane are applied.

mod checked_packet;
mod doorbell;
mod doorbells;
pub(crate) mod event_loop;
mod fault_queue;
mod link;
mod links;
mod links_held_by_rate_limit;
mod pending_work;
mod per_sender_rate_limits;
mod processor_yield;
mod rate_limit_tree;
mod recently_sent_cm_ids;
pub(crate) mod shared_counters;
mod state;
mod thread_sleep;
mod timers;
mod vnic;
mod vnic_psp_tunnel;
mod vnics;
