//! Rows of `omniverb status` (`status.rs`), gone through from any place on (`walk.rs`).

pub(crate) mod status;
mod walk;

use crate::links::Links;
use crate::network::Network;
use crate::queue_pairs::table::QueuePairs;
use crate::tenants::Tenants;

/// Makes rows of what there is to see, with the tables that it looks at.
pub(crate) struct StatusRows<'a> {
    pub(crate) tenants: &'a Tenants,
    pub(crate) network: &'a Network,
    pub(crate) queue_pairs: &'a QueuePairs,
    pub(crate) links: &'a Links,
}
