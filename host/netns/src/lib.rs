//! Implements the daemon's privileged helper, which identifies and enters network namespaces.
//!
//! In: requests of fixed size, with a descriptor each, from the daemon, over a socket pair. Out:
//! answers of fixed size. The daemon itself parses messages of tenants, and has no privilege to
//! enter anything; an attacker in it can request only what this protocol offers: sockets of two UDP
//! ports in namespaces that it can name, and single addresses beside others there.
#![forbid(unsafe_code)]

mod container_facts;
mod helper;
mod helper_protocol;
mod helper_starter;
mod known_namespaces;
mod namespace_watcher;
#[cfg(any(test, feature = "fuzz"))]
pub mod testing;
mod underlay_address_plan;
mod underlay_address_thread;

pub use container_facts::{ContainerFacts, ContainerInterface};
pub use helper::{WORKERS, serve, serve_alone};
pub use helper_protocol::underlay_messages::{
    AddressState, Presence, UNDERLAY_ADDRESSES_MAX, UnderlaySocket, is_of_a_host, request_socket,
    want_addresses,
};
pub use helper_protocol::{
    ADDRESSES_MAX, Answer, CGROUP_BYTES, Enters, Found, Kind, PORT, PSP_PORT, Process, receive,
    request,
};
pub use helper_starter::{HELPER, STARTER, start};
