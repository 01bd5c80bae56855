//! Devices that one process has opened and another imports.
//!
//! The two talk over sockets of their own, and the daemon has no part in it: the command file of a
//! context is one end of a pair of sockets, and who has a duplicate of it can ask at the other.
//! `exporter.rs`: the process that opened the device answers; `exported_pages.rs`: the pages of its
//! regions that importers have mapped, `move_budget.rs`: how much time that may take;
//! `destroy_limit.rs`: who destroys something. `importer.rs`: the process that imports asks, by way
//! of `exporter_connection.rs`; `imported_memory.rs`: what it has then. `outbox.rs`: what either
//! says when there is room. `import_thread.rs`: the thread of each that listens, which there is
//! from the first import on.

mod destroy_limit;
mod exported_pages;
mod exporter;
mod exporter_connection;
mod import_thread;
mod imported_memory;
mod importer;
mod move_budget;
mod outbox;
#[cfg(test)]
mod tests;

pub use exporter::Exported;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use exporter::Importer;
pub(crate) use exporter::{Door, Exporter, Owner};
pub(crate) use exporter_connection::{Device, Line};
pub(crate) use import_thread::{Party, Service};
pub use imported_memory::{ImportedMemory, ImportedRegion};
pub(crate) use importer::Budget;
pub use importer::Import;
