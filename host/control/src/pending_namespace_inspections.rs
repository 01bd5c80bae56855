//! Stores processes that wait until the helper has inspected their namespaces.

use crate::running_helper_requests::Subject;
use omniverb_fairness::Holder;
use omniverb_sys::netns::Namespace;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Waiting processes, by the subject of the helper's request.
pub(crate) type PendingInspections = BTreeMap<Subject, PendingInspection>;

/// A namespace under inspection, and its process.
#[derive(Debug)]
pub(crate) struct PendingInspection {
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) cookie: Option<u64>,
    pub(crate) cgroup: String,
    pub(crate) holder: Holder,
}
