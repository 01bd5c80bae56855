//! `libomniverb_dma.so.1`: DMA between nodes, a second API over verbs.
//!
//! Programs come in by the functions of `include/omniverb/dma.h`: nodes, buffers, transfers. What
//! goes out are public functions of `libibverbs.so.1` and `librdmacm.so.1` (docs/decisions/0038).
//!
//! # Modules
//!
//! * [`c_api`] are the functions of the header; `symbols.toml` lists them, and `cargo xtask dist`
//!   makes the entry points, as for `app/ibverbs`.
//! * `program` has the tables: nodes, buffers of ours, what the program was given.
//! * `node` is one connection: transfers under way, messages, and how it ends.
//! * `manager` turns events of rdma_cm into nodes; `service` is the library's one thread.
//! * What nodes tell each other is `rnic/dma_announce`.
//!
//! # Rules for code in here
//!
//! As in `app/ibverbs`: it runs in other people's processes. A program's function is called with no
//! lock held, and a transfer is not touched once its status is set.
// UNSAFETY: this crate is a C ABI, and calls one; every entry point takes raw pointers from C.
#![expect(unsafe_code)]

mod buffer_handle;
pub mod c_api;
mod cm_id;
mod condition_wait;
mod connection_events;
mod device;
mod dma_context;
mod errno;
mod event_thread;
mod limits;
mod local_buffer;
mod message_outbox;
mod node;
mod node_queue_pair;
mod node_state;
mod rdma_imports;
mod registered_memory;
mod resolve_address;
mod signal_free_thread;
mod transfer;
mod transfer_slots;
mod wakes_and_callbacks;
