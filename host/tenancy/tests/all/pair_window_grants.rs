//! Tests pages that are lent between a machine and its neighbours.
//!
//! They are in the pair window that both have, or nowhere; and in one place, which the first
//! grantee decides.

use crate::support::*;
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_session::page_rights::{REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};
use omniverb_tenancy::testing::random_driver::{Bench, vnic};
use omniverb_tenancy::{
    Action, Adoption, Arrived, Channel, GrantOccasion, MemoryFacts, Neighbour, PageHome,
    PairWindows, Policy,
};
use omniverb_terms::{Errno, Qpn, Rkey, Service};

const BOTH: u32 = REMOTE_READ | REMOTE_WRITE;
/// A link: a queue pair of one's own, and the peer's.
type Way = (Qpn, Qpn);

/// vNIC 2 is a machine's with windows for two, sessions 2 and 3 are its processes; 1 and 5 are of
/// one vNIC, 4 is of another.
fn bench_of_machine() -> Bench {
    let mut bench = bench_of_machines(&[2]);
    for (session, number) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 1)] {
        hello(&mut bench, session, number, 0);
    }
    (1..=3).for_each(|number| bench.introduce(number, 9));
    let windows = PairWindows { free: 2, room: 9, ..PairWindows::default() };
    bench.tenancy.set_pair_windows(vnic(2), windows);
    bench
}

/// Links a process of one vNIC with one of another: the way of the first.
fn way(bench: &mut Bench, one: (u64, u64), other: (u64, u64)) -> Way {
    let (a, b) = (qp(bench, one.0, Service::Rc), qp(bench, other.0, Service::Rc));
    call(bench, one.0, to(a, one.1, b, other.1));
    call(bench, other.0, to(b, other.1, a, one.1));
    (a, b)
}

/// Where the owner is asked to have pages, if they are not there, or why it is not asked.
fn ask(
    bench: &mut Bench,
    from: u64,
    way: Way,
    rkey: Rkey,
) -> Result<(u64, Option<PageHome>), Errno> {
    bench.told.clear();
    let (qpn, peer_qpn) = way;
    let ask = RequestGrant { qpn, peer_qpn, rkey, reserved: 0, address: 0x11000, length: 8 };
    match call(bench, from, ask) {
        Some(Message::Connected(_)) => {}
        answer => return Err(errno(answer)),
    }
    let asked = bench.told.iter().find_map(|action| match action {
        Action::Adopt { adopt, home, .. } => Some((adopt.token, Some(*home))),
        Action::Event { message: Message::Adopt(adopt), .. } => Some((adopt.token, None)),
        _ => None,
    });
    Ok(asked.unwrap())
}

/// The owner has pages where it was asked to.
fn adopted(bench: &mut Bench, owner: u64, token: u64) {
    // As windows are, and files whose seals were made final.
    let memory = Some(MemoryFacts { is_final: true, is_write_sealed: false });
    let message = Adopted { token, errno: Errno::NONE, epoch: 0 }.into();
    bench.say(owner, &Arrived { channel: Channel::Events, tag: 0, message, memory });
}

/// Grants pages, and says where they were moved for that, if they were, and what they may be used
/// for.
fn granted(
    bench: &mut Bench,
    (from, owner): (u64, u64),
    way: Way,
    rkey: Rkey,
) -> Result<(Option<PageHome>, u32), Errno> {
    let (token, home) = ask(bench, from, way, rkey)?;
    adopted(bench, owner, token);
    let uses = bench.told.iter().find_map(|action| match action {
        Action::Grant { session, granted, .. } if session.0 == from => Some(granted.access),
        _ => None,
    });
    Ok((home, uses.unwrap()))
}

/// How many extents an owner was told to take back since this was last asked.
fn taken(bench: &mut Bench, owner: u64) -> usize {
    let is_it = |message: &&Message| matches!(message, Message::TakeBack(_));
    events(bench, owner).iter().filter(is_it).count()
}

fn close(bench: &mut Bench, session: u64, (qpn, peer_qpn): Way) {
    call(bench, session, DisconnectQp { qpn, peer_qpn });
}

fn his(number: u64) -> PageHome {
    let neighbour = Neighbour { proof: [1, 4, number, 9], uid: 0 };
    PageHome::Pair { machine: vnic(2), neighbour }
}

fn ends(mut bench: Bench, sessions: std::ops::RangeInclusive<u64>) {
    sessions.for_each(|session| bench.end(session));
    assert!(bench.tenancy.is_empty());
}

#[test]
fn the_first_grantee_decides_the_place_of_pages() {
    let mut bench = bench_of_machine();
    let [one, other] = [2, 3].map(|session| way(&mut bench, (session, 2), (1, 1)));
    let (here, another) = (way(&mut bench, (5, 1), (1, 1)), way(&mut bench, (4, 3), (1, 1)));
    let rkey = mr(&mut bench, 1, 1, BOTH | REMOTE_ATOMIC);
    // The neighbour's pages, for two processes of the machine: those are in one place.
    let uses = BOTH | REMOTE_ATOMIC;
    assert_eq!(granted(&mut bench, (2, 1), one, rkey), Ok((Some(his(1)), uses)));
    assert_eq!(granted(&mut bench, (3, 1), other, rkey), Ok((None, uses)));
    for (session, way) in [(5, here), (4, another)] {
        assert_eq!(ask(&mut bench, session, way, rkey), Err(Errno::EAGAIN));
    }
    // A process that still has it asks anew.
    close(&mut bench, 2, one);
    assert_eq!(taken(&mut bench, 1), 1);
    assert_eq!(granted(&mut bench, (3, 1), other, rkey), Ok((Some(his(1)), uses)));
    assert_eq!(ask(&mut bench, 5, here, rkey), Err(Errno::EAGAIN));
    close(&mut bench, 3, other);
    assert_eq!(taken(&mut bench, 1), 1, "the last one of the machine's has gone");
    assert_eq!(granted(&mut bench, (5, 1), here, rkey), Ok((Some(PageHome::File), uses)));
    let again = way(&mut bench, (2, 2), (1, 1));
    assert_eq!(ask(&mut bench, 2, again, rkey), Err(Errno::EAGAIN));
    let next = mr(&mut bench, 1, 1, BOTH);
    assert_eq!(granted(&mut bench, (2, 1), again, next), Ok((Some(his(1)), BOTH)));
    ends(bench, 1..=5);
}

#[test]
fn pages_of_a_machine_are_lent_in_each_neighbours_window() {
    let mut bench = bench_of_machine();
    let (one, other) = (way(&mut bench, (1, 1), (2, 2)), way(&mut bench, (4, 3), (2, 2)));
    let inside = way(&mut bench, (3, 2), (2, 2));
    let rkeys = [(); 3].map(|()| mr(&mut bench, 2, 1, BOTH));
    let ways = [(1, one, his(1)), (4, other, his(3)), (3, inside, PageHome::Window)];
    for ((session, way, home), rkey) in ways.into_iter().zip(rkeys) {
        assert_eq!(granted(&mut bench, (session, 2), way, rkey), Ok((Some(home), BOTH)));
        for (session, way, other) in ways {
            let expected = if other == home { Ok(None) } else { Err(Errno::EAGAIN) };
            let asked = ask(&mut bench, session, way, rkey);
            assert_eq!(asked.map(|(_, home)| home), expected, "{session}");
        }
    }
    ends(bench, 1..=5);
}

/// A holder of a window can write to all of it.
#[test]
fn read_only_pages_are_not_lent_in_windows_and_write_only_ones_to_trusted_peers() {
    for (trusting, numbers) in
        [(false, [].as_slice()), (false, &[1]), (false, &[2]), (true, &[1, 2])]
    {
        let mut bench = bench_of_machine();
        make_exact(&mut bench);
        for number in numbers {
            let policy = bench.tenancy.policy(vnic(*number));
            let policy = Policy { adoption: Adoption::Trusting, ..policy };
            let _ = bench.tenancy.set_policy(vnic(*number), policy);
        }
        for (from, owner) in [((2, 2), (1, 1)), ((1, 1), (2, 2))] {
            let way = way(&mut bench, from, owner);
            for access in [REMOTE_READ, REMOTE_READ | REMOTE_ATOMIC] {
                let rkey = mr(&mut bench, owner.0, 1, access);
                assert_eq!(ask(&mut bench, from.0, way, rkey), Err(Errno::EACCES), "{access}");
            }
            for access in [REMOTE_WRITE, REMOTE_ATOMIC] {
                let rkey = mr(&mut bench, owner.0, 1, access);
                let expected =
                    if trusting { Ok((Some(his(1)), access)) } else { Err(Errno::EACCES) };
                assert_eq!(granted(&mut bench, (from.0, owner.0), way, rkey), expected);
            }
        }
        ends(bench, 1..=5);
    }
}

#[test]
fn adoption_off_lends_no_pages_and_takes_lent_ones_back() {
    for number in [1, 2] {
        let mut bench = bench_of_machine();
        let (way, rkey) = (way(&mut bench, (2, 2), (1, 1)), mr(&mut bench, 1, 1, BOTH));
        assert_eq!(granted(&mut bench, (2, 1), way, rkey), Ok((Some(his(1)), BOTH)));
        bench.told.clear();
        let policy = Policy { adoption: Adoption::Off, ..bench.tenancy.policy(vnic(number)) };
        let (_, actions) = bench.tenancy.set_policy(vnic(number), policy);
        bench.carry_out(actions);
        assert_eq!(taken(&mut bench, 1), 1);
        assert_eq!(ask(&mut bench, 2, way, rkey), Err(Errno::EPERM));
        ends(bench, 1..=5);
    }
}

/// The engine gets nothing of a neighbour's window.
#[test]
fn pages_in_a_pair_window_are_not_granted_to_the_engine() {
    let mut bench = bench_of_machine();
    let way = way(&mut bench, (2, 2), (1, 1));
    let rkey = mr(&mut bench, 1, 1, BOTH);
    assert_eq!(granted(&mut bench, (2, 1), way, rkey), Ok((Some(his(1)), BOTH)));
    let outside = Qpn(77);
    let qpn = qp(&mut bench, 1, Service::Rc);
    call(&mut bench, 1, to(qpn, 1, outside, 4));
    bench.told.clear();
    let actions = bench.tenancy.engine_wants((qpn, outside), rkey, (0x11000, 8), bench.now);
    let [Action::DenyEngine { denied, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(denied.errno, Errno::EAGAIN);
    ends(bench, 1..=5);
}

/// There is little room: nothing stays there without a grantee.
#[test]
fn pages_without_a_grantee_are_taken_back() {
    let mut bench = bench_of_machine();
    let first = way(&mut bench, (2, 2), (1, 1));
    let rkey = mr(&mut bench, 1, 1, BOTH);
    let (token, home) = ask(&mut bench, 2, first, rkey).unwrap();
    assert_eq!(home, Some(his(1)));
    close(&mut bench, 2, first);
    adopted(&mut bench, 1, token);
    assert!(bench.told.iter().any(is_freed));
    assert_eq!(taken(&mut bench, 1), 1);
    // So do those in windows of a machine that is parted with.
    let again = way(&mut bench, (2, 2), (1, 1));
    assert_eq!(granted(&mut bench, (2, 1), again, rkey), Ok((Some(his(1)), BOTH)));
    bench.told.clear();
    let actions = bench.tenancy.forget_pair_windows(vnic(2));
    bench.carry_out(actions);
    assert!(bench.told.iter().any(is_freed));
    assert_eq!(taken(&mut bench, 1), 1);
    ends(bench, 1..=5);
}

/// An agent that was started afresh, for one, has not found the window yet.
#[test]
fn a_grantee_that_cannot_be_told_has_no_new_pages() {
    let mut bench = bench_of_machine();
    let way = way(&mut bench, (2, 2), (1, 1));
    let rkey = mr(&mut bench, 1, 1, BOTH);
    let fails = |bench: &mut Bench| {
        let grant = bench.told.iter().find_map(|action| match action {
            Action::Grant { session, file, granted, occasion } => {
                Some((*session, *file, *granted, *occasion))
            }
            _ => None,
        });
        let (session, file, granted, occasion) = grant.unwrap();
        bench.told.clear();
        let actions = bench.tenancy.grant_failed(session, file, &granted, occasion);
        bench.carry_out(actions);
        let denied = bench.told.iter().any(|action| match action {
            Action::Event { session, message: Message::GrantDenied(denied) } => {
                (session.0, denied.errno) == (2, Errno::EAGAIN)
            }
            _ => false,
        });
        assert!(denied);
        occasion
    };
    assert_eq!(granted(&mut bench, (2, 1), way, rkey), Ok((Some(his(1)), BOTH)));
    assert_eq!(fails(&mut bench), GrantOccasion::First);
    assert!(bench.told.iter().any(is_freed));
    assert_eq!(taken(&mut bench, 1), 1);
    // It had them by the same link.
    assert_eq!(granted(&mut bench, (2, 1), way, rkey), Ok((Some(his(1)), BOTH)));
    assert_eq!(granted(&mut bench, (2, 1), way, rkey), Ok((None, BOTH)));
    assert_eq!(fails(&mut bench), GrantOccasion::Again);
    assert_eq!(taken(&mut bench, 1), 0);
    close(&mut bench, 2, way);
    assert_eq!(taken(&mut bench, 1), 1);
    ends(bench, 1..=5);
}

/// Why an owner is not waited for any more.
#[derive(Clone, Copy, Debug)]
enum Ended {
    Peer,
    Time,
    Machine,
}

/// The end of a question that no link waits for.
fn give_up(bench: &mut Bench, why: Ended) {
    match why {
        Ended::Peer => bench.end(2),
        Ended::Time => bench.wait(2_000_000_000),
        Ended::Machine => {
            let actions = bench.tenancy.forget_pair_windows(vnic(2));
            bench.carry_out(actions);
        }
    }
}

/// Pages of an abandoned question come back: a holder of the window can reach them there.
#[test]
fn an_owner_takes_back_pages_moved_too_late() {
    for why in [Ended::Peer, Ended::Time, Ended::Machine] {
        let mut bench = bench_of_machine();
        let way = way(&mut bench, (2, 2), (1, 1));
        let rkey = mr(&mut bench, 1, 1, BOTH);
        let (token, _) = ask(&mut bench, 2, way, rkey).unwrap();
        bench.told.clear();
        give_up(&mut bench, why);
        assert!(!bench.told.iter().any(is_freed), "{why:?}: it may be on its way there");
        assert_eq!(taken(&mut bench, 1), 0);
        adopted(&mut bench, 1, token);
        assert!(bench.told.iter().any(is_freed), "{why:?}");
        assert_eq!(taken(&mut bench, 1), 1, "{why:?}");
        // Once.
        adopted(&mut bench, 1, token);
        assert_eq!(taken(&mut bench, 1), 0);
        ends(bench, 1..=5);
    }
}

#[test]
fn an_owner_that_moves_nothing_or_is_gone_takes_nothing_back() {
    for why in [Ended::Peer, Ended::Time, Ended::Machine] {
        for how in 0..3 {
            let mut bench = bench_of_machine();
            let way = way(&mut bench, (2, 2), (1, 1));
            let rkey = mr(&mut bench, 1, 1, BOTH);
            let (token, _) = ask(&mut bench, 2, way, rkey).unwrap();
            bench.told.clear();
            give_up(&mut bench, why);
            match how {
                0 => {
                    let message = Adopted { token, errno: Errno::EAGAIN, epoch: 0 }.into();
                    let memory = None;
                    let channel = Channel::Events;
                    bench.say(1, &Arrived { channel, tag: 0, message, memory });
                }
                1 => drop(call(&mut bench, 1, DeregMr { rkey, reserved: 0 })),
                _ => {
                    let actions = bench.tenancy.memory_failed(token);
                    bench.carry_out(actions);
                }
            }
            assert!(bench.told.iter().any(is_freed), "{why:?}, {how}");
            adopted(&mut bench, 1, token);
            assert_eq!(taken(&mut bench, 1), 0, "{why:?}, {how}");
            ends(bench, 1..=5);
        }
    }
}

/// A peer that asks and goes has others copy, with or without a grant.
#[test]
fn a_peer_that_has_pages_moved_in_vain_is_mediated_for_a_while() {
    for why in [None, Some(Ended::Peer), Some(Ended::Time)] {
        let mut bench = bench_of_machine();
        let rkey = mr(&mut bench, 1, 1, BOTH);
        let mut rounds = 0;
        loop {
            // The daemon says what room there is, as links come and go.
            let neighbour = Neighbour { proof: [1, 4, 1, 9], uid: 0 };
            let windows = PairWindows { given: [(neighbour, 9)].into(), ..PairWindows::default() };
            bench.tenancy.set_pair_windows(vnic(2), windows);
            let way = way(&mut bench, (2, 2), (1, 1));
            match ask(&mut bench, 2, way, rkey) {
                Ok((token, _)) => {
                    match why {
                        None => close(&mut bench, 2, way),
                        // Time makes good for some of it.
                        Some(Ended::Time) if rounds > 0 => close(&mut bench, 2, way),
                        Some(why) => give_up(&mut bench, why),
                    }
                    adopted(&mut bench, 1, token);
                    assert_eq!(taken(&mut bench, 1), 1);
                }
                Err(errno) => {
                    assert_eq!(errno, Errno::EAGAIN);
                    break;
                }
            }
            if matches!(why, Some(Ended::Peer)) {
                hello(&mut bench, 2, 2, 0);
            }
            rounds += 1;
            assert!(rounds < 1000, "{why:?}");
        }
        assert!(rounds > 100, "{rounds}: a few times are nothing bad");
        ends(bench, 1..=5);
    }
}

/// A region of session 1's.
fn large(bench: &mut Bench, addr: u64, length: u64) -> Rkey {
    let reg = RegMr { pd: 1, access: BOTH, addr, length, rkey: Rkey(0), reserved: 0 };
    let Some(Message::MrRegistered(MrRegistered { rkey, .. })) = call(bench, 1, reg) else {
        panic!()
    };
    rkey
}

/// The question to session 1 when session 2 asks for this range, of which no pages are lent yet; or
/// the reason why there is none.
fn ask_for(
    bench: &mut Bench,
    (qpn, peer_qpn): Way,
    rkey: Rkey,
    (address, length): (u64, u64),
) -> Result<Adopt, Errno> {
    bench.told.clear();
    let ask = RequestGrant { qpn, peer_qpn, rkey, reserved: 0, address, length };
    match call(bench, 2, ask) {
        Some(Message::Connected(_)) => {}
        answer => return Err(errno(answer)),
    }
    let asked = bench.told.iter().find_map(|action| match action {
        Action::Adopt { adopt, .. } => Some(*adopt),
        _ => None,
    });
    Ok(asked.unwrap())
}

/// Some extents may go again, with their grantee.
#[test]
fn a_region_of_which_no_more_can_be_lent_at_a_time_is_asked_for_again() {
    let mut bench = bench_of_machine();
    let way = way(&mut bench, (2, 2), (1, 1));
    let (addr, length) = (0x10_0000, 256 << 20);
    let rkey = large(&mut bench, addr, length);
    for number in 0..=192 {
        let asked = ask_for(&mut bench, way, rkey, (addr + (number << 20), 8));
        if number == 192 {
            assert_eq!(asked.unwrap_err(), Errno::EAGAIN);
            break;
        }
        adopted(&mut bench, 1, asked.unwrap().token);
    }
    ends(bench, 1..=5);
}

/// Parts are small, as windows are.
#[test]
fn of_a_large_region_a_little_is_lent_at_a_time() {
    let mut bench = bench_of_machine();
    let way = way(&mut bench, (2, 2), (1, 1));
    let (addr, length) = (0x10_0000, 64 << 20);
    let rkey = large(&mut bench, addr, length);
    let mut covered = Vec::new();
    for address in [addr, addr + (30 << 20) + 8, addr + length - 1] {
        let asked = ask_for(&mut bench, way, rkey, (address, 1 << 20));
        let Adopt { token, start, memory, .. } = asked.unwrap();
        assert!((start..start + memory.length).contains(&address) && memory.length <= 512 << 10);
        adopted(&mut bench, 1, token);
        covered.push(start);
    }
    covered.dedup();
    assert_eq!(covered.len(), 3);
    ends(bench, 1..=5);
}

fn machine(number: u64) -> Neighbour {
    Neighbour { proof: [2, number, 5, 1], uid: Neighbour::ALL_USERS }
}

#[test]
fn two_machines_lend_each_other_pages_in_the_window_that_is_in_both() {
    for window_owner in [1, 2] {
        let mut bench = bench_of_machines(&[1, 2]);
        for number in 1..=2 {
            hello(&mut bench, number, number, 0);
            bench.introduce(number, 9);
            let given = match number == window_owner {
                true => [(machine(3 - window_owner), 9)].into(),
                false => [].into(),
            };
            let this = Some(machine(number));
            let windows = PairWindows { given, this, ..PairWindows::default() };
            bench.tenancy.set_pair_windows(vnic(number), windows);
        }
        let home =
            PageHome::Pair { machine: vnic(window_owner), neighbour: machine(3 - window_owner) };
        for (from, owner) in [(1, 2), (2, 1)] {
            let way = way(&mut bench, (from, from), (owner, owner));
            let rkey = mr(&mut bench, owner, 1, BOTH);
            assert_eq!(granted(&mut bench, (from, owner), way, rkey), Ok((Some(home), BOTH)));
            let rkey = mr(&mut bench, owner, 1, REMOTE_READ);
            assert_eq!(ask(&mut bench, from, way, rkey), Err(Errno::EACCES));
        }
        ends(bench, 1..=2);
    }
}
