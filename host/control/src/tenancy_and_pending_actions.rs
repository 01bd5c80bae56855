//! Wraps the decision tables (`omniverb_tenancy`) and collects the actions they want.
//!
//! The tables are read directly. Every change goes through this wrapper, so that no action is lost,
//! and actions are executed in the order in which they were decided.

use omniverb_tenancy::{Action, Policy, Tenancy, VnicId};
use std::collections::VecDeque;
use std::ops::Deref;

/// The tables and their decisions.
pub(crate) struct Tables {
    tenancy: Tenancy,
    /// Decided and not done yet, oldest first.
    actions: VecDeque<Action>,
}

impl Deref for Tables {
    type Target = Tenancy;

    fn deref(&self) -> &Tenancy {
        &self.tenancy
    }
}

impl Tables {
    pub(crate) fn new(tenancy: Tenancy) -> Tables {
        Tables { tenancy, actions: VecDeque::new() }
    }

    /// Has them decide something.
    pub(crate) fn decide(&mut self, what: impl FnOnce(&mut Tenancy) -> Vec<Action>) {
        self.actions.extend(what(&mut self.tenancy));
    }

    /// Has them know something from which nothing follows.
    pub(crate) fn note(&mut self, what: impl FnOnce(&mut Tenancy)) {
        what(&mut self.tenancy);
    }

    /// Has other rules hold for a vNIC; how many direct links it has left.
    pub(crate) fn set_policy(&mut self, vnic: VnicId, policy: Policy) -> usize {
        let (direct_links, actions) = self.tenancy.set_policy(vnic, policy);
        self.actions.extend(actions);
        direct_links
    }

    /// The next action to execute.
    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }
}
