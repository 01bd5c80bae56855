//! XRC: the sender names a shared receive queue, the receiver finds it in its domain.

use crate::guarded_buffer::Buffer;
use crate::hostile_peer_input::appear;
use crate::two_device_fixture::{Options, PD, Pair, outcomes, poll, post, to_state};
use crate::work_request_helpers::{Work, part, remote, whole};
use omniverb_device::qp_attributes::State;
use omniverb_device::{
    AsyncEvent, Cq, Domain, PostError, PostFault, Qp, Srq, access, opcode, status, wc_flags,
    wc_opcode,
};
use omniverb_link::Request;
use omniverb_link::record::FIRST;
use omniverb_terms::{Qpn, Service};
use std::sync::Arc;

const OTHER_PD: u32 = PD + 1;

/// Side 0 sends, side 1 receives in a domain with SRQs, each of which completes in a CQ of its own.
struct Bench {
    pair: Pair,
    domain: Arc<Domain>,
    qps: [Arc<Qp>; 2],
}

impl Bench {
    fn new() -> Bench {
        let pair = Pair::new();
        let domain = Domain::new();
        let qps = Bench::connected(&pair, &domain);
        Bench { pair, domain, qps }
    }

    fn connected(pair: &Pair, domain: &Arc<Domain>) -> [Arc<Qp>; 2] {
        let sender = Options::new(Service::XrcSend);
        let receiver = Options::new(Service::XrcRecv).with(|o| o.domain = Some(domain.clone()));
        pair.connected_with([&sender, &receiver])
    }

    fn srq(&self, pd: u32, capacity: u32) -> (Arc<Srq>, Arc<Cq>, u32) {
        self.srq_in(&self.domain, pd, capacity)
    }

    fn srq_in(&self, domain: &Arc<Domain>, pd: u32, capacity: u32) -> (Arc<Srq>, Arc<Cq>, u32) {
        let (shared, cq) = (&self.pair.sides[1].shared, self.pair.sides[1].cq());
        let srq = Srq::extended(shared, pd, (capacity, 4), &cq, domain).unwrap();
        let number = srq.number().unwrap();
        (srq, cq, number)
    }

    /// Posts, and says what became of it.
    fn outcome(&self, work: &Work) -> Vec<(u64, u32)> {
        post(&self.qps[0], work);
        self.pair.settle();
        outcomes(&self.qps[0].send_cq)
    }
}

#[test]
fn messages_go_to_the_queue_that_they_name() {
    let bench = Bench::new();
    let queues = [bench.srq(PD, 8), bench.srq(PD, 8)];
    let (from, to) = (Buffer::pattern(64, 1), Buffer::new(64));
    let (local, target) = (bench.pair.sides[0].register(&from), bench.pair.sides[1].register(&to));
    for (srq, ..) in &queues {
        for id in 0..2 {
            srq.post(id, &[part(&target, id as usize * 16, 16)]).unwrap();
        }
    }
    let [sender, receiver] = &bench.qps;
    for (at, queue) in [1usize, 0, 0, 1].into_iter().enumerate() {
        let (_, cq, number) = &queues[queue];
        let work = Work::send(at as u64).for_srq(*number).sge(part(&local, at * 16, 16));
        assert_eq!(bench.outcome(&work.immediate(7)), [(at as u64, status::SUCCESS)]);
        let received = poll(cq);
        assert_eq!(received.len(), 1, "message {at}");
        let wc = received[0];
        assert_eq!((wc.qp_num, wc.src_qp), (receiver.number.0, sender.number.0));
        assert_eq!((wc.immediate, wc.flags, wc.byte_len), (7, wc_flags::WITH_IMM, 16));
        let slot = wc.wr_id as usize * 16;
        assert_eq!(to.read(slot, 16), from.read(at * 16, 16));
    }
    assert!(queues.iter().all(|(_, cq, _)| poll(cq).is_empty()));
    assert_eq!(receiver.post_recv(1, &[]), Err(PostError::Invalid(PostFault::Receives)));
    let sent = receiver.post_send(&Work::send(1).as_send());
    assert_eq!(sent, Err(PostError::Invalid(PostFault::Opcode)));
    assert_eq!(sender.post_recv(1, &[]), Err(PostError::Invalid(PostFault::Receives)));
}

#[test]
fn what_names_no_queue_of_the_domain_is_refused() {
    type Make = fn(&Bench) -> u32;
    let makes: [(&str, Make); 4] = [
        ("never there", |_| 77),
        ("zero", |_| 0),
        ("in another domain", |bench| {
            // Numbers are a domain's own: one that this domain does not have.
            bench.srq_in(&Domain::new(), PD, 8).2 + 5
        }),
        ("destroyed", |bench| {
            let (srq, _, number) = bench.srq(PD, 8);
            srq.post(1, &[]).unwrap();
            let sent = Work::send(1).for_srq(number);
            assert_eq!(bench.outcome(&sent), [(1, status::SUCCESS)]);
            srq.retire();
            number
        }),
    ];
    for (what, make) in makes {
        let bench = Bench::new();
        let number = make(&bench);
        bench.pair.sides[1].events();
        let refused = bench.outcome(&Work::send(2).for_srq(number));
        assert_eq!(refused, [(2, status::REM_INV_REQ_ERR)], "{what}");
        assert_eq!(bench.qps.each_ref().map(|qp| qp.state()), [State::Err; 2], "{what}");
        assert_eq!(bench.pair.sides[1].events(), [AsyncEvent::QpRequestError], "{what}");
    }
}

/// A message that waits for a receive of a queue that is destroyed names none any more.
#[test]
fn a_request_waiting_for_a_destroyed_srq_fails() {
    let bench = Bench::new();
    let (srq, _, number) = bench.srq(PD, 8);
    assert_eq!(bench.outcome(&Work::send(1).for_srq(number)), []);
    srq.retire();
    bench.pair.settle();
    assert_eq!(outcomes(&bench.qps[0].send_cq), [(1, status::REM_INV_REQ_ERR)]);
}

#[test]
fn a_queue_that_is_destroyed_takes_with_it_what_names_it_and_nothing_else() {
    let bench = Bench::new();
    let (first, _, one) = bench.srq(PD, 8);
    let (second, _, two) = bench.srq(PD, 8);
    first.post(1, &[]).unwrap();
    assert_eq!(bench.outcome(&Work::send(1).for_srq(one)), [(1, status::SUCCESS)]);
    assert_eq!(bench.outcome(&Work::send(2).for_srq(two)), []);
    first.retire();
    bench.pair.settle();
    assert_eq!(outcomes(&bench.qps[0].send_cq), []);
    second.post(2, &[]).unwrap();
    bench.pair.settle();
    assert_eq!(outcomes(&bench.qps[0].send_cq), [(2, status::SUCCESS)]);
    assert_eq!(bench.outcome(&Work::send(3).for_srq(two)), []);
    second.retire();
    bench.pair.settle();
    assert_eq!(outcomes(&bench.qps[0].send_cq), [(3, status::REM_INV_REQ_ERR)]);
}

/// The domain's queue pair has no protection domain: keys are looked up in the SRQ's.
#[test]
fn memory_is_that_of_the_queues_protection_domain() {
    for (pd, expected) in [(PD, status::SUCCESS), (OTHER_PD, status::REM_ACCESS_ERR)] {
        for operation in 0..3 {
            let bench = Bench::new();
            let (_srq, _, number) = bench.srq(pd, 8);
            let (from, to) = (Buffer::new(8), Buffer::new(8));
            let local = bench.pair.sides[0].register(&from);
            let flags = access::LOCAL_WRITE | access::REMOTE;
            let target = bench.pair.sides[1].register_in(PD, &to, flags);
            let at = remote(&target, 0);
            let work = match operation {
                0 => Work::write(1, at),
                1 => Work::read(1, at),
                _ => Work::fetch_add(1, at, 5),
            };
            let outcome = bench.outcome(&work.for_srq(number).sge(whole(&local)));
            assert_eq!(outcome, [(1, expected)], "operation {operation} in {pd}");
        }
    }
}

#[test]
fn receives_are_of_the_queues_protection_domain() {
    let bench = Bench::new();
    let (srq, cq, number) = bench.srq(OTHER_PD, 8);
    let (from, to) = (Buffer::pattern(8, 1), Buffer::new(8));
    let local = bench.pair.sides[0].register(&from);
    let flags = access::LOCAL_WRITE;
    let right = bench.pair.sides[1].register_in(OTHER_PD, &to, flags);
    let wrong = bench.pair.sides[1].register_in(PD, &to, flags);
    srq.post(1, &[whole(&right)]).unwrap();
    srq.post(2, &[whole(&wrong)]).unwrap();
    let send = |id| Work::send(id).for_srq(number).sge(whole(&local));
    assert_eq!(bench.outcome(&send(1)), [(1, status::SUCCESS)]);
    assert_eq!(to.all(), from.all());
    assert_eq!(bench.outcome(&send(2)), [(2, status::REM_OP_ERR)]);
    assert_eq!(outcomes(&cq), [(1, status::SUCCESS), (2, status::LOC_PROT_ERR)]);
}

#[test]
fn an_empty_queue_holds_up_what_is_behind() {
    let bench = Bench::new();
    let (empty, empty_cq, first) = bench.srq(PD, 8);
    let (full, full_cq, second) = bench.srq(PD, 8);
    full.post(1, &[]).unwrap();
    post(&bench.qps[0], &Work::send(1).for_srq(first));
    post(&bench.qps[0], &Work::send(2).for_srq(second));
    for _ in 0..10 {
        bench.pair.wait(640_000);
        assert!(poll(&full_cq).is_empty() && poll(&bench.qps[0].send_cq).is_empty());
    }
    empty.post(2, &[]).unwrap();
    bench.pair.settle();
    assert_eq!(outcomes(&empty_cq), [(2, status::SUCCESS)]);
    assert_eq!(outcomes(&full_cq), [(1, status::SUCCESS)]);
    let sent = [(1, status::SUCCESS), (2, status::SUCCESS)];
    assert_eq!(outcomes(&bench.qps[0].send_cq), sent);
}

#[test]
fn long_messages_and_immediate_data_arrive() {
    let bench = Bench::new();
    let (srq, cq, number) = bench.srq(PD, 8);
    let (from, to) = (Buffer::pattern(100_000, 1), Buffer::new(100_000));
    let (local, target) = (bench.pair.sides[0].register(&from), bench.pair.sides[1].register(&to));
    srq.post(1, &[whole(&target)]).unwrap();
    srq.post(2, &[]).unwrap();
    let send = Work::send(1).for_srq(number).sge(whole(&local));
    assert_eq!(bench.outcome(&send), [(1, status::SUCCESS)]);
    assert!(to.all() == from.all());
    let write = Work::write(2, remote(&target, 10)).for_srq(number).sge(part(&local, 0, 50_000));
    assert_eq!(bench.outcome(&write.immediate(9)), [(2, status::SUCCESS)]);
    assert!(to.read(10, 50_000) == from.read(0, 50_000));
    let received = poll(&cq);
    assert_eq!(received.iter().map(|wc| wc.byte_len).collect::<Vec<_>>(), [100_000, 50_000]);
    assert_eq!(received[1].opcode, wc_opcode::RECV_RDMA_WITH_IMM);
}

/// However it ends in the middle of a message: the receive's place in the queue is free again.
#[test]
fn no_place_is_lost_when_it_ends() {
    type Ending = fn(&Bench, &[Arc<Qp>; 2]);
    let endings: [Ending; 4] = [
        |_, qps| to_state(&qps[1], State::Reset),
        |_, qps| qps[1].destroy(),
        |_, qps| to_state(&qps[1], State::Err),
        |_, qps| qps[1].peer_died(qps[0].number),
    ];
    let bench = Bench::new();
    let (srq, cq, number) = bench.srq(PD, 1);
    let from = Buffer::pattern(1 << 20, 1);
    let local = bench.pair.sides[0].register(&from);
    let to = Buffer::new(1 << 20);
    let target = bench.pair.sides[1].register(&to);
    for (at, end) in endings.into_iter().enumerate() {
        let qps = Bench::connected(&bench.pair, &bench.domain);
        srq.post(1, &[whole(&target)]).unwrap_or_else(|why| panic!("ending {at}: {why:?}"));
        post(&qps[0], &Work::send(1).for_srq(number).sge(whole(&local)));
        qps[1].pump();
        end(&bench, &qps);
        poll(&cq);
    }
    assert_eq!(srq.post(3, &[]), Ok(()));
}

#[test]
fn a_queue_may_go_in_the_middle_of_a_message() {
    let bench = Bench::new();
    let (srq, cq, number) = bench.srq(PD, 1);
    let (from, to) = (Buffer::pattern(1 << 20, 1), Buffer::new(1 << 20));
    let (local, target) = (bench.pair.sides[0].register(&from), bench.pair.sides[1].register(&to));
    srq.post(1, &[whole(&target)]).unwrap();
    post(&bench.qps[0], &Work::send(1).for_srq(number).sge(whole(&local)));
    bench.qps[1].pump();
    assert!(bench.domain.is_busy());
    srq.retire();
    assert!(!cq.is_busy());
    bench.pair.settle();
    assert_eq!(outcomes(&bench.qps[0].send_cq), [(1, status::REM_INV_REQ_ERR)]);
    assert!(poll(&cq).is_empty(), "it is nobody's any more");
}

/// Completions that were not polled go with their queue, whose slot another one gets.
#[test]
fn a_queue_takes_its_completions_with_it() {
    let bench = Bench::new();
    let (srq, cq, number) = bench.srq(PD, 1);
    srq.post(1, &[]).unwrap();
    assert_eq!(bench.outcome(&Work::send(1).for_srq(number)), [(1, status::SUCCESS)]);
    srq.retire();
    assert!(poll(&cq).is_empty());
    assert!(!bench.domain.is_busy() || bench.domain.qp(bench.qps[1].number).is_some());
    bench.qps[1].destroy();
    assert!(!bench.domain.is_busy());
}

#[test]
fn an_event_comes_for_the_queues_completions() {
    let bench = Bench::new();
    let (srq, cq, number) = bench.srq(PD, 2);
    srq.post(1, &[]).unwrap();
    assert!(srq.set_limit(1));
    bench.pair.sides[1].events();
    assert_eq!(bench.outcome(&Work::send(1).for_srq(number)), [(1, status::SUCCESS)]);
    assert_eq!(bench.pair.sides[1].events(), [AsyncEvent::SrqLimitReached]);
    assert_eq!(poll(&cq).len(), 1);
}

/// A peer begins with a message inside another one: the program is told of the receive that was
/// taken, and has its place in the queue again, however often that happens.
#[test]
fn a_message_inside_another_costs_no_receive() {
    for service in [Service::XrcRecv, Service::Rc] {
        let pair = Pair::new();
        let (domain, cq) = (Domain::new(), pair.sides[0].cq());
        let shared = &pair.sides[0].shared;
        let mut options = Options::new(service).with(|o| o.recv_cq = Some(cq.clone()));
        let srq = match service {
            Service::Rc => Srq::new(shared, PD, 1, 4),
            _ => Srq::extended(shared, PD, (1, 4), &cq, &domain),
        };
        let srq = srq.unwrap();
        match service {
            Service::Rc => options.srq = Some(srq.clone()),
            _ => options.domain = Some(domain),
        }
        for turn in 0..3 {
            assert_eq!(srq.post(turn, &[]), Ok(()), "{service}");
            let (qp, _joint, mut attacker) = appear(&pair, &options, Qpn(9));
            attacker.open(10_000);
            let named = srq.number().map(|number| Request::ForSrq { number });
            let begin = Request::Send { flags: FIRST, immediate: 0 };
            for request in named.into_iter().chain([begin, begin]) {
                assert_eq!(attacker.send_request(&request, 0, []), Ok(true));
            }
            qp.pump();
            assert_eq!(qp.state(), State::Err);
            assert_eq!(outcomes(&cq), [(turn, status::WR_FLUSH_ERR)], "{service}");
            qp.destroy();
        }
    }
}

/// Windows are for peers, and no peer is served by a queue pair that can bind one.
#[test]
fn xrc_queue_pairs_bind_no_memory_windows() {
    let bench = Bench::new();
    let (_srq, _, number) = bench.srq(PD, 1);
    for code in [opcode::LOCAL_INV, opcode::BIND_MW, opcode::SEND_WITH_INV] {
        let work = Work { opcode: code, ..Work::send(1) }.for_srq(number);
        let posted = bench.qps[0].post_send(&work.as_send());
        assert_eq!(posted, Err(PostError::Invalid(PostFault::Opcode)), "{code}");
    }
}
