//! Devices that one process has opened and another imports.
//!
//! The two talk over sockets of their own, and the daemon has no part in it: the command file of a
//! context is one end of a pair of sockets, and who has a duplicate of it can ask at the other.
//! `exporter.rs`: the process that opened the device answers; `pages.rs`: the pages of its
//! regions that importers have mapped, `pace.rs`: how much time that may take; `endings.rs`: who
//! destroys something. `import.rs`: the process that imports asks, by way of `line.rs`;
//! `imported.rs`: what it has then. `outbox.rs`: what either says when there is room. `service.rs`:
//! the thread of each that listens, which there is from the first import on.

mod endings;
mod exporter;
mod import;
mod imported;
mod line;
mod outbox;
mod pace;
mod pages;
mod service;
#[cfg(test)]
mod tests;

pub use exporter::Exported;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use exporter::Importer;
pub(crate) use exporter::{Door, Exporter, Owner};
pub(crate) use import::Budget;
pub use import::Import;
pub use imported::{ImportedMemory, ImportedRegion};
pub(crate) use line::{Device, Line};
pub(crate) use service::{Party, Service};
