//! Tests what rules do inside a tenant: to new links, to links that exist, to pages and sockets.

use crate::support::*;
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_tenancy::testing::random_driver::{Bench, ip, vnic};
use omniverb_tenancy::{
    Action, Operations, PathReason, Policy, RateLimit, RelationRefusal, RuleSet, SessionId,
    VnicNames, VnicRules,
};
use omniverb_terms::{Qpn, Rkey, Service};
use std::sync::Arc;

/// Gives a vNIC rules. Its name is `v` and its number.
fn rule(bench: &mut Bench, which: u64, rules: &[&str]) {
    let rules = VnicRules {
        rules: Arc::new(RuleSet::new(rules.iter().map(|rule| rule.parse().unwrap()))),
        names: VnicNames { vnic: vec![format!("v{which}")], policies: vec!["all".into()] },
    };
    bench.tenancy.set_rules(vnic(which), rules);
    let actions = bench.tenancy.review_rules();
    bench.carry_out(actions);
}

/// Processes 1, 2 and 3 in vNICs of these numbers.
fn three() -> Bench {
    let mut bench = bench();
    for session in 1..=3 {
        hello(&mut bench, session, session, 0);
        rule(&mut bench, session, &[]);
    }
    bench
}

fn connect(bench: &mut Bench, [one, other]: [u64; 2], service: Service) -> (Qpn, Qpn) {
    let (a, b) = (qp(bench, one, service), qp(bench, other, service));
    call(bench, one, to(a, one, b, other));
    call(bench, other, to(b, other, a, one));
    (a, b)
}

/// The messages to a process, in order.
fn told(bench: &Bench, of: u64) -> Vec<Message> {
    let told = bench.told.iter().filter_map(|action| match action {
        Action::Event { session, message } if *session == SessionId(of) => Some(message.clone()),
        _ => None,
    });
    told.collect()
}

fn refused(bench: &Bench, session: u64) -> Vec<Operations> {
    let told = told(bench, session).into_iter();
    told.filter_map(|told| match told {
        Message::LinkRefuses(link) => Some(Operations::from_bits(link.refused)),
        _ => None,
    })
    .collect()
}

const NO_READ: [&str; 2] = ["ingress deny read", "ingress accept all"];

#[test]
fn denied_connections_lead_nowhere_and_others_are_made() {
    for service in [Service::Rc, Service::Uc] {
        for rules in [
            ["ingress deny connect from vnic v1", "ingress accept all"],
            ["egress deny connect to vnic v1", "egress accept all"],
            ["ingress accept all from vnic v3", "ingress deny all priority 200"],
        ] {
            let mut bench = three();
            rule(&mut bench, 2, &rules);
            connect(&mut bench, [1, 2], service);
            assert!(links(&bench).is_empty(), "{service:?} {rules:?}");
            assert_eq!(paths(&bench, 1)[0].1, PathReason::Denied, "{service:?} {rules:?}");
            for end in engine_links(&bench) {
                assert_eq!(end.within, Some(end.vnic), "packets leave");
            }
            bench.told.clear();
            connect(&mut bench, [3, 2], service);
            assert_eq!(links(&bench).len(), 1, "{service:?} {rules:?}");
        }
    }
}

#[test]
fn a_link_refuses_denied_operations_at_the_responder() {
    let mut bench = three();
    rule(&mut bench, 2, &NO_READ);
    connect(&mut bench, [1, 2], Service::Rc);
    let made = links(&bench);
    let [(first, second)] = &made[..] else { panic!("{made:?}") };
    for end in [first, second] {
        let expected = if end.session.0 == 2 { Operations::READ } else { Operations::NONE };
        assert_eq!(Operations::from_bits(end.ready.refused), expected);
    }
}

/// A process says itself which of its addresses it uses. The peer's network led to another one.
#[test]
fn a_link_refuses_by_the_address_at_which_the_peer_was_found() {
    let rules = [format!("ingress deny write from {}", ip(1)), "ingress accept all".into()];
    let rules = [rules[0].as_str(), rules[1].as_str()];
    let loopback: std::net::IpAddr = "127.0.0.1".parse().unwrap();
    for sgid in [gid(1), loopback.into()] {
        let mut bench = three();
        rule(&mut bench, 2, &rules);
        let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
        call(&mut bench, 1, ConnectQp { sgid, ..to(a, 1, b, 2) });
        call(&mut bench, 2, to(b, 2, a, 1));
        let asked = |bench: &Bench| {
            let made = links(bench);
            let ends = made.iter().flat_map(|(one, other)| [one, other]);
            let ends = ends.filter(|end| end.session.0 == 2);
            ends.map(|end| Operations::from_bits(end.ready.refused)).collect::<Vec<_>>()
        };
        assert_eq!(asked(&bench), [Operations::WRITE], "{sgid:?}");
        bench.told.clear();
        rule(&mut bench, 2, &[]);
        rule(&mut bench, 2, &rules);
        assert_eq!(refused(&bench, 2), [Operations::NONE, Operations::WRITE], "{sgid:?}");
    }
}

#[test]
fn forwarded_datagrams_are_judged_by_the_address_at_which_the_sender_is_found() {
    let denied = format!("ingress deny datagram from {}", ip(1));
    let loopback: std::net::IpAddr = "127.0.0.1".parse().unwrap();
    for (sgid, rule_of_two, reaches) in [
        (gid(1), "ingress accept all", true),
        (gid(1), denied.as_str(), false),
        (loopback.into(), denied.as_str(), false),
        (loopback.into(), "ingress accept all", false),
    ] {
        let mut bench = three();
        let limit = Some(RateLimit { bits_per_second: 1 << 30, burst_bytes: 1 << 20 });
        let policy = Policy { limit, ..bench.tenancy.policy(vnic(2)) };
        let (_, actions) = bench.tenancy.set_policy(vnic(2), policy);
        bench.carry_out(actions);
        rule(&mut bench, 2, &[rule_of_two, "ingress accept all"]);
        let (a, b) = (qp(&mut bench, 1, Service::Ud), qp(&mut bench, 2, Service::Ud));
        call(&mut bench, 1, ConnectQp { sgid, ..to(a, 1, b, 2) });
        let within = engine_links(&bench).iter().any(|end| end.within == Some(vnic(2)));
        assert_eq!(within, reaches, "{sgid:?} {rule_of_two}");
        assert!(links(&bench).is_empty());
    }
}

#[test]
fn changed_rules_reach_links_and_end_forbidden_ones() {
    let mut bench = three();
    let (a, b) = connect(&mut bench, [1, 2], Service::Rc);
    connect(&mut bench, [1, 3], Service::Rc);
    bench.told.clear();
    rule(&mut bench, 2, &NO_READ);
    assert_eq!(refused(&bench, 2), [Operations::READ]);
    let take_back = TakeBack { what: TAKE_ALL, rkey: Rkey(0), start: 0, number: 0 };
    assert!(told(&bench, 2).contains(&take_back.into()));
    assert!(refused(&bench, 1).is_empty() && refused(&bench, 3).is_empty());
    bench.told.clear();
    rule(&mut bench, 2, &[]);
    assert_eq!(refused(&bench, 2), [Operations::NONE]);
    bench.told.clear();
    rule(&mut bench, 2, &["ingress deny connect from vnic v1", "ingress accept all"]);
    let ended = LinkClosed { qpn: a, peer_qpn: b, reason: CLOSED_BY_NETWORK, reserved: 0 };
    assert!(told(&bench, 1).contains(&ended.into()));
    assert_eq!((paths(&bench, 1).len(), paths(&bench, 2).len()), (1, 0), "others stay");
    bench.tenancy.check_accounts();
}

#[test]
fn a_link_ends_when_send_is_taken_away() {
    let mut bench = three();
    connect(&mut bench, [1, 2], Service::Rc);
    rule(&mut bench, 1, &["egress deny send", "egress accept all"]);
    assert!(paths(&bench, 1).is_empty());
    bench.told.clear();
    connect(&mut bench, [1, 2], Service::Rc);
    let made = links(&bench);
    let refusing = made.iter().flat_map(|(one, other)| [one, other]).find(|e| e.session.0 == 2);
    assert_eq!(Operations::from_bits(refusing.unwrap().ready.refused), Operations::SEND);
}

#[test]
fn datagrams_go_in_the_direction_that_is_accepted() {
    let mut bench = three();
    rule(&mut bench, 2, &["ingress deny datagram", "ingress accept all"]);
    let (a, b) = (qp(&mut bench, 1, Service::Ud), qp(&mut bench, 2, Service::Ud));
    call(&mut bench, 1, to(a, 1, b, 2));
    assert!(links(&bench).is_empty());
    assert_eq!(paths(&bench, 1)[0].1, PathReason::Denied);
    bench.told.clear();
    call(&mut bench, 2, to(b, 2, a, 1));
    assert!(links(&bench).is_empty(), "one link would carry both directions");
    let end = engine_links(&bench).into_iter().find(|end| end.ready.qpn == b).unwrap();
    assert_eq!(end.within, Some(vnic(1)));
    assert_eq!(Operations::from_bits(end.ready.refused), Operations::DATAGRAM);
    rule(&mut bench, 2, &[]);
    assert!(paths(&bench, 1).is_empty(), "the next message asks again");
    bench.told.clear();
    let (c, d) = (qp(&mut bench, 1, Service::Ud), qp(&mut bench, 3, Service::Ud));
    call(&mut bench, 1, to(c, 1, d, 3));
    assert_eq!(links(&bench).len(), 1);
    rule(&mut bench, 3, &["ingress deny datagram", "ingress accept all"]);
    assert!(paths(&bench, 3).is_empty());
}

#[test]
fn sockets_obey_connect() {
    let mut bench = three();
    let relate = |bench: &mut Bench, number| {
        let ends = [(vnic(1), ip(1)), (vnic(2), ip(2))];
        let actions = bench.tenancy.relate(number, ends, bench.now);
        bench.carry_out(actions);
    };
    let verdict = |bench: &Bench, number| {
        bench.told.iter().rev().find_map(|action| match action {
            Action::Related { number: of, verdict } if *of == number => Some(*verdict),
            _ => None,
        })
    };
    relate(&mut bench, 1);
    assert_eq!(verdict(&bench, 1), Some(Ok(())));
    rule(&mut bench, 2, &["ingress deny connect", "ingress accept all"]);
    assert_eq!(verdict(&bench, 1), Some(Err(RelationRefusal::NotThere)));
    relate(&mut bench, 2);
    assert_eq!(verdict(&bench, 2), Some(Err(RelationRefusal::NotThere)));
    rule(&mut bench, 2, &NO_READ);
    relate(&mut bench, 3);
    assert_eq!(verdict(&bench, 3), Some(Ok(())));
}

#[test]
fn requests_of_rdma_cm_obey_rules_about_their_port() {
    use crate::support::cm_helpers::{
        PORT, TCP, at, connect as connect_by_address, events, listen,
    };
    use omniverb_session::cm::event;
    let other = ["ingress deny connect port 1", "ingress accept all"];
    let denied = format!("ingress deny connect port {PORT}");
    for (rules, heard) in [(other, 1), ([denied.as_str(), "ingress accept all"], 0)] {
        let mut bench = three();
        rule(&mut bench, 2, &rules);
        listen(&mut bench, 2, TCP, 0);
        connect_by_address(&mut bench, 1, at(2), TCP);
        if heard == 1 {
            assert_eq!(events(&mut bench, 2).len(), 1);
        } else {
            let told = events(&mut bench, 1);
            let rejected = told.iter().filter(|told| told.event == event::REJECTED).count();
            assert_eq!(rejected, 1, "{told:?}");
        }
    }
}

#[test]
fn an_accepted_port_is_enough_for_the_links_of_its_connections() {
    use crate::support::cm_helpers::{
        PORT, TCP, accept_with, at, connect_with, destroy, done, establish, event, events, listen,
    };
    let accepted = format!("ingress accept connect,write port {PORT}");
    for rules in [vec![accepted.as_str()], vec![accepted.as_str(), "ingress deny all"]] {
        let mut bench = three();
        rule(&mut bench, 2, &rules[..1]);
        listen(&mut bench, 2, TCP, 0);
        let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
        let id = connect_with(&mut bench, 1, at(2), TCP, a);
        let request = event(&mut bench, 2);
        // Who is asked prepares its queue pair before it answers.
        call(&mut bench, 2, to(b, 2, a, 1));
        done(accept_with(&mut bench, 2, request.id, b));
        events(&mut bench, 1);
        call(&mut bench, 1, to(a, 1, b, 2));
        done(establish(&mut bench, 1, id));
        let made = links(&bench);
        let [(first, second)] = &made[..] else { panic!("{made:?}") };
        let of = |session| if first.session.0 == session { first } else { second };
        let others = Operations::SEND.with(Operations::READ).with(Operations::ATOMIC);
        assert_eq!(Operations::from_bits(of(2).ready.refused), others);
        assert_eq!(Operations::from_bits(of(1).ready.refused), Operations::NONE);
        // Another pair of queue pairs is not of that connection, whatever it has.
        bench.told.clear();
        connect(&mut bench, [1, 2], Service::Rc);
        assert!(links(&bench).is_empty());
        // The link keeps its port when its ids are gone, and rules are compared with that.
        done(destroy(&mut bench, 1, id, 0));
        done(destroy(&mut bench, 2, request.id, 1));
        rule(&mut bench, 2, &[&accepted, "ingress accept send"]);
        assert!(paths(&bench, 1).iter().any(|(_, why)| *why != PathReason::Denied));
        rule(&mut bench, 2, &["ingress accept connect,write port 1"]);
        assert!(paths(&bench, 1).iter().all(|(_, why)| *why == PathReason::Denied));
        bench.tenancy.check_accounts();
    }
}

#[test]
fn the_audit_is_told_which_rule_denies() {
    use crate::support::cm_helpers::{TCP, at, connect as connect_by_address, listen};
    use omniverb_tenancy::{Direction, LinkEvent, Refusal, RuleOrigin};
    let denials = |bench: &Bench| -> Vec<Refusal> {
        let audited = bench.told.iter().filter_map(|action| match action {
            Action::Audit(audited) if audited.event == LinkEvent::Denied => {
                Some(audited.refusal.clone().expect("it says why"))
            }
            _ => None,
        });
        audited.collect()
    };
    let mut bench = three();
    bench.tenancy.begin_audit();
    rule(&mut bench, 2, &["ingress accept all", "ingress deny connect from vnic v1"]);
    connect(&mut bench, [1, 2], Service::Rc);
    let origin = RuleOrigin { number: 2, ..RuleOrigin::default() };
    let rule_two = (origin, "ingress deny connect from vnic v1".to_string());
    let by_rule = Refusal { vnic: vnic(2), direction: Direction::Ingress, rule: Some(rule_two) };
    assert_eq!(denials(&bench), [by_rule.clone(), by_rule.clone()], "each end is told once");
    bench.told.clear();
    listen(&mut bench, 2, TCP, 0);
    connect_by_address(&mut bench, 1, at(2), TCP);
    assert_eq!(denials(&bench), [by_rule]);
    rule(&mut bench, 3, &["egress accept read"]);
    bench.told.clear();
    connect(&mut bench, [3, 1], Service::Rc);
    let by_none = Refusal { vnic: vnic(3), direction: Direction::Egress, rule: None };
    assert_eq!(denials(&bench)[0], by_none);
}
