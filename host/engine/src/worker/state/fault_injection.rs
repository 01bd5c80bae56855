//! Delays and damages arriving packets of a vNIC with injected faults.

use super::State;
use crate::network::handshake_datagram;
use crate::network::local_forwarding::LinkLocation;
use crate::network::roce_port::Arrival;
use crate::worker::fault_queue::FaultQueue;
use crate::worker::link::Ends;
use omniverb_datapath::packet_train::Train;
use omniverb_sys::clock;
use omniverb_terms::VnicId;
use omniverb_transport::Ecn;
use omniverb_transport::fault_injection::Faults;

/// Budget: delayed packets of one vNIC that arrive between two looks at others.
const PACKETS_PER_TURN: usize = 1024;

impl State {
    /// Sets other faults, from their seed, or none. Delayed packets arrive now.
    pub(super) fn set_faults(&mut self, vnic: VnicId, faults: Option<Box<(Faults, u64)>>) {
        let Some(home) = self.vnics.get_mut(vnic) else { return };
        let fault_queue = faults.map(|faults| FaultQueue::new(faults.0, faults.1, &home.allowance));
        let old = std::mem::replace(&mut home.fault_queue, fault_queue);
        if let Some(mut old) = old {
            self.showing.end_faults(vnic, &old.done());
            old.close(vnic, &mut self.clocked);
            while let Some((arrival, datagram)) = old.take(u64::MAX) {
                self.arrived_alone(vnic, &arrival, &datagram);
            }
        }
    }

    /// A datagram for a vNIC with faults.
    pub(super) fn fault_queue(&mut self, vnic: VnicId, arrival: &Arrival, datagram: &[u8]) {
        // Which way a connection takes is not for chance to decide: handshakes, which are ours and
        // no RoCE device's, pass.
        if handshake_datagram::begins(datagram) {
            return self.arrived_alone(vnic, arrival, datagram);
        }
        if let Some(fault_queue) = self.vnics.detour_mut(vnic) {
            fault_queue.put(clock::now(), arrival, datagram);
        }
    }

    /// Delayed packets arrive.
    pub(super) fn delayed(&mut self, vnic: VnicId) {
        for _ in 0..PACKETS_PER_TURN {
            let taken =
                self.vnics.detour_mut(vnic).and_then(|fault_queue| fault_queue.take(clock::now()));
            let Some((arrival, datagram)) = taken else { break };
            self.arrived_alone(vnic, &arrival, &datagram);
        }
        let Some(home) = self.vnics.get_mut(vnic) else { return };
        if let Some(fault_queue) = &mut home.fault_queue {
            fault_queue.set_alarm(vnic, &mut self.clocked);
        }
    }

    /// A train that need not leave this engine: the faults of the vNIC where it arrives happen to
    /// it all the same. False: there are none.
    pub(super) fn near_detour(&mut self, to: LinkLocation, from: &Ends, train: &mut Train) -> bool {
        let LinkLocation { vnic, interface, .. } = to;
        let Some(home) = self.vnics.get_mut(vnic) else { return false };
        let Some(fault_queue) = &mut home.fault_queue else { return false };
        let (flow, ecn, identification) = (from.flow, Ecn::Unmarked, None);
        // Packets handed over otherwise are not checked; here damage must be found.
        train.seal(&flow);
        // One vNIC has both ends: its captures show what leaves, not also what is left of it.
        let is_captured = vnic == from.vnic;
        for packet in train.packets() {
            let arrival = Arrival { flow, interface, ecn, identification, is_captured };
            fault_queue.put(clock::now(), &arrival, packet);
        }
        fault_queue.set_alarm(vnic, &mut self.clocked);
        true
    }
}
