//! Defines operations on links, each with the tables that it needs.

use super::Links;
use crate::decision_context::Context;
use crate::link_observers::Observers;
use crate::memory::{Grants, Memory};
use crate::network::Network;
use crate::queue_pairs::queue_pair_table::QueuePairs;
use crate::vm_pair_windows::window_table::MachineWindows;
use crate::vnics_and_policies::Tenants;

/// Brings queue pairs together: resolves peers, probes the network, and has links made.
pub(crate) struct Pairing<'a> {
    pub(crate) context: &'a mut Context,
    pub(crate) tenants: &'a mut Tenants,
    pub(crate) network: &'a mut Network,
    pub(crate) pair_windows: &'a mut MachineWindows,
    pub(crate) queue_pairs: &'a mut QueuePairs,
    pub(crate) links: &'a mut Links,
    pub(crate) memory: &'a mut Memory,
    pub(crate) observers: &'a mut Observers,
}

/// Makes links, where quotas allow it.
pub(crate) struct Linker<'a> {
    pub(crate) context: &'a mut Context,
    pub(crate) tenants: &'a mut Tenants,
    pub(crate) network: &'a Network,
    pub(crate) pair_windows: &'a mut MachineWindows,
    pub(crate) queue_pairs: &'a mut QueuePairs,
    pub(crate) links: &'a mut Links,
    pub(crate) memory: &'a mut Memory,
    pub(crate) observers: &'a mut Observers,
}

/// Ends links, with all that rests on them.
pub(crate) struct Unlinker<'a> {
    pub(crate) context: &'a mut Context,
    pub(crate) tenants: &'a mut Tenants,
    pub(crate) network: &'a Network,
    pub(crate) pair_windows: &'a mut MachineWindows,
    pub(crate) queue_pairs: &'a mut QueuePairs,
    pub(crate) links: &'a mut Links,
    pub(crate) memory: &'a mut Memory,
    pub(crate) observers: &'a mut Observers,
}

/// Brings sockets together that may share memory.
pub(crate) struct Relater<'a> {
    pub(crate) context: &'a mut Context,
    pub(crate) tenants: &'a mut Tenants,
    pub(crate) network: &'a mut Network,
    pub(crate) links: &'a mut Links,
}

/// Tells the audit and captures of links.
pub(crate) struct Observer<'a> {
    pub(crate) context: &'a mut Context,
    pub(crate) tenants: &'a Tenants,
    pub(crate) network: &'a Network,
    pub(crate) queue_pairs: &'a QueuePairs,
    pub(crate) links: &'a Links,
    pub(crate) observers: &'a mut Observers,
}

impl<'a> Pairing<'a> {
    fn reborrow(&mut self) -> Pairing<'_> {
        Pairing {
            context: self.context,
            tenants: self.tenants,
            network: self.network,
            pair_windows: self.pair_windows,
            queue_pairs: self.queue_pairs,
            links: self.links,
            memory: self.memory,
            observers: self.observers,
        }
    }

    /// The tables that making links needs.
    pub(crate) fn into_linker(self) -> Linker<'a> {
        Linker {
            context: self.context,
            tenants: self.tenants,
            network: self.network,
            pair_windows: self.pair_windows,
            queue_pairs: self.queue_pairs,
            links: self.links,
            memory: self.memory,
            observers: self.observers,
        }
    }

    /// The tables that ending links needs.
    pub(crate) fn into_unlinker(self) -> Unlinker<'a> {
        Unlinker {
            context: self.context,
            tenants: self.tenants,
            network: self.network,
            pair_windows: self.pair_windows,
            queue_pairs: self.queue_pairs,
            links: self.links,
            memory: self.memory,
            observers: self.observers,
        }
    }

    /// Those of the tables that relations need.
    pub(crate) fn into_relater(self) -> Relater<'a> {
        let Pairing { context, tenants, network, links, .. } = self;
        Relater { context, tenants, network, links }
    }

    pub(super) fn linker(&mut self) -> Linker<'_> {
        self.reborrow().into_linker()
    }

    pub(super) fn unlinker(&mut self) -> Unlinker<'_> {
        self.reborrow().into_unlinker()
    }

    pub(super) fn relater(&mut self) -> Relater<'_> {
        self.reborrow().into_relater()
    }
}

impl Linker<'_> {
    pub(super) fn unlinker(&mut self) -> Unlinker<'_> {
        Unlinker {
            context: self.context,
            tenants: self.tenants,
            network: self.network,
            pair_windows: self.pair_windows,
            queue_pairs: self.queue_pairs,
            links: self.links,
            memory: self.memory,
            observers: self.observers,
        }
    }

    pub(super) fn observer(&mut self) -> Observer<'_> {
        self.unlinker().into_observer()
    }
}

impl<'a> Unlinker<'a> {
    fn reborrow(&mut self) -> Unlinker<'_> {
        Unlinker {
            context: self.context,
            tenants: self.tenants,
            network: self.network,
            pair_windows: self.pair_windows,
            queue_pairs: self.queue_pairs,
            links: self.links,
            memory: self.memory,
            observers: self.observers,
        }
    }

    /// Those of the tables that grants need.
    pub(crate) fn into_grants(self) -> Grants<'a> {
        let Unlinker {
            context, tenants, network, pair_windows, queue_pairs, links, memory, ..
        } = self;
        Grants { context, tenants, network, pair_windows, queue_pairs, links, memory }
    }

    /// Those of the tables that an observer needs.
    pub(crate) fn into_observer(self) -> Observer<'a> {
        let Unlinker { context, tenants, network, queue_pairs, links, observers, .. } = self;
        Observer { context, tenants, network, queue_pairs, links, observers }
    }

    pub(super) fn grants(&mut self) -> Grants<'_> {
        self.reborrow().into_grants()
    }

    pub(super) fn observer(&mut self) -> Observer<'_> {
        self.reborrow().into_observer()
    }
}
