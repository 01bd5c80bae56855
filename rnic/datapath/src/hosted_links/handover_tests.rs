//! Two hosts pass a busy connection on to others, again and again, over a line that loses, doubles
//! and reorders. Whatever happens, every byte is in its place, once, and atomics are exact.

mod verifying_application;

use self::verifying_application::{Application, Behaviour, memory};
use super::*;
use crate::handover::{Handover, STATE_BYTES_MAX};
use crate::pages::mapped_pages::NoPages;
use crate::peer_features;
use crate::testing::end;
use omniverb_link::layout::REQUEST_BYTES_MIN;
use omniverb_ring::{UserMemory, WordMemory};
use omniverb_transport::splitmix64::Random;
use std::net::{IpAddr, Ipv4Addr};

const QPN: Qpn = Qpn(100);
const STEP: u64 = 20_000;
const SEEDS: u64 = 24;
/// Steps within which a link comes to rest: 200 ms.
const REST_STEPS: u64 = 200_000_000 / STEP;

fn flow(from: usize) -> IcrcFlow {
    let address = |host: usize| IpAddr::from(Ipv4Addr::new(10, 0, 0, host as u8 + 1));
    IcrcFlow { source: address(from), destination: address(1 - from), source_port: 0xc000 }
}

/// One side: an application, and the host of its link, if there is one now.
struct Side {
    number: usize,
    features: u32,
    memory: omniverb_ring::Window,
    application: Application,
    links: HostedLinks<NoPages>,
    /// It is being brought to rest for so many steps.
    resting: Option<u64>,
    /// The link has no host for so many steps; then one that begins so.
    between: Option<(u64, Vec<u8>)>,
    handovers: u64,
    longest_rest: u64,
    bytes_most: usize,
    /// Changed states that a host went on with.
    misused: u64,
}

impl Side {
    fn new(number: usize, features: u32, behaviour: Behaviour) -> Side {
        let memory = memory();
        let application = Application::new(&memory, behaviour);
        let mut side = Side {
            number,
            features,
            memory,
            application,
            links: HostedLinks::new(0, 16, Allowance::default()),
            resting: None,
            between: None,
            handovers: 0,
            longest_rest: 0,
            bytes_most: 0,
            misused: 0,
        };
        side.links.attach(side.end());
        side
    }

    fn end(&self) -> LinkEnd {
        LinkEnd {
            endpoint: end(&self.memory, 1).unwrap(),
            request_bytes: REQUEST_BYTES_MIN,
            qpn: QPN,
            peer_qpn: QPN,
            flow: flow(self.number),
            peer_port: 4791,
            features: self.features,
        }
    }

    /// One turn; datagrams that leave.
    fn turn(&mut self, clock: u64, company: Company) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        self.links.touch(0);
        let now = self.links.now(clock);
        self.links.has_read_all();
        self.links.turn(now, company, |_, train, segment| {
            sent.extend(train.chunks(segment).map(<[u8]>::to_vec));
        });
        assert_eq!(self.links.next_failure(), None);
        sent
    }

    fn hear(&mut self, clock: u64, datagram: &[u8]) {
        let now = self.links.now(clock);
        let from = flow(1 - self.number);
        self.links.arrived(now, &from, Ecn::Unmarked, (datagram, datagram.len()));
    }

    /// A host goes on, with a copy of the link, in a state that was changed: whatever comes of it,
    /// it does not panic.
    fn misuse(&self, bytes: &[u8], random: &mut Random, datagrams: &[Vec<u8>]) -> bool {
        let mut bytes = bytes.to_vec();
        for _ in 0..random.between(1, 3) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = match random.below(3) {
                0 => random.next() as u8,
                1 => bytes[at].wrapping_add(1),
                _ => bytes[at].wrapping_sub(1),
            };
        }
        let Ok(handover) = Handover::from_bytes(&bytes) else { return false };
        let copy = memory();
        let mut all = vec![0; copy.length()];
        UserMemory::lend_mut(&mut all, |to| self.memory.drain(0, to));
        UserMemory::lend(&all, |from| copy.fill(0, from));
        let mut links: HostedLinks<NoPages> = HostedLinks::new(0, 16, Allowance::default());
        let place = LinkEnd { endpoint: end(&copy, 1).unwrap(), ..self.end() };
        if links.attach_restored(place, &handover).is_err() {
            return false;
        }
        for step in 0..40 {
            let now = links.now(1_000_000 + step * 1_000_000);
            links.has_read_all();
            for datagram in datagrams {
                let from = flow(1 - self.number);
                links.arrived(now, &from, Ecn::Unmarked, (datagram, datagram.len()));
            }
            links.turn(now, Company::None, |_, _, _| {});
        }
        true
    }

    /// Takes the link from its host if that is possible, and gives it to another one.
    fn hand_over(&mut self, clock: u64, random: &mut Random, recent: &[Vec<u8>]) {
        if let Some((steps, bytes)) = self.between.take() {
            if steps > 0 {
                self.between = Some((steps - 1, bytes));
                return;
            }
            let handover = Handover::from_bytes(&bytes).unwrap();
            assert_eq!(handover.to_bytes().unwrap(), bytes);
            if random.below(8) == 0 {
                self.misused += u64::from(self.misuse(&bytes, random, recent));
            }
            self.links.attach_restored(self.end(), &handover).unwrap();
            self.handovers += 1;
        }
        let Some(steps) = self.resting else { return };
        let now = self.links.now(clock);
        match self.links.export(QPN, now) {
            Some(handover) => {
                let bytes = handover.to_bytes().unwrap();
                assert!(self.links.is_empty() && !self.links.is_busy());
                assert!(bytes.len() <= STATE_BYTES_MAX);
                self.bytes_most = self.bytes_most.max(bytes.len());
                self.resting = None;
                let steps = if random.between(0, 1) == 0 { 0 } else { random.between(0, 30) };
                self.between = Some((steps, bytes));
            }
            None => {
                assert!(steps < REST_STEPS, "it does not come to rest");
                self.longest_rest = self.longest_rest.max(steps);
                self.resting = Some(steps + 1);
            }
        }
    }
}

#[derive(Default)]
struct Totals {
    handovers: u64,
    operations: u64,
    longest_rest: u64,
    bytes_most: usize,
    misused: u64,
}

/// Sends so many operations both ways, with a handover of either side every so many steps.
fn run(seed: u64, count: usize, every: u64) -> Totals {
    let mut random = Random::new(seed);
    let features = if seed % 4 == 3 { 0 } else { peer_features::ALL };
    let [loss, doubles, late] = match seed % 3 {
        0 => [0; 3],
        1 => [2, 1, 20],
        _ => [6, 5, 50],
    };
    let mut sides = [0, 1].map(|number| {
        let behaviour = Behaviour {
            is_promising: random.between(0, 1) == 0,
            is_slow: random.between(0, 1) == 0,
            is_short_of_receives: random.between(0, 2) == 0,
        };
        Side::new(number, features, behaviour)
    });
    // Datagrams on their way, by the step in which they arrive.
    let mut line: Vec<(u64, usize, Vec<u8>)> = Vec::new();
    // Datagrams that have come to each side.
    let mut recent = [Vec::new(), Vec::new()];
    let mut left = [count; 2];
    let (mut clock, mut quiet) = (1_000_000, 0);
    for step in 0.. {
        assert!(step < 4_000_000, "{left:?} left");
        for (number, side) in sides.iter_mut().enumerate() {
            while left[number] > 0 && random.between(0, 2) > 0 {
                if !side.application.post(&mut random) {
                    break;
                }
                left[number] -= 1;
            }
            side.application.go_on_posting(&mut random);
            let company = if random.between(0, 1) == 0 { Company::None } else { Company::MayCome };
            for datagram in side.turn(clock, company) {
                if random.between(1, 100) <= loss {
                    continue;
                }
                let copies = 1 + u64::from(random.between(1, 100) <= doubles);
                for _ in 0..copies {
                    let delay =
                        if random.between(1, 100) <= late { random.between(1, 20) } else { 1 };
                    line.push((step + delay, 1 - number, datagram.clone()));
                }
            }
        }
        // In the order in which they were sent, if they arrive in one step.
        let (now, later) = std::mem::take(&mut line).into_iter().partition(|(at, ..)| *at <= step);
        line = later;
        let now: Vec<(u64, usize, Vec<u8>)> = now;
        let mut news = !now.is_empty();
        for (_, to, datagram) in now {
            sides[to].hear(clock, &datagram);
            if recent[to].len() == 16 {
                recent[to].remove(0);
            }
            recent[to].push(datagram);
        }
        for side in 0..2 {
            if every > 0 && random.between(1, every) == 1 && sides[side].between.is_none() {
                sides[side].resting.get_or_insert(0);
                sides[side].links.rest(QPN);
            }
            sides[side].hand_over(clock, &mut random, &recent[side]);
            let most = random.between(0, 3) * random.between(0, 6);
            let [one, other] = &mut sides;
            let (own, peer) = if side == 0 { (one, other) } else { (other, one) };
            news |= own.application.serve(&mut peer.application.asked, most, &mut random);
            news |= own.application.hear(&mut random);
        }
        let over = left == [0; 2]
            && line.is_empty()
            && sides.iter_mut().all(|side| {
                side.between.is_none() && side.resting.is_none() && side.application.is_idle()
            });
        quiet = if news { 0 } else { quiet + 1 };
        if over {
            break;
        }
        // Nothing but a timer is waited for.
        clock += if quiet > 20 { 20 * STEP } else { STEP };
    }
    let [one, other] = &sides;
    one.application.compare(&other.application);
    other.application.compare(&one.application);
    Totals {
        handovers: one.handovers + other.handovers,
        operations: 2 * count as u64,
        longest_rest: one.longest_rest.max(other.longest_rest),
        bytes_most: one.bytes_most.max(other.bytes_most),
        misused: one.misused + other.misused,
    }
}

#[test]
fn nothing_is_lost_doubled_or_changed_by_a_thousand_handovers() {
    let mut all = Totals::default();
    for seed in 0..SEEDS {
        println!("seed {seed}"); // shown if it fails
        let totals = run(seed, 150, [15, 60, 250][seed as usize % 3]);
        all.handovers += totals.handovers;
        all.operations += totals.operations;
        all.longest_rest = all.longest_rest.max(totals.longest_rest);
        all.bytes_most = all.bytes_most.max(totals.bytes_most);
        all.misused += totals.misused;
    }
    let Totals { handovers, operations, longest_rest, bytes_most, misused } = all;
    println!(
        "{handovers} handovers, {operations} operations, {longest_rest} steps, {bytes_most} B"
    );
    assert!(handovers > 1000 && misused > 20, "only {handovers} handovers, {misused} misused");
}

#[test]
fn without_handovers_the_same_holds() {
    for seed in 0..6 {
        run(seed, 150, 0);
    }
}

/// A READ that the application does not answer keeps a link from its rest. Then its host gives up,
/// and the peer learns what it learns of a process that has died.
#[test]
fn a_link_that_does_not_come_to_rest_fails_as_if_its_process_had_died() {
    let polite = Behaviour { is_promising: true, is_slow: false, is_short_of_receives: false };
    let mut sides = [0, 1].map(|number| Side::new(number, peer_features::ALL, polite));
    let mut clock = 1_000_000;
    sides.iter_mut().for_each(|side| drop(side.turn(clock, Company::None)));
    let [asker, silent] = &mut sides;
    asker.application.read(700);
    let sent = asker.turn(clock, Company::None);
    sent.iter().for_each(|datagram| silent.hear(clock, datagram));
    silent.links.rest(QPN);
    for _ in 0..REST_STEPS {
        clock += STEP;
        silent.turn(clock, Company::None);
        let now = silent.links.now(clock);
        assert_eq!(silent.links.export(QPN, now), None);
    }
    silent.links.detach(QPN);
    assert!(silent.application.is_closed());
    let failure = loop {
        clock += 1_000_000;
        let now = asker.links.now(clock);
        asker.links.has_read_all();
        asker.links.turn(now, Company::None, |_, _, _| {});
        if let Some(failure) = asker.links.next_failure() {
            break failure;
        }
        assert!(clock < 60_000_000_000);
    };
    assert_eq!(failure, (QPN, QPN, Status::RetryExceeded));
}

/// Two sides that come to rest at once do not wait for each other.
#[test]
fn both_sides_rest_at_once_with_requests_under_way() {
    let polite = Behaviour { is_promising: true, is_slow: false, is_short_of_receives: false };
    let mut sides = [0, 1].map(|number| Side::new(number, peer_features::ALL, polite));
    let mut random = Random::new(5);
    let clock = 1_000_000;
    for side in &mut sides {
        side.turn(clock, Company::None);
        while side.application.post(&mut random) {}
        side.turn(clock, Company::None);
        side.links.rest(QPN);
        assert!(side.links.is_busy());
        side.resting = Some(0);
        side.hand_over(clock, &mut random, &[]);
        assert!(side.between.is_some());
    }
}

/// READs that bring more than the application takes do not keep a link from its rest.
#[test]
fn a_link_rests_in_the_middle_of_long_reads() {
    let slow = Behaviour { is_promising: true, is_slow: false, is_short_of_receives: false };
    let mut sides = [0, 1].map(|number| Side::new(number, peer_features::ALL, slow));
    let mut random = Random::new(1);
    let mut clock = 1_000_000;
    sides.iter_mut().for_each(|side| drop(side.turn(clock, Company::None)));
    let [asker, holder] = &mut sides;
    (0..12).for_each(|_| asker.application.read(12_000));
    let mut steps = 0;
    let handover = loop {
        steps += 1;
        clock += STEP;
        let sent = asker.turn(clock, Company::None);
        sent.iter().for_each(|datagram| holder.hear(clock, datagram));
        holder.application.serve(&mut asker.application.asked, 9, &mut random);
        let sent = holder.turn(clock, Company::None);
        sent.iter().for_each(|datagram| asker.hear(clock, datagram));
        let now = asker.links.now(clock);
        if steps == 12 {
            assert_eq!(asker.links.export(QPN, now), None, "there is more than fits into the ring");
            asker.links.rest(QPN);
        }
        if steps > 12 {
            asker.application.hear(&mut random);
            if let Some(handover) = asker.links.export(QPN, now) {
                break handover;
            }
        }
        assert!(steps < 100, "it does not come to rest");
    };
    assert!(!handover.sending.unwrap().requester.extents.is_empty(), "all READs are over");
}

/// Requests that are held stay in the ring; all else goes on.
#[test]
fn held_requests_leave_when_they_are_released() {
    let polite = Behaviour { is_promising: true, is_slow: false, is_short_of_receives: false };
    let mut sides = [0, 1].map(|number| Side::new(number, peer_features::ALL, polite));
    let clock = 1_000_000;
    let [holding, other] = &mut sides;
    holding.links.hold_requests(QPN, true);
    holding.turn(clock, Company::None);
    other.turn(clock, Company::None);
    holding.application.read(700);
    other.application.read(700);
    assert!(holding.turn(clock, Company::None).is_empty());
    let sent = other.turn(clock, Company::None);
    sent.iter().for_each(|datagram| holding.hear(clock, datagram));
    let mut random = Random::new(1);
    assert!(holding.application.serve(&mut other.application.asked, 9, &mut random));
    assert_eq!(holding.turn(clock, Company::None).len(), 3, "the peer's READ is answered");
    holding.links.hold_requests(QPN, false);
    assert_eq!(holding.turn(clock, Company::None).len(), 1);
}

/// The last words of an application: what it consumed before it went is acknowledged.
#[test]
fn last_words_leave_before_a_link_ends() {
    let polite = Behaviour { is_promising: false, is_slow: false, is_short_of_receives: false };
    let mut sides = [0, 1].map(|number| Side::new(number, peer_features::ALL, polite));
    let clock = 1_000_000;
    sides.iter_mut().for_each(|side| drop(side.turn(clock, Company::None)));
    let mut random = Random::new(1);
    let [sender, leaver] = &mut sides;
    sender.application.send(&[7; 9]);
    let sent = sender.turn(clock, Company::None);
    sent.iter().for_each(|datagram| leaver.hear(clock, datagram));
    assert!(leaver.turn(clock, Company::None).is_empty(), "it was not consumed");
    leaver.application.serve(&mut sender.application.asked, 99, &mut random);
    leaver.application.close();
    let now = leaver.links.now(clock);
    let mut acknowledged = 0;
    leaver.links.detach_with_last_words(QPN, now, |_, train, segment| {
        acknowledged += train.len().div_ceil(segment);
    });
    assert!(acknowledged > 0 && leaver.links.is_empty());
}
