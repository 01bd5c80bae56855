//! Tests the daemon's control with clients that are played.
//!
//! It is one program, since each takes longer to link than to run. Tests that count descriptors or
//! signs of life of the whole process are apart (`pair_windows.rs`,
//! `two_hosts_paths_and_policies.rs`, `watchdog.rs`).

mod extents;
mod guest_memory_claims;
mod guest_reboots;
mod namespace_reuse;
mod one_namespace;
mod operator_permissions;
mod pair_window_grants;
mod qpn_and_address_proofs;
mod rdma_cm_connections;
mod support;
mod two_namespaces;
mod two_virtual_machines;
mod unexpected_descriptors;
mod virtual_machines;
mod vm_udp_ports;
