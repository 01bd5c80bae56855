//! Tests which processes are asked for pages of a vNIC, and which take them back when its policy
//! changes.

use crate::support::*;
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_tenancy::testing::random_driver::{Bench, vnic};
use omniverb_tenancy::{
    Action, Adoption, Arrived, Channel, Limits, MemoryFacts, Policies, Policy, SessionId,
};
use omniverb_terms::{Errno, Qpn, Rkey, Service};

const ACCESS: u32 = 7;
const SOUND: Option<MemoryFacts> = Some(MemoryFacts { is_final: true, is_write_sealed: false });

fn policy(adoption: Adoption) -> Policy {
    Policy { adoption, ..Policy::default() }
}

/// Sets it; returns the sessions that are told to take pages back.
fn set(bench: &mut Bench, which: u64, adoption: Adoption) -> Vec<u64> {
    let (_, actions) = bench.tenancy.set_policy(vnic(which), policy(adoption));
    told(&actions)
}

fn told(actions: &[Action]) -> Vec<u64> {
    let session = |action: &Action| match action {
        Action::Event { session: SessionId(session), message: Message::TakeBack(_) } => *session,
        other => panic!("{other:?}"),
    };
    actions.iter().map(session).collect()
}

/// Processes 1, 2 and 3 in vNICs of these numbers; the queue pairs of 1 and 2 are linked.
fn linked() -> (Bench, Qpn, Qpn) {
    let mut bench = bench_with(Limits::default());
    make_exact(&mut bench);
    for session in 1..=3 {
        hello(&mut bench, session, session, 0);
    }
    let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
    call(&mut bench, 1, to(a, 1, b, 2));
    call(&mut bench, 2, to(b, 2, a, 1));
    assert_eq!(links(&bench).len(), 1);
    (bench, a, b)
}

fn ask(bench: &mut Bench, qpn: Qpn, peer_qpn: Qpn, rkey: Rkey) -> Result<u64, Errno> {
    let asked = ask_for_grant(bench, (qpn, peer_qpn), rkey)?;
    Ok(asked.first().unwrap().1.token)
}

#[test]
fn an_owner_or_an_initiator_that_is_off_shares_no_pages() {
    for changed in [1, 2] {
        let (mut bench, a, b) = linked();
        let key = mr(&mut bench, 2, 1, ACCESS);
        set(&mut bench, changed, Adoption::Off);
        assert_eq!(ask(&mut bench, a, b, key), Err(Errno::EPERM));
        set(&mut bench, changed, Adoption::Exact);
        ask(&mut bench, a, b, key).unwrap();
    }
}

#[test]
fn an_answer_that_comes_after_the_switch_grants_nothing() {
    for changed in [1, 2] {
        let (mut bench, a, b) = linked();
        let key = mr(&mut bench, 2, 1, ACCESS);
        let token = ask(&mut bench, a, b, key).unwrap();
        set(&mut bench, changed, Adoption::Off);
        bench.told.clear();
        let message = Adopted { token, errno: Errno::NONE, epoch: 0 };
        let (channel, message) = (Channel::Events, message.into());
        bench.say(2, &Arrived { channel, tag: 0, message, memory: SOUND });
        let [Action::Event { message: Message::GrantDenied(denied), .. }] = bench.told.as_slice()
        else {
            panic!("{:?}", bench.told)
        };
        assert_eq!(denied.errno, Errno::EPERM);
    }
}

#[test]
fn owners_and_grantees_take_back_and_no_others() {
    let (mut bench, ..) = linked();
    assert_eq!(set(&mut bench, 1, Adoption::Off), [1, 2]);
    assert!(set(&mut bench, 1, Adoption::Off).is_empty(), "it was off before");
    assert!(set(&mut bench, 1, Adoption::Trusting).is_empty(), "more is allowed than before");
    assert_eq!(set(&mut bench, 1, Adoption::Exact), [1, 2], "less is");
    assert_eq!(set(&mut bench, 3, Adoption::Off), [3]);
    // Settings of a namespace that is gone are forgotten, and the configuration holds.
    set(&mut bench, 2, Adoption::Trusting);
    assert_eq!(told(&bench.tenancy.forget_policy(vnic(2))), [1, 2]);
}

#[test]
fn one_event_for_a_process_however_many_links_it_has() {
    let (mut bench, ..) = linked();
    for _ in 0..50 {
        let (c, d) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
        call(&mut bench, 1, to(c, 1, d, 2));
        call(&mut bench, 2, to(d, 2, c, 1));
    }
    assert_eq!(set(&mut bench, 2, Adoption::Off), [1, 2]);
}

#[test]
fn a_process_that_outlived_the_daemon_obeys_its_configuration() {
    let mut bench = bench_with(Limits::default());
    let mut policies = Policies::default();
    policies.named.insert("net-1".into(), policy(Adoption::Off));
    bench.tenancy.configure(policies);
    hello(&mut bench, 1, 1, 0);
    let take_back =
        |action: &Action| matches!(action, Action::Event { message: Message::TakeBack(_), .. });
    assert!(!bench.told.iter().any(take_back), "a new process has granted nothing");
    hello(&mut bench, 2, 2, 1);
    assert!(bench.told.iter().any(take_back), "it may have granted to a process of net-1");
}
