//! Runs the daemon's one thread: it serves client connections and executes the decisions of the
//! tables (`omniverb_tenancy`).
//!
//! In: connections and messages of clients, deaths, handshake datagrams, timers. Out: answers and
//! events, link memory, granted pages. No client can hold it up: every socket call is non-blocking,
//! every queue bounded, and calls that may take long in the kernel (looking into other network
//! namespaces) run in a helper.
//!
//! Start reading at [`Server::run`].
#![forbid(unsafe_code)]

mod allowed_processes;
mod captures;
mod client;
mod client_memory_shares;
mod client_outbox;
mod clients;
mod daemon_log;
mod disconnected_pair_window_users;
mod engine;
mod extent_memory;
mod fnv_hash;
mod foreign_pair_windows;
mod guest_boot_id;
mod guest_memory;
mod handshake_probe_schedule;
mod helper_requests;
mod idle_exit;
mod instance_lock;
mod leaked_vm_window_pieces;
mod lingering_file_watch;
mod link_audit_rate_limit;
mod link_memory;
mod listener;
mod live_token_count;
mod max_map_count;
mod multicast_senders_told_to_engine;
mod objects;
mod operators;
mod pair_windows;
mod pending_namespace_inspections;
mod poller_tokens;
mod qp_counters;
mod reactor;
mod roce_port;
mod running_helper_requests;
mod runtime_folder;
mod server;
mod settings;
mod socket_broker_supervisor;
mod socket_relations;
mod start_errors;
mod tenancy_and_pending_actions;
mod ticket_secret;
mod underlay_psp_port;
mod underlay_sockets;
mod unidentified_connections;
mod virtual_machines;
mod vm_identity;
mod vm_supervisor;
mod vm_window_allocator;
mod vm_window_page_ledger;
mod vm_window_piece_loans;
mod vnic_attachment;
mod vnic_attachment_identity;
mod vnic_identities;
mod vnic_names;
mod vnic_policy;
mod vnic_references;
mod vnics;
mod vnics_by_policy_address;
mod watchdog;

pub use allowed_processes::Allow;
pub use client_memory_shares::Totals;
pub use daemon_log::{Form, Journal, Level};
pub use instance_lock::DaemonLifetime;
pub use objects::{
    AdoptionValue, ContainerRule, DEFAULT_TENANT, DatapathValue, Encryption, EncryptionValue,
    FaultsValue, Mode, ModeValue, ObjectError, ObjectKind, ObjectSet, OperationRateValue,
    PolicyObject, Prefix, RateValue, RemoteVnic, RuleValue, SizeValue, Tenant, Undescribed,
    VirtualAddress, VnicObject,
};
pub use runtime_folder::{Audience, RuntimeFolder};
pub use server::{Configured, Reload, Server};
pub use settings::{Ended, Settings, Unwanted};
pub use start_errors::StartError;
pub use watchdog::SignOfLife;
