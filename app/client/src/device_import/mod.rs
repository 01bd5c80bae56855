//! Lets one process import devices that another has opened.
//!
//! The two talk over sockets of their own, and the daemon has no part in it: the command file of a
//! context is one end of a pair of sockets, and a holder of a duplicate of it can ask at the other.
//! `exporter.rs`: the process that opened the device answers; `exported_pages.rs`: the pages of its
//! regions that importers have mapped, `importer_move_rate_limit.rs`: how much time that may take;
//! `concurrent_destroy_limit.rs`: how many destroy something. `importer.rs`: the process that
//! imports asks, by way of `connection_to_exporter.rs`; `imported_memory.rs`: what it has then.
//! `unsent_messages.rs`: what either says when there is room. `peer_socket_thread.rs`: the thread
//! of each that listens, which there is from the first import on.

mod concurrent_destroy_limit;
mod connection_to_exporter;
mod exported_pages;
mod exporter;
mod imported_memory;
mod importer;
mod importer_move_rate_limit;
mod peer_socket_thread;
#[cfg(test)]
mod tests;
mod unsent_messages;

pub(crate) use connection_to_exporter::{Device, ExporterConnection};
pub use exporter::ExportedObjects;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use exporter::Importer;
pub(crate) use exporter::{ExportListener, Exporter, PageOwner};
pub use imported_memory::{ImportedMemory, ImportedRegion};
pub use importer::Import;
pub(crate) use importer::ImportBudget;
pub(crate) use peer_socket_thread::{PeerSocket, PeerSocketThread};
