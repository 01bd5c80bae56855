//! Tests that a guest's reboot gives back what its processes had.

use crate::support::fake_vm_proxy::*;
use crate::support::*;
use omniverb_control::Settings;
use omniverb_session::body::Extent;
use omniverb_sys::memfd;
use omniverb_terms::Service;
use std::os::fd::OwnedFd;

/// A window, and a ledger that has room for the boot.
fn files() -> [OwnedFd; 2] {
    [WINDOW_BYTES, DATA.length / PAGE + 16].map(|bytes| memfd::create("window", bytes).unwrap())
}

fn used(daemon: &Daemon, name: &str) -> u64 {
    seen(daemon, name).unwrap()["used"].as_u64().unwrap()
}

fn sessions(daemon: &Daemon, name: &str) -> u64 {
    seen(daemon, name).unwrap()["sessions"].as_u64().unwrap()
}

/// The words that a process has written into a piece.
fn written(machine: &Machine, area: Extent) -> impl omniverb_ring::WordMemory + use<> {
    let pages = omniverb_sys::Extent::new(&machine.window, DATA.offset + area.offset, PAGE);
    let pages = pages.map(omniverb_sys::Access::ReadWrite).unwrap();
    omniverb_ring::WordMemory::store(
        &pages,
        64,
        77,
        omniverb_ring::shared_atomics::Ordering::Relaxed,
    );
    pages
}

fn read(pages: &impl omniverb_ring::WordMemory) -> u64 {
    pages.load(64, omniverb_ring::shared_atomics::Ordering::Relaxed)
}

#[test]
fn a_fresh_boot_ends_all_processes_of_the_guest() {
    let daemon = Daemon::start(Settings::default());
    let mut machine = Machine::attach(&daemon, "one");
    let mut other = Machine::attach(&daemon, "two");
    let (_theirs, _) = other.process();
    machine.boot(1);
    machine.tell_address();
    // One whose end is not reported, and two that are linked.
    let (lost, area) = machine.process();
    let pages = written(&machine, area);
    drop(lost);
    until(|| sessions(&daemon, "one") == 0);
    let (mut a, _) = machine.process();
    let (mut b, _) = machine.process();
    let (one, two) = (create(&mut a, Service::Rc), create(&mut b, Service::Rc));
    a.call(connect(one, two, "10.9.0.1", "10.9.0.1").into());
    b.call(connect(two, one, "10.9.0.1", "10.9.0.1").into());
    link_ready(&mut a);
    // Another agent, of the same boot: earlier processes may exist.
    machine.boot(1);
    machine.boot(0);
    assert_eq!((sessions(&daemon, "one"), read(&pages)), (2, 77));
    let most = used(&daemon, "one");
    assert!(most > 3 * AREA_BYTES, "{most}");
    machine.boot(2);
    assert!(a.is_dropped() && b.is_dropped());
    until(|| used(&daemon, "one") == 0);
    assert_eq!(read(&pages), 0, "it was not emptied");
    // All of the window is there for new processes.
    let all: Vec<_> = (0..16).map(|_| machine.process()).collect();
    assert!(all.iter().any(|(_, piece)| piece.offset == area.offset));
    // A process disconnected in this boot may exist as long as it lasts.
    let before = used(&daemon, "one");
    drop(all);
    until(|| sessions(&daemon, "one") == 0);
    assert_eq!(used(&daemon, "one"), before);
    machine.boot(3);
    until(|| used(&daemon, "one") == 0);
    assert_eq!((sessions(&daemon, "two"), used(&daemon, "two")), (1, AREA_BYTES));
}

/// The pieces of processes that an earlier daemon knew come back, too.
#[test]
fn the_next_daemon_knows_whether_the_guest_was_booted_afresh() {
    let [window, ledger] = files();
    let mut kept = 0;
    for (boots, comes_back) in [([1, 1], false), ([1, 1], false), ([1, 2], true)] {
        let daemon = Daemon::start(Settings::default());
        let mut machine = Machine::attach_again(&daemon, &window, &ledger);
        assert_eq!(used(&daemon, "one"), kept, "{boots:?}");
        machine.boot(boots[0]);
        assert_eq!(used(&daemon, "one"), kept, "{boots:?}");
        drop(machine.process());
        until(|| sessions(&daemon, "one") == 0);
        machine.boot(boots[1]);
        match comes_back {
            true => until(|| used(&daemon, "one") == 0),
            false => assert_eq!(used(&daemon, "one"), kept + AREA_BYTES),
        }
        kept = used(&daemon, "one");
    }
    // It was booted afresh while there was no daemon.
    let first = Daemon::start(Settings::default());
    let mut machine = Machine::attach_again(&first, &window, &ledger);
    let (_there, area) = machine.process();
    drop(first);
    let daemon = Daemon::start(Settings::default());
    let mut machine = Machine::attach_again(&daemon, &window, &ledger);
    assert_eq!(used(&daemon, "one"), area.length);
    machine.boot(3);
    until(|| used(&daemon, "one") == 0);
}

/// A ledger as supervisors made it that were started before boots were noted.
#[test]
fn a_boot_without_notes_frees_nothing_in_use() {
    let window = memfd::create("window", WINDOW_BYTES).unwrap();
    let ledger = memfd::create("ledger", DATA.length / PAGE).unwrap();
    let first = Daemon::start(Settings::default());
    let mut machine = Machine::attach_again(&first, &window, &ledger);
    machine.boot(1);
    let (_there, area) = machine.process();
    drop(first);
    let daemon = Daemon::start(Settings::default());
    let mut machine = Machine::attach_again(&daemon, &window, &ledger);
    machine.boot(2);
    assert_eq!(used(&daemon, "one"), area.length);
    machine.boot(3);
    until(|| used(&daemon, "one") == 0);
}
