//! Makes from a seed everything that a run depends on.

use crate::application::Behaviour;
use crate::model::Plan;
use crate::simulated_hosts::Scenario;
use omniverb_terms::{Psn, Qpn};
use omniverb_transport::fault_injection::Faults;
use omniverb_transport::splitmix64::Random;
use omniverb_transport::{
    Acknowledgements, AddressedPackets, Config, DelayNotices, GoneReads, Time,
};
use std::rc::Rc;

/// Polite: answers at once, always has receives.
pub const PROMPT: Behaviour = Behaviour {
    late: 0,
    stall: 0,
    pause: 1,
    scarce: false,
    reports_late: false,
    refuses: None,
    forgets: false,
};

/// Two configurations that fit each other.
pub fn configs(random: &mut Random, path_mtu: usize) -> [Config; 2] {
    // Half of the connections begin close to the wrap.
    let mut psn = || {
        Psn::new(match random.below(2) {
            0 => (0xff_ffff - random.below(40)) as u32,
            _ => random.below(1 << 24) as u32,
        })
    };
    let psns = [psn(), psn()];
    // Both ends know of the other what it is, or none does; of some one has had no answer.
    let known = random.chance(5000);
    let apart = psns[0].number().is_multiple_of(5);
    let kind = |index: usize| match known != (apart && index == 1) {
        true => (AddressedPackets::Every, GoneReads::Refused),
        false => (AddressedPackets::First, GoneReads::Unanswered),
    };
    let depths = [random.between(1, 16) as usize, random.between(1, 16) as usize];
    let mut config = |index: usize| Config {
        path_mtu,
        sq_psn: psns[index],
        rq_psn: psns[1 - index],
        max_rd_atomic: depths[1 - index],
        max_dest_rd_atomic: depths[index],
        min_rnr_timer: random.between(1, 16) as u8,
        timeout: random.between(14, 17) as u8,
        window: random.pick(&[1, 2, 7, 32, 128, 128, 1000]),
        unanswered_max: random.pick(&[1, 4, 32, 256]),
        early_timeout: random.pick(&[200_000, 1_000_000, 4_000_000]),
        delay_target: random.chance(7000).then_some(500_000),
        window_floor: random.pick(&[1, 4, 8, 1000]),
        acknowledgements: match random.chance(5000) {
            true => Acknowledgements::Behind,
            false => Acknowledgements::First,
        },
        naming: kind(index).0,
        gone_reads: kind(index).1,
        burst: random.pick(&[1, 1, 4, 64]),
        ask_every: random.pick(&[None, None, Some(16), Some(200)]),
        acknowledge_every: random.pick(&[1, 32, 500]),
        delay_notices: match psns[index].number() % 2 {
            0 => DelayNotices::Agreed,
            _ => DelayNotices::Unknown,
        },
        // Receives are never missing for that long.
        receiver_late: 20_000_000_000,
        rnr_retry: if psns[index].number().is_multiple_of(3) { 0 } else { 7 },
        ..Config::new(Qpn(0x11 + index as u32))
    };
    [config(0), config(1)]
}

/// Any terms, network and messages that a seed leads to; the same seed gives the same.
pub fn random_scenario(seed: u64) -> Scenario {
    let mut random = Random::new(seed);
    let path_mtu = random.pick(&[256, 256, 512, 1024, 2048, 4096]);
    let configs = configs(&mut random, path_mtu);
    let chance = |random: &mut Random, most: u64| match random.below(3) {
        0 => 0,
        1 => random.below(most / 10 + 1),
        _ => random.below(most + 1),
    };
    let delay = random.pick(&[1000, 20_000, 300_000]);
    let mut partitions = Vec::new();
    for _ in 0..random.below(3) {
        let begin: Time = random.below(20_000_000);
        partitions.push((begin, begin + random.below(30_000_000)));
    }
    let delay = (delay, delay + random.below(delay * 2));
    let faults = Faults {
        loss: 100 * chance(&mut random, 1000),
        duplication: 100 * chance(&mut random, 1000),
        corruption: 100 * chance(&mut random, 500),
        reordering: 100 * chance(&mut random, 1000),
        reorder_delay: 4 * delay.1,
        marking: 100 * chance(&mut random, 300),
        delay,
        partitions,
        byte_time: random.pick(&[0, 800, 8000]),
        queue: random.pick(&[0, 0, 500_000]),
        limit: 0,
    };
    let mut manners = || Behaviour {
        late: chance(&mut random, 8000),
        stall: chance(&mut random, 400),
        pause: random.pick(&[1000, 50_000, 1_000_000]),
        scarce: random.chance(5000),
        reports_late: random.chance(5000),
        refuses: None,
        forgets: !seed.is_multiple_of(3),
    };
    let manners = [manners(), manners()];
    let longest = random.pick(&[300, 5000, 40_000]);
    let mut plan = || {
        let count = random.between(0, if longest > 5000 { 20 } else { 60 }) as usize;
        Rc::new(Plan::new(seed, &mut random, count, longest))
    };
    let plans = [plan(), plan()];
    // Some hosts may send 10 or 100 Mbit/s.
    let paces = [0; 2].map(|_| random.pick(&[0, 0, 0, 800_000, 80_000]));
    // And some have threads that do not run for a while, which is no reason to give up.
    let mut stops = || match random.below(3) {
        0 => {
            let begin: Time = random.below(20_000_000);
            vec![(begin, begin + random.pick(&[3_000_000, 50_000_000, 200_000_000]))]
        }
        _ => Vec::new(),
    };
    let stops = [stops(), stops()];
    Scenario { seed, configs, faults, manners, plans, paces, stops, limit: 120_000_000_000 }
}

/// A network whose only fault is one partition.
pub fn lossless_partition(
    seed: u64,
    timeout: u8,
    retry_count: u8,
    partition: (Time, Time),
) -> Scenario {
    let mut random = Random::new(seed);
    // Room for everything: a packet that is turned away costs its sender a retry.
    let configs = configs(&mut random, 1024).map(|config| Config {
        timeout,
        retry_count,
        window: 128,
        unanswered_max: 256,
        ..config
    });
    let faults =
        Faults { delay: (10_000, 10_000), partitions: vec![partition], ..Faults::default() };
    let mut plan = || Rc::new(Plan::new(seed, &mut random, 30, 5000));
    let plans = [plan(), plan()];
    let manners = [PROMPT, PROMPT];
    let (paces, stops) = ([0; 2], [const { Vec::new() }; 2]);
    Scenario { seed, configs, faults, manners, plans, paces, stops, limit: 10_000_000_000 }
}
