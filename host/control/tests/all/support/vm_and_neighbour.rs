//! Plays a machine with pair windows and a neighbour, each in a network namespace.
#![allow(dead_code)] // each test file uses a part

use super::client_process::Remote;
use super::fake_vm_proxy::{Machine, PAGE, seen};
use super::namespaces::Net;
use super::operator::{Operator, name};
use super::vm_network_namespace::Carried;
use super::*;
use omniverb_control::Settings;
use omniverb_session::operator::{AttachPair, Message as Said};
use omniverb_session::vm::{self, TellPairs};
use omniverb_sys::memfd;
use omniverb_terms::Service;

pub const A: &str = "10.99.0.1";
pub const B: &str = "10.99.0.2";
pub const BYTES: u64 = 8 << 20;
pub const DATA: Extent = Extent { offset: 2 * PAGE, length: BYTES - 2 * PAGE };
pub const WHOSE: u64 = 64;

/// Files of a pair window and its ledger.
pub fn files() -> [OwnedFd; 2] {
    files_named("pair")
}

pub fn files_named(name: &str) -> [OwnedFd; 2] {
    [BYTES, DATA.length / PAGE + WHOSE].map(|bytes| memfd::create(name, bytes).unwrap())
}

pub fn give(daemon: &Daemon, text: &str, number: u64, data: Extent, files: &[OwnedFd]) -> Said {
    give_at(daemon, text, number, (data, 0), files)
}

/// The same for a window that is somewhere in its machine's device.
pub fn give_at(
    daemon: &Daemon,
    text: &str,
    number: u64,
    (data, at): (Extent, u64),
    files: &[OwnedFd],
) -> Said {
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    let asked = AttachPair { name: name(text), data, number, at };
    Operator::connect(daemon).call_for_files(asked, &files).0
}

/// A machine whose network is that of a namespace: the test carries.
pub struct There {
    pub machine: Machine,
    pub network: Carried,
}

impl There {
    pub fn new(daemon: &Daemon, net: &Net, pairs: &[[OwnedFd; 2]]) -> There {
        There::with(daemon, net, pairs, 0)
    }

    fn with(daemon: &Daemon, net: &Net, pairs: &[[OwnedFd; 2]], at: u64) -> There {
        let mut machine = Machine::attach(daemon, "one");
        for (number, [window, ledger]) in (1..).zip(pairs) {
            let files = [window, ledger].map(|file| file.try_clone().unwrap());
            let said = give_at(daemon, "one", number, (DATA, at), &files);
            assert!(matches!(said, Said::Done(_)));
        }
        let present = (1 << pairs.len()) - 1;
        assert!(matches!(machine.ask(TellPairs { present }).0, vm::Message::Done(_)));
        let network = Carried::new(&mut machine, net, B);
        There { machine, network }
    }

    pub fn carry(&self) {
        self.network.carry();
    }

    /// The messages about a link to the machine's process and the other one, with the number of
    /// descriptors.
    pub fn link(&self, b: &mut Client, a: &mut Remote) -> [(LinkReady, usize); 2] {
        let (first, second) = (create(a, Service::Rc), create(b, Service::Rc));
        a.call(connect(first, second, A, B).into());
        b.call(connect(second, first, B, A).into());
        let end = std::time::Instant::now() + SOON;
        let theirs = loop {
            assert!(std::time::Instant::now() < end, "not in time");
            self.carry();
            match b.event(MOMENT) {
                Some((Message::LinkReady(ready), files)) => break (ready, files.len()),
                Some((Message::GidsChanged(_), _)) | None => {}
                event => panic!("{event:?}"),
            }
        };
        let ours = loop {
            assert!(std::time::Instant::now() < end, "not in time");
            self.carry();
            match a.next_event(MOMENT) {
                Some((Message::LinkReady(ready), files)) => break (ready, files),
                Some((Message::GidsChanged(_), _)) | None => {}
                event => panic!("{event:?}"),
            }
        };
        [theirs, ours]
    }
}

/// A daemon, two networks that reach each other, and in the second one a machine with this window.
pub fn two_networks(window: [OwnedFd; 2]) -> (Daemon, [Net; 2], There) {
    two_networks_at(window, 0)
}

pub fn two_networks_at(window: [OwnedFd; 2], at: u64) -> (Daemon, [Net; 2], There) {
    let daemon = Daemon::start(Settings::default());
    let (here, there) = (Net::new(), Net::new());
    here.join(&there, A, B);
    let far = There::with(&daemon, &there, &[window], at);
    (daemon, [here, there], far)
}

pub fn row(daemon: &Daemon, name: &str) -> serde_json::Value {
    seen(daemon, "one").unwrap()["pairs"][name].clone()
}
