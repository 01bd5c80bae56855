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
mod captures;
mod clients;
mod disposal;
mod engine;
mod errors;
mod evidence;
mod extents;
mod journal;
mod lock;
mod mappings;
mod memory;
mod namespaces;
mod naming;
mod operators;
mod outbox;
mod place;
mod policy;
mod port;
mod probes;
mod registry;
mod secret;
mod server;
mod settings;
mod timers;
mod token;
mod watchdog;

pub use allow::Allow;
pub use disposal::{DISPOSER, dispose};
pub use errors::StartError;
pub use journal::{Journal, Level};
pub use place::Place;
pub use server::Server;
pub use settings::{Ended, Settings};
pub use watchdog::SignOfLife;
