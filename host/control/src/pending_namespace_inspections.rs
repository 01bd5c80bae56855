//! Holds what is known of processes that wait until the helper has looked at their namespaces.

use crate::helper_queue::Subject;
use omniverb_fairness::Holder;
use omniverb_sys::netns::Namespace;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Those that wait, by what the helper is asked for.
pub(crate) type PendingInspections = BTreeMap<Subject, PendingInspection>;

/// A namespace that is looked at, and what is known of the process in it.
#[derive(Debug)]
pub(crate) struct PendingInspection {
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) cookie: Option<u64>,
    pub(crate) cgroup: String,
    pub(crate) holder: Holder,
}
