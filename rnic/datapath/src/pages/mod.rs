//! Executes operations on an application's pages, where its host can reach them.

pub mod mapped_pages;
pub(crate) mod payload_sources_offered_to_app;
pub(crate) mod read_execution;
pub(crate) mod write_execution;
