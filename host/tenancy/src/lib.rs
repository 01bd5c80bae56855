//! Decides which processes may communicate: vNICs, sessions, queue pairs, keys, links and quotas.
//!
//! In: decoded messages of clients, probe results, address tables, the time. Out: [`Action`]s for
//! the daemon to carry out. Nothing here does I/O, knows a clock or holds a descriptor, so every
//! decision can be tested and fuzzed in isolation. A client is never trusted: its vNIC comes from
//! the kernel or the machine's proxy, and all that it names is looked up among its own rows.
//!
//! Start reading at [`Tenancy::handle`], which dispatches a call with the tables that it needs;
//! `links/qp_pairing.rs` brings a queue pair to its peer.
#![forbid(unsafe_code)]

mod account_check;
mod accounts;
mod action;
mod client_message_dispatch;
mod cm;
mod daemon_memory_reports;
mod decision_context;
mod directory;
mod limits;
mod link_observers;
mod links;
mod memory;
mod network;
mod operator_calls;
mod policy;
mod qp_data_path;
mod queue_pairs;
mod row_keys;
mod rules;
mod session_admission;
mod sessions;
mod tenancy;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod timers;
mod view;
mod virtual_networks;
mod virtual_qpn_translation;
mod vm_pair_windows;
mod vnics_and_policies;

pub use action::{
    Action, Arrived, Audited, Channel, EngineEnd, GrantOccasion, LinkEnd, LinkEvent, MemoryFacts,
    Recipient, TracedEnd,
};
pub use directory::{Access, Directory, Flat, Name, Reach, VnicAddress};
pub use limits::Limits;
pub use links::socket_relation_refusal::{RelationEnd, RelationRefusal};
pub use memory::extent_file_allocator::{
    FileId, FilePerExtent, FileRange, FreedPlace, Layout, PageHome, Placement,
};
pub use omniverb_terms::{Operations, UnderlayRoute, VnicId};
pub use policy::control_call_rate_limits::ControlLimits;
pub use policy::page_adoption_between_vnics::Adoption;
pub use policy::policies::{
    Datapath, KeyGeneration, Policies, Policy, RateLimit, SharedLimit, TenantId,
};
pub use qp_data_path::{Path, PathReason};
pub use queue_pairs::qp_number_tickets::Secret;
pub use queue_pairs::qp_numbers::Entropy;
pub use row_keys::{ProbeId, SessionId};
pub use rules::rule::{
    DEFAULT_PRIORITY, Direction, PeerFacts, PeerMatch, Prefix, Rule, RuleAction, VnicNames,
};
pub use rules::rule_set::{RuleOrigin, RuleSet};
pub use rules::rule_text::operations as rule_operations;
pub use rules::vnic_rules::{Refusal, VnicRules};
pub use sessions::session::Pace;
pub use sessions::vnic_identity::{Client, Identity, PtraceDomain};
pub use tenancy::Tenancy;
pub use view::status_rows::{PeerStatus, ProcessStatus, QpStatus, Row, VnicStatus};
pub use virtual_networks::{TenantNetwork, VnicPlace};
pub use vm_pair_windows::window_table::{Neighbour, PairWindows};
