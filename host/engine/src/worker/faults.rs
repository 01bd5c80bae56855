//! A vNIC whose network is to seem bad: what arrives for it takes a detour.

use super::Worker;
use super::link::Link;
use crate::network::faults::BadLine;
use crate::network::port::Arrival;
use crate::network::train::Train;
use crate::worker::timers::Due;
use omniverb_sys::clock;
use omniverb_transport::faults::Faults;

/// Delayed packets of one vNIC that arrive between two looks at others.
const PACKETS_PER_TURN: usize = 1024;

impl Worker {
    pub(super) fn bad_line(&mut self, number: u64) -> Option<&mut BadLine> {
        self.vnics.get_mut(&number)?.bad_line.as_deref_mut()
    }

    /// Other faults, from their seed, or none. What was delayed arrives now.
    pub(super) fn set_faults(&mut self, number: u64, faults: Option<Box<(Faults, u64)>>) {
        let Some(vnic) = self.vnics.get_mut(&number) else { return };
        let line = faults.map(|faults| Box::new(BadLine::new(faults.0, faults.1)));
        let old = std::mem::replace(&mut vnic.bad_line, line);
        self.forget_faults(number);
        if let Some(mut old) = old {
            self.timers.disarm(Due::Faults(number), old.armed);
            while let Some((arrival, datagram)) = old.take(u64::MAX) {
                self.arrived_alone(number, &arrival, &datagram);
            }
        }
    }

    /// A datagram for a vNIC with faults.
    pub(super) fn detour(&mut self, number: u64, arrival: &Arrival, datagram: &[u8]) {
        // Which way a connection takes is not for chance to decide: handshakes, which are ours and
        // no RoCE device's, pass.
        if super::arrive::is_handshake(datagram) {
            return self.arrived_alone(number, arrival, datagram);
        }
        if let Some(line) = self.bad_line(number) {
            line.put(clock::now(), arrival, datagram);
        }
    }

    /// Delayed packets arrive.
    pub(super) fn delayed(&mut self, number: u64) {
        for _ in 0..PACKETS_PER_TURN {
            let taken = self.bad_line(number).and_then(|line| line.take(clock::now()));
            let Some((arrival, datagram)) = taken else { break };
            self.arrived_alone(number, &arrival, &datagram);
        }
        let Some(vnic) = self.vnics.get_mut(&number) else { return };
        if let Some(line) = &mut vnic.bad_line {
            line.armed = self.timers.arm(Due::Faults(number), line.armed, line.next_time());
        }
    }

    /// A train that need not leave this engine, for link `to`: the faults of that one's vNIC happen
    /// to it all the same. False: there are none.
    pub(super) fn near_detour(&mut self, to: usize, from: &Link, train: &mut Train) -> bool {
        // A link that is being served is not in its place.
        let there = self.links.get(to).and_then(Option::as_deref).unwrap_or(from);
        let (number, interface) = (there.vnic, there.interface);
        let Some(vnic) = self.vnics.get_mut(&number) else { return false };
        let Some(line) = &mut vnic.bad_line else { return false };
        let (flow, congested, identification) = (from.flow, false, None);
        // Nobody checks what is handed over otherwise; here damage must be found.
        train.seal(&flow);
        // One vNIC has both ends: its captures show what leaves, not also what is left of it.
        let captured = number == from.vnic;
        for packet in train.packets() {
            let arrival = Arrival { flow, interface, congested, identification, captured };
            line.put(clock::now(), &arrival, packet);
        }
        line.armed = self.timers.arm(Due::Faults(number), line.armed, line.next_time());
        true
    }
}
