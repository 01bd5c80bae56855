//! Threads that do not run for a while: nobody is given up for that, and hardly anything is sent
//! twice.

use crate::model::Plan;
use crate::scenario::PROMPT;
use crate::simulated_hosts::{Outcome, Scenario, World};
use omniverb_terms::Qpn;
use omniverb_transport::fault_injection::Faults;
use omniverb_transport::splitmix64::Random;
use omniverb_transport::{Config, Status, Time};
use std::rc::Rc;

const MS: Time = 1_000_000;

/// Both ends ask for everything; each has so many retries, and stops now and then for so long.
fn run(seed: u64, retries: [u8; 2], stops: [Time; 2], faults: Faults) -> Outcome {
    let config = |index: usize| Config {
        // As the engine has it. 67 ms.
        timeout: 14,
        retry_count: retries[index],
        early_timeout: 8 * MS,
        delay_target: Some(8 * MS),
        window: 128,
        window_floor: 64,
        ask_every: (index == 0).then_some(64),
        ..Config::new(Qpn(0x12 - index as u32))
    };
    let mut random = Random::new(seed);
    let mut plan = || Rc::new(Plan::new(seed, &mut random, 60, 60_000));
    let plans = [plan(), plan()];
    let stops = stops.map(|time| {
        let begin = |round: u64| round * (2 * time + 3 * MS) + random.below(2 * MS);
        match time {
            0 => Vec::new(),
            _ => (0..6).map(begin).map(|begin| (begin, begin + time)).collect(),
        }
    });
    World::new(&Scenario {
        seed,
        configs: [config(0), config(1)],
        faults,
        manners: [PROMPT; 2],
        plans,
        paces: [0; 2],
        stops,
        limit: 60_000 * MS,
    })
    .run()
}

fn all_is_well(outcome: &Outcome) -> bool {
    outcome.statuses.iter().flatten().all(|status| *status == Status::Success)
}

/// A line of 1 Gbit/s, so that there is much under way when a host stops.
fn line() -> Faults {
    Faults { delay: (10_000, 10_000), byte_time: 8000, ..Faults::default() }
}

#[test]
fn a_peer_that_stops_for_50_ms_is_waited_for() {
    for seed in 0..20 {
        let outcome = run(seed, [0, 0], [0, 50 * MS], line());
        assert!(all_is_well(&outcome), "seed {seed}: {:?}", outcome.statuses);
        // Once or twice in each of six stops, READs with all they bring.
        assert!(outcome.resent * 5 < outcome.sent, "{} of {}", outcome.resent, outcome.sent);
    }
}

#[test]
fn a_stop_of_200_ms_does_not_blame_the_peer() {
    for seed in 0..20 {
        let outcome = run(seed, [0, 7], [200 * MS, 0], line());
        assert!(all_is_well(&outcome), "seed {seed}: {:?}", outcome.statuses);
    }
}

#[test]
fn a_busy_machine_loses_no_connection() {
    for seed in 0..20 {
        let faults = Faults { loss: 1000, ..line() };
        let outcome = run(seed, [7, 7], [200 * MS, 50 * MS], faults);
        assert!(all_is_well(&outcome), "seed {seed}: {:?}", outcome.statuses);
    }
}
