//! Rows of `omniverb status` (`status_rows.rs`), gone through from any place on
//! (`status_cursor.rs`).

mod status_cursor;
pub(crate) mod status_rows;

use crate::links::Links;
use crate::network::Network;
use crate::queue_pairs::queue_pair_table::QueuePairs;
use crate::vnics_and_policies::Tenants;

/// Makes rows of what there is to see, with the tables that it looks at.
pub(crate) struct StatusRows<'a> {
    pub(crate) tenants: &'a Tenants,
    pub(crate) network: &'a Network,
    pub(crate) queue_pairs: &'a QueuePairs,
    pub(crate) links: &'a Links,
}
