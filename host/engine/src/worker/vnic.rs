//! Groups a packet thread's state of one vNIC.

use super::fault_queue::FaultQueue;
use super::links_held_by_rate_limit::Gate;
use super::per_sender_rate_limits::PerSenderLimits;
use super::rate_limit_tree::RateLimits;
use super::recently_sent_cm_ids::RecentlySentIds;
use super::timers::{Alarm, Due, Timers};
use super::vnic_psp_tunnel::VnicTunnel;
use crate::capture_recorder::packet_queue::CaptureSender;
use crate::command::{LimitUnit, PerUnit};
use crate::network::early_packets::Unclaimed;
use crate::network::roce_port::Sockets;
use crate::network::tenants_by_address::TenantsByAddress;
use crate::network::virtual_network_senders::NetworkPlaces;
use crate::pacing::multicast_copy_budget::Copies;
use crate::pages::mapped_memory_budget::Budget;
use omniverb_datapath::Allowance;
use omniverb_terms::{Qpn, VnicId};
use std::sync::Arc;

/// A vNIC that a packet thread serves, until the control plane closes it; its links go with it.
pub(super) struct Vnic {
    pub(super) sockets: Arc<Sockets>,
    /// The number of its queue pair 1 in packets.
    pub(super) services: Qpn,
    /// Its limits, and the links that wait for them.
    pub(super) gates: PerUnit<Gate>,
    /// Packets for queue pairs that have no link yet.
    pub(super) unclaimed: Unclaimed,
    /// Goes off when some of them are too old.
    early: Alarm,
    /// Memory kept for it and its links.
    pub(super) allowance: Allowance,
    /// Bytes that they have mapped.
    pub(super) budget: Budget,
    /// The vNICs of its virtual network, if it is in one.
    pub(super) places: Option<Arc<NetworkPlaces>>,
    /// Its tenant, and by which addresses it knows senders to groups, if it is in no virtual
    /// network; `None`: it hears all.
    pub(super) group_senders: Option<(u32, Arc<TenantsByAddress>)>,
    /// Copies of what is sent to groups.
    pub(super) copies: Copies,
    /// Copies for a capture of its packets.
    pub(super) capture: CaptureSender,
    /// Packets for it go through this, if its network is to seem bad.
    pub(super) fault_queue: Option<FaultQueue>,
    /// Encrypts its packets to other addresses; `None`: they are not encrypted.
    pub(super) tunnel: Option<Box<VnicTunnel>>,
    /// Limits reports about it to the control plane.
    pub(super) reports: PerSenderLimits,
    /// Messages of its connection ids, which may be answered.
    pub(super) spoken: RecentlySentIds,
    /// Counts management datagrams that were sent.
    managed: u32,
}

impl Vnic {
    pub(super) fn new(
        sockets: Sockets,
        services: Qpn,
        budget: Budget,
        allowance: Allowance,
        now: u64,
    ) -> Vnic {
        Vnic {
            sockets: Arc::new(sockets),
            services,
            gates: PerUnit {
                bytes: Gate::new(LimitUnit::Bytes),
                operations: Gate::new(LimitUnit::Operations),
            },
            unclaimed: Unclaimed::new(&allowance),
            early: Alarm::default(),
            allowance,
            budget,
            places: None,
            group_senders: None,
            copies: Copies::default(),
            capture: CaptureSender::default(),
            fault_queue: None,
            tunnel: None,
            reports: PerSenderLimits::new(now),
            spoken: RecentlySentIds::default(),
            managed: 0,
        }
    }

    /// Has early packets looked at when some of them are too old.
    pub(super) fn set_early_alarm(&mut self, id: VnicId, timers: &mut Timers, now: u64) {
        self.early.set(timers, Due::Early(id), self.unclaimed.due(now));
    }

    /// The time that was asked for has come.
    pub(super) fn early_alarm_went_off(&mut self, id: VnicId, timers: &mut Timers, now: u64) {
        self.early.went_off();
        self.unclaimed.expire(now);
        self.set_early_alarm(id, timers, now);
    }

    /// Drops what is kept for itself while it keeps more than it may.
    pub(super) fn give_way(&mut self) {
        self.unclaimed.give_way(&self.allowance);
        if let Some(fault_queue) = &mut self.fault_queue {
            fault_queue.give_way(&self.allowance);
        }
    }

    /// It is gone.
    pub(super) fn close(
        &mut self,
        id: VnicId,
        timers: &mut Timers,
        limits: &mut PerUnit<RateLimits>,
    ) {
        self.gates.bytes.close(&mut limits.bytes);
        self.gates.operations.close(&mut limits.operations);
        self.early.cancel(timers, Due::Early(id));
        if let Some(tunnel) = &mut self.tunnel {
            tunnel.close(id, timers);
        }
    }

    /// Numbers management datagrams.
    pub(super) fn next_management_psn(&mut self) -> u32 {
        self.managed = self.managed.wrapping_add(1);
        self.managed
    }
}
