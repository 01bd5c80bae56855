//! Tests what loss costs at each MTU, against a table that changes only on purpose.
//!
//! `OMNIVERB_UPDATE=1` writes it anew.

use crate::model::Plan;
use crate::scenario::PROMPT;
use crate::simulated_hosts::{Scenario, World};
use omniverb_terms::Qpn;
use omniverb_transport::fault_injection::Faults;
use omniverb_transport::splitmix64::Random;
use omniverb_transport::{Config, Status};
use std::fmt::Write;
use std::rc::Rc;

fn scenario(path_mtu: usize, loss: u64) -> Scenario {
    let seed = 2;
    let mut random = Random::new(seed);
    let config = |index: u32| Config { path_mtu, ..Config::new(Qpn(0x11 + index)) };
    let faults =
        Faults { loss: 100 * loss, delay: (10_000, 10_000), byte_time: 800, ..Faults::default() };
    let plan = Rc::new(Plan::new(seed, &mut random, 150, 60_000));
    let quiet = Rc::new(Plan::new(seed, &mut random, 0, 0));
    let (configs, manners) = ([config(1), config(0)], [PROMPT, PROMPT]);
    Scenario {
        seed,
        configs,
        faults,
        manners,
        plans: [plan, quiet],
        paces: [0; 2],
        stops: [const { Vec::new() }; 2],
        limit: 100_000_000_000,
    }
}

#[test]
fn prints_the_cost_of_loss_by_mtu() {
    let mut table = String::from(" MTU  loss%      us  packets  PSNs again\n");
    for path_mtu in [256, 512, 1024, 2048, 4096] {
        for loss in [0, 10, 100, 500, 1000] {
            let outcome = World::new(&scenario(path_mtu, loss)).run();
            assert!(outcome.statuses[0].iter().all(|status| *status == Status::Success));
            let percent = loss as f64 / 100.0;
            let (time, sent, resent) = (outcome.time / 1000, outcome.sent, outcome.resent);
            let _ = writeln!(table, "{path_mtu:4} {percent:6.1} {time:7} {sent:8} {resent:11}");
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/simulator/loss_cost_table.txt");
    if std::env::var_os("OMNIVERB_UPDATE").is_some() {
        std::fs::write(path, &table).unwrap();
    }
    let stored = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(table, stored, "\n{table}");
}
