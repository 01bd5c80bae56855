//! Tests pair windows between a machine and a neighbour in a network namespace.

#[path = "all/support/mod.rs"]
mod support;

use omniverb_control::Settings;
use omniverb_session::Message;
use omniverb_session::body::{Extent, *};
use omniverb_session::operator::{
    AttachPair, AwaitPair, CAN_TAKE_OUT, DetachMachine, Message as Said, PartPair,
};
use omniverb_session::pair_window::PlugTrouble;
use omniverb_session::vm::{self, TellPairs};
use omniverb_sys::memfd;
use omniverb_terms::{Errno, Service};
use std::os::fd::{AsFd, OwnedFd};
use support::fake_vm_proxy::{Machine, PAGE, seen, until};
use support::namespaces::{Net, is_root};
use support::operator::{Operator, name};
use support::vm_and_neighbour::*;
use support::*;

#[test]
fn a_malformed_pair_window_is_refused() {
    let daemon = Daemon::start(Settings::default());
    let machine = Machine::attach(&daemon, "one");
    let refused = |number, data, files: &[OwnedFd]| {
        assert_eq!(give(&daemon, "one", number, data, files), Said::Failed(Errno::EINVAL));
    };
    for number in [0, 61, 256, u64::MAX] {
        refused(number, DATA, &files());
    }
    refused(1, Extent { length: DATA.length + PAGE, ..DATA }, &files());
    refused(1, Extent { length: PAGE, ..DATA }, &files());
    for at in [1, PAGE + 1, 1 << 48, u64::MAX] {
        let asked = AttachPair { name: name("one"), data: DATA, number: 1, at };
        let files = files();
        let said =
            Operator::connect(&daemon).call_for_files(asked, &files.each_ref().map(AsFd::as_fd));
        assert_eq!(said.0, Said::Failed(Errno::EINVAL), "{at}");
    }
    let [window, _] = files();
    let short = memfd::create("ledger", DATA.length / PAGE).unwrap();
    refused(1, DATA, &[window, short]);
    let open = memfd::unsealed("pair", BYTES).unwrap();
    let [_, ledger] = files();
    refused(1, DATA, &[open, ledger]);
    let [window, _] = files();
    refused(1, DATA, &[window]);
    refused(1, DATA, &[]);
    assert_eq!(give(&daemon, "two", 1, DATA, &files()), Said::Failed(Errno::ENOENT));
    assert!(matches!(give(&daemon, "one", 1, DATA, &files()), Said::Done(_)));
    assert_eq!(give(&daemon, "one", 1, DATA, &files()), Said::Failed(Errno::EBUSY));
    assert_eq!(seen(&daemon, "one").unwrap()["pairs"]["windows"], 1);
    drop(machine);
    until(|| seen(&daemon, "one").is_none());
}

fn can_plug(text: &str, left: u32) -> AwaitPair {
    AwaitPair { name: name(text), left, trouble: 0, can: 0 }
}

/// The operator has no answer, whatever else was done since its call.
fn waits(supervisor: &Operator) {
    assert_eq!(supervisor.heard(MOMENT), None);
}

fn is_asked(supervisor: &Operator) {
    let said = supervisor.heard(SOON);
    assert!(matches!(said, Some(Ok(Said::PairWanted(_)))), "{said:?}");
}

#[test]
fn a_supervisor_is_asked_for_a_window_when_there_is_none_left() {
    let daemon = Daemon::start(Settings::default());
    let mut other = Operator::connect(&daemon);
    assert_eq!(other.call(can_plug("one", 1)), Said::Failed(Errno::ENOENT));
    let mut machine = Machine::attach(&daemon, "one");
    let mut tell = |present| {
        assert!(matches!(machine.ask(TellPairs { present }).0, vm::Message::Done(_)));
    };
    let supervisor = Operator::connect(&daemon);
    supervisor.say(can_plug("one", 3));
    // Whatever it plugged in, an agent that says nothing of windows would not find it.
    waits(&supervisor);
    assert_eq!(row(&daemon, "more"), 3);
    tell(0);
    is_asked(&supervisor);
    supervisor.say(can_plug("one", 2));
    is_asked(&supervisor);
    assert!(matches!(give(&daemon, "one", 1, DATA, &files()), Said::Done(_)));
    supervisor.say(can_plug("one", 2));
    waits(&supervisor);
    // It is found: there is one without owner.
    tell(1);
    waits(&supervisor);
    // Another supervisor has taken its place.
    let other = Operator::connect(&daemon);
    other.say(AwaitPair { trouble: PlugTrouble::Device as u16, ..can_plug("one", 0) });
    assert!(matches!(other.heard(SOON), Some(Ok(Said::Done(_)))), "there are to be no more");
    assert_eq!(supervisor.heard(SOON), Some(Err(())));
    assert_eq!((row(&daemon, "more"), row(&daemon, "windows")), (0.into(), 1.into()));
    assert_eq!(row(&daemon, "trouble"), PlugTrouble::Device.phrase());
    drop(other);
    until(|| row(&daemon, "trouble").is_null());
    let last = Operator::connect(&daemon);
    last.say(can_plug("one", 1));
    until(|| row(&daemon, "more") == 1);
    let detach = DetachMachine { name: name("one") };
    assert!(matches!(Operator::connect(&daemon).call(detach), Said::Done(_)));
    assert_eq!(last.heard(SOON), Some(Err(())), "no neighbour wants any");
}

/// Supervisors that wait take no operator's place.
#[test]
fn waiting_supervisors_hold_up_no_operator() {
    let daemon = Daemon::start(Settings::default());
    let machines: Vec<(Machine, Operator)> = (0..70)
        .map(|number| {
            let text = format!("machine-{number}");
            let machine = Machine::attach(&daemon, &text);
            let supervisor = Operator::connect(&daemon);
            supervisor.say(can_plug(&text, 1));
            until(|| seen(&daemon, &text).unwrap()["pairs"]["more"] == 1);
            (machine, supervisor)
        })
        .collect();
    assert!(seen(&daemon, "machine-69").is_some());
    drop(machines);
}

#[test]
fn a_neighbour_and_a_machine_share_a_window_of_their_own() {
    if !is_root() {
        return;
    }
    let (daemon, [here, _there], mut far) = two_networks(files());
    let supervisor = Operator::connect(&daemon);
    supervisor.say(can_plug("one", 1));
    waits(&supervisor);
    let mut a = here.client(&daemon);
    let (mut b, _) = far.machine.process();
    let session = far.machine.last;
    let [(theirs, none), (ours, two)] = far.link(&mut b, &mut a);
    assert_eq!((none, two), (0, 2), "descriptors");
    assert_eq!((theirs.engine, ours.engine), (0, 0));
    assert_eq!((theirs.bell_side, ours.bell_side), (1, 0));
    let plain = |extent: Extent| extent.offset & ((1 << 56) - 1);
    for (said, same) in [(theirs.memory, ours.memory), (theirs.bell_memory, ours.bell_memory)] {
        assert_eq!(said.offset >> 56, 1, "the number of the window");
        assert_eq!((plain(said) + DATA.offset, said.length), (same.offset, same.length));
        assert!(plain(said) >= PAGE, "the head is given to no link");
    }
    let status = daemon.status().to_string();
    assert!(status.contains("in a pair window of the virtual machine"), "{status}");
    assert_eq!([row(&daemon, "given"), row(&daemon, "links")], [1, 1]);
    // There is none for the next neighbour.
    is_asked(&supervisor);
    // A second link between them has the same doorbell.
    let [(second, _), (_, one)] = far.link(&mut b, &mut a);
    assert_eq!((second.bell_new, second.bell, one), (0, theirs.bell, 1));
    // The machine's process is gone by the guest's word; the neighbour's may use what it has.
    far.machine.end(session);
    drop(b);
    until(|| seen(&daemon, "one").unwrap()["sessions"] == 0);
    let used = row(&daemon, "used").as_u64().unwrap();
    assert!(used >= theirs.memory.length, "{used}");
    a.kill();
    until(|| row(&daemon, "used") == 0);
    assert_eq!([row(&daemon, "given"), row(&daemon, "links")], [1, 0]);
    // The next client from there has the same window.
    let mut again = here.client(&daemon);
    let (mut c, _) = far.machine.process();
    let [(third, _), _] = far.link(&mut c, &mut again);
    assert_eq!((third.engine, third.memory.offset >> 56), (0, 1));
}

/// Where there is no slot left for another, an unused window goes, if it can.
#[test]
fn an_unused_window_is_unplugged_if_possible() {
    if !is_root() {
        return;
    }
    let (daemon, [here, _there], mut far) = two_networks_at(files(), BYTES);
    let supervisor = Operator::connect(&daemon);
    let full = AwaitPair { can: CAN_TAKE_OUT, ..can_plug("one", 0) };
    supervisor.say(full);
    let mut other = Operator::connect(&daemon);
    let part = PartPair { name: name("one"), number: 1 };
    let mut parts = || other.call(part);
    let mut a = here.client(&daemon);
    let (mut b, _) = far.machine.process();
    let session = far.machine.last;
    far.link(&mut b, &mut a);
    waits(&supervisor);
    assert_eq!(row(&daemon, "way"), "mapped");
    assert_eq!(parts(), Said::Failed(Errno::ENOENT), "it is in use");
    far.machine.end(session);
    drop(b);
    waits(&supervisor);
    a.kill();
    let said = supervisor.heard(SOON);
    assert!(matches!(said, Some(Ok(Said::PairOver(over))) if over.number == 1), "{said:?}");
    // No client is given any of it.
    let mut again = here.client(&daemon);
    let (mut c, _) = far.machine.process();
    let [(third, _), _] = far.link(&mut c, &mut again);
    assert_eq!((third.engine, row(&daemon, "given")), (1, 0.into()));
    assert!(matches!(parts(), Said::Done(_)));
    assert_eq!(parts(), Said::Failed(Errno::ENOENT));
    assert_eq!(row(&daemon, "windows"), 0);
    // Another file has its number.
    supervisor.say(AwaitPair { left: 1, ..full });
    is_asked(&supervisor);
    assert!(matches!(give_at(&daemon, "one", 1, (DATA, BYTES), &files()), Said::Done(_)));
    let [(fourth, _), _] = far.link(&mut c, &mut again);
    assert_eq!((fourth.engine, fourth.memory.offset >> 56), (0, 1));
}

/// The machine's end of a place in a window is over when its guest is booted afresh; the
/// neighbour's is when its process has ended. Either may be first.
#[test]
fn a_place_comes_back_when_both_ends_are_over() {
    if !is_root() {
        return;
    }
    let (daemon, [here, _there], mut far) = two_networks(files());
    far.machine.boot(1);
    for (boot, guest_first) in [(2, true), (3, false)] {
        let mut a = here.client(&daemon);
        let (mut lost, _) = far.machine.process();
        let (mut b, _) = far.machine.process();
        far.link(&mut lost, &mut a);
        let [(theirs, _), (ours, _)] = far.link(&mut b, &mut a);
        // The end of one is not reported; the other is there when the guest is booted.
        drop(lost);
        until(|| seen(&daemon, "one").unwrap()["sessions"] == 1);
        let used = || row(&daemon, "used").as_u64().unwrap();
        assert!(used() >= 2 * theirs.memory.length, "{}", used());
        if guest_first {
            far.machine.boot(boot);
            assert!(b.is_dropped());
            let end = std::time::Instant::now() + SOON;
            loop {
                assert!(std::time::Instant::now() < end, "not told");
                if let Some((Message::LinkClosed(closed), _)) = a.next_event(MOMENT)
                    && closed.qpn == ours.qpn
                {
                    assert_eq!(closed.reason, CLOSED_BY_DEATH);
                    break;
                }
            }
            until(|| seen(&daemon, "one").unwrap()["used"] == 0);
            assert!(used() >= 2 * theirs.memory.length, "the neighbour may use it");
            a.kill();
        } else {
            a.kill();
            until(|| row(&daemon, "links") == 0);
            assert!(used() >= 2 * theirs.memory.length, "the guest's process may use it");
            far.machine.boot(boot);
        }
        until(|| used() == 0);
        assert_eq!(row(&daemon, "given"), 1, "it is the neighbour's for good");
    }
}

/// The daemon has nothing more of it, however long a neighbour's process lives.
#[test]
fn a_window_ends_with_its_machine() {
    if !is_root() {
        return;
    }
    let held = || {
        let all = std::fs::read_dir("/proc/self/fd").unwrap();
        let links = all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        links.filter(|link| link.to_string_lossy().contains("memfd:over")).count()
    };
    let (daemon, [here, _there], mut far) = two_networks(files_named("over"));
    let mut a = here.client(&daemon);
    let (mut b, _) = far.machine.process();
    far.link(&mut b, &mut a);
    assert!(held() > 0);
    drop((b, far));
    until(|| seen(&daemon, "one").is_none());
    until(|| held() == 0);
    create(&mut a, Service::Rc);
}

/// The next daemon finds the owner of a window in its ledger.
#[test]
fn a_neighbours_address_does_not_give_its_window() {
    if !is_root() {
        return;
    }
    let (there, pairs) = (Net::new(), [files()]);
    for (round, direct) in [(0, true), (1, false)] {
        let daemon = Daemon::start(Settings::default());
        let net = Net::new();
        net.join(&there, A, B);
        let mut far = There::new(&daemon, &there, &pairs);
        let (mut a, (mut b, _)) = (net.client(&daemon), far.machine.process());
        let [(ready, _), _] = far.link(&mut b, &mut a);
        assert_eq!(ready.engine == 0, direct, "{round}");
        let text = daemon.status().to_string();
        assert_eq!(text.contains("are others'"), !direct, "{text}");
        drop((a, b, far, daemon));
        net.run("ip link del eth0");
    }
}
