//! Who may talk to whom: vNICs, sessions, queue pairs, keys, links and quotas.
//!
//! In: decoded messages of clients, probe results, address tables, the time. Out: [`Action`]s for
//! the daemon to carry out. Nothing here does I/O, knows a clock or holds a descriptor, so every
//! decision can be tested and fuzzed in isolation. What a client says is never believed: its vNIC
//! comes from whoever knows how it is reached, everything it names is looked up
//! among what it owns.
//!
//! Start reading at [`Tenancy::handle`]; a queue pair's way to its peer is in `pairing.rs`.
#![forbid(unsafe_code)]

mod accounts;
mod action;
mod adoption;
mod audit;
mod bells;
mod calls;
mod capture;
mod captures;
mod consent;
mod consents;
mod datagrams;
mod directory;
mod extents;
mod grantees;
mod grants;
mod holders;
mod holding;
mod identity;
mod ids;
mod layout;
mod limits;
mod links;
mod moving;
mod mr;
mod numbers;
mod pace;
pub mod packed;
mod pairing;
mod parting;
mod path;
mod policing;
mod policy;
mod resume;
mod room;
mod seniority;
mod session;
mod shared;
mod status;
mod tables;
mod tenancy;
pub mod testing;
mod tickets;
mod timers;
mod turns;
mod uninvited;
mod walk;
mod wire;
mod wires;
mod wishers;

pub use action::{Action, Arrived, Audited, Channel, LinkEnd, MemoryFacts, TracedEnd, WireEnd};
pub use adoption::Adoption;
pub use directory::{Access, Directory, Flat, Name, Reach, Underlay, VnicAddress};
pub use holders::{Holder, Holders};
pub use identity::{Circle, Client, Identity};
pub use ids::{ProbeId, SessionId, VnicId};
pub use layout::{Apart, FileId, Freed, Layout, Place, Placed};
pub use limits::Limits;
pub use numbers::Entropy;
pub use path::{Path, Why};
pub use policy::{Datapath, Policies, Policy, RateLimit};
pub use status::{PeerStatus, ProcessStatus, QpStatus, Row, VnicStatus};
pub use tenancy::Tenancy;
pub use tickets::Secret;
pub use turns::Turns;
