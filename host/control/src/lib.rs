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

mod allow;
mod arrivals;
mod attached;
mod audit;
mod boot_id;
mod broker;
mod captures;
mod client;
mod clients;
mod counters;
mod departed;
mod engine;
mod errors;
mod evidence;
mod extents;
mod foreign_windows;
mod helper_queue;
mod helper_requests;
mod idle;
mod journal;
mod leaked_pieces;
mod ledger;
mod listener;
mod loans;
mod lock;
mod machine_identity;
mod machines;
mod mappings;
mod memory;
mod operators;
mod outbox;
mod pairs;
mod pieces;
mod policy;
mod port;
mod probes;
mod ram;
mod reactor;
mod registry;
mod runtime_folder;
mod secret;
mod server;
mod settings;
mod socket_relations;
mod tables;
mod tally;
mod totals;
mod vnic_holds;
mod vnic_names;
mod vnics;
mod wakeup;
mod watchdog;
mod watched_files;
mod window_keeper;

pub use allow::Allow;
pub use errors::StartError;
pub use journal::{Form, Journal, Level};
pub use runtime_folder::{Audience, RuntimeFolder};
pub use server::Server;
pub use settings::{Ended, Settings, Unwanted};
pub use totals::Totals;
pub use watchdog::SignOfLife;
