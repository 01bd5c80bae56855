//! Raw limits of this machine: cache-line ping-pong, ring, memcpy.
fn main() {}
