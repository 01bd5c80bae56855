//! Evaluates rules: which operations one vNIC may ask of another.
//!
//! `rule.rs`: one rule. `rule_text.rs`: rules as text. `rule_set.rs`: the rules of a vNIC, sorted,
//! and their verdict about one peer. `vnic_rules.rs`: the rules of all vNICs, and the verdicts that
//! were asked for. Nothing here is done for each packet: a link is given its
//! verdict when it is made, and again when rules change.

pub(crate) mod rule;
pub(crate) mod rule_set;
pub(crate) mod rule_text;
pub(crate) mod vnic_rules;
