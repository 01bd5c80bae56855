//! Decides what light connections answer: those without a socket of the kernel's
//! (docs/decisions/0053).
//!
//! All connections of two processes share a *channel*, through which frames go both ways. Here is
//! what frames mean, and what a process keeps of each connection.
//!
//! * [`frame`]: what goes through a channel.
//! * [`budgets`]: how much of all that there may be.
//! * [`connection_slot`], [`slot_table`]: one connection, as one end has it; all of them, and
//!   lists.
//! * [`connection_ids`]: how the two ends name a connection.
//! * [`byte_queue`]: bytes that have come and were not received.
//! * [`acceptance`], [`acceptance_stage`]: whether it was accepted, and what becomes of it if not.
//! * [`lane_assignment`], [`connection_activity`]: whether it has a lane to itself.

pub mod acceptance;
pub mod acceptance_stage;
pub mod budgets;
pub mod byte_queue;
pub mod connection_activity;
pub mod connection_ids;
pub mod connection_slot;
pub mod frame;
pub mod getsockname_address;
pub mod lane_assignment;
pub mod slot_table;

pub use byte_queue::{Block, BlockOwner, BlockPool};
pub use connection_ids::ConnectionIds;
pub use connection_slot::Slot;
pub use frame::{Endpoints, Frame};
pub use getsockname_address::Naming;
pub use slot_table::{List, SlotTable};
