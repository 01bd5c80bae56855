//! Tests pair windows: a machine shares memory with few others, each of them for good.

use crate::support::*;
use omniverb_session::body::*;
use omniverb_tenancy::testing::random_driver::{Bench, vnic};
use omniverb_tenancy::{Neighbour, PairWindows, Path, PathReason, Policy};
use omniverb_terms::{Qpn, Service};

/// vNIC 2 is a machine's, sessions 2 and 3 are its processes; 1 and 4, 5 are others.
fn bench_of_machine(windows: PairWindows) -> Bench {
    let mut bench = bench_of_machines(&[2]);
    for (session, number) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 1)] {
        hello(&mut bench, session, number, 0);
    }
    for number in 1..=3 {
        bench.introduce(number, 9);
    }
    bench.tenancy.set_pair_windows(vnic(2), windows);
    bench
}

fn fresh(free: usize, room: usize) -> PairWindows {
    PairWindows { free, room, ..PairWindows::default() }
}

fn neighbour(number: u64, uid: u32) -> Neighbour {
    Neighbour { proof: [1, 4, number, 9], uid }
}

/// Both ends want it.
fn pair(bench: &mut Bench, one: (u64, u64), other: (u64, u64), service: Service) -> (Qpn, Qpn) {
    let (a, b) = (qp(bench, one.0, service), qp(bench, other.0, service));
    call(bench, one.0, to(a, one.1, b, other.1));
    call(bench, other.0, to(b, other.1, a, one.1));
    (a, b)
}

#[test]
fn the_first_neighbour_alone_has_the_window() {
    for service in [Service::Rc, Service::Uc] {
        let mut bench = bench_of_machine(fresh(1, 4));
        pair(&mut bench, (1, 1), (2, 2), service);
        let made = links(&bench);
        assert_eq!(made.len(), 1);
        for end in [&made[0].0, &made[0].1] {
            assert_eq!(end.ready.engine, 0);
            // Of two pages of a bell the second is the machine's.
            assert_eq!(end.ready.bell_side, u32::from(end.session.0 == 2), "{end:?}");
        }
        assert_eq!(paths(&bench, 1), [(Path::Direct, PathReason::Pair)]);
        assert_eq!(bench.tenancy.pair_links(vnic(2)), 1);
        let (a, b) = pair(&mut bench, (4, 3), (2, 2), service);
        assert_eq!(links(&bench).len(), 1, "another one");
        assert_eq!(paths(&bench, 3), [(Path::Forwarded, PathReason::PairsTaken)]);
        assert_eq!(engine_links(&bench).len(), 2, "{a:?} {b:?}");
        // Also another process of the same, with another of the machine's.
        pair(&mut bench, (3, 2), (5, 1), service);
        assert_eq!(links(&bench).len(), 2);
        for session in [1, 5] {
            bench.end(session);
        }
        assert_eq!(bench.tenancy.pair_links(vnic(2)), 0);
        pair(&mut bench, (4, 3), (3, 2), service);
        assert_eq!(
            bench.tenancy.pair_links(vnic(2)),
            0,
            "it belongs to the neighbour that is gone"
        );
    }
}

/// A guest whose processors are busy hears handshakes late, and says its own late. Such silence is
/// no reason to go by the network what could be in a window; if it lasts that is still better than
/// nothing.
#[test]
fn a_machine_may_be_late_with_its_handshakes() {
    for wall in [(2, 1), (1, 2)] {
        for seconds in [5, 20] {
            let mut bench = bench_of_machine(fresh(1, 4));
            bench.walls.insert(wall);
            pair(&mut bench, (1, 1), (2, 2), Service::Rc);
            for _ in 0..seconds {
                bench.wait(1_100_000_000);
            }
            let late = seconds == 5;
            assert_eq!(engine_links(&bench).is_empty(), late, "{wall:?}");
            bench.walls.clear();
            bench.wait(1_100_000_000);
            assert_eq!(links(&bench).len(), usize::from(late), "{wall:?}");
        }
    }
}

#[test]
fn a_full_window_is_bypassed() {
    let mut bench = bench_of_machine(fresh(1, 2));
    for _ in 0..4 {
        pair(&mut bench, (1, 1), (2, 2), Service::Rc);
    }
    assert_eq!((links(&bench).len(), engine_links(&bench).len()), (2, 4));
    assert!(paths(&bench, 1).contains(&(Path::Forwarded, PathReason::PairFull)));
    let given = [(neighbour(1, 0), 1)].into();
    bench.tenancy.set_pair_windows(vnic(2), PairWindows { given, ..PairWindows::default() });
    pair(&mut bench, (1, 1), (2, 2), Service::Rc);
    assert_eq!(links(&bench).len(), 3, "there is room again");
}

/// A link that ends before the daemon has made it may still get its memory: a process that makes
/// links and ends them at once has no other link of the pair fail.
#[test]
fn a_place_is_free_when_the_daemon_has_counted_and_not_before() {
    let mut bench = bench_of_machine(fresh(1, 1));
    let (a, b) = pair(&mut bench, (1, 1), (2, 2), Service::Rc);
    let before = links(&bench).len();
    call(&mut bench, 1, DisconnectQp { qpn: a, peer_qpn: b });
    pair(&mut bench, (5, 1), (3, 2), Service::Rc);
    assert_eq!(links(&bench).len(), before, "of a room for one");
    assert!(paths(&bench, 1).contains(&(Path::Forwarded, PathReason::PairFull)));
    bench.tenancy.check_accounts();
    for (room, expected) in [(0, before), (1, before + 1)] {
        let given = [(neighbour(1, 0), room)].into();
        bench.tenancy.set_pair_windows(vnic(2), PairWindows { given, ..PairWindows::default() });
        pair(&mut bench, (1, 1), (2, 2), Service::Rc);
        assert_eq!(links(&bench).len(), expected);
        bench.tenancy.check_accounts();
    }
    for session in 1..=5 {
        bench.end(session);
    }
    assert!(bench.tenancy.is_empty());
}

/// A vNIC has as many users as it likes, and a window does not come back.
#[test]
fn the_last_window_is_not_given_to_a_vnic_with_one() {
    let direct = (Path::Direct, PathReason::Pair);
    for (free, expected) in [(2, direct), (1, (Path::Forwarded, PathReason::PairsTaken))] {
        let given = [(neighbour(1, 1000), 4)].into();
        let mut bench =
            bench_of_machine(PairWindows { free, room: 4, given, ..Default::default() });
        pair(&mut bench, (1, 1), (2, 2), Service::Rc);
        assert_eq!(paths(&bench, 1), [expected]);
        pair(&mut bench, (4, 3), (2, 2), Service::Rc);
        assert_eq!(paths(&bench, 3), [direct]);
    }
}

/// A neighbour with an earlier one's address, or another user, is another neighbour.
#[test]
fn a_neighbours_window_is_not_given_to_its_successor() {
    for (proof, uid) in [([1, 4, 1, 8], 0), ([1, 4, 1, 9], 1000)] {
        let given = [(Neighbour { proof, uid }, 4)].into();
        let mut bench = bench_of_machine(PairWindows { given, ..PairWindows::default() });
        pair(&mut bench, (1, 1), (2, 2), Service::Rc);
        assert!(links(&bench).is_empty());
        assert_eq!(paths(&bench, 1), [(Path::Forwarded, PathReason::PairsTaken)]);
    }
    // A neighbour that cannot be identified.
    let mut bench = bench_of_machine(fresh(2, 4));
    bench.introduce(1, 0);
    pair(&mut bench, (1, 1), (2, 2), Service::Rc);
    assert_eq!(paths(&bench, 1), [(Path::Forwarded, PathReason::PeerMachine)]);
}

#[test]
fn datagrams_that_a_machine_did_not_ask_for_take_no_window_of_it() {
    let mut bench = bench_of_machine(fresh(2, 4));
    let (a, b) = (qp(&mut bench, 1, Service::Ud), qp(&mut bench, 2, Service::Ud));
    call(&mut bench, 1, to(a, 1, b, 2));
    assert!(links(&bench).is_empty());
    assert_eq!(paths(&bench, 1), [(Path::Forwarded, PathReason::PeerMachine)]);
    // Its own process asks.
    let (c, d) = (qp(&mut bench, 4, Service::Ud), qp(&mut bench, 2, Service::Ud));
    call(&mut bench, 2, to(d, 2, c, 3));
    assert_eq!(links(&bench).len(), 1);
    assert_eq!(paths(&bench, 3), [(Path::Direct, PathReason::Pair)]);
    // From now on both may.
    let (e, f) = (qp(&mut bench, 4, Service::Ud), qp(&mut bench, 3, Service::Ud));
    call(&mut bench, 4, to(e, 3, f, 2));
    assert_eq!(links(&bench).len(), 2);
}

#[test]
fn policies_override_windows_and_a_machine_without_any_is_forwarded() {
    let mut bench = bench_of_machine(fresh(2, 4));
    let forwarded = omniverb_tenancy::Datapath::Forwarded;
    let policy = Policy { datapath: forwarded, ..bench.tenancy.policy(vnic(1)) };
    let _ = bench.tenancy.set_policy(vnic(1), policy);
    pair(&mut bench, (1, 1), (2, 2), Service::Rc);
    assert_eq!(paths(&bench, 1), [(Path::Forwarded, PathReason::Forwarded)]);
    let actions = bench.tenancy.forget_pair_windows(vnic(2));
    bench.carry_out(actions);
    pair(&mut bench, (4, 3), (2, 2), Service::Rc);
    assert_eq!(paths(&bench, 3), [(Path::Forwarded, PathReason::PeerMachine)]);
    assert!(links(&bench).is_empty());
}

/// Machines 1 and 2, with a process each, and what each has of windows.
fn bench_of_two(windows: [PairWindows; 2]) -> Bench {
    let mut bench = bench_of_machines(&[1, 2]);
    for (number, windows) in (1..).zip(windows) {
        hello(&mut bench, number, number, 0);
        bench.introduce(number, 9);
        bench.tenancy.set_pair_windows(vnic(number), windows);
    }
    bench
}

fn machine(number: u64) -> Neighbour {
    Neighbour { proof: [2, number, 5, 1], uid: Neighbour::ALL_USERS }
}

/// A machine's windows that others may share.
fn known(number: u64, free: usize) -> PairWindows {
    PairWindows { free, room: 4, this: Some(machine(number)), may_join: true, ..Default::default() }
}

fn wanted(bench: &mut Bench) -> Vec<[omniverb_terms::VnicId; 2]> {
    bench.tenancy.take_wanted_windows().collect()
}

/// Two machines have no window that is in both.
#[test]
fn machines_go_by_the_engine_where_no_window_can_be_in_both() {
    let cases = [
        // Machines that cannot be identified; ones where nothing can be plugged in.
        ([fresh(2, 4), fresh(2, 4)], PathReason::Machine),
        ([known(1, 1), PairWindows { this: None, ..known(2, 1) }], PathReason::Machine),
        (
            [known(1, 1), known(2, 1)].map(|windows| PairWindows { may_join: false, ..windows }),
            PathReason::Machine,
        ),
        // Only one has a window for it, and the other has no place for that.
        ([known(1, 1), PairWindows { may_join: false, ..known(2, 0) }], PathReason::PairsTaken),
        ([known(1, 0), known(2, 0)], PathReason::PairsTaken),
        ([known(1, 1), known(2, 0)], PathReason::PairLater),
    ];
    for (windows, why) in cases {
        let mut bench = bench_of_two(windows);
        pair(&mut bench, (1, 1), (2, 2), Service::Rc);
        assert_eq!((links(&bench).len(), engine_links(&bench).len()), (0, 2));
        assert_eq!(paths(&bench, 1), [(Path::Forwarded, why)]);
    }
}

/// No window is plugged into another machine that wants none.
#[test]
fn two_machines_want_a_window_when_processes_of_both_have_asked() {
    for service in [Service::Rc, Service::Uc, Service::Ud] {
        let mut bench = bench_of_two([known(1, 1), known(2, 1)]);
        let (a, b) = (qp(&mut bench, 1, service), qp(&mut bench, 2, service));
        for _ in 0..2 {
            call(&mut bench, 1, to(a, 1, b, 2));
            assert!(wanted(&mut bench).is_empty(), "the other has not asked");
        }
        call(&mut bench, 2, to(b, 2, a, 1));
        assert_eq!(wanted(&mut bench), [[vnic(1), vnic(2)]]);
        assert!(wanted(&mut bench).is_empty(), "once");
        pair(&mut bench, (2, 2), (1, 1), service);
        assert_eq!(wanted(&mut bench), [[vnic(1), vnic(2)]], "the next ones ask again");
        assert!(links(&bench).is_empty());
    }
    // A policy goes before all that.
    let mut bench = bench_of_two([known(1, 1), known(2, 1)]);
    let forwarded = omniverb_tenancy::Datapath::Forwarded;
    let policy = Policy { datapath: forwarded, ..bench.tenancy.policy(vnic(2)) };
    let _ = bench.tenancy.set_policy(vnic(2), policy);
    pair(&mut bench, (1, 1), (2, 2), Service::Rc);
    assert!(wanted(&mut bench).is_empty());
    // Machines that are gone want nothing.
    let mut bench = bench_of_two([known(1, 1), known(2, 1)]);
    pair(&mut bench, (1, 1), (2, 2), Service::Rc);
    let actions = bench.tenancy.forget_pair_windows(vnic(1));
    bench.carry_out(actions);
    assert!(wanted(&mut bench).is_empty());
}

#[test]
fn machines_with_a_window_that_is_in_both_are_linked_in_it() {
    for (owner, service) in [(1, Service::Rc), (2, Service::Uc), (1, Service::Ud)] {
        let other = 3 - owner;
        let given = |room| [(machine(other), room)].into();
        let coming = PairWindows { coming: [machine(other)].into(), ..known(owner, 0) };
        let mut both = [known(1, 0), known(2, 0)];
        both[owner as usize - 1] = coming;
        let mut bench = bench_of_two(both);
        pair(&mut bench, (1, 1), (2, 2), service);
        assert_eq!(
            paths(&bench, 1)[0],
            (Path::Forwarded, PathReason::PairLater),
            "not yet in both"
        );
        let here = PairWindows { given: given(2), ..known(owner, 0) };
        bench.tenancy.set_pair_windows(vnic(owner), here);
        for count in 1..=2 {
            pair(&mut bench, (1, 1), (2, 2), service);
            let made = links(&bench);
            assert_eq!(made.len(), count);
            for end in [&made[count - 1].0, &made[count - 1].1] {
                // Of two pages of a bell the second is that of whose window it is.
                assert_eq!(end.ready.bell_side, u32::from(end.session.0 == owner), "{end:?}");
            }
        }
        assert!(paths(&bench, other).contains(&(Path::Direct, PathReason::Pair)));
        assert_eq!([1, 2].map(|number| bench.tenancy.pair_links(vnic(number))), [2, 2]);
        bench.tenancy.check_accounts();
        pair(&mut bench, (1, 1), (2, 2), service);
        assert_eq!(links(&bench).len(), 2);
        assert!(paths(&bench, 1).contains(&(Path::Forwarded, PathReason::PairFull)));
        // One of them is parted with, its links are there for another moment.
        let actions = bench.tenancy.forget_pair_windows(vnic(other));
        bench.carry_out(actions);
        bench.tenancy.check_accounts();
        let actions = bench.tenancy.forget_pair_windows(vnic(owner));
        bench.carry_out(actions);
        bench.tenancy.check_accounts();
        for session in [1, 2] {
            bench.end(session);
        }
        assert!(bench.tenancy.is_empty());
    }
}

/// Another machine with the same name.
#[test]
fn a_machines_window_is_not_given_to_its_successor() {
    let given = [(Neighbour { proof: [2, 2, 4, 1], ..machine(2) }, 4)].into();
    let mut bench = bench_of_two([PairWindows { given, ..known(1, 0) }, known(2, 0)]);
    pair(&mut bench, (1, 1), (2, 2), Service::Rc);
    assert!(links(&bench).is_empty());
    assert_eq!(paths(&bench, 1), [(Path::Forwarded, PathReason::PairsTaken)]);
}
