//! Maps applications' pages, and executes operations on them without the application.

pub(crate) mod grant;
pub(crate) mod link_grants;
pub(crate) mod mapped_memory_budget;
pub(crate) mod pinned_guest_page_mappings;
pub(crate) mod shared_extent_mappings;
