//! Tests the daemon's decisions from outside.
//!
//! One program, since each takes as long to link as to run; `opaque_names.rs`,
//! `directory_restricted_vnics.rs` and `packed_extents.rs` run parts of it again.

mod capture_tracing;
mod carried_links;
mod cm_bound_ids;
mod cm_connections;
mod cm_duplicates;
mod control_call_rate_limits;
mod engine_grants;
mod engine_links;
mod event_backpressure;
mod forced_disconnect;
mod forged_tickets;
mod grant_lifetime;
mod host_quota_yield;
mod link_reachability;
mod multicast_groups;
mod numbers_keys_and_quotas;
mod page_adoption_policy;
mod pair_window_grants;
mod pair_windows;
mod qp_pairing;
mod rules;
mod socket_relations;
mod status_cursor;
mod support;
mod tenants;
mod uninvited_links;
mod unsolicited_datagrams;
mod virtual_machines;
mod virtual_networks;
mod xrc;
