//! What belongs to one vNIC; each part keeps its own order.

use super::copies::Copies;
use super::detour::Detour;
use super::gate::Gate;
use super::tidings::Tidings;
use crate::network::port::Sockets;
use crate::network::unclaimed::Unclaimed;
use crate::pages::budget::Budget;
use crate::queue_pair::backlog::Allowance;
use crate::recorder::queue::CaptureSender;
use std::sync::Arc;

/// A vNIC that a packet thread serves, until the control plane closes it; its links go with it.
pub(super) struct Vnic {
    pub(super) sockets: Arc<Sockets>,
    /// Its limit, and who waits for that.
    pub(super) gate: Gate,
    /// Packets for queue pairs that have no link yet.
    pub(super) unclaimed: Unclaimed,
    /// What its links keep for slow applications.
    pub(super) allowance: Allowance,
    /// What they have mapped.
    pub(super) budget: Budget,
    /// Copies of what is sent to groups.
    pub(super) copies: Copies,
    /// Copies for whoever captures its packets.
    pub(super) capture: CaptureSender,
    /// What packets for it go through, if its network is to seem bad.
    pub(super) detour: Option<Detour>,
    /// What the control plane is told of it.
    pub(super) tidings: Tidings,
    /// Counts management datagrams that were sent.
    managed: u32,
}

impl Vnic {
    pub(super) fn new(sockets: Sockets, budget: Budget, now: u64) -> Vnic {
        Vnic {
            sockets: Arc::new(sockets),
            gate: Gate::default(),
            unclaimed: Unclaimed::default(),
            allowance: Allowance::default(),
            budget,
            copies: Copies::default(),
            capture: CaptureSender::default(),
            detour: None,
            tidings: Tidings::new(now),
            managed: 0,
        }
    }

    /// Numbers management datagrams.
    pub(super) fn next_management_psn(&mut self) -> u32 {
        self.managed = self.managed.wrapping_add(1);
        self.managed
    }
}
