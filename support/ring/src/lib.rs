//! SPSC ring, ready map, doorbells, and the types through which shared memory is touched; arrays in
//! memory that a program lends.
//!
//! Knows nothing of RDMA. What is here is the only place where atomics meet memory that another,
//! possibly hostile, process can write. The rules:
//!
//! * a value read from shared memory is read once, into a local, and checked there;
//! * positions are kept privately and only published; what a peer publishes bounds, never
//!   directs, what we touch;
//! * every access is inside the [`Window`] by construction.
//!
//! The ordering argument of each structure is in its module; `cargo test` checks them against a
//! model, loom (`RUSTFLAGS="--cfg loom"`) against the memory model.

pub mod doorbell;
pub mod fixed_array;
pub mod nontemporal;
pub mod racy_copy;
pub mod shared_atomics;
pub mod spsc;
pub mod user_memory;
pub mod word_memory;
// Real memory, and the model checker's.
#[cfg(loom)]
pub mod loom_memory;
#[cfg(not(loom))]
pub mod shared_window;

pub use doorbell::DoorbellPage;
pub use fixed_array::{FixedArray, Lender, MemoryLender, NoMemory};
pub use racy_copy::{copy_many, is_emulated};
#[cfg(not(loom))]
pub use shared_window::{WeakWindow, Window};
pub use spsc::{Broken, Consumer, Producer, Record, room_of};
pub use user_memory::UserMemory;
pub use word_memory::WordMemory;
