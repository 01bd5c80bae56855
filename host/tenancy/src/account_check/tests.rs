//! Compares the tables with the accounts, and shows that the check can fail.

use crate::accounts::Kind;
use crate::row_keys::LinkKey;
use crate::testing::random_driver::{Bench, gid, vnic};
use crate::timers::Timer;
use crate::{Action, Arrived, Channel, Limits, PairWindows, SessionId};
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_session::cm::*;
use omniverb_terms::{Qpn, Service};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn call(bench: &mut Bench, session: u64, message: impl Into<Message>) -> Message {
    let (message, memory) = (message.into(), None);
    bench.say(session, &Arrived { channel: Channel::Calls, tag: 1, message, memory });
    let answer = bench.told.iter().rev().find_map(|action| match action {
        Action::Reply { session: to, message, .. } if to.0 == session => Some(message.clone()),
        Action::Welcome { session: to, welcome, .. } if to.0 == session => Some((*welcome).into()),
        _ => None,
    });
    answer.expect("an answer")
}

fn process(bench: &mut Bench, session: u64, number: u64) {
    bench.open(session, number);
    call(bench, session, Hello { role: ROLE_VERBS, resume: 0, name: [0; 16] });
}

fn qp(bench: &mut Bench, session: u64) -> Qpn {
    match call(bench, session, CreateQp::new(Service::Rc, 1, 0)) {
        Message::QpCreated(created) => created.qpn,
        other => panic!("{other:?}"),
    }
}

fn connect(bench: &mut Bench, session: u64, [qpn, dest_qpn]: [Qpn; 2], [from, to]: [u64; 2]) {
    let (sgid, dgid) = (gid(from), gid(to));
    call(bench, session, ConnectQp { qpn, dest_qpn, sgid, dgid, resume: 0, carries: 0 });
}

/// A process in each of two vNICs, linked.
fn linked(limits: Limits) -> (Bench, [Qpn; 2]) {
    linked_in(Bench::new(limits))
}

/// The same; the second may be a machine's.
fn linked_in(mut bench: Bench) -> (Bench, [Qpn; 2]) {
    process(&mut bench, 1, 1);
    process(&mut bench, 2, 2);
    let both = [qp(&mut bench, 1), qp(&mut bench, 2)];
    connect(&mut bench, 1, both, [1, 2]);
    connect(&mut bench, 2, [both[1], both[0]], [2, 1]);
    (bench, both)
}

fn counts(bench: &Bench, session: u64) -> [usize; 3] {
    let account = bench.tenancy.tenants.sessions[&SessionId(session)].account();
    [Kind::Qp, Kind::Link, Kind::EngineLink].map(|kind| account.count(kind))
}

#[test]
fn a_link_counts_at_both_ends_and_for_both_vnics() {
    let (mut bench, [one, _]) = linked(Limits::default());
    assert_eq!((counts(&bench, 1), counts(&bench, 2)), ([1, 1, 0], [1, 1, 0]));
    for number in [1, 2] {
        let account = bench.tenancy.tenants.vnics[&vnic(number)].account();
        assert_eq!((account.count(Kind::Link), account.count(Kind::Direct)), (1, 1));
    }
    assert_eq!(bench.tenancy.context.host().count(Kind::Link), 2);
    call(&mut bench, 1, DestroyQp { qpn: one, reserved: 0 });
    assert_eq!((counts(&bench, 1), counts(&bench, 2)), ([0, 0, 0], [1, 0, 0]));
    bench.end(1);
    bench.end(2);
    assert!(bench.tenancy.is_empty());
}

#[test]
fn a_link_whose_second_end_is_over_quota_leaves_nothing_charged() {
    let limits = Limits { links_per_session: 2, links_per_vnic: 3, ..Limits::default() };
    let (mut bench, _) = linked(limits);
    // The end of the smaller number has room, the other has not: it has one with each of two.
    process(&mut bench, 3, 3);
    let third = qp(&mut bench, 3);
    let fill = qp(&mut bench, 2);
    connect(&mut bench, 3, [third, fill], [3, 2]);
    connect(&mut bench, 2, [fill, third], [2, 3]);
    assert_eq!((counts(&bench, 2)[1], counts(&bench, 3)[1]), (2, 1));
    let (last, full) = (qp(&mut bench, 3), qp(&mut bench, 2));
    assert!(last < full, "the end with room is charged first");
    let before = bench.tenancy.receipts();
    connect(&mut bench, 3, [last, full], [3, 2]);
    connect(&mut bench, 2, [full, last], [2, 3]);
    assert_eq!((counts(&bench, 2)[1], counts(&bench, 3)[1]), (2, 1));
    assert_eq!(bench.tenancy.receipts(), before);
    assert_eq!(bench.tenancy.tenants.vnics[&vnic(3)].account().count(Kind::Direct), 1);
    bench.tenancy.check_accounts();
}

/// Two in different vNICs, linked by memory of the second's pair window.
fn paired() -> (Bench, [Qpn; 2]) {
    let mut bench = Bench::new(Limits::default());
    bench.machines.insert(2);
    bench.life = 9;
    let windows = PairWindows { free: 1, room: 1, ..PairWindows::default() };
    bench.tenancy.set_pair_windows(vnic(2), windows);
    linked_in(bench)
}

#[test]
fn a_link_in_a_pair_window_counts_for_its_machine_and_returns_its_place() {
    let (mut bench, [one, other]) = paired();
    let count = |bench: &Bench, kind| bench.tenancy.tenants.vnics[&vnic(2)].account().count(kind);
    let links = |bench: &Bench| bench.tenancy.pair_links(vnic(2));
    assert_eq!((links(&bench), count(&bench, Kind::PairLink)), (1, 1));
    assert_eq!(bench.tenancy.tenants.vnics[&vnic(1)].account().count(Kind::PairLink), 0);
    // The daemon could not make it, and has nothing to count anew.
    let actions = bench.tenancy.link_failed(one, other, bench.now);
    bench.carry_out(actions);
    assert_eq!((links(&bench), count(&bench, Kind::PairLink)), (0, 0));
    connect(&mut bench, 1, [one, other], [1, 2]);
    connect(&mut bench, 2, [other, one], [2, 1]);
    assert_eq!(links(&bench), 1, "there is room for one, again");
    for session in [1, 2] {
        bench.end(session);
    }
    assert!(bench.tenancy.is_empty(), "a window is its neighbour's without a process of it");
}

/// An id of session 2 that waits for a listener of session 1.
fn waiting() -> (Bench, u32) {
    let (mut bench, [_, qpn]) = linked(Limits::default());
    let create = CreateCmId { space: 0x106, qp_type: 2 };
    let id = |answer| match answer {
        Message::CmIdCreated(created) => created.id,
        other => panic!("{other:?}"),
    };
    let [listener, asker] = [1, 2].map(|session| id(call(&mut bench, session, create)));
    let address = match call(&mut bench, 1, ListenCmId { id: listener, backlog: 1 }) {
        Message::CmIdBound(bound) => CmAddress { ip: gid(1), ..bound.address },
        other => panic!("{other:?}"),
    };
    let local = CmAddress::NONE;
    call(&mut bench, 2, ResolveCmId { id: asker, flags: 0, local, remote: address });
    let (parameters, private) = (CmParameters::NONE, [0; CM_PRIVATE_BYTES]);
    call(&mut bench, 2, ConnectCmId { id: asker, qpn, parameters, private });
    let asked = bench.told.iter().find_map(|action| match action {
        Action::Event { message: Message::CmHappened(event), .. } => Some(event.id),
        _ => None,
    });
    (bench, asked.expect("a request"))
}

#[test]
fn waiting_connections_count_until_answered_or_gone() {
    for answer in [true, false] {
        let (mut bench, id) = waiting();
        let count = |bench: &Bench| bench.tenancy.context.host().count(Kind::CmWaiting);
        assert_eq!(count(&bench), 1);
        let message: Message = match answer {
            true => RejectCmId { id, reason: 0, private_length: 0, private: [0; CM_PRIVATE_BYTES] }
                .into(),
            false => DestroyCmId { id, taken: 0 }.into(),
        };
        call(&mut bench, 1, message);
        assert_eq!(count(&bench), 0);
    }
}

fn is_noticed(bench: &Bench) -> bool {
    catch_unwind(AssertUnwindSafe(|| bench.tenancy.check_accounts())).is_err()
}

#[test]
fn a_lost_receipt_is_noticed() {
    let (mut bench, [one, _]) = linked(Limits::default());
    assert!(!is_noticed(&bench));
    // The row goes, and its receipt is not returned.
    bench.tenancy.queue_pairs.lose(one);
    assert!(is_noticed(&bench));
    for session in [1, 2] {
        let _ = bench.tenancy.end(SessionId(session), 2);
    }
    assert!(!bench.tenancy.is_empty(), "a receipt is out");
}

#[test]
fn a_link_that_keeps_its_place_in_a_pair_window_is_noticed() {
    let (mut bench, [one, other]) = paired();
    assert!(!is_noticed(&bench));
    bench.tenancy.links.lose_pair(LinkKey::new(one, other));
    assert!(is_noticed(&bench));
    for session in [1, 2] {
        let _ = bench.tenancy.end(SessionId(session), 2);
    }
    assert!(!bench.tenancy.is_empty(), "a receipt is out");
}

#[test]
fn a_backlog_that_is_not_returned_is_noticed() {
    let (mut bench, id) = waiting();
    assert!(!is_noticed(&bench));
    bench.tenancy.connections.lose_waiting((SessionId(1), id));
    assert!(is_noticed(&bench));
    for session in [1, 2] {
        let _ = bench.tenancy.end(SessionId(session), 2);
    }
    assert!(!bench.tenancy.is_empty(), "a receipt is out");
}

#[test]
fn a_row_that_others_pay_is_noticed() {
    let (mut bench, [one, other]) = linked(Limits::default());
    bench.tenancy.queue_pairs.swap_receipts(one, other);
    assert!(is_noticed(&bench), "the host's sums are the same");
}

#[test]
fn a_row_without_a_receipt_is_noticed() {
    let (mut bench, _) = linked(Limits::default());
    for session in [1, 2] {
        bench.end(session);
    }
    assert!(bench.tenancy.is_empty() && !is_noticed(&bench));
    bench.tenancy.context.timers.set(Timer::Grant(7), 1);
    assert!(is_noticed(&bench));
    bench.tenancy.context.timers.clear(Timer::Grant(7));
    assert!(!is_noticed(&bench));
    bench.tenancy.queue_pairs.note_wisher(Qpn(7), Qpn(8));
    assert!(is_noticed(&bench), "no queue pair has that wish");
}
