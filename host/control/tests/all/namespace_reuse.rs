//! Tests that state of a network namespace is not given to a later one with the same inode number.
//!
//! What was said of one namespace, by whatever name, is not said of the next.

use crate::support::namespaces::{Net, is_root};
use crate::support::operator::{Operator, name};
use crate::support::*;
use omniverb_control::Settings;
use omniverb_session::network_fault_text::Faults;
use omniverb_session::operator::{Message as Said, SET_RATE, SetVnic};
use omniverb_tenancy::{Policy, RateLimit};
use omniverb_terms::Errno;
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

fn inode(net: &Net) -> u64 {
    std::fs::metadata(format!("/proc/{}/ns/net", net.pid())).unwrap().ino()
}

/// Tries a scenario until the number it needs is given to it again, and to no other process that
/// makes namespaces on this machine meanwhile.
fn until_it_comes(scenario: impl Fn() -> Option<()>) {
    if is_root() {
        assert!((0..12).any(|_| scenario().is_some()), "no number is given again");
    }
}

/// A namespace with this inode number, once the kernel has freed it. It gives the lowest number
/// that is free, so other free ones have to be taken as well. `None`: another process got it.
fn next_with(number: u64) -> Option<Net> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(8) {
        let mut others = Vec::new();
        for _ in 0..16 {
            let net = Net::new();
            if inode(&net) == number {
                return Some(net);
            }
            others.push(net);
        }
        drop(others);
        std::thread::sleep(Duration::from_millis(100));
    }
    None
}

fn rate(vnic: &str) -> SetVnic {
    SetVnic {
        name: name(vnic),
        what: SET_RATE,
        datapath: 0,
        bits_per_second: 20_000_000,
        burst_bytes: 0,
        faults: Faults::default(),
        adoption: 0,
        operations_per_second: 0,
    }
}

/// What there is to see of the only vNIC with processes.
fn shown(daemon: &Daemon) -> Value {
    let status = daemon.status();
    let vnics = status["vnics"].as_array().unwrap();
    assert_eq!(vnics.len(), 1, "{status}");
    vnics[0].clone()
}

#[test]
fn settings_by_name_do_not_pass_to_the_next_namespace() {
    until_it_comes(set_by_name);
}

fn set_by_name() -> Option<()> {
    let daemon = Daemon::start(Settings::default());
    let mut tool = Operator::connect(&daemon);
    let net = Net::new();
    let number = inode(&net);
    let old_form = format!("net-{number}");
    assert_eq!(tool.call(rate(&old_form)), Said::Failed(Errno::ENOENT), "no process is connected");
    let client = net.client(&daemon);
    let old = shown(&daemon);
    let old_name = old["name"].as_str().unwrap();
    assert!(!old_name.contains(&number.to_string()), "{old}");
    for vnic in [old_name, &old_form] {
        assert!(matches!(tool.call(rate(vnic)), Said::VnicChanged(_)), "{vnic}");
    }
    let limit = serde_json::json!(20_000_000);
    assert_eq!(shown(&daemon)["rate"], limit);
    drop(client);
    // It has come back.
    let client = net.client(&daemon);
    assert_eq!((&shown(&daemon)["rate"], &shown(&daemon)["name"]), (&limit, &old["name"]));
    drop((client, net));

    let net = next_with(number)?;
    let _client = net.client(&daemon);
    let new = shown(&daemon);
    assert_eq!((&new["namespace"], &new["rate"]), (&old["namespace"], &Value::Null));
    assert_ne!(new["name"], old["name"]);
    assert_eq!(tool.call(rate(old_name)), Said::Failed(Errno::ENOENT), "it is no more");
    assert_eq!(shown(&daemon)["rate"], Value::Null);
    assert!(matches!(tool.call(rate(&old_form)), Said::VnicChanged(_)), "now it is this one's");
    assert_eq!(shown(&daemon)["rate"], limit);
    Some(())
}

#[test]
fn a_name_is_the_same_for_the_next_daemon_and_configuration_may_have_either_form() {
    until_it_comes(configured_in_either_form);
}

fn configured_in_either_form() -> Option<()> {
    let net = Net::new();
    let number = inode(&net);
    let daemon = Daemon::start(Settings::default());
    let client = net.client(&daemon);
    let known = shown(&daemon);
    drop(client);
    let mut folder = daemon.stop();
    let limit = RateLimit { bits_per_second: 20_000_000, burst_bytes: 65536 };
    let limited = Policy { limit: Some(limit), ..Policy::default() };
    let forms = [known["name"].as_str().unwrap().to_owned(), format!("net-{number}")];
    let mut first = Some(net);
    for (last, form) in forms.into_iter().enumerate() {
        let mut settings = Settings::default();
        settings.policies.named.insert(form, limited);
        let daemon = Daemon::start_in(folder, settings);
        let net = first.take().unwrap();
        let client = net.client(&daemon);
        let now = shown(&daemon);
        assert_eq!(now["rate"], 20_000_000, "{now}");
        assert_eq!((&now["name"], &now["node_guid"]), (&known["name"], &known["node_guid"]));
        drop(client);
        if last == 1 {
            drop(net);
            let net = next_with(number)?;
            let _client = net.client(&daemon);
            assert_eq!(shown(&daemon)["rate"], Value::Null, "another was meant");
        } else {
            first = Some(net);
        }
        folder = daemon.stop();
    }
    Some(())
}
