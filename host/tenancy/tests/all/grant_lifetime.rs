//! Tests that pages granted by way of a link are revoked with it, however it ends.
//!
//! Another link of the same two processes justifies the grant; other grantees of the same extent
//! get another.

use crate::support::*;
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_session::page_rights;
use omniverb_tenancy::testing::random_driver::{Bench, vnic};
use omniverb_tenancy::{Action, Arrived, Channel, FileRange, Limits, MemoryFacts};
use omniverb_terms::{Errno, Qpn, Rkey, Service};

const ACCESS: u32 = 7;
const OWNER: u64 = 2;

/// A queue pair of `peer`, linked with one of the owner's.
fn pair(bench: &mut Bench, peer: u64) -> (Qpn, Qpn) {
    let (a, b) = (qp(bench, peer, Service::Rc), qp(bench, OWNER, Service::Rc));
    call(bench, peer, to(a, peer.min(3), b, 2));
    call(bench, OWNER, to(b, 2, a, peer.min(3)));
    (a, b)
}

/// Processes 1 and 3 are linked with the owner, each in its vNIC.
fn three() -> (Bench, (Qpn, Qpn), (Qpn, Qpn)) {
    three_with(Limits::default())
}

fn three_with(limits: Limits) -> (Bench, (Qpn, Qpn), (Qpn, Qpn)) {
    let mut bench = bench_with(limits);
    for session in 1..=3 {
        hello(&mut bench, session, session, 0);
    }
    let (one, other) = (pair(&mut bench, 1), pair(&mut bench, 3));
    (bench, one, other)
}

fn ask(
    bench: &mut Bench,
    session: u64,
    (qpn, peer_qpn): (Qpn, Qpn),
    rkey: Rkey,
) -> Option<Message> {
    call(
        bench,
        session,
        RequestGrant { qpn, peer_qpn, rkey, reserved: 0, address: 0x11000, length: 8 },
    )
}

/// Grants the extent of a key; says where that is.
fn grant(bench: &mut Bench, session: u64, pair: (Qpn, Qpn), rkey: Rkey) -> FileRange {
    bench.told.clear();
    let answer = ask(bench, session, pair, rkey);
    assert!(matches!(answer, Some(Message::Connected(_))), "{answer:?}");
    let asked = bench.told.iter().find_map(|action| match action {
        Action::Event { message: Message::Adopt(adopt), .. } | Action::Adopt { adopt, .. } => {
            Some(adopt.token)
        }
        _ => None,
    });
    answered(bench, asked.unwrap());
    let granted = bench.told.iter().find_map(|action| match action {
        Action::Grant { session: to, file, granted, .. } if to.0 == session => {
            Some(place(*file, granted))
        }
        _ => None,
    });
    granted.unwrap()
}

fn answered(bench: &mut Bench, token: u64) {
    let memory = Some(MemoryFacts { is_final: true, is_write_sealed: false });
    let message = Adopted { token, errno: Errno::NONE, epoch: 0 }.into();
    bench.say(OWNER, &Arrived { channel: Channel::Events, tag: 0, message, memory });
}

/// Keys taken back since the last call; checks that files were released.
fn taken(bench: &mut Bench) -> Vec<Rkey> {
    let told = std::mem::take(&mut bench.told);
    let forgotten = told.iter().filter(|action| is_freed(action)).count();
    let keys: Vec<Rkey> = told
        .iter()
        .filter_map(|action| match action {
            Action::Event { session, message: Message::TakeBack(take) } => {
                assert_eq!((session.0, take.what, take.start), (OWNER, TAKE_EXTENT, 0x11000));
                Some(take.rkey)
            }
            _ => None,
        })
        .collect();
    assert_eq!(keys.len(), forgotten);
    keys
}

fn done(answer: Option<Message>) -> u64 {
    let Some(Message::Done(done)) = answer else { panic!("{answer:?}") };
    done.take_back
}

#[test]
fn however_a_link_ends_its_grants_end() {
    type End = fn(&mut Bench, (Qpn, Qpn));
    let ends: [(&str, End); 9] = [
        ("the owner destroys its queue pair", |bench, (_, b)| {
            assert_eq!(done(call(bench, 2, DestroyQp { qpn: b, reserved: 0 })), 2);
        }),
        ("the peer destroys its own", |bench, (a, _)| {
            assert_eq!(done(call(bench, 1, DestroyQp { qpn: a, reserved: 0 })), 0);
        }),
        ("the owner resets", |bench, (_, b)| {
            assert_eq!(done(call(bench, 2, DisconnectQp { qpn: b, peer_qpn: Qpn(0) })), 2);
        }),
        ("the peer resets", |bench, (a, b)| {
            assert_eq!(done(call(bench, 1, DisconnectQp { qpn: a, peer_qpn: b })), 0);
        }),
        ("the owner's queue pair is in ERR", |bench, (_, b)| {
            assert_eq!(done(call(bench, 2, QpFailed { qpn: b, reserved: 0 })), 2);
        }),
        ("the peer's queue pair is in ERR", |bench, (a, _)| {
            done(call(bench, 1, QpFailed { qpn: a, reserved: 0 }));
        }),
        ("the peer is gone", |bench, _| bench.end(1)),
        ("an operator disconnects its vNIC", |bench, _| {
            let actions = bench.tenancy.disconnect_vnic(vnic(1));
            bench.carry_out(actions);
        }),
        ("the network withdraws its consent", |bench, _| {
            bench.walls.insert((1, 2));
            bench.walls.insert((2, 1));
            (0..12).for_each(|_| bench.wait(5_000_000_000));
        }),
    ];
    for (what, end) in ends {
        let (mut bench, one, other) = three();
        let (key, second) = (mr(&mut bench, OWNER, 1, ACCESS), mr(&mut bench, OWNER, 1, ACCESS));
        let unrelated = mr(&mut bench, OWNER, 1, ACCESS);
        let file = grant(&mut bench, 1, one, key);
        grant(&mut bench, 1, one, second);
        assert_eq!(grant(&mut bench, 3, other, key), file, "one extent serves all");
        grant(&mut bench, 3, other, unrelated);
        bench.told.clear();
        end(&mut bench, one);
        let mut expected = vec![key, second];
        let mut found = taken(&mut bench);
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected, "{what}");
        assert_ne!(grant(&mut bench, 3, other, key), file, "{what}: somewhere else");
        bench.told.clear();
        (1..=3).for_each(|session| bench.end(session));
        assert!(bench.tenancy.is_empty() && bench.mirror.is_empty(), "{what}");
    }
}

#[test]
fn another_link_of_the_same_two_processes_justifies_it() {
    let (mut bench, one, _) = three();
    let second = pair(&mut bench, 1);
    let third = pair(&mut bench, 1);
    let key = mr(&mut bench, OWNER, 1, ACCESS);
    let file = grant(&mut bench, 1, one, key);
    assert_eq!(grant(&mut bench, 1, second, key), file);
    bench.told.clear();
    call(&mut bench, OWNER, DestroyQp { qpn: one.1, reserved: 0 });
    assert!(taken(&mut bench).is_empty(), "granted by the second as well");
    // A link that nothing was granted by justifies nothing: its flags may not cover the key.
    call(&mut bench, OWNER, DestroyQp { qpn: second.1, reserved: 0 });
    assert_eq!(taken(&mut bench), [key]);
    assert_ne!(grant(&mut bench, 1, third, key), file);
}

#[test]
fn grants_within_one_process_are_not_taken_back() {
    let mut bench = bench();
    hello(&mut bench, OWNER, 2, 0);
    let (a, b) = (qp(&mut bench, OWNER, Service::Rc), qp(&mut bench, OWNER, Service::Rc));
    call(&mut bench, OWNER, to(a, 2, b, 2));
    call(&mut bench, OWNER, to(b, 2, a, 2));
    let key = mr(&mut bench, OWNER, 1, ACCESS);
    grant(&mut bench, OWNER, (a, b), key);
    bench.told.clear();
    call(&mut bench, OWNER, DestroyQp { qpn: b, reserved: 0 });
    assert!(taken(&mut bench).is_empty());
    bench.end(OWNER);
    assert!(bench.tenancy.is_empty() && bench.mirror.is_empty());
}

#[test]
fn an_answer_after_the_end_grants_nothing_and_one_for_another_is_asked_for_anew() {
    let (mut bench, one, other) = three();
    let key = mr(&mut bench, OWNER, 1, ACCESS);
    grant(&mut bench, 1, one, key);
    bench.told.clear();
    ask(&mut bench, 3, other, key);
    let [.., Action::Event { message: Message::Adopt(question), .. }, _] = bench.told.as_slice()
    else {
        panic!("{:?}", bench.told)
    };
    let token = question.token;
    bench.end(1);
    assert_eq!(taken(&mut bench), [key]);
    answered(&mut bench, token);
    let denied = bench.told.iter().find_map(|action| match action {
        Action::Event { message: Message::GrantDenied(denied), .. } => Some(denied.errno),
        _ => None,
    });
    assert_eq!(denied, Some(Errno::EAGAIN), "its pages are on their way back");
    grant(&mut bench, 3, other, key);
}

#[test]
fn a_queue_pair_in_err_grants_nothing_before_it_has_another_link() {
    let (mut bench, one, _) = three();
    let key = mr(&mut bench, OWNER, 1, ACCESS);
    call(&mut bench, OWNER, QpFailed { qpn: one.1, reserved: 0 });
    assert_eq!(errno(ask(&mut bench, 1, one, key)), Errno::EACCES);
    for (session, qpn) in [(OWNER, one.1), (1, one.0)] {
        call(&mut bench, session, DisconnectQp { qpn, peer_qpn: Qpn(0) });
    }
    call(&mut bench, 1, to(one.0, 1, one.1, 2));
    call(&mut bench, OWNER, to(one.1, 2, one.0, 1));
    grant(&mut bench, 1, one, key);
    // No process can report that of others' queue pairs.
    errno(call(&mut bench, 3, QpFailed { qpn: one.1, reserved: 0 }));
}

#[test]
fn only_a_peer_that_has_pages_taken_back_too_often_is_mediated() {
    let (mut bench, mut one, other) = three();
    let key = mr(&mut bench, OWNER, 1, ACCESS);
    let mut rounds = 0;
    while matches!(ask(&mut bench, 1, one, key), Some(Message::Connected(_))) {
        let token = bench.told.iter().rev().find_map(|action| match action {
            Action::Adopt { adopt, .. } => Some(adopt.token),
            _ => None,
        });
        answered(&mut bench, token.unwrap());
        // Another process of the same user each time.
        bench.end(1);
        assert_eq!(taken(&mut bench), [key]);
        hello(&mut bench, 1, 1, 0);
        one = pair(&mut bench, 1);
        rounds += 1;
        assert!(rounds < 1000);
    }
    assert!(rounds > 100, "{rounds}: short connections are nothing bad");
    assert_eq!(errno(ask(&mut bench, 1, one, key)), Errno::EAGAIN);
    grant(&mut bench, 3, other, key);
    bench.wait(1_000_000_000);
    grant(&mut bench, 1, one, key);
}

#[test]
fn a_process_holds_no_more_than_its_quota() {
    let limits = Limits { granted_per_session: 2, ..Limits::default() };
    let (mut bench, one, other) = three_with(limits);
    let keys: Vec<Rkey> = (0..3).map(|_| mr(&mut bench, OWNER, 1, ACCESS)).collect();
    grant(&mut bench, 1, one, keys[0]);
    grant(&mut bench, 1, one, keys[1]);
    assert_eq!(errno(ask(&mut bench, 1, one, keys[2])), Errno::ENOMEM);
    grant(&mut bench, 3, other, keys[2]);
    call(&mut bench, OWNER, DeregMr { rkey: keys[0], reserved: 0 });
    grant(&mut bench, 1, one, keys[2]);
}

/// A process with mapped pages that are not granted any more releases them at once: their owner may
/// pay for them until then.
#[test]
fn grantees_are_told_of_ended_grants() {
    type End = fn(&mut Bench, Rkey, (Qpn, Qpn));
    let ends: [(&str, End, &[u64]); 3] = [
        (
            "deregistered",
            |bench, rkey, _| _ = call(bench, OWNER, DeregMr { rkey, reserved: 0 }),
            &[1, 3],
        ),
        (
            "released",
            |bench, rkey, _| {
                let message = Released { rkey, reserved: 0 }.into();
                let memory = None;
                bench.say(OWNER, &Arrived { channel: Channel::Events, tag: 0, message, memory });
            },
            &[1, 3],
        ),
        (
            "one of their links ends",
            |bench, _, one| _ = call(bench, 1, DestroyQp { qpn: one.0, reserved: 0 }),
            &[3],
        ),
    ];
    for (what, end, expected) in ends {
        let (mut bench, one, other) = three();
        let key = mr(&mut bench, OWNER, 1, ACCESS);
        grant(&mut bench, 1, one, key);
        grant(&mut bench, 3, other, key);
        bench.told.clear();
        end(&mut bench, key, one);
        let mut told: Vec<u64> = bench
            .told
            .iter()
            .filter_map(|action| match action {
                Action::Event { session, message: Message::GrantEnded(ended) } => {
                    assert_eq!((ended.rkey, ended.page_start), (key, 0x11000));
                    let link = if session.0 == 1 { one } else { other };
                    assert_eq!((ended.qpn, ended.peer_qpn), link, "{what}");
                    Some(session.0)
                }
                _ => None,
            })
            .collect();
        told.sort_unstable();
        assert_eq!(told, expected, "{what}");
    }
}

/// A file that cannot be emptied counts when its grant has ended, until the kernel reports that it
/// is gone: one vNIC's share has a bound, and others have theirs.
#[test]
fn ended_read_only_grants_count_until_their_files_are_gone() {
    // A file of several grants is not watched.
    if PACKED {
        return;
    }
    let (mut bench, one, other) = three();
    let cycle = |bench: &mut Bench, session, pair| {
        let key = mr(bench, OWNER, 1, page_rights::REMOTE_READ);
        bench.told.clear();
        let answer = ask(bench, session, pair, key);
        let token = bench.told.iter().find_map(|action| match action {
            Action::Adopt { adopt, .. } => Some(adopt.token),
            _ => None,
        });
        match token {
            Some(token) => {
                let memory = Some(MemoryFacts { is_final: true, is_write_sealed: true });
                let message = Adopted { token, errno: Errno::NONE, epoch: 0 }.into();
                bench.say(OWNER, &Arrived { channel: Channel::Events, tag: 0, message, memory });
            }
            None => assert_eq!(errno(answer), Errno::EAGAIN),
        }
        bench.told.clear();
        call(bench, OWNER, DeregMr { rkey: key, reserved: 0 });
        let watched = bench.told.iter().find_map(|action| match action {
            Action::ForgetFile { file, watch } => {
                assert!(*watch, "a process may have it");
                Some(*file)
            }
            _ => None,
        });
        assert_eq!(watched.is_some(), token.is_some());
        watched
    };
    let kept: Vec<_> = std::iter::from_fn(|| cycle(&mut bench, 1, one)).take(10_000).collect();
    assert_eq!(kept.len(), 64, "a small file counts for 256 KiB, and 16 MiB are a vNIC's share");
    let writable = mr(&mut bench, OWNER, 1, ACCESS);
    grant(&mut bench, 1, one, writable);
    assert!(cycle(&mut bench, 3, other).is_some(), "another vNIC has its share");
    bench.tenancy.file_gone(kept[0]);
    let again = cycle(&mut bench, 1, one);
    assert!(again.is_some() && cycle(&mut bench, 1, one).is_none(), "as much as is gone");
    // The owner's account ends with it; that of its peers does not count.
    bench.told.clear();
    bench.end(OWNER);
    let unwatched = bench.told.iter().filter(|action| matches!(action, Action::Unwatch { .. }));
    assert_eq!(unwatched.count(), 65);
    bench.end(1);
    bench.end(3);
    assert!(bench.tenancy.is_empty() && bench.mirror.is_empty());
}
