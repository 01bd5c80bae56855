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
mod asking;
mod attached;
mod audit;
mod boots;
mod broker;
mod captures;
mod client;
mod clients;
mod counted;
mod door;
mod engine;
mod errors;
mod evidence;
mod extents;
mod held;
mod holds;
mod idle;
mod joined;
mod journal;
mod leavers;
mod ledger;
mod left;
mod lent;
mod lives;
mod lock;
mod machines;
mod mappings;
mod memory;
mod naming;
mod operators;
mod outbox;
mod pairs;
mod pieces;
mod place;
mod plugger;
mod policy;
mod port;
mod probes;
mod ram;
mod reactor;
mod ready;
mod registry;
mod related;
mod secret;
mod server;
mod settings;
mod tables;
mod tally;
mod totals;
mod under_way;
mod vnics;
mod watchdog;

pub use allow::Allow;
pub use errors::StartError;
pub use journal::{Form, Journal, Level};
pub use place::{Audience, Place};
pub use server::Server;
pub use settings::{Ended, Settings, Unwanted};
pub use totals::Totals;
pub use watchdog::SignOfLife;
