//! Tests connections between processes: of one vNIC, of two, and to a peer on another host.

use crate::support::cm_helpers::*;
use crate::support::{bench_with, call, errno, hello, qp};
use omniverb_cm::{Mad, Message as Said, Received, Reject, reject_reason};
use omniverb_session::Message;
use omniverb_session::cm::*;
use omniverb_tenancy::testing::random_driver::{Bench, ip, underlay};
use omniverb_tenancy::{Limits, Pace, SessionId};
use omniverb_terms::{Errno, Gid, Qpn, Service};
use std::net::Ipv4Addr;

#[test]
fn two_processes_connect_and_know_what_their_queue_pairs_need() {
    for (own, remote, text) in [(1, 1, "127.0.0.1"), (1, 1, "10.0.0.1"), (1, 2, "10.0.0.2")] {
        let mut bench = two(own, remote);
        let listener = listen(&mut bench, 2, TCP, 0);
        let to = CmAddress { port: PORT, ..address(&format!("{text}:0")) };
        let id = connect(&mut bench, 1, to, TCP);
        let request = event(&mut bench, 2);
        assert_eq!((request.event, request.listener, request.number), (4, listener, 1), "{text}");
        assert_eq!((request.qpn, request.parameters.private_length), (latest(&bench, 1), 56));
        assert_eq!((&request.private[..2], request.private[2]), (&[1, 1][..], 0));
        let said = request.parameters;
        assert_eq!((said.responder_resources, said.initiator_depth), (5, 3), "crossed");
        assert_eq!((said.retry_count, said.rnr_retry, said.ece_vendor), (7, 7, VENDOR));
        assert_eq!(request.local, to);
        // A loopback address is not listed: the vNIC has another name.
        let named = |of: Gid| if of.is_loopback() { ip(1).into() } else { of };
        assert_eq!((request.dgid, request.sgid), (named(request.remote.ip), named(to.ip)));
        done(accept(&mut bench, 2, request.id));
        let response = event(&mut bench, 1);
        assert_eq!((response.event, response.id, response.qpn), (5, id, latest(&bench, 2)));
        let said = response.parameters;
        assert_eq!((said.private_length, said.ece_options), (196, 77));
        assert_eq!((&response.private[..3], response.private[3]), (&[2, 2, 2][..], 0));
        let query = |bench: &mut Bench, session, id| match call(
            bench,
            session,
            QueryCmId { id, reserved: 0 },
        ) {
            Some(Message::CmIdQueried(queried)) => queried,
            other => panic!("{other:?}"),
        };
        let (asks, asked) = (query(&mut bench, 1, id), query(&mut bench, 2, request.id));
        assert_eq!((asks.known, asked.known), (7, 7));
        // WRITE, READ, atomics and FLUSH_GLOBAL, as kernels give them.
        assert_eq!((asks.access, asked.access), (0x10e, 0x10e));
        assert_eq!((asks.dest_qpn, asked.dest_qpn), (latest(&bench, 2), latest(&bench, 1)));
        assert_eq!((asks.sq_psn, asks.rq_psn), (asked.rq_psn, asked.sq_psn));
        assert_eq!((asks.max_rd_atomic, asks.max_dest_rd_atomic), (4, 2));
        assert_eq!((asked.max_rd_atomic, asked.max_dest_rd_atomic), (2, 4));
        assert_eq!((asks.sgid, asks.dgid), (asked.dgid, asked.sgid));
        assert_eq!(asks.path_mtu, asked.path_mtu);
        assert_eq!((asks.timeout, asks.retry_count, asks.rnr_retry), (17, 7, 7));
        assert_eq!((asks.flow_label, asks.hop_limit), (asked.flow_label, 64));
        done(establish(&mut bench, 1, id));
        assert_eq!(event(&mut bench, 2).event, event::ESTABLISHED);
        done(disconnect(&mut bench, 1, id));
        assert_eq!(event(&mut bench, 2).event, event::DISCONNECTED);
        assert_eq!(event(&mut bench, 1).event, event::DISCONNECTED);
        done(disconnect(&mut bench, 2, request.id));
        bench.wait(SECOND);
        assert_eq!(kinds(&mut bench, 1), [(event::TIMEWAIT_EXIT, 0)]);
        assert_eq!(kinds(&mut bench, 2), [(event::TIMEWAIT_EXIT, 0)]);
        done(destroy(&mut bench, 1, id, 0));
        done(destroy(&mut bench, 2, request.id, 0));
        done(destroy(&mut bench, 2, listener, 1));
        assert_eq!(errno(destroy(&mut bench, 2, listener, 1)), Errno::ENOENT);
        bench.end(1);
        bench.end(2);
        assert!(bench.tenancy.is_empty());
    }
}

#[test]
fn no_host_and_no_listener_are_told_apart() {
    for remote in [1, 2] {
        let mut bench = two(1, remote);
        let id = connect(&mut bench, 1, at(remote), TCP);
        assert_eq!(kinds(&mut bench, 1), [], "a listener may come");
        bench.wait(SECOND / 16);
        let refused = event(&mut bench, 1);
        assert_eq!((refused.event, refused.id), (event::REJECTED, id));
        assert_eq!(refused.status, i32::from(reject_reason::INVALID_SERVICE));
        listen(&mut bench, 2, TCP, 0);
        let id = connect(&mut bench, 1, at(remote), TCP);
        let request = event(&mut bench, 2);
        let (private_length, private) = (148, [9; CM_PRIVATE_BYTES]);
        let reject = RejectCmId { id: request.id, reason: 0, private_length, private };
        done(call(&mut bench, 2, reject));
        let refused = event(&mut bench, 1);
        assert_eq!((refused.event, refused.id, refused.status), (event::REJECTED, id, 28));
        assert_eq!((refused.parameters.private_length, refused.private[147]), (148, 9));
        assert_eq!(errno(accept(&mut bench, 2, request.id)), Errno::EINVAL);
        // A queue pair of datagrams does not serve connections, and the other way round.
        connect(&mut bench, 1, at(remote), UDP);
        bench.wait(SECOND / 16);
        assert_eq!(kinds(&mut bench, 1), [(event::UNREACHABLE, 1)]);
    }
}

#[test]
fn a_few_early_requests_are_not_refused() {
    for (remote, space) in [(1, TCP), (2, TCP), (1, UDP), (2, UDP)] {
        let mut bench = two(1, remote);
        let ids: Vec<u32> = (0..6).map(|_| connect(&mut bench, 1, at(remote), space)).collect();
        let refused = events(&mut bench, 1);
        assert_eq!(refused.iter().map(|told| told.id).collect::<Vec<_>>(), ids[4..]);
        done(destroy(&mut bench, 1, ids[0], 0));
        listen(&mut bench, 2, space, 0);
        let asked = if space == TCP { 3 } else { 4 };
        assert_eq!(kinds(&mut bench, 2), vec![(event::CONNECT_REQUEST, 0); asked], "{remote}");
        bench.wait(SECOND / 2);
        assert_eq!(kinds(&mut bench, 1), []);
        bench.end(1);
        bench.end(2);
        assert!(bench.tenancy.is_empty());
    }
}

#[test]
fn datagrams_find_the_queue_pair_that_serves_them() {
    for remote in [1, 2] {
        let mut bench = two(1, remote);
        let listener = listen(&mut bench, 2, UDP, 0);
        let id = connect(&mut bench, 1, at(remote), UDP);
        let request = event(&mut bench, 2);
        assert_eq!((request.event, request.listener), (event::CONNECT_REQUEST, listener));
        assert_eq!((request.parameters.private_length, request.private[1]), (180, 1));
        done(accept(&mut bench, 2, request.id));
        let found = event(&mut bench, 1);
        assert_eq!((found.event, found.id, found.qpn), (event::ESTABLISHED, id, latest(&bench, 2)));
        assert_eq!((found.parameters.qkey, found.dgid), (CM_QUEUE_KEY, ip(remote).into()));
        assert_eq!((found.parameters.private_length, found.private[2]), (136, 2));
        assert_eq!(events(&mut bench, 2), []);
        connect(&mut bench, 1, at(remote), UDP);
        let request = event(&mut bench, 2);
        done(destroy(&mut bench, 2, request.id, 0));
        assert_eq!(kinds(&mut bench, 1), [(event::UNREACHABLE, 2)]);
    }
}

#[test]
fn a_process_may_die_in_every_connection_state() {
    for remote in [1, 2] {
        // It was asked and has not answered.
        let mut bench = two(1, remote);
        listen(&mut bench, 2, TCP, 0);
        connect(&mut bench, 1, at(remote), TCP);
        bench.end(2);
        assert_eq!(kinds(&mut bench, 1), [(event::REJECTED, 28)]);
        // It has answered.
        let mut bench = two(1, remote);
        listen(&mut bench, 2, TCP, 0);
        connect(&mut bench, 1, at(remote), TCP);
        let request = event(&mut bench, 2);
        done(accept(&mut bench, 2, request.id));
        events(&mut bench, 1);
        bench.end(2);
        assert_eq!(kinds(&mut bench, 1), [(event::REJECTED, 28)]);
        // It has asked, or was answered.
        for answered in [false, true] {
            let mut bench = two(1, remote);
            listen(&mut bench, 2, TCP, 0);
            connect(&mut bench, 1, at(remote), TCP);
            let request = event(&mut bench, 2);
            if answered {
                done(accept(&mut bench, 2, request.id));
            }
            bench.end(1);
            let reason = if answered { 28 } else { 4 };
            assert_eq!(kinds(&mut bench, 2), [(event::REJECTED, reason)]);
        }
        // They are connected.
        for dies in [1, 2] {
            let mut bench = two(1, remote);
            listen(&mut bench, 2, TCP, 0);
            connected(&mut bench, at(remote));
            bench.end(dies);
            bench.wait(SECOND);
            let told = kinds(&mut bench, 3 - dies);
            assert_eq!(told, [(event::DISCONNECTED, 0), (event::TIMEWAIT_EXIT, 0)]);
            bench.end(3 - dies);
            assert!(bench.tenancy.is_empty());
        }
    }
}

#[test]
fn a_dreq_is_retransmitted_after_its_id_is_gone() {
    for said in [false, true] {
        let mut bench = two(1, 2);
        hello(&mut bench, 3, 1, 0); // the vNIC stays
        listen(&mut bench, 2, TCP, 0);
        let (id, _) = connected(&mut bench, at(2));
        bench.walls.insert((1, 2));
        if said {
            done(disconnect(&mut bench, 1, id));
            done(destroy(&mut bench, 1, id, 0));
        } else {
            bench.end(1);
        }
        assert_eq!(events(&mut bench, 2), []);
        bench.wait(SECOND / 5);
        bench.walls.clear();
        bench.told.clear();
        bench.wait(10 * SECOND);
        let told = kinds(&mut bench, 2);
        assert_eq!(told[0], (event::DISCONNECTED, 0), "{said}");
        assert_eq!(sent(&bench).iter().filter(|(mad, _)| is_farewell(mad)).count(), 1, "{said}");
    }
}

#[test]
fn unanswered_dreqs_end_and_go_with_their_vnic() {
    for stays in [false, true] {
        let mut bench = two(1, 2);
        if stays {
            hello(&mut bench, 3, 1, 0);
        }
        listen(&mut bench, 2, TCP, 0);
        connected(&mut bench, at(2));
        bench.walls.insert((1, 2));
        bench.end(1);
        (0..100).for_each(|_| bench.wait(SECOND / 20));
        assert_eq!(sent(&bench).iter().filter(|(mad, _)| is_farewell(mad)).count(), 4, "{stays}");
    }
}

#[test]
fn a_dreq_reaches_only_its_connection() {
    let mut bench = two(1, 2);
    hello(&mut bench, 3, 1, 0);
    listen(&mut bench, 2, TCP, 0);
    connected(&mut bench, at(2));
    bench.walls.insert((1, 2));
    bench.end(1);
    let (_, Mad { transaction, modifier, message: Said::Disconnect(said) }) = last_sent(&bench)
    else {
        panic!("it says so")
    };
    let (communication, remote, private) = (said.remote, said.communication, [0; 224]);
    let message = Said::Disconnected(Received { communication, remote, private });
    let heard = Mad { transaction, modifier, message };
    arrive(&mut bench, 1, underlay(1, 3), &heard);
    assert!(bench.tenancy.next_deadline().is_some(), "a stranger says it");
    arrive(&mut bench, 1, underlay(1, 2), &heard);
    assert_eq!(bench.tenancy.next_deadline(), None);
}

#[test]
fn messages_of_ids_do_not_count_as_answers_to_strangers() {
    let mut bench = two(1, 2);
    connect(&mut bench, 1, at(2), TCP);
    bench.wait(SECOND / 16);
    events(&mut bench, 1);
    listen(&mut bench, 2, TCP, 0);
    connected(&mut bench, at(2));
    bench.end(1);
    for (mad, stranger) in sent(&bench) {
        let refused = |said: &Reject| said.reason == reject_reason::INVALID_SERVICE;
        let expected = matches!(&mad.message, Said::Reject(said) if refused(said));
        assert_eq!(stranger, expected, "{mad:?}");
    }
    assert!(sent(&bench).iter().any(|(_, stranger)| *stranger));
}

#[test]
fn only_requests_that_may_find_a_listener_are_kept() {
    let mut bench = two(1, 2);
    bench.walls.insert((1, 2));
    connect(&mut bench, 1, at(2), TCP);
    let (_, mut mad) = last_sent(&bench);
    bench.walls.clear();
    let Said::Request(request) = &mut mad.message else { panic!("it asks") };
    request.service = 77; // no port of any kind
    bench.told.clear();
    arrive(&mut bench, 2, underlay(2, 1), &mad);
    let refused = |(mad, _): &(Mad, bool)| matches!(mad.message, Said::Reject(_));
    assert!(sent(&bench).iter().any(refused));
}

#[test]
fn lost_messages_are_retransmitted_and_silence_ends() {
    let mut bench = two(1, 2);
    listen(&mut bench, 2, TCP, 0);
    bench.walls.insert((1, 2));
    let id = connect(&mut bench, 1, at(2), TCP);
    bench.wait(SECOND);
    assert_eq!(events(&mut bench, 2), []);
    bench.walls.clear();
    bench.walls.insert((2, 1));
    bench.wait(5 * SECOND);
    let request = event(&mut bench, 2);
    done(accept(&mut bench, 2, request.id));
    bench.wait(SECOND);
    assert_eq!(events(&mut bench, 1), []);
    bench.walls.clear();
    bench.walls.insert((1, 2));
    bench.wait(5 * SECOND);
    assert_eq!(event(&mut bench, 1).event, event::CONNECT_RESPONSE);
    done(establish(&mut bench, 1, id));
    bench.wait(SECOND);
    assert_eq!(events(&mut bench, 2), []);
    bench.walls.clear();
    bench.wait(5 * SECOND);
    assert_eq!(event(&mut bench, 2).event, event::ESTABLISHED);
    // No host answers.
    bench.walls.insert((1, 2));
    connect(&mut bench, 1, at(2), TCP);
    for _ in 0..100 {
        bench.wait(SECOND);
    }
    assert_eq!(kinds(&mut bench, 1), [(event::UNREACHABLE, -110)]);
    connect(&mut bench, 1, at(2), UDP);
    done(disconnect(&mut bench, 1, id));
    for _ in 0..100 {
        bench.wait(SECOND);
    }
    let told = kinds(&mut bench, 1);
    assert!(told.contains(&(event::UNREACHABLE, -110)), "{told:?}");
    assert!(told.contains(&(event::DISCONNECTED, 0)), "{told:?}");
}

#[test]
fn a_backlog_has_its_length_and_no_request_is_lost() {
    for remote in [1, 2] {
        let mut bench = two(1, remote);
        let listener = listen(&mut bench, 2, TCP, 2);
        for _ in 0..5 {
            connect(&mut bench, 1, at(remote), TCP);
        }
        let mut waiting = events(&mut bench, 2);
        assert_eq!(waiting.len(), 2);
        for n in 0..5 {
            done(accept(&mut bench, 2, waiting.remove(0).id));
            bench.wait(10 * SECOND);
            waiting.extend(events(&mut bench, 2));
            waiting.retain(|request| request.event == event::CONNECT_REQUEST);
            assert_eq!(waiting.len(), 2.min(4 - n));
        }
        // The program has not taken the rest: they go with the listener.
        connect(&mut bench, 1, at(remote), TCP);
        connect(&mut bench, 1, at(remote), TCP);
        let numbers: Vec<_> = events(&mut bench, 2).iter().map(|event| event.number).collect();
        assert_eq!(numbers, [6, 7]);
        events(&mut bench, 1);
        done(destroy(&mut bench, 2, listener, 6));
        assert_eq!(kinds(&mut bench, 1), [(event::REJECTED, 28)]);
    }
}

#[test]
fn a_user_that_is_behind_gets_requests_later() {
    let mut bench = two(1, 2);
    listen(&mut bench, 2, TCP, 0);
    bench.tenancy.set_pace(SessionId(2), Pace::Behind);
    connect(&mut bench, 1, at(2), TCP);
    bench.wait(SECOND);
    assert_eq!(events(&mut bench, 2), []);
    bench.tenancy.set_pace(SessionId(2), Pace::KeepsUp);
    bench.wait(5 * SECOND);
    assert_eq!(event(&mut bench, 2).event, event::CONNECT_REQUEST);
}

#[test]
fn ids_have_a_quota_and_strangers_cannot_exceed_it() {
    let limits = Limits { cm_ids_per_session: 3, ..Limits::default() };
    let mut bench = bench_with(limits);
    hello(&mut bench, 1, 1, 0);
    hello(&mut bench, 2, 2, 0);
    hello(&mut bench, 3, 3, 0);
    listen(&mut bench, 2, TCP, 0);
    for session in [1, 3] {
        connect(&mut bench, session, at(2), TCP);
        connect(&mut bench, session, at(2), TCP);
    }
    assert_eq!(events(&mut bench, 2).len(), 2);
    let (space, qp_type) = (TCP, RC);
    assert_eq!(errno(call(&mut bench, 2, CreateCmId { space, qp_type })), Errno::ENOMEM);
}

#[test]
fn addresses_are_the_vnics_and_ports_have_one_holder() {
    let mut bench = two(1, 1);
    let id = create(&mut bench, 1, TCP, RC);
    bench.wait(SECOND);
    assert_eq!(errno(bind(&mut bench, 1, id, at(2))), Errno::EADDRNOTAVAIL);
    let other = CmAddress { family: 27, ..at(1) };
    assert_eq!(errno(bind(&mut bench, 1, id, other)), Errno::EAFNOSUPPORT);
    let Some(Message::CmIdBound(bound)) = bind(&mut bench, 1, id, CmAddress { port: 0, ..at(1) })
    else {
        panic!("it is not bound")
    };
    assert!(bound.address.port >= 32768 && bound.address.ip == ip(1).into());
    assert_eq!((bound.gid, bound.ifindex, bound.mtu), (ip(1).into(), 2, 1500));
    assert_eq!(errno(bind(&mut bench, 1, id, at(1))), Errno::EINVAL, "it has one");
    let taken = create(&mut bench, 2, TCP, RC);
    assert_eq!(errno(bind(&mut bench, 2, taken, bound.address)), Errno::EADDRINUSE);
    let anywhere = CmAddress { ip: Ipv4Addr::UNSPECIFIED.into(), ..bound.address };
    assert_eq!(errno(bind(&mut bench, 2, taken, anywhere)), Errno::EADDRNOTAVAIL);
    let Some(Message::CmIdBound(any)) = call(&mut bench, 2, ListenCmId { id: taken, backlog: 0 })
    else {
        panic!("it does not listen")
    };
    assert_eq!((any.gid, any.ifindex), (Gid::ZERO, 0), "at any address");
    assert!(any.address.port >= 32768);
    for (space, qp_type, expected) in [
        (TCP, UD, Errno::EINVAL),
        (UDP, RC, Errno::EINVAL),
        (7, RC, Errno::EINVAL),
        (TCP, 9, Errno::EINVAL),
        (TCP, 8, Errno::EOPNOTSUPP),
    ] {
        assert_eq!(errno(call(&mut bench, 1, CreateCmId { space, qp_type })), expected);
    }
}

#[test]
fn a_new_address_is_found() {
    let mut bench = two(1, 2);
    let id = create(&mut bench, 1, TCP, RC);
    bench.wait(SECOND);
    bench.moved.insert(5, 1);
    is_bound(bind(&mut bench, 1, id, at(5)));
}

#[test]
fn malformed_calls_are_refused() {
    let mut bench = two(1, 1);
    let id = create(&mut bench, 1, TCP, RC);
    let (qpn, private) = (qp(&mut bench, 1, Service::Rc), [0; CM_PRIVATE_BYTES]);
    let connect = |id, length| ConnectCmId { id, qpn, parameters: parameters(length), private };
    assert_eq!(errno(call(&mut bench, 1, connect(id, 0))), Errno::EINVAL, "where to?");
    assert_eq!(errno(accept(&mut bench, 1, id)), Errno::EINVAL);
    assert_eq!(errno(establish(&mut bench, 1, id)), Errno::EINVAL);
    assert_eq!(errno(disconnect(&mut bench, 1, id)), Errno::EINVAL);
    resolve(&mut bench, 1, id, at(1));
    assert_eq!(errno(call(&mut bench, 1, connect(id, 57))), Errno::EINVAL, "too long");
    assert_eq!(errno(call(&mut bench, 1, ListenCmId { id, backlog: 0 })), Errno::EINVAL);
    done(call(&mut bench, 1, connect(id, 56)));
    assert_eq!(errno(call(&mut bench, 1, connect(id, 56))), Errno::EINVAL, "twice");
    let six = address("[2001:db8::1]:5");
    let other = create(&mut bench, 1, TCP, RC);
    let local = at(1);
    let mixed = ResolveCmId { id: other, flags: 0, local, remote: six };
    assert_eq!(errno(call(&mut bench, 1, mixed)), Errno::EINVAL);
    let unknown = QueryCmId { id: 99, reserved: 0 };
    assert_eq!(errno(call(&mut bench, 1, unknown)), Errno::ENOENT);
}

#[test]
fn repeated_requests_get_one_connection() {
    let mut bench = two(1, 2);
    listen(&mut bench, 2, TCP, 0);
    connect(&mut bench, 1, at(2), TCP);
    let (_, mad) = last_sent(&bench);
    let request = event(&mut bench, 2);
    for _ in 0..3 {
        arrive(&mut bench, 2, underlay(2, 1), &mad);
    }
    assert_eq!(events(&mut bench, 2), []);
    assert!(matches!(last_sent(&bench).1.message, Said::Wait(_)));
    done(accept(&mut bench, 2, request.id));
    arrive(&mut bench, 2, underlay(2, 1), &mad);
    assert_eq!(events(&mut bench, 2), []);
}

#[test]
fn a_peer_that_has_forgotten_a_connection_ends_it() {
    let mut bench = two(1, 2);
    listen(&mut bench, 2, TCP, 0);
    connect(&mut bench, 1, at(2), TCP);
    let (_, mut mad) = last_sent(&bench);
    let request = event(&mut bench, 2);
    done(accept(&mut bench, 2, request.id));
    let Said::Request(again) = &mut mad.message else { panic!("{mad:?}") };
    again.communication += 1;
    arrive(&mut bench, 2, underlay(2, 1), &mad);
    let Said::Reject(reject) = last_sent(&bench).1.message else { panic!("it is stale") };
    assert_eq!(reject.reason, reject_reason::STALE_CONNECTION);
    assert_eq!(kinds(&mut bench, 2), [(event::REJECTED, 10)]);
}

#[test]
fn naming_queue_pairs_ends_no_connection_of_others() {
    let mut bench = two(1, 2);
    hello(&mut bench, 3, 1, 0);
    listen(&mut bench, 2, TCP, 0);
    let (asks, asked) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
    connected_with(&mut bench, at(2), (asks, asked));
    // A process beside it.
    let id = create(&mut bench, 3, TCP, RC);
    resolve(&mut bench, 3, id, at(2));
    let private = [0; CM_PRIVATE_BYTES];
    let forged = ConnectCmId { id, qpn: asks, parameters: parameters(0), private };
    assert_eq!(errno(call(&mut bench, 3, forged)), Errno::EINVAL);
    connect(&mut bench, 3, at(2), TCP);
    let (_, mut mad) = last_sent(&bench);
    let request = event(&mut bench, 2);
    assert_eq!(errno(accept_with(&mut bench, 2, request.id, asks)), Errno::EINVAL);
    // A whole host may send anything: only to a listener, and then both ends get an event.
    let Said::Request(again) = &mut mad.message else { panic!("{mad:?}") };
    (again.communication, again.queue_pair) = (again.communication ^ 1, asks);
    let service = std::mem::replace(&mut again.service, 0x106_0009);
    arrive(&mut bench, 2, underlay(2, 1), &mad);
    assert_eq!((events(&mut bench, 1), events(&mut bench, 2)), (vec![], vec![]));
    let Said::Request(again) = &mut mad.message else { panic!("{mad:?}") };
    again.service = service;
    arrive(&mut bench, 2, underlay(2, 1), &mad);
    assert_eq!(kinds(&mut bench, 1), [(event::DISCONNECTED, 0)]);
    assert_eq!(kinds(&mut bench, 2), [(event::DISCONNECTED, 0)]);
}

#[test]
fn messages_about_missing_connections_are_answered() {
    let mut bench = two(1, 2);
    let private = [0; 220];
    let (communication, remote, queue_pair) = (5, 6, Qpn(7));
    let message =
        Said::Disconnect(omniverb_cm::Disconnect { communication, remote, queue_pair, private });
    arrive(&mut bench, 2, underlay(2, 4), &Mad { transaction: 9, modifier: 0, message });
    let expected = Received { communication: 6, remote: 5, private: [0; 224] };
    let (way, answer) = last_sent(&bench);
    assert_eq!((way, answer.transaction), (underlay(2, 4), 9));
    assert_eq!(answer.message, Said::Disconnected(expected));
}

#[test]
fn messages_of_strangers_do_not_reach_others_connections() {
    let mut bench = two(1, 2);
    hello(&mut bench, 3, 3, 0);
    listen(&mut bench, 2, TCP, 0);
    let (id, _) = connected(&mut bench, at(2));
    done(disconnect(&mut bench, 1, id));
    let (_, end) = last_sent(&bench);
    assert!(matches!(end.message, Said::Disconnected(_)));
    assert_eq!(event(&mut bench, 2).event, event::DISCONNECTED);
    events(&mut bench, 1);
    let (id, _) = connected(&mut bench, at(2));
    bench.walls.insert((1, 2));
    done(disconnect(&mut bench, 1, id));
    let (_, end) = last_sent(&bench);
    assert!(matches!(end.message, Said::Disconnect(_)));
    // From another host, and from one that claims to be the vNIC itself.
    arrive(&mut bench, 2, underlay(2, 3), &end);
    arrive(&mut bench, 2, underlay(2, 2), &end);
    arrive(&mut bench, 3, underlay(3, 1), &end);
    assert_eq!(events(&mut bench, 2), []);
    arrive(&mut bench, 2, underlay(2, 1), &end);
    assert_eq!(event(&mut bench, 2).event, event::DISCONNECTED);
}

#[test]
fn a_false_sender_address_is_not_reported() {
    let mut bench = two(1, 2);
    listen(&mut bench, 2, TCP, 0);
    bench.walls.insert((1, 2));
    connect(&mut bench, 1, at(2), TCP);
    let (_, mad) = last_sent(&bench);
    arrive(&mut bench, 2, underlay(2, 4), &mad);
    assert_eq!(events(&mut bench, 2), []);
    let Said::Reject(reject) = last_sent(&bench).1.message else { panic!("it is refused") };
    assert_eq!(reject.reason, reject_reason::INVALID_GID);
}

#[test]
fn ten_thousand_connections_leave_nothing() {
    let mut bench = two(1, 1);
    listen(&mut bench, 2, TCP, 0);
    let pair = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
    let receipts = bench.tenancy.receipts();
    for _ in 0..10_000 {
        let (id, other) = connected_with(&mut bench, at(1), pair);
        done(disconnect(&mut bench, 2, other));
        done(destroy(&mut bench, 1, id, 0));
        done(destroy(&mut bench, 2, other, 0));
        bench.told.clear();
    }
    assert_eq!(bench.tenancy.receipts(), receipts);
    assert_eq!(bench.tenancy.next_deadline(), None);
}

#[test]
fn loopback_is_at_home_in_both_families() {
    let mut bench = two(1, 1);
    let id = create(&mut bench, 2, TCP, RC);
    is_bound(bind(&mut bench, 2, id, address("[::]:7471")));
    is_bound(call(&mut bench, 2, ListenCmId { id, backlog: 0 }));
    for text in ["127.0.0.1:7471", "[::1]:7471", "10.0.0.1:7471", "0.0.0.0:7471"] {
        let id = create(&mut bench, 1, TCP, RC);
        let resolved = resolve(&mut bench, 1, id, address(text));
        assert_eq!(resolved.sgid, resolved.dgid);
        assert!(!resolved.sgid.is_loopback(), "{text}");
        let (qpn, private) = (qp(&mut bench, 1, Service::Rc), [0; CM_PRIVATE_BYTES]);
        done(call(&mut bench, 1, ConnectCmId { id, qpn, parameters: parameters(0), private }));
        assert_eq!(event(&mut bench, 2).event, event::CONNECT_REQUEST, "{text}");
    }
}
