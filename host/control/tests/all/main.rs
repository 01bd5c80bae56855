//! The daemon's control, asked by clients that are played. One program, since each takes longer to
//! link than to run, but what counts descriptors or signs of life of the whole process
//! (`pair_windows.rs`, `two_hosts.rs`, `watchdog.rs`).

mod guest_reboots;
mod connections;
mod descriptors;
mod extents;
mod machine_memory;
mod machine_ports;
mod machines;
mod proof_of_names;
mod namespaces;
mod operators;
mod pair_pages;
mod namespace_reuse;
mod sessions;
mod support;
mod two_machines;
