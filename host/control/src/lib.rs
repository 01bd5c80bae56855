//! The daemon's one thread: client connections, their life and death, and what the tables
//! (`omniverb_tenancy`) decide.
//!
//! In: connections and messages of clients, deaths, handshake datagrams, timers. Out: answers and
//! events, link memory, granted pages. No client can hold it up: every socket call is
//! non-blocking, every queue bounded, and what may take the kernel long (looking into other
//! network namespaces) is done on a helper thread.
//!
//! Start reading at [`Server::run`].
#![forbid(unsafe_code)]

mod allowed_processes;
mod unidentified_connections;
mod attachment;
mod audit;
mod boot_id;
mod socket_broker;
mod captures;
mod client;
mod clients;
mod counters;
mod departed_processes;
mod engine;
mod errors;
mod attachment_identity;
mod extents;
mod foreign_windows;
mod helper_queue;
mod helper_requests;
mod idle_exit;
mod journal;
mod leaked_pieces;
mod window_ledger;
mod listener;
mod piece_loans;
mod instance_lock;
mod machine_identity;
mod machines;
mod mapping_limit;
mod shared_memory;
mod operators;
mod outbox;
mod pair_windows;
mod window_pieces;
mod policy;
mod roce_port;
mod handshake_probes;
mod guest_memory;
mod reactor;
mod vnic_registry;
mod runtime_folder;
mod ticket_secret;
mod server;
mod settings;
mod socket_relations;
mod tables;
mod live_count;
mod memory_limits;
mod vnic_references;
mod vnic_names;
mod vnics;
mod wakeup;
mod watchdog;
mod watched_files;
mod machine_supervisor;

pub use allowed_processes::Allow;
pub use errors::StartError;
pub use journal::{Form, Journal, Level};
pub use runtime_folder::{Audience, RuntimeFolder};
pub use server::Server;
pub use settings::{Ended, Settings, Unwanted};
pub use memory_limits::Totals;
pub use watchdog::SignOfLife;
