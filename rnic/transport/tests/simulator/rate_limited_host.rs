//! A host that may send only so much: nothing is sent again because it takes its time.

use crate::model::{Item, Plan};
use crate::scenario::PROMPT;
use crate::simulated_hosts::{Outcome, Scenario, World};
use omniverb_terms::Qpn;
use omniverb_transport::fault_injection::Faults;
use omniverb_transport::splitmix64::Random;
use omniverb_transport::{Config, DelayNotices, Operation, Status, Time};
use std::rc::Rc;

const SEED: u64 = 4;
/// Bits per second.
const RATES: [u64; 6] = [8_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000];

/// Packets that are sent before one asks for an answer, at most.
const ASKED_PACKETS: u64 = 2;

/// What is worth sending at a rate: some seconds of it.
fn plan(random: u64, rate: u64, which: fn(&Item) -> bool) -> Rc<Plan> {
    let (count, longest) = if rate < 1_000_000 { (10, 9000) } else { (100, 60_000) };
    let plan = Plan::new(SEED, &mut Random::new(random), count, longest);
    Rc::new(plan.only(which))
}

fn run(plans: [Rc<Plan>; 2], rates: [u64; 2], faults: Faults) -> Outcome {
    run_with(1024, plans, rates, faults)
}

fn run_with(path_mtu: usize, plans: [Rc<Plan>; 2], rates: [u64; 2], faults: Faults) -> Outcome {
    // As the engine has it.
    let config = |index: u32| Config {
        early_timeout: 8_000_000,
        delay_target: Some(8_000_000),
        window: 256,
        window_floor: 128,
        delay_notices: DelayNotices::Agreed,
        path_mtu,
        ..Config::new(Qpn(0x11 + index))
    };
    let paces = rates.map(|rate| 8_000_000_000_000_u64.checked_div(rate).unwrap_or(0));
    let (configs, manners) = ([config(1), config(0)], [PROMPT, PROMPT]);
    let limit = 1_000_000_000_000;
    let stops = [const { Vec::new() }; 2];
    World::new(&Scenario { seed: SEED, configs, faults, manners, plans, paces, stops, limit }).run()
}

fn line() -> Faults {
    Faults { delay: (10_000, 10_000), byte_time: 800, ..Faults::default() }
}

/// Nobody asks for anything.
fn quiet() -> Rc<Plan> {
    Rc::new(Plan::new(SEED, &mut Random::new(0), 0, 0))
}

fn is_read(item: &Item) -> bool {
    matches!(item.operation, Operation::Read { .. })
}

fn all_is_well(outcome: &Outcome) -> bool {
    outcome.statuses.iter().flatten().all(|status| *status == Status::Success)
}

#[test]
fn a_limited_requester_sends_nothing_twice() {
    for rate in RATES {
        let outcome = run([plan(1, rate, |item| !is_read(item)), quiet()], [rate, 0], line());
        assert!(all_is_well(&outcome));
        assert_eq!(outcome.resent, 0, "at {rate} bit/s");
    }
}

#[test]
fn a_limited_responder_is_not_asked_again() {
    for rate in RATES {
        let reads = run([plan(1, rate, is_read), quiet()], [0, rate], line());
        let acknowledged = run([plan(1, rate, |item| !is_read(item)), quiet()], [0, rate], line());
        let both = run([plan(1, rate, |_| true), plan(2, rate, |_| true)], [rate, rate], line());
        for outcome in [reads, acknowledged, both] {
            assert!(all_is_well(&outcome), "at {rate} bit/s: {:?}", outcome.statuses);
            assert_eq!(outcome.resent, 0, "at {rate} bit/s, of {}", outcome.sent);
        }
    }
}

#[test]
fn a_limited_responder_at_8_kbit_s_finishes() {
    // A full packet takes four seconds, and retries are over after half of one.
    for loss in [0, 20_000] {
        let faults = Faults { loss, ..line() };
        let outcome = run_with(4096, [plan(3, 8_000, |_| true), quiet()], [0, 8_000], faults);
        assert!(all_is_well(&outcome), "{:?}", outcome.statuses);
        assert!(loss > 0 || outcome.resent == 0, "{} of {}", outcome.resent, outcome.sent);
    }
}

#[test]
fn a_limited_waiter_gives_up_all_the_same() {
    for rate in RATES {
        let faults = Faults { partitions: vec![(0, Time::MAX)], ..line() };
        let outcome = run([plan(1, rate, |_| true), quiet()], [rate, 0], faults);
        assert_eq!(outcome.statuses[0][0], Status::RetryExceeded);
        // Eight attempts of 67 ms, or of what a packet takes at that rate; four of each at most.
        let attempt = 67_108_864.max(ASKED_PACKETS * 9_000_000_000_000 / rate);
        assert!(outcome.time <= 32 * attempt, "{} ns at {rate} bit/s", outcome.time);
    }
}
