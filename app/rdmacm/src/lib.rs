//! `librdmacm.so.1`: the C entry points.
//!
//! Programs come in here with identifiers (`rdma_cm_id`), and go out with queue pairs that are
//! connected. The connection manager itself is the daemon's: ports, listeners, and what the two
//! sides say to each other. This library has what a program can see without asking: event channels,
//! which events were taken and acknowledged, and the states of queue pairs, which it changes as the
//! daemon says.
//!
//! # Modules
//!
//! * [`id_registry`](mod@registry) has all identifiers of the process and what is in their
//!   channels. The progress thread of `libibverbs.so.1` puts events of the daemon there, programs
//!   take them.
//! * [`daemon_calls`](mod@owner) asks the daemon, on the process's one connection, by the private
//!   node of `libibverbs.so.1` (`app/ibverbs/include/omniverb_private.h`).
//! * [`event`](mod@event) turns what was told into what `rdma_get_cm_event` returns, and does on
//!   the way what the program expects to be done then: a queue pair goes to RTS when the answer to
//!   its connection request is taken, in the program's thread.
//! * The other files are the calls of rdma_cma.h, by what they are about.
//!
//! Functions are called `ov_<C name>`; `symbols.toml` lists every public symbol, and `cargo xtask
//! dist` makes the entry points, as for `app/ibverbs`.
//!
//! # Rules for code in here
//!
//! As in `app/ibverbs`: it runs in other people's processes. No lock is held while the daemon is
//! asked or a verb is called, and the progress thread does no more than put an event away.
// UNSAFETY: this crate is a C ABI; every entry point takes raw pointers from C.
#![expect(unsafe_code)]

pub mod ack_cm_event;
pub mod address_calls;
pub mod addrinfo;
mod c_sockaddr;
pub mod cm_id;
pub mod connection_calls;
mod daemon_calls;
pub mod device;
pub mod ece;
pub mod endpoint;
mod errno;
pub mod event;
pub mod event_channel;
mod event_queue;
#[cfg(not(test))]
mod ibverbs_imports;
mod id_registry;
mod id_state;
pub mod multicast;
mod multicast_membership;
mod private_abi;
mod process_id_across_fork;
pub mod qp_attributes;
pub mod qp_creation;
mod qp_transitions;
mod refusal_log;
pub mod resolve_addrinfo;
mod route;
pub mod rsocket;
pub mod set_option;
#[cfg(test)]
mod testing;
pub mod unsupported;

#[cfg(test)]
use testing::fake_ibverbs as ibverbs_imports;
