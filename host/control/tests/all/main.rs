//! The daemon's control, asked by clients that are played. One program, since each takes longer to
//! link than to run, but what counts descriptors or signs of life of the whole process
//! (`pair_windows.rs`, `two_hosts.rs`, `watchdog.rs`).

mod connections;
mod extents;
mod guest_reboots;
mod machine_memory;
mod machine_ports;
mod machines;
mod namespace_reuse;
mod namespaces;
mod operators;
mod pair_pages;
mod qpn_and_address_proofs;
mod sessions;
mod support;
mod two_machines;
mod unexpected_descriptors;
