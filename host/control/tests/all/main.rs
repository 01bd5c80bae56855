//! The daemon's control, asked by clients that are played. One program, since each takes longer to
//! link than to run, but what counts descriptors or signs of life of the whole process
//! (`pairs.rs`, `wires.rs`, `watchdog.rs`).

mod boots;
mod connections;
mod descriptors;
mod extents;
mod machine_memory;
mod machine_ports;
mod machines;
mod names;
mod namespaces;
mod operators;
mod pair_pages;
mod reuse;
mod sessions;
mod support;
mod two_machines;
