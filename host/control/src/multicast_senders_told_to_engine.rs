//! Keeps which senders to multicast groups the engine was told of last.

use crate::engine::TenantsByAddress;
use std::sync::Arc;

/// The addresses of tenants as the engine was told of them last.
#[derive(Debug, Default)]
pub(crate) struct GroupSenders {
    /// The number of changes when members were told last.
    pub(crate) told: Option<u64>,
    /// The number of changes when these were true.
    pub(crate) changes: Option<u64>,
    /// `None`: there is one tenant.
    pub(crate) all: Option<Arc<TenantsByAddress>>,
}
