//! The host daemon: configuration, privileges, wiring.
fn main() {}
