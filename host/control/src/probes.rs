//! Handshake datagrams: how they look, and when they are sent.
//!
//! They travel to UDP port 4791, where any RoCE v2 device listens, and are made so that none will
//! take them for its own: base transport header version 15 (only 0 exists), a manufacturer's
//! opcode, destination queue pair 0, and no valid checksum. Devices drop such packets without an
//! answer.

use omniverb_sys::pulse::{Mark, Pulses};
use omniverb_tenancy::{ProbeId, VnicId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Bytes of a handshake datagram: a base transport header, our mark, the probe's number, and, where
/// a checksum would be, four zero bytes or the features of who replies.
pub(crate) const DATAGRAM_BYTES: usize = 40;

const HEADER: [u8; 12] = [0xff, 0x0f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const PROBE: [u8; 8] = *b"omniver1";
const REPLY: [u8; 8] = *b"omniver2";

/// What such a datagram says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handshake {
    /// Asks who is there: the number is drawn for it, and valid once.
    Probe(ProbeId),
    /// Another Omniverb, which can do this.
    Reply(ProbeId, u32),
}

const MILLISECOND: u64 = 1_000_000;
/// When a datagram goes out, counted from the start. The first may wait for address resolution.
const TRIES: [u64; 3] = [0, 30 * MILLISECOND, 100 * MILLISECOND];
/// When nobody is there.
const GIVEN_UP: u64 = 300 * MILLISECOND;
/// Who hears handshakes are threads of ours. When one of them stood still meanwhile, or we did,
/// silence says nothing: so much longer is listened after that, and so long in all.
const LISTEN_ON: u64 = 100 * MILLISECOND;
const LISTEN_MOST: u64 = 30_000 * MILLISECOND;
/// Later than this we were standing still ourselves.
const LATE: u64 = 50 * MILLISECOND;

fn write(mark: [u8; 8], id: ProbeId, features: u32) -> [u8; DATAGRAM_BYTES] {
    let mut bytes = [0; DATAGRAM_BYTES];
    bytes[..12].copy_from_slice(&HEADER);
    bytes[12..20].copy_from_slice(&mark);
    bytes[20..36].copy_from_slice(&id.to_be_bytes());
    bytes[36..].copy_from_slice(&features.to_be_bytes());
    bytes
}

/// The datagram of a probe.
pub(crate) fn datagram(id: ProbeId) -> [u8; DATAGRAM_BYTES] {
    write(PROBE, id, 0)
}

/// The reply to it: not longer, so that nobody gains by having us send it elsewhere.
pub(crate) fn reply(id: ProbeId, features: u32) -> [u8; DATAGRAM_BYTES] {
    write(REPLY, id, features)
}

/// What a datagram says, if it is one of these.
pub(crate) fn read(bytes: &[u8]) -> Option<Handshake> {
    let bytes: &[u8; DATAGRAM_BYTES] = bytes.try_into().ok()?;
    let id = ProbeId::from_be_bytes(bytes[20..36].try_into().ok()?);
    let last = u32::from_be_bytes(bytes[36..].try_into().ok()?);
    match (bytes[..12] == HEADER, &bytes[12..20]) {
        (true, mark) if mark == PROBE && last == 0 => Some(Handshake::Probe(id)),
        (true, mark) if mark == REPLY => Some(Handshake::Reply(id, last)),
        _ => None,
    }
}

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
    /// Where those who hear were at the last try; `None`: they have gone on since.
    heard: Option<Mark>,
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
    pulses: Pulses,
    under_way: BTreeMap<ProbeId, Probe>,
    /// The same, by when something is due. Those that were given up are in here no more.
    deadlines: BTreeSet<(u64, ProbeId)>,
    by_vnic: BTreeSet<(VnicId, ProbeId)>,
}

/// What is due for a probe.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Send its datagram.
    Send(ProbeId, VnicId, IpAddr, u32),
    /// It is over, unless its vNIC has no port yet: then nothing was asked.
    GiveUp(ProbeId, VnicId),
}

impl Probes {
    /// `pulses`: of the threads that answers come through.
    pub(crate) fn new(pulses: Pulses) -> Probes {
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
        let probe = Probe { vnic, interface, destination, source, begun, tries, heard, due };
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

    /// What is due now; each thing once, and no work for what is not.
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
    fn only_our_own_datagrams_count() {
        let id = 0x1234_5678_9abc_def0_1122_3344_5566_7788;
        let bytes = datagram(id);
        assert_eq!(read(&bytes), Some(Handshake::Probe(id)));
        assert_eq!(read(&reply(id, 9)), Some(Handshake::Reply(id, 9)));
        for at in (0..20).chain(36..40) {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(read(&other), None);
        }
        assert_eq!(read(&bytes[..39]), None);
        assert_eq!(read(&[]), None);
    }

    #[test]
    fn three_tries_then_the_end() {
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
    fn silence_while_we_stood_still_ourselves_says_nothing() {
        let vnic = VnicId(1);
        let pulses = Pulses::default();
        let engine = pulses.vital("engine");
        let mut probes = Probes::new(pulses);
        let start = |probes: &mut Probes| {
            probes.start(7, vnic, 0, "10.0.0.1".parse().unwrap(), 1);
            TRIES.iter().for_each(|at| assert_eq!(probes.due(1 + at).len(), 1));
        };
        // Somebody who hears stands in one turn, for longer than a probe lasts.
        engine.work();
        start(&mut probes);
        let mut now = 1 + GIVEN_UP;
        for _ in 0..50 {
            assert_eq!(probes.due(now), []);
            now = probes.next_deadline().unwrap();
        }
        // It goes on: what it heard has time to arrive.
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
    fn what_is_not_due_is_no_work() {
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
