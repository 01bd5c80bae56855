//! Tests a virtual machine's memory: what its guest claims about it is checked.

use crate::support::fake_vm_proxy::*;
use crate::support::operator::{Operator, name};
use crate::support::*;
use omniverb_control::Settings;
use omniverb_session::operator::{AttachMemory, Message as Said};
use omniverb_session::pinned_pages::{Layout, PINS_MAX, RUNS_MAX, Run};
use omniverb_session::vm::{self, PinsOver, QueryPins, TellPinned};
use omniverb_sys::memfd;
use omniverb_terms::Errno;
use std::os::fd::{AsFd, OwnedFd};

const BYTES: u64 = 8 << 20;
const LAYOUT: Layout = Layout { below: 4 << 20, above: 4 << 30, bytes: BYTES };

fn attach(daemon: &Daemon, text: &str, layout: Layout, files: &[&OwnedFd]) -> Said {
    let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
    let ask = AttachMemory { name: name(text), layout };
    Operator::connect(daemon).call_for_files(ask, &files).0
}

fn memory() -> OwnedFd {
    memfd::create("memory", BYTES).unwrap()
}

#[test]
fn a_machines_memory_is_given_once() {
    let daemon = Daemon::start(Settings::default());
    assert_eq!(attach(&daemon, "one", LAYOUT, &[&memory()]), Said::Failed(Errno::ENOENT));
    let machine = Machine::attach(&daemon, "one");
    assert!(seen(&daemon, "one").unwrap()["memory"].is_null());
    assert!(matches!(attach(&daemon, "one", LAYOUT, &[&memory()]), Said::Done(_)));
    let row = seen(&daemon, "one").unwrap();
    assert_eq!((row["memory"].as_u64(), row["pinned"].as_u64()), (Some(BYTES), Some(0)));
    assert_eq!(attach(&daemon, "one", LAYOUT, &[&memory()]), Said::Failed(Errno::EBUSY));
    drop(machine);
    until(|| seen(&daemon, "one").is_none());
}

#[test]
fn malformed_machine_memory_is_refused() {
    let daemon = Daemon::start(Settings::default());
    let _machine = Machine::attach(&daemon, "one");
    let refused = |layout, files: &[&OwnedFd]| {
        assert_eq!(attach(&daemon, "one", layout, files), Said::Failed(Errno::EINVAL));
    };
    refused(LAYOUT, &[]);
    refused(LAYOUT, &[&memory(), &memory()]);
    refused(LAYOUT, &[&memfd::unsealed("memory", BYTES).unwrap()]);
    let sealed = memfd::create_sealable("memory", BYTES).unwrap();
    memfd::seal_future_write(sealed.as_fd()).unwrap();
    refused(LAYOUT, &[&sealed]);
    refused(LAYOUT, &[&std::fs::File::open("/dev/null").unwrap().into()]);
    for layout in [
        Layout { bytes: BYTES - 4096, ..LAYOUT },
        Layout { bytes: BYTES + 4096, ..LAYOUT },
        Layout { below: BYTES + 4096, ..LAYOUT },
        Layout { below: 1, ..LAYOUT },
        Layout { above: 4096, ..LAYOUT },
        Layout { above: u64::MAX - 4095, ..LAYOUT },
        Layout { below: u64::MAX, above: u64::MAX, bytes: u64::MAX },
    ] {
        refused(layout, &[&memory()]);
    }
    assert!(matches!(attach(&daemon, "one", LAYOUT, &[&memory()]), Said::Done(_)));
}

/// Pages of an unasked question belong to no process, whatever the guest says of them.
#[test]
fn a_guests_false_reports_of_pages_gain_nothing() {
    let daemon = Daemon::start(Settings::default());
    let mut machine = Machine::attach(&daemon, "one");
    assert!(matches!(attach(&daemon, "one", LAYOUT, &[&memory()]), Said::Done(_)));
    let (_client, _) = machine.process();
    let session = machine.last;
    let runs = [Run::new(0, 1).unwrap(), Run { word: u64::MAX }];
    for (session, count, errno) in [
        (session, 2, Errno::NONE),
        (session, u32::MAX, Errno::NONE),
        (session, RUNS_MAX as u32 + 1, Errno::NONE),
        (session, 0, Errno(u32::MAX)),
        (session + 1, 2, Errno::NONE),
        (u64::MAX, 2, Errno::NONE),
    ] {
        let told = TellPinned { session, count, errno, ..TellPinned::new(7, 0, Ok(&runs)) };
        assert!(matches!(machine.ask(told).0, vm::Message::Done(_)));
    }
    assert_eq!(seen(&daemon, "one").unwrap()["pinned"].as_u64(), Some(0));
    let over = |machine: &mut Machine, asked: QueryPins| match machine.ask(asked).0 {
        vm::Message::PinsOver(over) => over.named().to_vec(),
        other => panic!("{other:?}"),
    };
    assert_eq!(over(&mut machine, QueryPins::new(&[7, 8, 9])), [7, 8, 9]);
    assert!(over(&mut machine, QueryPins::new(&[])).is_empty());
    let all: Vec<u64> = (0..PINS_MAX as u64).collect();
    assert_eq!(over(&mut machine, QueryPins::new(&all)), all);
    let more = QueryPins { count: u32::MAX, ..QueryPins::new(&all) };
    assert!(over(&mut machine, more).is_empty());
    assert!(PinsOver { count: PINS_MAX as u32 + 1, ..PinsOver::new(&all) }.named().is_empty());
}
