//! Wire links: what arrives from the network, and what the end of the daemon means.

use crate::engine_link_fixture::{PEER, RINGS, deliver, drain, options, ready};
use crate::fake_engine::{self, WHOLE};
use crate::guarded_buffer::{Buffer, pattern};
use crate::two_device_fixture::{
    Options, PD, Pair, outcomes, poll, post, receive, to_init, to_rts, to_state,
};
use crate::work_request_helpers::{Work, part, remote, whole};
use omniverb_device::limits::RECEIVER_AWAY;
use omniverb_device::qp_attributes::State;
use omniverb_device::{AsyncEvent, Srq, Wc, status, wc_flags, wc_opcode};
use omniverb_link::Credit;
use omniverb_link::record::{FIRST, IMMEDIATE, INVALIDATE, LAST, SOLICITED};
use omniverb_link::{Nak, Request, Response};
use omniverb_terms::{Refusal, Service};

#[test]
fn messages_arrive_in_packets() {
    let pair = Pair::new();
    let (qp, mut far) = ready(&pair, &options(Service::Rc));
    let there = Buffer::new(30_000);
    let target = pair.sides[0].register(&there);
    assert_eq!(far.credit(), Credit::None);
    receive(&qp, 1, &[part(&target, 0, 10), part(&target, 10, 9990)]);
    receive(&qp, 2, &[part(&target, 10_000, 10_000)]);
    receive(&qp, 3, &[part(&target, 0, 10_000)]);
    assert_eq!(far.credit(), Credit::Promised { floor: 10_000 });
    let message = pattern(10_000, 5);
    deliver(&mut far, &Request::Send { flags: WHOLE | SOLICITED, immediate: 0 }, &message);
    far.use_credit();
    deliver(&mut far, &Request::Send { flags: WHOLE, immediate: 0 }, &message[..9]);
    far.use_credit();
    let write = Request::WriteFirst {
        flags: LAST | IMMEDIATE,
        address: remote(&target, 20_000).0,
        rkey: target.rkey,
        immediate: 77,
        total: 10_000,
    };
    deliver(&mut far, &write, &message);
    far.use_credit();
    assert_eq!(far.credit(), Credit::None);
    let position = far.request_position();
    assert_eq!(far.request_consumed(position), Ok(false));
    let wc = |wr_id, opcode, byte_len, immediate, flags| Wc {
        wr_id,
        opcode,
        byte_len,
        immediate,
        flags,
        qp_num: qp.number.0,
        src_qp: PEER.0,
        ..Wc::default()
    };
    let expected = [
        wc(1, wc_opcode::RECV, 10_000, 0, 0),
        wc(2, wc_opcode::RECV, 9, 0, 0),
        wc(3, wc_opcode::RECV_RDMA_WITH_IMM, 10_000, 77, wc_flags::WITH_IMM),
    ];
    assert_eq!(poll(&qp.recv_cq), expected);
    assert_eq!(far.request_consumed(position), Ok(true));
    assert!(there.read(0, 10_000) == message && there.read(10_000, 9) == message[..9]);
    assert!(there.read(20_000, 10_000) == message);
}

/// A region's key is not the peer's to end: the far end is told so, and the connection is over.
#[test]
fn invalidates_from_the_network_are_refused() {
    let pair = Pair::new();
    let (qp, mut far) = ready(&pair, &options(Service::Rc));
    let target = pair.sides[0].register(&Buffer::new(100));
    receive(&qp, 1, &[part(&target, 0, 10)]);
    let request = Request::Send { flags: WHOLE | INVALIDATE, immediate: target.rkey.0 };
    deliver(&mut far, &request, &pattern(9, 5));
    assert_eq!(outcomes(&qp.recv_cq), [(1, status::REM_INV_REQ_ERR)]);
    let (response, _) = far.next_response().unwrap().unwrap();
    assert_eq!(response, Response::Nak { code: Nak::Refused(Refusal::RemoteAccess) });
    assert_eq!(qp.state(), State::Err);
    assert!(pair.sides[0].shared.regions.get_remote(target.rkey).is_some());
}

/// READs are answered as fast as the far end takes the answers, in pieces of the small ring.
#[test]
fn reads_and_atomics_from_the_network_are_answered() {
    let pair = Pair::new();
    let (qp, mut far) = ready(&pair, &options(Service::Rc));
    let there = Buffer::pattern(300_000, 3);
    let target = pair.sides[0].register(&there);
    let (address, rkey) = remote(&target, 0);
    let read = Request::Read { address, rkey, length: 300_000 };
    assert!(fake_engine::request(&mut far, &read, &[]));
    let add = Request::FetchAdd { address: address + 8, rkey, add: 2 };
    assert!(fake_engine::request(&mut far, &add, &[]));
    let before = there.number(8);
    let (mut bytes, mut original) = (Vec::new(), None);
    for _ in 0..1000 {
        poll(&qp.recv_cq);
        let Some((response, record)) = far.next_response().unwrap() else {
            pair.settle();
            continue;
        };
        match response {
            Response::ReadData { .. } => {
                assert_eq!(original, None, "answers in order");
                bytes.extend(fake_engine::response_bytes(&far, &record));
            }
            Response::AtomicResult { original: it } => original = Some(it),
            other => panic!("{other:?}"),
        }
        far.pass_response(&record);
    }
    assert_eq!((bytes.len(), original), (300_000, Some(before)));
    assert!(bytes[16..] == there.all()[16..]);
    assert_eq!(there.number(8), before.wrapping_add(2));
    // What is not allowed is refused.
    let wrong = Request::Read { address: address + 1, rkey, length: 300_000 };
    assert!(fake_engine::request(&mut far, &wrong, &[]));
    pair.settle();
    let (response, _) = far.next_response().unwrap().unwrap();
    assert_eq!(response, Response::Nak { code: Nak::Refused(Refusal::RemoteAccess) });
}

/// A READ that comes again when its key is gone ends nothing; from a peer that reads for itself it
/// breaks the link, or it could guess keys.
#[test]
fn a_read_that_is_repeated_when_its_key_is_gone() {
    let pair = Pair::new();
    let (qp, mut far) = ready(&pair, &options(Service::Rc));
    let there = Buffer::pattern(300_000, 3);
    let target = pair.sides[0].register(&there);
    let (address, rkey) = remote(&target, 0);
    let read = |length, rkey| Request::ReadAgain { address, rkey, length };
    // More than the small ring holds: the key goes in the middle.
    assert!(fake_engine::request(&mut far, &read(300_000, rkey), &[]));
    poll(&qp.recv_cq);
    pair.sides[0].shared.regions.remove(target.lkey);
    assert!(fake_engine::request(&mut far, &read(100, rkey), &[]));
    // There is no room to say so, and no thread is busy until there is.
    assert!((0..100).any(|_| !pair.sides[0].shared.progress().is_busy));
    let (mut gone, mut bytes) = (0, 0);
    for _ in 0..1000 {
        poll(&qp.recv_cq);
        pair.settle();
        let Some((response, record)) = far.next_response().unwrap() else { continue };
        match response {
            Response::ReadData { last: false } if gone == 0 => bytes += record.length,
            Response::Gone => gone += 1,
            other => panic!("{other:?}"),
        }
        far.pass_response(&record);
    }
    assert!(gone == 2 && bytes > 0 && bytes < 300_000, "{gone} {bytes}");
    assert_eq!(qp.state(), State::Rts);
    let other = pair.sides[0].register(&there);
    assert!(fake_engine::request(&mut far, &read(100, other.rkey), &[]));
    poll(&qp.recv_cq);
    let (response, _) = far.next_response().unwrap().unwrap();
    assert_eq!(response, Response::ReadData { last: true });
}

/// A peer asks for a READ again, since the answer was lost, while it is inside a later message.
#[test]
fn a_read_between_the_parts_of_a_message() {
    let pair = Pair::new();
    let (qp, mut far) = ready(&pair, &options(Service::Rc));
    let there = Buffer::pattern(300_000, 3);
    let target = pair.sides[0].register(&there);
    let (address, rkey) = remote(&target, 100_000);
    let read = Request::Read { address, rkey, length: 200_000 };
    receive(&qp, 1, &[part(&target, 0, 3000)]);
    let message = pattern(3000, 9);
    let write = |place, data: &[u8], far: &mut _| {
        let (address, total) = (remote(&target, 10_000).0, message.len() as u64);
        let request = match place {
            FIRST => Request::WriteFirst { flags: 0, address, rkey, immediate: 0, total },
            _ => Request::WriteMore { flags: place, immediate: 0 },
        };
        assert!(fake_engine::request(far, &request, data));
    };
    let send = |place, data: &[u8], far: &mut _| {
        assert!(fake_engine::request(far, &Request::Send { flags: place, immediate: 0 }, data));
    };
    // More than the small ring of answers holds, so that it stops in the middle.
    send(FIRST, &message[..1000], &mut far);
    assert!(fake_engine::request(&mut far, &read, &[]));
    send(0, &message[1000..2000], &mut far);
    send(LAST, &message[2000..], &mut far);
    write(FIRST, &message[..1000], &mut far);
    assert!(fake_engine::request(&mut far, &read, &[]));
    write(LAST, &message[1000..], &mut far);
    let mut bytes = Vec::new();
    for _ in 0..1000 {
        pair.settle();
        let Some((response, record)) = far.next_response().unwrap() else { continue };
        assert!(matches!(response, Response::ReadData { .. }), "{response:?}");
        bytes.extend(fake_engine::response_bytes(&far, &record));
        far.pass_response(&record);
    }
    let read = there.read(100_000, 200_000);
    assert!(bytes.len() == 400_000 && bytes[..200_000] == read && bytes[200_000..] == read);
    assert_eq!(outcomes(&qp.recv_cq), [(1, status::SUCCESS)]);
    assert!(there.read(0, 3000) == message && there.read(10_000, 3000) == message);
}

/// Receives that are shared cannot be promised: the receiver says where it lacks one.
#[test]
fn a_shared_queue_that_is_empty_says_so() {
    let pair = Pair::new();
    let srq = Srq::new(&pair.sides[0].shared, PD, 8, 4).unwrap();
    let options = options(Service::Rc).with(|o| o.srq = Some(srq.clone()));
    let (qp, mut far) = ready(&pair, &options);
    assert_eq!(far.credit(), Credit::Unpromised);
    let there = Buffer::new(3000);
    let target = pair.sides[0].register(&there);
    let message = pattern(3000, 1);
    deliver(&mut far, &Request::Send { flags: WHOLE, immediate: 0 }, &message);
    assert_eq!(far.peer_lacks_receive(), Ok(false));
    pair.settle();
    assert_eq!(far.peer_lacks_receive(), Ok(true));
    srq.post(5, &[whole(&target)]).unwrap();
    assert_eq!(outcomes(&qp.recv_cq), [(5, status::SUCCESS)]);
    assert_eq!(far.peer_lacks_receive(), Ok(false));
    assert!(there.all() == message);
}

/// The far end delivers although nothing was posted: the message waits, and it is told.
#[test]
fn a_missing_receive_is_reported() {
    let pair = Pair::new();
    let (qp, mut far) = ready(&pair, &options(Service::Rc));
    deliver(&mut far, &Request::Send { flags: WHOLE, immediate: 0 }, &[]);
    pair.settle();
    assert_eq!(far.peer_lacks_receive(), Ok(true));
    receive(&qp, 1, &[]);
    assert_eq!(outcomes(&qp.recv_cq), [(1, status::SUCCESS)]);
    assert_eq!(far.peer_lacks_receive(), Ok(false));
}

/// Nothing sends them again, and a receiver may have no processor for a while.
#[test]
fn unreliable_messages_from_the_network_wait_for_a_late_receive() {
    for late in [RECEIVER_AWAY - 1, RECEIVER_AWAY] {
        let pair = Pair::new();
        let (qp, mut far) = ready(&pair, &options(Service::Uc));
        deliver(&mut far, &Request::Send { flags: WHOLE, immediate: 0 }, &[]);
        pair.settle();
        pair.wait(late);
        receive(&qp, 5, &[]);
        pair.settle();
        let arrived = if late < RECEIVER_AWAY { vec![(5, status::SUCCESS)] } else { vec![] };
        assert_eq!(outcomes(&qp.recv_cq), arrived, "after {late} ns");
    }
}

/// The daemon dies, and its engine with it.
#[test]
fn links_to_the_engine_end_with_the_daemon() {
    let pair = Pair::new();
    let (qp, mut far) = ready(&pair, &options(Service::Rc));
    let direct = pair.connected(&Options::new(Service::Rc));
    receive(&qp, 9, &[]);
    receive(&qp, 10, &[]);
    // Its last words are heard.
    deliver(&mut far, &Request::Send { flags: WHOLE, immediate: 0 }, &[]);
    post(&qp, &Work::send(1));
    post(&qp, &Work::send(2));
    [&qp, &direct[0]].iter().for_each(|qp| qp.engine_died());
    let expected = [
        (9, status::SUCCESS),
        (1, status::RETRY_EXC_ERR),
        (2, status::WR_FLUSH_ERR),
        (10, status::WR_FLUSH_ERR),
    ];
    assert_eq!(outcomes(&qp.send_cq), expected);
    assert_eq!(pair.sides[0].events(), [AsyncEvent::QpFatal]);
    assert_eq!((qp.state(), direct[0].state()), (State::Err, State::Rts));
    qp.engine_died();
    assert!(pair.sides[0].events().is_empty());
    receive(&direct[1], 1, &[]);
    post(&direct[0], &Work::send(1));
    assert_eq!(outcomes(&direct[1].recv_cq), [(1, status::SUCCESS)]);
    // A queue pair that was reset starts anew.
    to_state(&qp, State::Reset);
    let options = options(Service::Rc);
    to_init(&qp, &options);
    to_rts(&qp, &options);
    let mut far = fake_engine::open(&pair, 0, &qp, PEER, RINGS);
    post(&qp, &Work::send(1));
    assert_eq!(drain(&mut far).len(), 1);
    assert_eq!(outcomes(&qp.send_cq), [(1, status::SUCCESS)]);
}
