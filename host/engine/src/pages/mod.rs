//! Maps applications' pages, and executes operations on them without the application.

pub(crate) mod budget;
pub(crate) mod grant;
pub(crate) mod granted;
pub(crate) mod reads;
pub(crate) mod scattered_mappings;
pub(crate) mod shared_mappings;
pub(crate) mod sources;
pub(crate) mod write_placement;
