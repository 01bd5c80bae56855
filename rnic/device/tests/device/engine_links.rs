//! Links to the engine: what the far end is told, when requests complete, and what it may refuse.
//! What it delivers is in [`crate::engine_arrivals`], random operations over such links in
//! [`crate::random_operations`].

use crate::engine_link_fixture::{PEER, RINGS, drain, options, ready};
use crate::fake_engine::{self, PACKET, WHOLE, respond, take};
use crate::guarded_buffer::{Buffer, pattern};
use crate::two_device_fixture::{
    Options, Pair, outcomes, poll, post, receive, to_init, to_rtr, to_rts, to_state,
};
use crate::work_request_helpers::{Work, part, whole};
use omniverb_device::FarEnd;
use omniverb_device::limits::{LINK_WAIT, UNRELIABLE_WAIT};
use omniverb_device::qp_attributes::State;
use omniverb_device::{AsyncEvent, GlobalRoute, QpAttributes, QpMask, Wc, send_flags, status};
use omniverb_link::qp_attributes_for_engine::{ReceiveAttributes, SendAttributes};
use omniverb_link::record::{IMMEDIATE, INVALIDATE, LAST, SOLICITED};
use omniverb_link::{Endpoint, Nak, Request, Response};
use omniverb_terms::{Psn, Refusal, Rkey, Service};

#[test]
fn the_engine_gets_the_queue_pairs_attributes() {
    let pair = Pair::new();
    let options = options(Service::Rc);
    let qp = pair.sides[0].qp(&options);
    to_init(&qp, &options);
    let mut far = fake_engine::attach(&pair, 0, &qp, PEER, RINGS);
    far.set_blocked(true);
    let told = |far: &Endpoint| (far.peer_receiving(), far.peer_global_route(), far.peer_sending());
    assert_eq!((told(&far), far.peer_is_open()), ((None, None, None), false));
    assert!(!pair.engine.page.has_ready());
    to_rtr(&qp, &options);
    let receiving = ReceiveAttributes {
        rq_psn: Psn::new(0xab_cdef),
        path_mtu: 3,
        min_rnr_timer: 12,
        max_dest_rd_atomic: 9,
    };
    let route = options.attributes.route;
    assert_eq!((told(&far), far.peer_is_open()), ((Some(receiving), Some(route), None), true));
    assert!(pair.engine.page.has_ready(), "it waits for this");
    pair.engine.page.take_ready(|_| {});
    to_rts(&qp, &options);
    let sending = SendAttributes {
        sq_psn: Psn::new(0x12_3456),
        timeout: 11,
        retry_count: 5,
        rnr_retry: 6,
        max_rd_atomic: 4,
    };
    assert_eq!(told(&far), (Some(receiving), Some(route), Some(sending)));
    assert!(pair.engine.page.has_ready());
    // What may change in RTS.
    let given = QpAttributes { min_rnr_timer: 3, ..options.attributes };
    qp.modify(QpMask::STATE | QpMask::MIN_RNR_TIMER, State::Rts, &given, None).unwrap();
    let receiving = ReceiveAttributes { min_rnr_timer: 3, ..receiving };
    assert_eq!(told(&far), (Some(receiving), Some(route), Some(sending)));
    // And in SQD.
    to_state(&qp, State::Sqd);
    let given = QpAttributes { timeout: 20, route: GlobalRoute::default(), ..options.attributes };
    let mask = QpMask::STATE | QpMask::TIMEOUT | QpMask::AV;
    qp.modify(mask, State::Sqd, &given, None).unwrap();
    let sending = SendAttributes { timeout: 20, ..sending };
    assert_eq!(told(&far), (Some(receiving), Some(GlobalRoute::default()), Some(sending)));
}

/// Applications give sequence numbers of 32 bits, and more.
#[test]
fn attributes_sent_to_the_engine_are_in_range() {
    let pair = Pair::new();
    let options = options(Service::Rc).with(|o| {
        (o.attributes.rq_psn, o.attributes.sq_psn) = (0xff00_0001, 0xff00_0002);
    });
    let (_qp, far) = ready(&pair, &options);
    assert_eq!(far.peer_receiving().map(|it| it.rq_psn), Some(Psn::new(1)));
    assert_eq!(far.peer_sending().map(|it| it.sq_psn), Some(Psn::new(2)));
    let (_qp, far) = ready(&pair, &Options::new(Service::Ud));
    assert_eq!(far.peer_receiving().map(|it| it.path_mtu), Some(5));
    assert!(far.peer_sending().is_some() && far.peer_global_route().is_some());
}

/// A thread that sees that the link is open sees the rest as well.
#[test]
fn attributes_are_published_before_the_link_opens() {
    let pair = Pair::new();
    let options = options(Service::Rc);
    for round in 0..300 {
        let qp = pair.sides[0].qp(&options);
        to_init(&qp, &options);
        let late = round % 2 == 0;
        if late {
            to_rts(&qp, &options);
        }
        let memory = pair.joint(RINGS);
        let (far, memory) = (pair.endpoint(1, &memory), memory);
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                while !far.peer_is_open() {
                    std::hint::spin_loop();
                }
                let sending = far.peer_sending().is_some();
                far.peer_receiving().is_some()
                    && far.peer_global_route().is_some()
                    && (sending || !late)
            });
            let peer =
                omniverb_device::Peer { qpn: PEER, far_end: FarEnd::Engine, ..Default::default() };
            qp.attach(peer, pair.endpoint(0, &memory)).unwrap();
            if !late {
                to_rtr(&qp, &options);
            }
            assert!(watcher.join().unwrap());
        });
        qp.destroy();
    }
}

#[test]
fn sends_complete_when_they_are_consumed() {
    const COUNT: u64 = 1000;
    let pair = Pair::new();
    let (qp, mut far) = ready(&pair, &options(Service::Rc));
    let from = Buffer::pattern(100_000, 1);
    let local = pair.sides[0].register(&from);
    let length = |id: u64| [8, 100, 100_000, 0][id as usize % 4];
    for id in 0..COUNT {
        post(&qp, &Work::send(id).sge(part(&local, 0, length(id))));
    }
    let (mut done, mut bytes) = (0, Vec::new());
    while done < COUNT {
        // The far end is in no hurry; time alone changes nothing.
        pair.wait(1_000_000_000);
        assert!(poll(&qp.send_cq).is_empty());
        let (request, more) = take(&mut far).expect("the next record");
        // A long record is published at once.
        let published = more.len() > RINGS.0 / 16;
        bytes.extend(more);
        assert!(published || poll(&qp.send_cq).is_empty(), "not published yet");
        far.publish_requests();
        let Request::Send { flags, .. } = request else { panic!("{request:?}") };
        let expected = if flags & LAST != 0 { vec![(done, status::SUCCESS)] } else { vec![] };
        assert_eq!(outcomes(&qp.send_cq), expected);
        if flags & LAST != 0 {
            assert!(bytes == from.read(0, length(done)), "message {done}");
            bytes.clear();
            done += 1;
        }
    }
}

/// A sleeper is woken by consumption, wherever no thread polls.
#[test]
fn consumption_is_announced_to_a_waiting_peer() {
    let pair = Pair::new();
    let (qp, mut far) = ready(&pair, &options(Service::Rc));
    post(&qp, &Work::send(1));
    pair.sides[0].bell.page.want_kick();
    drain(&mut far);
    let kicks = pair.sides[0].ringer.kicks.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(kicks, 1);
    pair.settle();
    let mut completion = [Wc::default()];
    assert_eq!(qp.send_cq.poll(&mut completion), 1);
}

#[test]
fn requests_of_all_kinds_keep_their_order() {
    let pair = Pair::new();
    let (qp, mut far) = ready(&pair, &options(Service::Rc));
    let (from, to) = (Buffer::pattern(5000, 1), Buffer::new(5000));
    let (local, landing) = (pair.sides[0].register(&from), pair.sides[0].register(&to));
    let there = (0x1_0000, Rkey(99));
    post(&qp, &Work::send(0).sge(part(&local, 0, 10)));
    post(&qp, &Work::read(1, there).sge(part(&landing, 0, 3000)));
    post(&qp, &Work::write(2, there).sge(part(&local, 0, 5000)));
    post(&qp, &Work::fetch_add(3, there, 5).sge(part(&landing, 3000, 8)));
    post(&qp, &Work::send(4).invalidate(Rkey(0x77)));
    post(&qp, &Work::write(5, there).immediate(6).sge(part(&local, 0, 4)).and(2 | 4));
    let requests: Vec<_> = std::iter::from_fn(|| take(&mut far)).collect();
    let expected = [
        Request::Send { flags: WHOLE, immediate: 0 },
        Request::Read { address: there.0, rkey: Rkey(99), length: 3000 },
        Request::WriteFirst {
            flags: LAST,
            address: there.0,
            rkey: Rkey(99),
            immediate: 0,
            total: 5000,
        },
        Request::FetchAdd { address: there.0, rkey: Rkey(99), add: 5 },
        Request::Send { flags: WHOLE | INVALIDATE, immediate: 0x77 },
        Request::WriteFirst {
            flags: LAST | IMMEDIATE | SOLICITED,
            address: there.0,
            rkey: Rkey(99),
            immediate: 6,
            total: 4,
        },
    ];
    assert_eq!(requests.iter().map(|(request, _)| *request).collect::<Vec<_>>(), expected);
    assert!(requests[2].1 == from.all());
    // The daemon is not asked for mappings of what is on another host.
    assert!(pair.sides[0].world.grants.lock().unwrap().is_empty());
    // Answers come, and are placed, before the SEND in front of them is acknowledged.
    let answer = pattern(3000, 2);
    for (at, piece) in answer.chunks(PACKET).enumerate() {
        assert!(respond(&mut far, &Response::ReadData { last: at == 2 }, piece));
    }
    assert!(respond(&mut far, &Response::AtomicResult { original: 41 }, &[]));
    assert!(poll(&qp.send_cq).is_empty());
    far.publish_requests();
    let completions = poll(&qp.send_cq);
    assert_eq!(completions.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert!(completions.iter().all(|wc| wc.status == status::SUCCESS));
    assert!(to.read(0, 3000) == answer && to.number(3000) == 41);
}

#[test]
fn reads_are_bounded_and_fences_wait() {
    let pair = Pair::new();
    let (qp, mut far) = ready(&pair, &options(Service::Rc));
    let to = Buffer::new(64);
    let landing = pair.sides[0].register(&to);
    // Many SENDs before them: they count for nothing.
    (0..100).for_each(|id| post(&qp, &Work::send(id)));
    for id in 100..110 {
        let fence = if id == 109 { send_flags::FENCE } else { 0 };
        let at = part(&landing, id as usize % 8 * 8, 8);
        let work = if id % 2 == 0 {
            Work::read(id, (0, Rkey(1)))
        } else {
            Work::fetch_add(id, (0, Rkey(1)), 1)
        };
        post(&qp, &work.sge(at).and(fence));
    }
    post(&qp, &Work::send(110));
    post(&qp, &Work::send(111).and(send_flags::FENCE));
    assert_eq!(drain(&mut far).len(), 100 + 4, "max_rd_atomic is 4");
    assert_eq!(outcomes(&qp.send_cq).len(), 100);
    let mut asked = 4;
    for id in 100..109u64 {
        let more = drain(&mut far);
        asked += more.iter().filter(|(it, _)| !matches!(it, Request::Send { .. })).count();
        // The fenced one waits until all before it are answered.
        assert_eq!(asked, (id as usize - 100 + 4).min(9));
        let response = match id % 2 {
            0 => Response::ReadData { last: true },
            _ => Response::AtomicResult { original: id },
        };
        assert!(respond(&mut far, &response, &id.to_ne_bytes()[..if id % 2 == 0 { 8 } else { 0 }]));
        assert_eq!(outcomes(&qp.send_cq), [(id, status::SUCCESS)]);
        assert_eq!(to.number(id as usize % 8 * 8), id);
    }
    // The fenced one and the SEND behind it, but not the fenced SEND.
    assert_eq!(drain(&mut far).len(), 2);
    assert!(poll(&qp.send_cq).is_empty());
    assert!(respond(&mut far, &Response::AtomicResult { original: 109 }, &[]));
    assert_eq!(outcomes(&qp.send_cq), [(109, status::SUCCESS), (110, status::SUCCESS)]);
    assert_eq!(drain(&mut far).len(), 1);
    assert_eq!(outcomes(&qp.send_cq), [(111, status::SUCCESS)]);
}

#[test]
fn a_fenced_send_stays_behind_a_read() {
    let pair = Pair::new();
    let (qp, mut far) = ready(&pair, &options(Service::Rc));
    post(&qp, &Work::read(1, (0, Rkey(1))));
    post(&qp, &Work::send(2).and(send_flags::FENCE));
    assert_eq!(drain(&mut far).len(), 1);
    assert!(respond(&mut far, &Response::ReadData { last: true }, &[]));
    assert_eq!(outcomes(&qp.send_cq), [(1, status::SUCCESS)]);
    assert_eq!(drain(&mut far).len(), 1);
}

const CODES: [(Nak, u32); 7] = [
    (Nak::Refused(Refusal::InvalidRequest), status::REM_INV_REQ_ERR),
    (Nak::Refused(Refusal::RemoteAccess), status::REM_ACCESS_ERR),
    (Nak::Refused(Refusal::RemoteOperation), status::REM_OP_ERR),
    (Nak::RetryExceeded, status::RETRY_EXC_ERR),
    (Nak::RnrRetryExceeded, status::RNR_RETRY_EXC_ERR),
    (Nak::BadResponse, status::BAD_RESP_ERR),
    (Nak::Flushed, status::WR_FLUSH_ERR),
];

#[test]
fn refusals_fail_the_oldest_that_is_not_consumed() {
    for (code, expected) in CODES {
        let pair = Pair::new();
        let (qp, mut far) = ready(&pair, &options(Service::Rc));
        receive(&qp, 9, &[]);
        post(&qp, &Work::send(0).flags(0));
        (1..4).for_each(|id| post(&qp, &Work::send(id)));
        post(&qp, &Work::read(4, (0, Rkey(1))));
        // Two are consumed; the application has not looked yet.
        take(&mut far).unwrap();
        take(&mut far).unwrap();
        far.publish_requests();
        assert!(respond(&mut far, &Response::Nak { code }, &[]));
        pair.settle();
        let flush = status::WR_FLUSH_ERR;
        assert_eq!(
            outcomes(&qp.send_cq),
            [(1, status::SUCCESS), (2, expected), (3, flush), (4, flush), (9, flush)]
        );
        assert_eq!(qp.state(), State::Err);
        assert!(far.peer_has_closed());
        assert!(pair.sides[0].events().is_empty(), "a completion says it");
    }
}

/// Unsignalled requests complete if they fail.
#[test]
fn a_refusal_in_the_middle_of_a_long_message() {
    for (code, expected) in CODES {
        let pair = Pair::new();
        let (qp, mut far) = ready(&pair, &options(Service::Rc));
        let from = Buffer::pattern(1 << 20, 1);
        let local = pair.sides[0].register(&from);
        post(&qp, &Work::write(1, (0, Rkey(1))).sge(whole(&local)).flags(0));
        post(&qp, &Work::send(2));
        for _ in 0..3 {
            take(&mut far).unwrap();
        }
        far.publish_requests();
        pair.settle();
        assert!(respond(&mut far, &Response::Nak { code }, &[]));
        assert_eq!(outcomes(&qp.send_cq), [(1, expected), (2, status::WR_FLUSH_ERR)]);
    }
}

#[test]
fn a_refusal_without_a_request_raises_an_event() {
    let pair = Pair::new();
    let (qp, mut far) = ready(&pair, &options(Service::Rc));
    receive(&qp, 9, &[]);
    assert!(respond(&mut far, &Response::Nak { code: Nak::RetryExceeded }, &[]));
    pair.settle();
    assert_eq!(outcomes(&qp.send_cq), [(9, status::WR_FLUSH_ERR)]);
    assert_eq!((qp.state(), pair.sides[0].events()), (State::Err, vec![AsyncEvent::QpFatal]));
}

#[test]
fn unreliable_messages_complete_when_they_have_left() {
    let pair = Pair::new();
    let (qp, mut far) = ready(&pair, &options(Service::Uc));
    let from = Buffer::pattern(40_000, 1);
    let local = pair.sides[0].register(&from);
    post(&qp, &Work::send(1).sge(whole(&local)));
    post(&qp, &Work::write(2, (0, Rkey(1))).sge(whole(&local)).immediate(3));
    pair.settle();
    assert_eq!(outcomes(&qp.send_cq), [], "a program that ends now would lose them");
    let records = drain(&mut far);
    far.publish_requests();
    pair.settle();
    assert_eq!(outcomes(&qp.send_cq), [(1, status::SUCCESS), (2, status::SUCCESS)]);
    let (mut send, mut write) = (Vec::new(), Vec::new());
    for (request, bytes) in records {
        match request {
            Request::Send { .. } => send.extend(bytes),
            _ => write.extend(bytes),
        }
    }
    assert!(send == from.all() && write == from.all());
    // More than the ring takes waits for room, as long as it takes.
    for id in 3..20 {
        post(&qp, &Work::send(id).sge(whole(&local)));
    }
    pair.settle();
    let mut completed = 0;
    for _ in 0..17 {
        drain(&mut far);
        far.publish_requests();
        pair.settle();
        completed += outcomes(&qp.send_cq).len();
    }
    assert_eq!(completed, 17);
}

/// The daemon tells the program and the packet thread of a link at the same time, and the packet
/// thread may be the later one to get a processor. Nothing sends a lost message again.
#[test]
fn unreliable_messages_wait_for_a_late_engine() {
    for late in [UNRELIABLE_WAIT, LINK_WAIT - 1, LINK_WAIT] {
        let pair = Pair::new();
        let options = options(Service::Uc);
        let qp = pair.sides[0].qp(&options);
        to_init(&qp, &options);
        to_rts(&qp, &options);
        let mut far = fake_engine::attach(&pair, 0, &qp, PEER, RINGS);
        post(&qp, &Work::send(1));
        post(&qp, &Work::send(2));
        pair.settle();
        pair.wait(late);
        // One that never comes is waited for with one message only.
        let lost = if late < LINK_WAIT { vec![] } else { vec![(1, status::SUCCESS)] };
        assert_eq!(outcomes(&qp.send_cq), lost, "after {late} ns");
        far.publish_no_credits();
        far.open(0);
        pair.settle();
        let left = 2 - lost.len();
        assert_eq!(drain(&mut far).len(), left);
        pair.settle();
        assert_eq!(outcomes(&qp.send_cq).len(), left);
    }
}

/// It may be in the middle of a copy when the queue pair is destroyed: then that is so until it has
/// left, however long it takes, or until its daemon is known to have ended.
#[test]
fn an_engine_at_pages_that_stay_is_not_forgotten() {
    for daemon_ends in [false, true] {
        let pair = Pair::new();
        let shared = &pair.sides[0].shared;
        shared.set_daemon(3);
        let (qp, far) = ready(&pair, &options(Service::Rc));
        assert!(!qp.engine_reaches_pages() && !shared.engine_is_late());
        let epoch = far.peer_epoch();
        assert!(far.enter_pages_that_stay(epoch));
        qp.revoke_grants();
        assert!(qp.engine_reaches_pages() && !shared.engine_is_late());
        to_state(&qp, State::Reset);
        assert!(!qp.engine_reaches_pages() && shared.engine_is_late());
        shared.set_daemon(3);
        assert!(shared.engine_is_late(), "the same one, by another agent");
        match daemon_ends {
            true => shared.set_daemon(4),
            false => _ = far.leave_pages(epoch),
        }
        assert!(!shared.engine_is_late());
        shared.set_daemon(3);
        assert!(!shared.engine_is_late());
    }
}

/// Of a link that is there still.
#[test]
fn an_engine_of_an_ended_daemon_is_not_found() {
    let pair = Pair::new();
    let (qp, far) = ready(&pair, &options(Service::Rc));
    assert!(far.enter_pages_that_stay(far.peer_epoch()));
    assert!(qp.engine_reaches_pages());
    pair.sides[0].shared.set_daemon(9);
    assert!(!qp.engine_reaches_pages());
    to_state(&qp, State::Reset);
    assert!(!pair.sides[0].shared.engine_is_late());
}
