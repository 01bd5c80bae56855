//! Schedules the datagrams of handshakes.
//!
//! A question is asked by three datagrams. If a receive queue overflowed meanwhile where the answer
//! would have been heard, that it was not says nothing: the question is asked again, a few times,
//! and then counts as unheard.

use omniverb_sys::thread_watchdog::{PulseSnapshot, ThreadPulses};
use omniverb_tenancy::{ProbeId, VnicId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

const MILLISECOND: u64 = 1_000_000;
/// When a datagram goes out, counted from the start. The first may wait for address resolution.
const TRIES: [u64; 3] = [0, 30 * MILLISECOND, 100 * MILLISECOND];
/// When no host answers.
const GIVEN_UP: u64 = 300 * MILLISECOND;
/// Budget: rounds of datagrams of one question, if receive queues overflow in each.
const ROUNDS_MAX: u32 = 3;
/// Threads of ours hear handshakes. If one of them stood still meanwhile, or this one did, silence
/// says nothing: probes listen so much longer after that, and so long in all.
const LISTEN_ON: u64 = 100 * MILLISECOND;
const LISTEN_MOST: u64 = 30_000 * MILLISECOND;
/// Later than this we were standing still ourselves.
const LATE: u64 = 50 * MILLISECOND;

/// A probe under way.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) vnic: VnicId,
    pub(crate) interface: u32,
    pub(crate) destination: IpAddr,
    /// From this address; `None`: whichever the kernel takes.
    source: Option<IpAddr>,
    begun: u64,
    tries: usize,
    /// How often all tries were made, and what had been lost before in front of the sockets where
    /// an answer is heard.
    rounds: u32,
    lost: Vec<(VnicId, u32)>,
    /// Progress of the hearing threads at the last try; `None`: they have gone on since.
    heard: Option<PulseSnapshot>,
    /// When something is due for it.
    due: u64,
}

impl Probe {
    /// Whether its end, due `at`, is put off.
    fn listens_on(&mut self, at: u64, now: u64) -> bool {
        if now.saturating_sub(self.begun) >= LISTEN_MOST {
            return false;
        }
        let standing = self.heard.as_ref().is_some_and(|mark| !mark.is_passed());
        let late = now.saturating_sub(at) > LATE;
        // Once more after that: what was heard has to come here, too.
        let stood = self.due - self.begun > GIVEN_UP && self.heard.take_if(|_| !standing).is_some();
        if !standing && !late && !stood {
            return false;
        }
        self.due = now + LISTEN_ON;
        true
    }
}

/// All probes under way.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    pulses: ThreadPulses,
    under_way: BTreeMap<ProbeId, Probe>,
    /// The same, by when something is due. Those that were given up are in here no more.
    deadlines: BTreeSet<(u64, ProbeId)>,
    by_vnic: BTreeSet<(VnicId, ProbeId)>,
}

/// The next step of a probe.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Send its datagram.
    Send(ProbeId, VnicId, IpAddr, u32),
    /// It is over, unless its vNIC has no port yet: then nothing was asked.
    GiveUp(ProbeId, VnicId),
}

impl Probes {
    /// `pulses`: of the threads that answers come through.
    pub(crate) fn new(pulses: ThreadPulses) -> Probes {
        Probes { pulses, ..Probes::default() }
    }

    pub(crate) fn start(
        &mut self,
        id: ProbeId,
        vnic: VnicId,
        interface: u32,
        destination: IpAddr,
        now: u64,
    ) {
        let (begun, tries, heard, due, source) = (now, 0, None, now, None);
        let (rounds, lost) = (1, Vec::new());
        let probe =
            Probe { vnic, interface, destination, source, begun, tries, rounds, lost, heard, due };
        self.forget(id);
        self.deadlines.insert((now, id));
        self.by_vnic.insert((vnic, id));
        self.under_way.insert(id, probe);
    }

    /// A probe is to come from this address, not from whichever of its vNIC's.
    pub(crate) fn set_source(&mut self, id: ProbeId, source: IpAddr) {
        if let Some(probe) = self.under_way.get_mut(&id) {
            probe.source = Some(source);
        }
    }

    /// So much had been lost in front of these vNICs' sockets when a probe was sent.
    pub(crate) fn set_lost(&mut self, id: ProbeId, lost: Vec<(VnicId, u32)>) {
        if let Some(probe) = self.under_way.get_mut(&id) {
            probe.lost = lost;
        }
    }

    /// Where something was lost since a probe was sent: `now_lost` says how much by now.
    pub(crate) fn may_be_lost(&self, id: ProbeId, now_lost: impl Fn(VnicId) -> u32) -> bool {
        let probe = self.under_way.get(&id);
        probe.is_some_and(|probe| probe.lost.iter().any(|(at, lost)| now_lost(*at) != *lost))
    }

    /// A probe is sent once more, unless that was done often enough.
    pub(crate) fn repeat(&mut self, id: ProbeId, now: u64) -> bool {
        let Some(probe) = self.under_way.get_mut(&id) else { return false };
        if probe.rounds >= ROUNDS_MAX {
            return false;
        }
        self.deadlines.remove(&(probe.due, id));
        probe.rounds += 1;
        (probe.begun, probe.due, probe.tries, probe.heard) = (now, now, 0, None);
        self.deadlines.insert((now, id));
        true
    }

    /// Which address a probe is to come from.
    pub(crate) fn source(&self, id: ProbeId) -> Option<IpAddr> {
        self.under_way.get(&id)?.source
    }

    pub(crate) fn forget(&mut self, id: ProbeId) {
        if let Some(probe) = self.under_way.remove(&id) {
            self.deadlines.remove(&(probe.due, id));
            self.by_vnic.remove(&(probe.vnic, id));
        }
    }

    /// The vNIC's port has just opened, or is still asked for: what should have gone out goes out
    /// now, or in the next round.
    pub(crate) fn start_again(&mut self, vnic: VnicId, now: u64) {
        for id in self.of(vnic) {
            let Some(probe) = self.under_way.get_mut(&id) else { continue };
            self.deadlines.remove(&(probe.due, id));
            (probe.begun, probe.due, probe.tries) = (now, now, 0);
            self.deadlines.insert((now, id));
        }
    }

    /// Probes of a vNIC.
    pub(crate) fn of(&self, vnic: VnicId) -> Vec<ProbeId> {
        let all = (vnic, ProbeId::MIN)..=(vnic, ProbeId::MAX);
        self.by_vnic.range(all).map(|(_, id)| *id).collect()
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// The steps that are due now; each once, and no work for probes that are not due.
    pub(crate) fn due(&mut self, now: u64) -> Vec<Due> {
        let mut due = Vec::new();
        while let Some((at, id)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(at, id));
            let Some(probe) = self.under_way.get_mut(&id) else { continue };
            if probe.tries == TRIES.len() && probe.listens_on(at, now) {
                self.deadlines.insert((probe.due, id));
                continue;
            }
            if probe.tries == TRIES.len() {
                due.push(Due::GiveUp(id, probe.vnic));
                continue;
            }
            due.push(Due::Send(id, probe.vnic, probe.destination, probe.interface));
            probe.tries += 1;
            if probe.tries == TRIES.len() {
                probe.heard = Some(self.pulses.mark());
            }
            // Not twice in one go, however late it is.
            let next = probe.begun + TRIES.get(probe.tries).copied().unwrap_or(GIVEN_UP);
            probe.due = next.max(now + 1);
            self.deadlines.insert((probe.due, id));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_ends_after_three_tries() {
        let vnic = VnicId(1);
        let mut probes = Probes::default();
        let to = "10.0.0.1".parse().unwrap();
        probes.start(7, vnic, 0, to, 1000);
        let mut now = 1000;
        for try_at in TRIES {
            assert_eq!(probes.next_deadline(), Some(1000 + try_at));
            now = 1000 + try_at;
            assert_eq!(probes.due(now), [Due::Send(7, vnic, to, 0)]);
            assert_eq!(probes.due(now), []);
        }
        assert!(now < 1000 + GIVEN_UP);
        assert_eq!(probes.next_deadline(), Some(1000 + GIVEN_UP));
        assert_eq!(probes.due(1000 + GIVEN_UP), [Due::GiveUp(7, vnic)]);
        // Nothing was sent, as it turns out: its port was not there yet.
        probes.start_again(vnic, 2000 + GIVEN_UP);
        assert_eq!(probes.due(2000 + GIVEN_UP), [Due::Send(7, vnic, to, 0)]);
        assert_eq!(probes.next_deadline(), Some(2000 + GIVEN_UP + TRIES[1]));
        probes.forget(7);
        assert_eq!(probes.next_deadline(), None);
    }

    #[test]
    fn silence_while_we_stood_still_is_no_answer() {
        let vnic = VnicId(1);
        let pulses = ThreadPulses::default();
        let engine = pulses.vital("engine");
        let mut probes = Probes::new(pulses);
        let start = |probes: &mut Probes| {
            probes.start(7, vnic, 0, "10.0.0.1".parse().unwrap(), 1);
            TRIES.iter().for_each(|at| assert_eq!(probes.due(1 + at).len(), 1));
        };
        // A hearing thread stays in one iteration for longer than a probe lasts.
        engine.work();
        start(&mut probes);
        let mut now = 1 + GIVEN_UP;
        for _ in 0..50 {
            assert_eq!(probes.due(now), []);
            now = probes.next_deadline().unwrap();
        }
        // The thread goes on: what it received has time to arrive.
        engine.rest();
        assert_eq!(probes.due(now), []);
        now = probes.next_deadline().unwrap();
        assert_eq!(probes.due(now), [Due::GiveUp(7, vnic)]);
        // We come late.
        probes.forget(7);
        start(&mut probes);
        now = 1 + GIVEN_UP + 9 * LISTEN_ON;
        assert_eq!(probes.due(now), []);
        assert_eq!(probes.due(now + LISTEN_ON), []);
        assert_eq!(probes.due(now + 2 * LISTEN_ON), [Due::GiveUp(7, vnic)]);
        // Not for ever.
        probes.forget(7);
        engine.work();
        start(&mut probes);
        now = 1 + GIVEN_UP;
        while probes.due(now).is_empty() {
            now = probes.next_deadline().unwrap();
            assert!(now < LISTEN_MOST + 2 * LISTEN_ON);
        }
        assert!(now >= LISTEN_MOST);
    }

    #[test]
    fn a_probe_that_a_flood_may_have_hidden_is_sent_again_a_few_times() {
        let (vnic, other) = (VnicId(1), VnicId(2));
        let mut probes = Probes::default();
        probes.start(7, vnic, 0, "10.0.0.1".parse().unwrap(), 1);
        let mut now = 1;
        let mut sent = 0;
        for round in 0..ROUNDS_MAX {
            probes.set_lost(7, vec![(vnic, 5), (other, round)]);
            let same = |at: VnicId| if at == vnic { 5 } else { round };
            assert!(!probes.may_be_lost(7, same));
            assert!(probes.may_be_lost(7, |at| same(at) + u32::from(at == other)));
            loop {
                now = probes.next_deadline().unwrap();
                match probes.due(now)[..] {
                    [Due::Send(..)] => sent += 1,
                    [Due::GiveUp(..)] => break,
                    ref other => panic!("{other:?}"),
                }
            }
            assert_eq!(probes.repeat(7, now), round + 1 < ROUNDS_MAX);
        }
        assert_eq!(sent, TRIES.len() * ROUNDS_MAX as usize);
        assert!(now < 1 + u64::from(ROUNDS_MAX) * (GIVEN_UP + MILLISECOND));
        assert!(!probes.may_be_lost(8, |_| 1) && !probes.repeat(8, now));
    }

    #[test]
    fn probes_that_are_not_due_cost_no_work() {
        let vnic = VnicId;
        let mut probes = Probes::default();
        let to = "10.0.0.1".parse().unwrap();
        for id in 0..1000 {
            probes.start(id, vnic(id as u64 % 10), 0, to, 1000 * id as u64);
        }
        assert_eq!(probes.due(0).len(), 1);
        assert_eq!(probes.next_deadline(), Some(1000));
        // Very late: all the same one thing at a time for each.
        assert_eq!(probes.due(u64::MAX / 2).len(), 1000);
        assert_eq!(probes.deadlines.len(), 1000);
        assert_eq!(probes.of(vnic(3)).len(), 100);
        let now = u64::MAX / 2 + 5;
        probes.start_again(vnic(3), now);
        assert_eq!(probes.deadlines.len(), 1000);
        for id in 0..1000 {
            probes.forget(id);
            probes.forget(id);
        }
        assert!(probes.deadlines.is_empty() && probes.by_vnic.is_empty());
        assert!(probes.under_way.is_empty());
    }
}
