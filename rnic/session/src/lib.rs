//! Control messages between a process and `omniverbd`.
//!
//! Two `SOCK_SEQPACKET` unix sockets join a process and the daemon:
//!
//! * **calls**: the process asks, the daemon answers; one call at a time, strictly in turn.
//!   The process connects this one.
//! * **events**: the daemon tells (a link is ready, a peer died, adopt these pages); the process
//!   answers [`body::Adopted`] on it. The daemon hands it over in its answer to [`body::Hello`].
//!
//! Who runs the daemon has a socket apart, with messages of its own: [`operator`]. For processes of
//! a virtual machine the same messages travel in frames: [`machine`].
//! Two processes of which one imports what the other has have sockets of their own: [`import`]; so
//! have two that have the same queue pair open: [`opened`].
//!
//! One datagram is one message: a [`Header`], then the body its [`Kind`] names, both fixed-size
//! and native-endian (both ends are on one host). Descriptors travel as `SCM_RIGHTS` beside it,
//! in the order the body documents. Nothing here does I/O; [`encode`] and [`decode`] are pure, and
//! `decode` accepts any bytes.
#![forbid(unsafe_code)]

pub mod agent_first_messages;
pub mod body;
pub mod carried_links;
pub mod cm;
mod codec;
pub mod device_import_messages;
pub mod limits;
mod message_macros;
pub mod network_fault_text;
pub mod operator;
pub mod page_rights;
pub mod pair_window;
pub mod pinned_pages;
pub mod printable;
pub mod shared_qp_messages;
pub mod tc_units;
pub mod vm;

pub use codec::{DecodeError, Header, Kind, Message, decode, encode, written};

/// Version of this protocol. A daemon refuses a process that speaks another one (`EPROTO`).
pub const VERSION: u16 = 10;

/// Where a process looks for the daemon when `OMNIVERB_SOCKET` is not set: the host's daemon.
pub const SYSTEM_SOCKET: &str = "/run/omniverb/omniverbd.sock";

/// Variable that names the daemon's socket.
pub const SOCKET_VARIABLE: &str = "OMNIVERB_SOCKET";

/// Variable that names the folder with the files of a program's device, for programs that are shown
/// some: `sys/class/infiniband` and others in it stand for those paths.
pub const PRESENTED_VARIABLE: &str = "OMNIVERB_PRESENTED";

/// Variable that keeps the pages of a process where they are if it says [`ADOPTION_OFF_VALUE`].
pub const ADOPTION_VARIABLE: &str = "OMNIVERB_ADOPTION";
/// The only value of [`ADOPTION_VARIABLE`] that means something: a process can give less than its
/// vNIC allows, never more.
pub const ADOPTION_OFF_VALUE: &str = "off";

/// Most descriptors that travel with one message.
pub const DESCRIPTORS_MAX: usize = 4;
