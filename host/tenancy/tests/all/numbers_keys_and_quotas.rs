//! Tests numbers, keys, quotas, grants, announcements, and arbitrary input.

use crate::support::*;
use omniverb_fairness::Holder;
use omniverb_session::body::*;
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::page_rights::{self, PeerTrust};
use omniverb_session::{Message, encode};
use omniverb_tenancy::testing::random_driver::{Bench, exercise, vnic};
use omniverb_tenancy::{
    Action, Adoption, Arrived, Channel, Limits, MemoryFacts, Path, PathReason, Policy, PtraceDomain,
};
use omniverb_terms::{Errno, Qpn, Rkey, Service};
use proptest::prelude::*;

const READ: u32 = 4;
const WRITE: u32 = 3;

#[test]
fn calls_before_hello_are_refused() {
    let mut bench = bench();
    bench.open(1, 1);
    assert_eq!(errno(call(&mut bench, 1, QueryGids { reserved: 0 })), Errno::EPROTO);
    let other = Hello { role: ROLE_VERBS + 1, resume: 0, name: [0; 16] };
    assert_eq!(errno(call(&mut bench, 1, other)), Errno::EINVAL);
    hello(&mut bench, 2, 2, 0);
    let Some(Message::Gids(gids)) = call(&mut bench, 2, QueryGids { reserved: 0 }) else {
        panic!("no table")
    };
    assert_eq!(gids.count, 2, "no loopback address beside others");
    assert_eq!(errno(call(&mut bench, 2, Done { take_back: 0 })), Errno::EPROTO);
    let arrived = Arrived {
        channel: Channel::Events,
        tag: 0,
        message: QueryGids { reserved: 0 }.into(),
        memory: None,
    };
    bench.say(2, &arrived);
    assert!(matches!(bench.told.last(), Some(Action::VnicGone { .. })), "dropped at once");
}

#[test]
fn quotas_end_in_enomem_and_come_back() {
    let limits = Limits {
        qps_per_session: 2,
        qps_per_vnic: 3,
        mrs_per_session: 2,
        mrs_per_vnic: 3,
        sessions_per_vnic: 2,
        vnics: 2,
        ..Limits::default()
    };
    let mut bench = bench_with(limits);
    hello(&mut bench, 1, 1, 0);
    hello(&mut bench, 2, 1, 0);
    bench.open(3, 1);
    let third = Hello { role: ROLE_VERBS, resume: 0, name: [0; 16] };
    assert_eq!(errno(call(&mut bench, 3, third)), Errno::ENOMEM);
    hello(&mut bench, 4, 2, 0);
    bench.open(5, 3);
    assert_eq!(errno(call(&mut bench, 5, third)), Errno::ENOMEM);
    bench.end(5);

    let kept = qp(&mut bench, 1, Service::Rc);
    qp(&mut bench, 1, Service::Rc);
    let create = create_qp(Service::Rc);
    assert_eq!(errno(call(&mut bench, 1, create)), Errno::ENOMEM);
    qp(&mut bench, 2, Service::Rc);
    assert_eq!(errno(call(&mut bench, 2, create)), Errno::ENOMEM);
    qp(&mut bench, 4, Service::Rc);
    call(&mut bench, 1, DestroyQp { qpn: kept, reserved: 0 });
    assert_ne!(qp(&mut bench, 2, Service::Rc), kept, "a number does not come back soon");

    let rkey = mr(&mut bench, 1, 1, READ);
    mr(&mut bench, 1, 1, READ);
    let reg = RegMr { pd: 1, access: READ, addr: 0, length: 1, rkey: Rkey(0), reserved: 0 };
    assert_eq!(errno(call(&mut bench, 1, reg)), Errno::ENOMEM);
    mr(&mut bench, 2, 1, READ);
    assert_eq!(errno(call(&mut bench, 2, reg)), Errno::ENOMEM);
    call(&mut bench, 1, DeregMr { rkey, reserved: 0 });
    assert_eq!(errno(call(&mut bench, 1, DeregMr { rkey, reserved: 0 })), Errno::ENOENT);
    mr(&mut bench, 2, 1, READ);
    for session in 1..=4 {
        bench.end(session);
    }
    assert!(bench.tenancy.is_empty());
}

#[test]
fn malformed_calls_are_einval() {
    let mut bench = bench();
    hello(&mut bench, 1, 1, 0);
    let bad = CreateQp { qp_type: 8, ..create_qp(Service::Rc) };
    assert_eq!(errno(call(&mut bench, 1, bad)), Errno::EOPNOTSUPP);
    let bad = CreateQp { statistics_slot: 8192, ..create_qp(Service::Rc) };
    assert_eq!(errno(call(&mut bench, 1, bad)), Errno::EINVAL);
    let bad = CreateQp { qpn: Qpn(5), ..create_qp(Service::Rc) };
    assert_eq!(errno(call(&mut bench, 1, bad)), Errno::EINVAL, "only after a restart");
    let bad = RegMr { pd: 1, access: READ, addr: u64::MAX, length: 2, rkey: Rkey(0), reserved: 0 };
    assert_eq!(errno(call(&mut bench, 1, bad)), Errno::EINVAL);
    let bad = RegMr { pd: 1, access: READ, addr: 1, length: 2, rkey: Rkey(5), reserved: 0 };
    assert_eq!(errno(call(&mut bench, 1, bad)), Errno::EINVAL);
    let a = qp(&mut bench, 1, Service::Rc);
    assert_eq!(errno(call(&mut bench, 1, to(a, 1, Qpn(1 << 24), 1))), Errno::EINVAL);
}

/// Two linked sessions: initiator 1, owner 2.
fn linked() -> (Bench, Qpn, Qpn) {
    linked_with(Limits::default())
}

fn linked_with(limits: Limits) -> (Bench, Qpn, Qpn) {
    let mut bench = bench_with(limits);
    hello(&mut bench, 1, 1, 0);
    hello(&mut bench, 2, 2, 0);
    let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
    call(&mut bench, 1, to(a, 1, b, 2));
    call(&mut bench, 2, to(b, 2, a, 1));
    (bench, a, b)
}

fn ask(bench: &mut Bench, qpn: Qpn, peer_qpn: Qpn, rkey: Rkey) -> Result<u64, Errno> {
    let asked = ask_for_grant(bench, (qpn, peer_qpn), rkey)?;
    let [(2, adopt)] = asked.as_slice() else { panic!("{asked:?}") };
    assert_eq!((adopt.rkey, adopt.qpn), (rkey, peer_qpn));
    Ok(adopt.token)
}

fn adopt(bench: &mut Bench, from: u64, adopted: Adopted, memory: MemoryFacts) -> Vec<Action> {
    bench.told.clear();
    let message = adopted.into();
    let memory = Some(memory);
    bench.say(from, &Arrived { channel: Channel::Events, tag: 0, message, memory });
    bench.told.clone()
}

fn denied(actions: &[Action]) -> Errno {
    match actions {
        [.., Action::Event { message: Message::GrantDenied(denied), session }]
            if session.0 == 1 =>
        {
            denied.errno
        }
        other => panic!("{other:?}"),
    }
}

const SEALED: MemoryFacts = MemoryFacts { is_final: true, is_write_sealed: true };
const OPEN: MemoryFacts = MemoryFacts { is_final: true, is_write_sealed: false };

fn adopted(token: u64) -> Adopted {
    Adopted { token, errno: Errno::NONE, epoch: 0 }
}

#[test]
fn a_grant_covers_whole_pages_inside_the_region_only() {
    let (mut bench, a, b) = linked();
    let unsound = MemoryFacts { is_final: false, is_write_sealed: true };
    // The region is 0x10800..0x13800: its whole pages are 0x11000..0x13000.
    let readable = mr(&mut bench, 2, 1, READ);
    for memory in [OPEN, unsound] {
        let token = ask(&mut bench, a, b, readable).unwrap();
        assert_eq!(denied(&adopt(&mut bench, 2, adopted(token), memory)), Errno::EINVAL);
    }
    let token = ask(&mut bench, a, b, readable).unwrap();
    assert!(adopt(&mut bench, 1, adopted(token), SEALED).is_empty(), "not the owner");
    let actions = adopt(&mut bench, 2, adopted(token), SEALED);
    let [Action::Grant { session, granted, file, .. }] = actions.as_slice() else {
        panic!("{actions:?}")
    };
    assert_eq!((session.0, granted.rkey, granted.access), (1, readable, READ));
    let held = place(*file, granted);
    assert_eq!(held.offset != 0, PACKED);
    assert_eq!((granted.page_start, granted.memory.length), (0x11000, 0x2000));
    assert!(adopt(&mut bench, 2, adopted(token), SEALED).is_empty(), "only once");
    // The same extent again, without a new one.
    let again = ask(&mut bench, a, b, readable).unwrap();
    let actions = adopt(&mut bench, 2, adopted(again), OPEN);
    let [Action::Grant { granted, file, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(place(*file, granted), held);
    // The owner does not have it any more: there will be another.
    let again = ask(&mut bench, a, b, readable).unwrap();
    let gone = Adopted { errno: Errno::ENOENT, ..adopted(again) };
    let actions = adopt(&mut bench, 2, gone, SEALED);
    assert!(actions.iter().any(is_freed), "{actions:?}");
    assert_eq!(denied(&actions), Errno::EAGAIN);
    let fresh = ask(&mut bench, a, b, readable).unwrap();
    assert!(matches!(bench.told.as_slice(), [Action::Adopt { .. }, ..]));
    let refused = Adopted { errno: Errno::ENOMEM, ..adopted(fresh) };
    assert_eq!(denied(&adopt(&mut bench, 2, refused, OPEN)), Errno::ENOMEM);
    // Files that could not be made, more often than there may be questions.
    for _ in 0..1100 {
        let fresh = ask(&mut bench, a, b, readable).unwrap();
        bench.told.clear();
        let actions = bench.tenancy.memory_failed(fresh);
        bench.carry_out(actions);
        assert_eq!(denied(&bench.told.clone()), Errno::EAGAIN);
    }
    // Pages that were taken back.
    let token = ask(&mut bench, a, b, readable).unwrap();
    adopt(&mut bench, 2, adopted(token), SEALED);
    bench.told.clear();
    let message = Released { rkey: readable, reserved: 0 }.into();
    bench.say(2, &Arrived { channel: Channel::Events, tag: 0, message, memory: None });
    assert!(matches!(bench.told.as_slice(), [Action::Event { .. }, freed] if is_freed(freed)));
    bench.end(2);
    bench.end(1);
    assert!(bench.tenancy.is_empty() && bench.mirror.is_empty());
}

/// All combinations of flags, for peers that are trusted and not: the granted accesses, whether the
/// file may be a writable one, and whether the owner gets the trust.
#[test]
fn granted_accesses_follow_the_flags() {
    for access in 0..16u32 {
        for trusting in [[false, false], [true, false], [false, true], [true, true]] {
            let (mut bench, a, b) = linked();
            for (selector, trusts) in (1..=2).zip(trusting) {
                let adoption = if trusts { Adoption::Trusting } else { Adoption::Exact };
                let policy = Policy { adoption, ..Policy::default() };
                drop(bench.tenancy.set_policy(vnic(selector), policy));
            }
            let trust = match trusting {
                [true, true] => PeerTrust::Trusting,
                _ => PeerTrust::Exact,
            };
            let key = mr(&mut bench, 2, 1, access);
            let uses = page_rights::mappable(access, trust);
            let what = format!("{access:#x} {trusting:?}");
            if uses == 0 {
                assert_eq!(ask(&mut bench, a, b, key), Err(Errno::EACCES), "{what}");
                continue;
            }
            let token = ask(&mut bench, a, b, key).unwrap();
            let asked = |action: &Action| match action {
                Action::Adopt { adopt, .. } => Some(*adopt),
                _ => None,
            };
            let adopt_asked = bench.told.iter().find_map(asked).unwrap();
            assert_eq!(adopt_asked.trust(), trust, "{what}");
            let actions = adopt(&mut bench, 2, adopted(token), OPEN);
            if !page_rights::is_writable(access) {
                assert_eq!(denied(&actions), Errno::EINVAL, "{what}: it could be written to");
                continue;
            }
            let [Action::Grant { granted, .. }] = actions.as_slice() else { panic!("{what}") };
            assert_eq!(granted.access, uses, "{what}");
        }
    }
}

/// Processes of one user in one vNIC are told apart by their other namespaces and groups.
#[test]
fn a_process_that_cannot_trace_the_owner_is_not_trusted() {
    let circle = |namespaces, group| Some(PtraceDomain { namespaces, group });
    let own = circle([1, 2, 3], 7);
    let cases = [
        (own, own, true),
        (own, circle([9, 2, 3], 7), false),
        (own, circle([1, 9, 3], 7), false),
        (own, circle([1, 2, 9], 7), false),
        (own, circle([1, 2, 3], 9), false),
        (own, None, false),
        (None, None, false),
    ];
    for (first, second, trusted) in cases {
        let mut bench = bench_with(Limits::default());
        make_exact(&mut bench);
        for (session, circle) in [(1, first), (2, second)] {
            bench.open_within(session, 1, &Holder::new("/pod", 0), circle);
            call(&mut bench, session, Hello { role: ROLE_VERBS, resume: 0, name: [0; 16] });
        }
        let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
        call(&mut bench, 1, to(a, 1, b, 1));
        call(&mut bench, 2, to(b, 1, a, 1));
        let key = mr(&mut bench, 2, 1, WRITE);
        let answer = ask(&mut bench, a, b, key).map(drop);
        assert_eq!(
            answer,
            if trusted { Ok(()) } else { Err(Errno::EACCES) },
            "{first:?} {second:?}"
        );
    }
}

/// The daemon's own table counts, at the time of the answer.
#[test]
fn trust_that_ends_while_the_owner_is_asked_grants_nothing() {
    let (mut bench, a, b) = linked();
    let set = |bench: &mut Bench, selector, adoption| {
        drop(bench.tenancy.set_policy(vnic(selector), Policy { adoption, ..Policy::default() }));
    };
    set(&mut bench, 1, Adoption::Trusting);
    set(&mut bench, 2, Adoption::Trusting);
    let key = mr(&mut bench, 2, 1, WRITE);
    let token = ask(&mut bench, a, b, key).unwrap();
    set(&mut bench, 1, Adoption::Exact);
    assert_eq!(denied(&adopt(&mut bench, 2, adopted(token), OPEN)), Errno::EACCES);
}

#[test]
fn extents_have_quotas() {
    let limits = Limits { extents_per_session: 2, ..Limits::default() };
    let (mut bench, a, b) = linked_with(limits);
    let keys: Vec<Rkey> = (0..3).map(|_| mr(&mut bench, 2, 1, READ)).collect();
    for key in &keys[..2] {
        let token = ask(&mut bench, a, b, *key).unwrap();
        adopt(&mut bench, 2, adopted(token), SEALED);
    }
    assert_eq!(ask(&mut bench, a, b, keys[2]), Err(Errno::ENOMEM));
    ask(&mut bench, a, b, keys[1]).unwrap();
    call(&mut bench, 2, DeregMr { rkey: keys[0], reserved: 0 });
    ask(&mut bench, a, b, keys[2]).unwrap();
    assert_eq!(ask(&mut bench, a, b, keys[2]), Err(Errno::EAGAIN), "it is on its way");
    bench.end(1);
    bench.end(2);
    assert!(bench.tenancy.is_empty() && bench.mirror.is_empty());
}

#[test]
fn a_grant_needs_link_key_domain_and_access() {
    let (mut bench, a, b) = linked();
    let key = mr(&mut bench, 2, 1, READ);
    let (other_domain, local) = (mr(&mut bench, 2, 9, READ), mr(&mut bench, 2, 1, 1));
    let mine = mr(&mut bench, 1, 1, READ);
    assert_eq!(ask(&mut bench, a, b, other_domain), Err(Errno::EACCES));
    assert_eq!(ask(&mut bench, a, b, local), Err(Errno::EACCES));
    assert_eq!(ask(&mut bench, a, b, mine), Err(Errno::ENOENT));
    assert_eq!(ask(&mut bench, a, Qpn(b.0 ^ 1), key), Err(Errno::ENOENT));
    assert_eq!(ask(&mut bench, b, a, key), Err(Errno::ENOENT));
    let datagram = qp(&mut bench, 1, Service::Ud);
    assert_eq!(ask(&mut bench, datagram, b, key), Err(Errno::EOPNOTSUPP));
    // Deregistered, late, or gone while the owner was asked.
    let sealed = MemoryFacts { is_final: true, is_write_sealed: true };
    let token = ask(&mut bench, a, b, key).unwrap();
    call(&mut bench, 2, DeregMr { rkey: key, reserved: 0 });
    let pages = Adopted { token, errno: Errno::NONE, epoch: 0 };
    assert_eq!(denied(&adopt(&mut bench, 2, pages, sealed)), Errno::EAGAIN);
    let key = mr(&mut bench, 2, 1, READ);
    ask(&mut bench, a, b, key).unwrap();
    bench.told.clear();
    bench.wait(2_000_000_000);
    assert_eq!(denied(&bench.told.clone()), Errno::ETIMEDOUT);
    ask(&mut bench, a, b, key).unwrap();
    bench.end(2);
    let told = events(&mut bench, 1);
    assert!(told.contains(
        &GrantDenied { qpn: a, peer_qpn: b, rkey: key, errno: Errno::ECONNRESET }.into()
    ));
}

#[test]
fn links_survive_a_restart_if_both_ends_do() {
    let (a, b, c) = (900, 800, 700);
    let mut bench = bench();
    hello(&mut bench, 1, 1, 1);
    assert!(keep_qp(&mut bench, 1, Service::Rc, Qpn(a)).is_some());
    assert!(keep_qp(&mut bench, 1, Service::Rc, Qpn(c)).is_some());
    let resume = |m: ConnectQp| ConnectQp { resume: 1, ..m };
    call(&mut bench, 1, resume(to(Qpn(a), 1, Qpn(b), 2)));
    call(&mut bench, 1, resume(to(Qpn(c), 1, Qpn(600), 2)));
    hello(&mut bench, 2, 2, 1);
    assert_eq!(errno(keep_qp(&mut bench, 2, Service::Rc, Qpn(a))), Errno::EADDRINUSE);
    keep_qp(&mut bench, 2, Service::Rc, Qpn(b));
    call(&mut bench, 2, resume(to(Qpn(b), 2, Qpn(a), 1)));
    bench.wait(1_100_000_000);
    assert!(links(&bench).is_empty(), "no new memory for an old link");
    let status = bench.tenancy.status(Some(vnic(2)));
    let peer = &status[0].processes[0].qps[0].peers[0];
    assert_eq!((peer.qpn, peer.vnic.as_deref()), (Qpn(a), Some("net-1")));
    assert_eq!((peer.path, peer.why), (Path::Direct, PathReason::Survivor));
    let message = RegMr { pd: 1, access: READ, addr: 0, length: 1, rkey: Rkey(42), reserved: 0 };
    let answer = call(&mut bench, 2, message);
    assert_eq!(answer, Some(MrRegistered { rkey: Rkey(42), reserved: 0 }.into()));
    bench.told.clear();
    bench.wait(6_000_000_000);
    let closed = |qpn, peer_qpn| LinkClosed { qpn, peer_qpn, reason: CLOSED_BY_DEATH, reserved: 0 };
    assert_eq!(events(&mut bench, 1), [closed(Qpn(c), Qpn(600)).into()], "its peer died meanwhile");
    bench.end(2);
    assert_eq!(events(&mut bench, 1), [closed(Qpn(a), Qpn(b)).into()]);
    bench.end(1);
    assert!(bench.tenancy.is_empty());
}

#[test]
fn an_announcement_alone_gives_nothing() {
    // An impostor takes the number of a dead peer, in another container.
    let mut bench = bench();
    let resume = |m: ConnectQp| ConnectQp { resume: 1, ..m };
    hello(&mut bench, 1, 1, 1);
    hello(&mut bench, 3, 3, 1);
    keep_qp(&mut bench, 1, Service::Rc, Qpn(900));
    keep_qp(&mut bench, 3, Service::Rc, Qpn(800));
    call(&mut bench, 1, resume(to(Qpn(900), 1, Qpn(800), 2)));
    call(&mut bench, 3, resume(to(Qpn(800), 3, Qpn(900), 1)));
    assert!(bench.tenancy.status(None)[0].processes[0].qps[0].peers.is_empty());
    assert_eq!(ask_any(&mut bench, 3, Qpn(800), Qpn(900)), Errno::ENOENT);
}

fn ask_any(bench: &mut Bench, session: u64, qpn: Qpn, peer_qpn: Qpn) -> Errno {
    errno(call(
        bench,
        session,
        RequestGrant { qpn, peer_qpn, rkey: Rkey(1), reserved: 0, address: 0, length: 8 },
    ))
}

#[test]
fn a_link_that_cannot_be_made_is_taken_back() {
    let (mut bench, a, b) = linked();
    // A second one was to use the same bell.
    let (c, d) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
    call(&mut bench, 1, to(c, 1, d, 2));
    call(&mut bench, 2, to(d, 2, c, 1));
    bench.told.clear();
    let actions = bench.tenancy.link_failed(a, b, bench.now);
    assert_eq!(actions.len(), 4);
    bench.carry_out(actions);
    bench.told.clear();
    assert!(bench.tenancy.link_failed(c, d, bench.now).is_empty());
    // Both may try again, and get a whole new bell.
    call(&mut bench, 1, to(a, 1, b, 2));
    call(&mut bench, 2, to(b, 2, a, 1));
    assert_eq!(links(&bench)[0].0.ready.bell_new, 1);
}

/// Names what the session probably owns.
fn make_plausible(message: &mut Message, session: u32) {
    let own = |qpn: Qpn| Qpn(2 + session + 6 * (qpn.0 % 2));
    match message {
        Message::CreateQp(m) => {
            let service = if m.qpn.0 % 2 == 0 { Service::Rc } else { Service::Ud };
            (m.qp_type, m.qpn) = (service.qp_type(), own(m.qpn));
        }
        Message::ConnectQp(m) => {
            (m.qpn, m.dest_qpn, m.resume) = (own(m.qpn), Qpn(m.dest_qpn.0 % 8), m.resume / 2);
            m.sgid = gid(u64::from(1 + session % 3));
        }
        Message::DestroyQp(m) => m.qpn = own(m.qpn),
        Message::DisconnectQp(m) => m.qpn = own(m.qpn),
        _ => {}
    }
}

/// Input for `exercise` that gets further than random bytes: small numbers that often meet.
fn steps() -> impl Strategy<Value = Vec<u8>> {
    let small = 0u32..12;
    let gid = (0u64..5).prop_map(gid);
    // The counting entropy starts queue pair numbers at 2.
    let qpn = 0u32..16;
    let message = prop_oneof![
        Just(Message::from(Hello { role: 1, resume: 1, name: [65; 16] })),
        (2u32..12, small.clone()).prop_map(|(qp_type, qpn)| {
            CreateQp { qp_type, qpn: Qpn(qpn), ..create_qp(Service::Rc) }.into()
        }),
        (qpn.clone(), qpn.clone(), gid.clone(), gid, 0u32..3).prop_map(
            |(qpn, dest_qpn, sgid, dgid, resume)| {
                ConnectQp { qpn: Qpn(qpn), dest_qpn: Qpn(dest_qpn), sgid, dgid, resume, carries: 0 }
                    .into()
            }
        ),
        qpn.clone().prop_map(|qpn| DestroyQp { qpn: Qpn(qpn), reserved: 0 }.into()),
        (qpn.clone(), qpn.clone()).prop_map(|(qpn, peer_qpn)| {
            DisconnectQp { qpn: Qpn(qpn), peer_qpn: Qpn(peer_qpn) }.into()
        }),
        small.clone().prop_map(|rkey| {
            RegMr { pd: 1, access: 7, addr: 0, length: 8192, rkey: Rkey(rkey), reserved: 0 }.into()
        }),
        small.clone().prop_map(|rkey| DeregMr { rkey: Rkey(rkey), reserved: 0 }.into()),
        (qpn.clone(), qpn, small.clone()).prop_map(|(qpn, peer_qpn, rkey)| {
            RequestGrant {
                qpn: Qpn(qpn),
                peer_qpn: Qpn(peer_qpn),
                rkey: Rkey(rkey),
                reserved: 0,
                address: 0,
                length: 5000,
            }
            .into()
        }),
        (0u64..64).prop_map(|n| {
            let token = n * 0x1_0000_0001;
            Adopted { token, errno: Errno::NONE, epoch: 0 }.into()
        }),
        Just(QueryGids { reserved: 0 }.into()),
    ];
    let step = (any::<u8>(), any::<u8>(), message).prop_map(|(what, selector, mut message)| {
        if what & 32 != 0 {
            make_plausible(&mut message, u32::from(selector % 6));
        }
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(1, &message, &mut bytes);
        let mut step = vec![what, selector];
        if what % 16 == 5 {
            step.extend([selector, what, selector >> 2, what >> 3]);
        }
        if what % 16 > 8 {
            step.push(u8::try_from(length).unwrap());
            step.extend(&bytes[..length]);
        }
        step
    });
    // All processes are there, each with a connected queue pair and one for datagrams.
    let begin = (0..6u8).flat_map(|selector| {
        let hello = Hello { role: 1, resume: 1, name: [65; 16] };
        let queue_pair = |qp_type, qpn| CreateQp { qp_type, qpn, ..create_qp(Service::Rc) };
        let number = 2 + u32::from(selector);
        let messages: [Message; 3] = [
            hello.into(),
            queue_pair(Service::Rc.qp_type(), Qpn(number)).into(),
            queue_pair(Service::Ud.qp_type(), Qpn(number + 6)).into(),
        ];
        messages.into_iter().flat_map(move |message| {
            let mut bytes = [0; MESSAGE_BYTES_MAX];
            let length = encode(1, &message, &mut bytes);
            let head = [9 | 64, selector, u8::try_from(length).unwrap()];
            head.into_iter().chain(bytes[..length].to_vec())
        })
    });
    let begin: Vec<u8> = begin.collect();
    proptest::collection::vec(step, 1..120)
        .prop_map(move |steps| begin.iter().copied().chain(steps.into_iter().flatten()).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if OPAQUE_NAMES { 25 } else { 500 }))]

    #[test]
    fn random_calls_keep_the_tables_consistent(bytes in steps()) {
        exercise(&bytes);
    }

    #[test]
    fn arbitrary_bytes_are_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        exercise(&bytes);
    }
}
