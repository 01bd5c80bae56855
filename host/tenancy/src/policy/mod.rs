//! Keeps the settings of administrators about vNICs (`policies.rs`), about pages
//! (`page_adoption_between_vnics.rs`) and about control operations (`control_call_rate_limits.rs`).

pub(crate) mod control_call_rate_limits;
pub(crate) mod page_adoption_between_vnics;
pub(crate) mod policies;
