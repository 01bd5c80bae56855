//! Delays packets of a vNIC with faults, and says when the next one is due.

use super::timers::{Alarm, Due, Timers};
use crate::network::fault_injection::BadLine;
use crate::network::roce_port::Arrival;
use omniverb_datapath::Allowance;
use omniverb_terms::VnicId;
use omniverb_transport::fault_injection::{FaultCounts, Faults};

/// The bad line in front of one vNIC, and the alarm for what comes out of it next.
pub(super) struct FaultQueue {
    line: BadLine,
    alarm: Alarm,
}

impl FaultQueue {
    /// `seed`: decides to which packets the faults happen.
    pub(super) fn new(faults: Faults, seed: u64, allowance: &Allowance) -> FaultQueue {
        FaultQueue { line: BadLine::new(faults, seed, allowance), alarm: Alarm::default() }
    }

    /// A datagram takes it.
    pub(super) fn put(&mut self, now: u64, arrival: &Arrival, datagram: &[u8]) {
        self.line.put(now, arrival, datagram);
    }

    /// One that has arrived by now.
    pub(super) fn take(&mut self, now: u64) -> Option<(Arrival, Vec<u8>)> {
        self.line.take(now)
    }

    /// Drops what is on it if the vNIC keeps more than it may.
    pub(super) fn give_way(&mut self, allowance: &Allowance) {
        self.line.give_way(allowance);
    }

    /// Counts of faults.
    pub(super) fn done(&self) -> FaultCounts {
        self.line.done()
    }

    /// Sets the alarm for the next arrival.
    pub(super) fn set_alarm(&mut self, vnic: VnicId, timers: &mut Timers) {
        self.alarm.set(timers, Due::Faults(vnic), self.line.next_time());
    }

    /// The time that was asked for has come.
    pub(super) fn alarm_went_off(&mut self) {
        self.alarm.went_off();
    }

    /// Nothing more is to come out of it.
    pub(super) fn close(&mut self, vnic: VnicId, timers: &mut Timers) {
        self.alarm.cancel(timers, Due::Faults(vnic));
    }
}
