//! Tests XRC over processes: requests for SRQs of another part of the domain go on to that part.

use crate::fuzz_input::Script;
use crate::guarded_buffer::Buffer;
use crate::two_device_fixture::{
    LinkMemory, Options, PD, Pair, gid, outcomes, poll, post, to_init, to_rtr, to_state,
};
use crate::work_request_helpers::{Work, part, remote, whole};
use omniverb_device::qp_attributes::State;
use omniverb_device::{
    AsyncEvent, Cq, Domain, FarEnd, Peer, Qp, Region, Srq, status, wc_flags, wc_opcode,
};
use omniverb_link::{Endpoint, Nak, Request, Response};
use omniverb_ring::UserMemory;
use omniverb_terms::{Qpn, Refusal, Service};
use std::sync::Arc;

/// Side 0 sends; its connection is with the front, on side 1. The other process of the domain is on
/// side 0, too: what it has in common with the sender there is nothing that counts.
struct Bench {
    pair: Pair,
    qps: [Arc<Qp>; 2],
    other: Arc<Domain>,
    srq: Arc<Srq>,
    cq: Arc<Cq>,
    number: u32,
}

/// The two hidden queue pairs, one in each process.
struct HiddenPair {
    qps: [Arc<Qp>; 2],
    _joint: LinkMemory,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(|_| {}, |_| {})
    }

    fn with(sends: impl Fn(&mut Options), receives: impl Fn(&mut Options)) -> Bench {
        let pair = Pair::new();
        let sender = Options::new(Service::XrcSend).with(sends);
        let front = Options::new(Service::XrcRecv).with(|o| {
            o.domain = Some(Domain::part(0));
            receives(o);
        });
        let qps = pair.connected_with([&sender, &front]);
        let (other, cq) = (Domain::part(1), pair.sides[0].cq());
        let srq = Srq::extended(&pair.sides[0].shared, PD, (8, 4), &cq, &other).unwrap();
        let number = srq.number().unwrap();
        Bench { pair, qps, other, srq, cq, number }
    }

    fn asked(&self) -> Vec<(Qpn, u32)> {
        std::mem::take(&mut *self.pair.sides[1].world.hand_overs.lock().unwrap())
    }

    fn discarded(&self) -> Vec<Qpn> {
        std::mem::take(&mut *self.pair.sides[1].world.discarded.lock().unwrap())
    }

    /// The front's hidden queue pair, which sends.
    fn stand_in(&self) -> Arc<Qp> {
        let by = self.pair.sides[1].qp(&Options::new(Service::XrcSend));
        by.stand_for(&self.qps[1], 1);
        by
    }

    /// Both come together.
    fn open(&self) -> HiddenPair {
        let options = Options::new(Service::XrcRecv).with(|o| o.domain = Some(self.other.clone()));
        let receiver = self.pair.sides[0].qp(&options);
        receiver.receive_for(self.qps[1].number, self.qps[0].number);
        to_init(&receiver, &options);
        to_rtr(&receiver, &options);
        let qps = [receiver, self.stand_in()];
        let joint = self.pair.join(&qps, options.ring_bytes);
        HiddenPair { qps, _joint: joint }
    }

    /// The same with an end that does what we like.
    fn open_to_anybody(&self) -> (Arc<Qp>, Endpoint) {
        let (by, mut end) = self.end_to_anybody();
        end.open(0);
        self.qps[1].pump();
        (by, end)
    }

    /// The same, and it is not open yet.
    fn end_to_anybody(&self) -> (Arc<Qp>, Endpoint) {
        let by = self.stand_in();
        let options = Options::new(Service::XrcSend);
        let joint = self.pair.joint(options.ring_bytes);
        let peer = Peer { qpn: Qpn(9), dgid: gid(0), sgid: gid(1), far_end: FarEnd::Process };
        let end = self.pair.endpoint(0, &joint);
        let index = by.attach(peer, self.pair.endpoint(1, &joint)).unwrap();
        self.pair.sides[1].bell.bind(joint.slot, &self.qps[1], index);
        (by, end)
    }

    fn begin(&self, work: Work) -> HiddenPair {
        post(&self.qps[0], &work.for_srq(self.number));
        self.pair.settle();
        assert_eq!(self.asked(), [(self.qps[1].number, 1)]);
        let way = self.open();
        self.pair.settle();
        way
    }

    fn outcome(&self, work: Work) -> Vec<(u64, u32)> {
        post(&self.qps[0], &work.for_srq(self.number));
        self.pair.settle();
        outcomes(&self.qps[0].send_cq)
    }

    fn sent(&self) -> Vec<(u64, u32)> {
        self.pair.settle();
        outcomes(&self.qps[0].send_cq)
    }

    fn memory(&self, bytes: usize) -> [(Buffer, Arc<Region>); 2] {
        let make = |seed| {
            let buffer = Buffer::pattern(bytes, seed);
            let region = self.pair.sides[0].register(&buffer);
            (buffer, region)
        };
        [make(1), make(2)]
    }
}

#[test]
fn a_message_waits_for_the_way_and_goes_on() {
    let bench = Bench::new();
    let [(from, local), (to, target)] = bench.memory(64);
    bench.srq.post(7, &[whole(&target)]).unwrap();
    let work = Work::send(1).immediate(5).sge(whole(&local));
    post(&bench.qps[0], &work.for_srq(bench.number));
    for _ in 0..3 {
        assert!(bench.sent().is_empty());
        bench.pair.wait(100_000_000);
    }
    assert_eq!(bench.asked(), [(bench.qps[1].number, 1)], "once");
    assert!(bench.qps[1].wants_way(1));
    let way = bench.open();
    assert_eq!(bench.sent(), [(1, status::SUCCESS)]);
    assert!(!bench.qps[1].wants_way(1) && bench.qps[1].is_relayed_by(way.qps[1].number));
    let received = poll(&bench.cq);
    assert_eq!(received.len(), 1);
    let wc = received[0];
    assert_eq!((wc.qp_num, wc.src_qp), (bench.qps[1].number.0, bench.qps[0].number.0));
    assert_eq!((wc.wr_id, wc.immediate, wc.flags), (7, 5, wc_flags::WITH_IMM));
    assert_eq!(to.all(), from.all());
    assert_eq!(bench.qps[1].peers().len(), 1);
    assert_eq!(way.qps[1].peers()[0].qpn, way.qps[0].number, "the daemon is told of it");
}

#[test]
fn long_messages_and_all_that_is_one_sided_go_on() {
    let bench = Bench::new();
    let [(from, local), (to, target)] = bench.memory(200_000);
    bench.srq.post(1, &[whole(&target)]).unwrap();
    bench.srq.post(2, &[]).unwrap();
    let _way = bench.begin(Work::send(1).sge(whole(&local)));
    assert_eq!(bench.sent(), [(1, status::SUCCESS)]);
    assert!(to.all() == from.all());
    let write = Work::write(2, remote(&target, 10)).sge(part(&local, 0, 150_000));
    assert_eq!(bench.outcome(write.clone()), [(2, status::SUCCESS)]);
    assert!(to.read(10, 150_000) == from.read(0, 150_000));
    assert_eq!(bench.outcome(write.immediate(9)), [(2, status::SUCCESS)]);
    let received = poll(&bench.cq);
    assert_eq!(received.iter().map(|wc| wc.byte_len).collect::<Vec<_>>(), [200_000, 150_000]);
    assert_eq!(received[1].opcode, wc_opcode::RECV_RDMA_WITH_IMM);
    let read = Work::read(3, remote(&target, 10)).sge(part(&local, 1000, 190_000));
    assert_eq!(bench.outcome(read), [(3, status::SUCCESS)]);
    assert!(from.read(1000, 190_000) == to.read(10, 190_000));
    let before = to.read(8, 8);
    let add = Work::fetch_add(4, remote(&target, 8), 5).sge(part(&local, 0, 8));
    assert_eq!(bench.outcome(add), [(4, status::SUCCESS)]);
    assert_eq!(from.read(0, 8), before);
    let found = u64::from_ne_bytes(before.try_into().unwrap());
    let swap = Work::compare_swap(5, remote(&target, 8), found + 5, 3).sge(part(&local, 0, 8));
    assert_eq!(bench.outcome(swap), [(5, status::SUCCESS)]);
    assert_eq!(to.read(8, 8), 3u64.to_ne_bytes());
}

/// What peers may do is said of the queue pair that they know.
#[test]
fn rights_are_those_of_the_front() {
    for operation in 0..4 {
        let bench = Bench::with(|_| {}, |o| o.attributes.access_flags = 0);
        let [(_, local), (_, target)] = bench.memory(8);
        let at = remote(&target, 0);
        let work = match operation {
            0 => Work::write(1, at),
            1 => Work::read(1, at),
            2 => Work::fetch_add(1, at, 5),
            _ => Work::compare_swap(1, at, 5, 6),
        };
        let outcome = bench.outcome(work.sge(whole(&local)));
        assert_eq!(outcome, [(1, status::REM_INV_REQ_ERR)], "{operation}");
        assert!(bench.asked().is_empty());
    }
}

#[test]
fn an_empty_queue_is_not_ready_and_holds_up_what_is_behind() {
    let bench = Bench::new();
    let _way = bench.begin(Work::send(1));
    post(&bench.qps[0], &Work::send(2).for_srq(bench.number));
    for _ in 0..10 {
        bench.pair.wait(640_000);
        assert!(bench.sent().is_empty() && poll(&bench.cq).is_empty());
    }
    bench.srq.post(5, &[]).unwrap();
    assert_eq!(bench.sent(), [(1, status::SUCCESS)]);
    bench.srq.post(6, &[]).unwrap();
    assert_eq!(bench.sent(), [(2, status::SUCCESS)]);
    assert_eq!(outcomes(&bench.cq), [(5, status::SUCCESS), (6, status::SUCCESS)]);
}

/// Those of messages that are longer than any ring, too.
#[test]
fn the_senders_retries_are_counted() {
    for bytes in [8, 40_000, 2 << 20] {
        let bench = Bench::with(|o| o.attributes.rnr_retry = 2, |_| {});
        let [(_, local), _] = bench.memory(bytes);
        let _way = bench.begin(Work::send(1).sge(whole(&local)));
        let mut failed = Vec::new();
        for _ in 0..200 {
            bench.pair.wait(10_000_000);
            failed.extend(bench.sent());
        }
        assert_eq!(failed, [(1, status::RNR_RETRY_EXC_ERR)], "{bytes}");
    }
}

/// A queue pair that receives for another process's hands nothing over itself.
#[test]
fn nothing_goes_on_twice() {
    let bench = Bench::new();
    bench.qps[1].receive_for(Qpn(7), Qpn(8));
    assert_eq!(bench.outcome(Work::send(1)), [(1, status::REM_INV_REQ_ERR)]);
    assert!(bench.asked().is_empty());
}

#[test]
fn without_a_way_a_request_is_refused() {
    let bench = Bench::new();
    bench.pair.sides[1].events();
    post(&bench.qps[0], &Work::send(1).for_srq(bench.number));
    bench.pair.settle();
    bench.qps[1].no_way(2);
    assert!(bench.sent().is_empty(), "another part");
    bench.qps[1].no_way(1);
    assert_eq!(bench.sent(), [(1, status::REM_INV_REQ_ERR)]);
    assert_eq!(bench.qps.each_ref().map(|qp| qp.state()), [State::Err; 2]);
    assert_eq!(bench.pair.sides[1].events(), [AsyncEvent::QpRequestError]);
}

/// Numbers of no part, and of none that can be, are not asked for.
#[test]
fn what_is_no_number_is_refused_at_once() {
    for number in [0x1000, 0x0100_1001, u32::MAX, 0, 5] {
        let bench = Bench::new();
        let refused = {
            post(&bench.qps[0], &Work::send(1).for_srq(number));
            bench.sent()
        };
        assert_eq!(refused, [(1, status::REM_INV_REQ_ERR)], "{number:#x}");
        assert!(bench.asked().is_empty());
    }
}

#[test]
fn refusals_of_the_other_process_reach_the_requester() {
    let bench = Bench::new();
    let [(_, local), (_, target)] = bench.memory(64);
    let wrong = (remote(&target, 0).0 + 60, remote(&target, 0).1);
    let way = bench.begin(Work::read(1, wrong).sge(whole(&local)));
    assert_eq!(bench.sent(), [(1, status::REM_ACCESS_ERR)]);
    assert_eq!(bench.qps.each_ref().map(|qp| qp.state()), [State::Err; 2]);
    assert_eq!(bench.discarded(), [way.qps[1].number]);
    // An SRQ that is not there, in a process that is.
    let bench = Bench::new();
    bench.srq.retire();
    let _way = bench.begin(Work::send(1));
    assert_eq!(bench.sent(), [(1, status::REM_INV_REQ_ERR)]);
    // A receive that is too short.
    let bench = Bench::new();
    let [(_, local), (_, target)] = bench.memory(64);
    bench.srq.post(3, &[part(&target, 0, 8)]).unwrap();
    let _way = bench.begin(Work::send(1).sge(whole(&local)));
    assert_eq!(bench.sent(), [(1, status::REM_INV_REQ_ERR)]);
    assert_eq!(outcomes(&bench.cq), [(3, status::LOC_LEN_ERR)]);
}

#[test]
fn the_other_process_may_end_while_a_request_waits_or_none_does() {
    for waits in [true, false] {
        let bench = Bench::new();
        if !waits {
            bench.srq.post(1, &[]).unwrap();
        }
        let way = bench.begin(Work::send(1));
        let expected: &[_] = if waits { &[] } else { &[(1, status::SUCCESS)] };
        assert_eq!(bench.sent(), expected);
        way.qps[1].peer_died(way.qps[0].number);
        assert_eq!(bench.discarded(), [way.qps[1].number]);
        if waits {
            assert_eq!(bench.sent(), [(1, status::REM_INV_REQ_ERR)]);
            continue;
        }
        assert_eq!(bench.qps[1].state(), State::Rts, "its connection goes on");
        bench.srq.post(2, &[]).unwrap();
        let _another = bench.begin(Work::send(2));
        assert_eq!(bench.sent(), [(2, status::SUCCESS)]);
    }
}

#[test]
fn what_has_begun_ends_with_the_connection() {
    type Ending = fn(&Qp);
    let endings: [Ending; 4] = [
        |front| to_state(front, State::Reset),
        |front| to_state(front, State::Err),
        |front| front.destroy(),
        |front| front.peer_died(front.peers()[0].qpn),
    ];
    for (at, end) in endings.into_iter().enumerate() {
        let bench = Bench::new();
        let [(_, local), (_, target)] = bench.memory(1 << 20);
        bench.srq.post(3, &[whole(&target)]).unwrap();
        post(&bench.qps[0], &Work::send(1).for_srq(bench.number).sge(whole(&local)));
        bench.qps[1].pump();
        let way = bench.open();
        bench.qps[1].pump();
        way.qps[0].pump();
        end(&bench.qps[1]);
        assert_eq!(bench.discarded(), [way.qps[1].number], "ending {at}");
        to_state(&way.qps[0], State::Err);
        way.qps[0].destroy();
        assert_eq!(outcomes(&bench.cq), [(3, status::WR_FLUSH_ERR)], "ending {at}");
    }
}

/// It ended before anything could go on to it: the request that waits looks for another one.
#[test]
fn the_other_process_may_end_before_it_has_begun() {
    let bench = Bench::new();
    bench.srq.post(1, &[]).unwrap();
    post(&bench.qps[0], &Work::send(1).for_srq(bench.number));
    bench.pair.settle();
    assert_eq!(bench.asked(), [(bench.qps[1].number, 1)]);
    let (by, _end) = bench.end_to_anybody();
    assert!(bench.sent().is_empty() && bench.asked().is_empty());
    by.peer_died(Qpn(9));
    assert_eq!(bench.discarded(), [by.number]);
    assert_eq!(bench.asked(), [(bench.qps[1].number, 1)]);
    let _way = bench.open();
    assert_eq!(bench.sent(), [(1, status::SUCCESS)]);
}

/// The process with the other part answers what does not fit the question.
#[test]
fn a_false_answer_ends_it() {
    type RingCorruption = fn(&mut Endpoint);
    fn say(end: &mut Endpoint, response: Response, bytes: usize) {
        let mut data = vec![7; bytes];
        let said = UserMemory::lend_mut(&mut data, |memory| end.send_response(&response, memory));
        assert_eq!(said, Ok(true));
    }
    let lies: [(&str, RingCorruption); 6] = [
        ("too much", |end| say(end, Response::ReadData { last: true }, 65)),
        ("too little", |end| say(end, Response::ReadData { last: true }, 63)),
        ("no end", |end| say(end, Response::ReadData { last: false }, 64)),
        ("nothing", |end| say(end, Response::ReadData { last: false }, 0)),
        ("a number", |end| say(end, Response::AtomicResult { original: 1 }, 0)),
        ("silence", |end| say(end, Response::Nak { code: Nak::RetryExceeded }, 0)),
    ];
    for (what, lie) in lies {
        let bench = Bench::new();
        let [(_, local), (_, target)] = bench.memory(64);
        let read = Work::read(1, remote(&target, 0)).sge(whole(&local));
        post(&bench.qps[0], &read.for_srq(bench.number));
        bench.pair.settle();
        let (_by, mut end) = bench.open_to_anybody();
        bench.pair.settle();
        lie(&mut end);
        assert_eq!(bench.sent(), [(1, status::REM_INV_REQ_ERR)], "{what}");
    }
    // Unasked.
    let bench = Bench::new();
    post(&bench.qps[0], &Work::send(1).for_srq(bench.number));
    bench.pair.settle();
    let (_by, mut end) = bench.open_to_anybody();
    say(&mut end, Response::ReadData { last: true }, 8);
    assert_eq!(bench.sent(), [(1, status::REM_INV_REQ_ERR)]);
}

/// Whatever the other process says and whenever, the front serves its own queues, or is in ERR.
#[test]
fn any_ring_contents_of_the_other_process_are_harmless() {
    for seed in 0..300u64 {
        let mut bytes = Vec::new();
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for _ in 0..200 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.extend(state.to_ne_bytes());
        }
        let mut script = Script::new(&bytes);
        let bench = Bench::new();
        let [(_, local), (_, target)] = bench.memory(40_000);
        let (_by, mut end) = {
            post(&bench.qps[0], &Work::send(1).for_srq(bench.number));
            bench.pair.settle();
            bench.open_to_anybody()
        };
        for step in 0..40 {
            let length = script.number(40_000);
            let at = remote(&target, 0);
            let work = match script.byte() % 5 {
                0 => Work::send(step),
                1 => Work::write(step, at),
                2 => Work::read(step, at),
                3 => Work::write(step, at).immediate(3),
                _ => Work::fetch_add(step, at, 1),
            };
            let length = if work.opcode >= 5 { 8 } else { length };
            let work = work.for_srq(bench.number).sge(part(&local, 0, length));
            let _ = bench.qps[0].post_send(&work.as_send());
            bench.qps[1].pump();
            answer(&mut end, &mut script);
            bench.pair.settle();
        }
        assert!(matches!(bench.qps[1].state(), State::Rts | State::Err));
    }
}

fn answer(end: &mut Endpoint, script: &mut Script<'_>) {
    let taken = end.next_request();
    let fitting = match &taken {
        Ok(Some((Request::Read { length, .. }, _))) if !script.byte().is_multiple_of(4) => {
            Some(*length)
        }
        _ => None,
    };
    if let Ok(Some((_, record))) = taken
        && !script.byte().is_multiple_of(3)
    {
        end.pass_request(&record);
        end.publish_requests();
    }
    let response = match script.byte() % 6 {
        0 | 1 => Response::ReadData { last: script.byte().is_multiple_of(2) },
        2 => Response::AtomicResult { original: script.word() },
        3 => Response::Nak { code: Nak::Refused(Refusal::RemoteAccess) },
        _ if fitting.is_some() => Response::ReadData { last: true },
        _ => return end.report_lack_of_receive(),
    };
    let bytes = fitting.map_or(script.number(5000), |length| length.min(16_000) as usize);
    let mut data = vec![7; if matches!(response, Response::ReadData { .. }) { bytes } else { 0 }];
    let _ = UserMemory::lend_mut(&mut data, |memory| end.send_response(&response, memory));
}
