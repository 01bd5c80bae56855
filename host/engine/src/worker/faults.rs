//! A vNIC whose network is to seem bad: what arrives for it takes a detour.

use super::link::Link;
use super::state::State;
use super::timers::Due;
use crate::identity::VnicId;
use crate::network::faults::BadLine;
use crate::network::port::Arrival;
use crate::network::train::Train;
use omniverb_sys::clock;
use omniverb_transport::faults::Faults;

/// Delayed packets of one vNIC that arrive between two looks at others.
const PACKETS_PER_TURN: usize = 1024;

impl State {
    /// Other faults, from their seed, or none. What was delayed arrives now.
    pub(super) fn set_faults(&mut self, vnic: VnicId, faults: Option<Box<(Faults, u64)>>) {
        let Some(home) = self.vnics.get_mut(&vnic) else { return };
        let line = faults.map(|faults| Box::new(BadLine::new(faults.0, faults.1)));
        let old = std::mem::replace(&mut home.bad_line, line);
        self.counters.forget_faults(vnic);
        if let Some(mut old) = old {
            self.timers.disarm(Due::Faults(vnic), old.armed);
            while let Some((arrival, datagram)) = old.take(u64::MAX) {
                self.arrived_alone(vnic, &arrival, &datagram);
            }
        }
    }

    /// A datagram for a vNIC with faults.
    pub(super) fn detour(&mut self, vnic: VnicId, arrival: &Arrival, datagram: &[u8]) {
        // Which way a connection takes is not for chance to decide: handshakes, which are ours and
        // no RoCE device's, pass.
        if super::arrive::is_handshake(datagram) {
            return self.arrived_alone(vnic, arrival, datagram);
        }
        if let Some(line) = self.bad_line(vnic) {
            line.put(clock::now(), arrival, datagram);
        }
    }

    /// Delayed packets arrive.
    pub(super) fn delayed(&mut self, vnic: VnicId) {
        for _ in 0..PACKETS_PER_TURN {
            let taken = self.bad_line(vnic).and_then(|line| line.take(clock::now()));
            let Some((arrival, datagram)) = taken else { break };
            self.arrived_alone(vnic, &arrival, &datagram);
        }
        let Some(home) = self.vnics.get_mut(&vnic) else { return };
        if let Some(line) = &mut home.bad_line {
            line.armed = self.timers.arm(Due::Faults(vnic), line.armed, line.next_time());
        }
    }

    /// A train that need not leave this engine, for link `to`: the faults of that one's vNIC happen
    /// to it all the same. False: there are none.
    pub(super) fn near_detour(&mut self, to: usize, from: &Link, train: &mut Train) -> bool {
        // A link that is being served is not in its place.
        let there = self.links.get(to).unwrap_or(from);
        let (vnic, interface) = (there.vnic, there.interface);
        let Some(home) = self.vnics.get_mut(&vnic) else { return false };
        let Some(line) = &mut home.bad_line else { return false };
        let (flow, congested, identification) = (from.flow, false, None);
        // Nobody checks what is handed over otherwise; here damage must be found.
        train.seal(&flow);
        // One vNIC has both ends: its captures show what leaves, not also what is left of it.
        let captured = vnic == from.vnic;
        for packet in train.packets() {
            let arrival = Arrival { flow, interface, congested, identification, captured };
            line.put(clock::now(), &arrival, packet);
        }
        line.armed = self.timers.arm(Due::Faults(vnic), line.armed, line.next_time());
        true
    }
}
