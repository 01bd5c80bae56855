//! Every operation of RC and UC, at many sizes: the bytes, the completions, the immediate data.

use crate::guarded_buffer::{Buffer, pattern};
use crate::two_device_fixture::{Options, Pair, poll, post, receive};
use crate::work_request_helpers::{Work, part, remote, whole};
use omniverb_device::{Sge, Signaling, Wc, send_flags, status, wc_flags, wc_opcode};
use omniverb_terms::{Lkey, Service};

/// Across the sizes of chunks, rings and their halves.
const SIZES: [usize; 17] = [
    0,
    1,
    7,
    8,
    9,
    63,
    1024,
    4095,
    16 << 10,
    (16 << 10) + 1,
    65_472,
    65_473,
    256 << 10,
    (256 << 10) + 5,
    1 << 20,
    (3 << 20) + 11,
    5 << 20,
];

fn success(wc: &Wc, wr_id: u64, opcode: u32, byte_len: usize) {
    assert_eq!(
        (wc.wr_id, wc.status, wc.opcode, wc.byte_len as usize),
        (wr_id, status::SUCCESS, opcode, byte_len)
    );
}

/// One completion on each side.
fn both(pair: &Pair, qps: &[std::sync::Arc<omniverb_device::Qp>; 2]) -> [Vec<Wc>; 2] {
    pair.settle();
    [poll(&qps[0].send_cq), poll(&qps[1].recv_cq)]
}

#[test]
fn send_of_every_size() {
    for service in [Service::Rc, Service::Uc] {
        let pair = Pair::new();
        let qps = pair.connected(&Options::new(service));
        for (number, size) in SIZES.into_iter().enumerate() {
            let (from, to) = (Buffer::pattern(size, 3), Buffer::new(size + 9));
            let (local, target) = (pair.sides[0].register(&from), pair.sides[1].register(&to));
            let id = number as u64;
            receive(&qps[1], 100 + id, &[whole(&target)]);
            post(&qps[0], &Work::send(id).sge(whole(&local)));
            let [sent, received] = both(&pair, &qps);
            assert_eq!((sent.len(), received.len()), (1, 1), "{size} bytes");
            success(&sent[0], id, wc_opcode::SEND, size);
            success(&received[0], 100 + id, wc_opcode::RECV, size);
            assert_eq!(
                (received[0].qp_num, received[0].src_qp),
                (qps[1].number.0, qps[0].number.0)
            );
            assert_eq!(received[0].flags, 0);
            assert_eq!(to.read(0, size), from.all());
            assert_eq!(to.read(size, 9), [0; 9]);
        }
    }
}

#[test]
fn write_and_read_of_every_size() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc));
    for (number, size) in SIZES.into_iter().enumerate() {
        let (here, there) = (Buffer::pattern(size, 5), Buffer::new(size + 30));
        let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
        let id = number as u64;
        post(&qps[0], &Work::write(id, remote(&target, 13)).sge(whole(&local)));
        let [sent, received] = both(&pair, &qps);
        assert_eq!((sent.len(), received.len()), (1, 0), "{size} bytes");
        success(&sent[0], id, wc_opcode::RDMA_WRITE, size);
        assert_eq!(there.read(13, size), here.all());
        assert_eq!((there.read(0, 13), there.read(size + 13, 17)), (vec![0; 13], vec![0; 17]));

        let back = Buffer::new(size);
        let local = pair.sides[0].register(&back);
        post(&qps[0], &Work::read(id, remote(&target, 13)).sge(whole(&local)));
        let [sent, received] = both(&pair, &qps);
        assert_eq!((sent.len(), received.len()), (1, 0), "{size} bytes");
        success(&sent[0], id, wc_opcode::RDMA_READ, size);
        assert_eq!(back.all(), here.all());
    }
}

#[test]
fn write_with_immediate_takes_a_receive() {
    for service in [Service::Rc, Service::Uc] {
        let pair = Pair::new();
        let qps = pair.connected(&Options::new(service));
        for size in SIZES {
            let (here, there) = (Buffer::pattern(size, 6), Buffer::new(size));
            let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
            receive(&qps[1], 9, &[]);
            post(&qps[0], &Work::write(4, remote(&target, 0)).sge(whole(&local)).immediate(77));
            let [sent, received] = both(&pair, &qps);
            assert_eq!((sent.len(), received.len()), (1, 1), "{size} bytes");
            success(&sent[0], 4, wc_opcode::RDMA_WRITE, size);
            success(&received[0], 9, wc_opcode::RECV_RDMA_WITH_IMM, size);
            assert_eq!((received[0].immediate, received[0].flags), (77, wc_flags::WITH_IMM));
            assert_eq!(there.all(), here.all());
        }
    }
}

#[test]
fn atomics_return_the_value_before() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc));
    let (here, there) = (Buffer::new(24), Buffer::new(24));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    there.write(8, &40u64.to_ne_bytes());
    let works = [
        (Work::fetch_add(0, remote(&target, 8), 2), 40, 42, wc_opcode::FETCH_ADD),
        (Work::compare_swap(1, remote(&target, 8), 41, 9), 42, 42, wc_opcode::COMP_SWAP),
        (Work::compare_swap(2, remote(&target, 8), 42, 9), 42, 9, wc_opcode::COMP_SWAP),
        (Work::fetch_add(3, remote(&target, 8), u64::MAX), 9, 8, wc_opcode::FETCH_ADD),
    ];
    for (id, (work, found, left, opcode)) in works.into_iter().enumerate() {
        // The answer goes to two places.
        post(&qps[0], &work.sge(part(&local, 3, 5)).sge(part(&local, 16, 3)));
        let [sent, _] = both(&pair, &qps);
        assert_eq!(sent.len(), 1);
        success(&sent[0], id as u64, opcode, 8);
        let answer = [here.read(3, 5), here.read(16, 3)].concat();
        assert_eq!(u64::from_ne_bytes(answer.try_into().unwrap()), found);
        assert_eq!(there.number(8), left);
    }
    assert_eq!((there.number(0), there.number(16)), (0, 0));
}

#[test]
fn lists_are_gathered_and_scattered() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc));
    let (from, to) = (Buffer::pattern(300_000, 8), Buffer::new(300_000));
    let (local, target) = (pair.sides[0].register(&from), pair.sides[1].register(&to));
    // Entries of all sizes, empty ones with keys that do not exist among them.
    let cut = |region: &omniverb_device::Region, steps: &[usize]| -> Vec<Sge> {
        let mut at = 0;
        let mut list = Vec::new();
        for step in steps.iter().cycle().take(30) {
            list.push(part(region, at, *step));
            at += step;
        }
        list.push(Sge { address: 1, length: 0, lkey: Lkey(0xdead) });
        list.push(part(region, at, 300_000 - at));
        list
    };
    let mut work = Work::send(1);
    work.sges = cut(&local, &[1, 0, 17_000, 8, 900, 4, 1]);
    receive(&qps[1], 2, &cut(&target, &[3, 333, 0, 20_001, 64]));
    post(&qps[0], &work);
    let [sent, received] = both(&pair, &qps);
    assert_eq!((sent.len(), received.len()), (1, 1));
    success(&received[0], 2, wc_opcode::RECV, 300_000);
    assert!(to.all() == from.all());

    let back = Buffer::new(300_000);
    let back_region = pair.sides[0].register(&back);
    let mut work = Work::read(3, remote(&target, 0));
    work.sges = cut(&back_region, &[5000, 1, 0, 7]);
    post(&qps[0], &work);
    let [sent, _] = both(&pair, &qps);
    assert_eq!(sent.len(), 1);
    assert!(back.all() == from.all());
}

#[test]
fn inline_data_is_copied_when_posted() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc));
    let to = Buffer::new(1024);
    let target = pair.sides[1].register(&to);
    // There is no receive yet: the request waits, and the application reuses its memory.
    let (first, second) = (Buffer::pattern(1000, 1), Buffer::pattern(24, 2));
    post(&qps[0], &Work::send(1).inline(&first).inline(&second));
    first.write(0, &[0; 1000]);
    second.write(0, &[0; 24]);
    pair.settle();
    receive(&qps[1], 2, &[whole(&target)]);
    let [sent, received] = both(&pair, &qps);
    assert_eq!((sent.len(), received.len()), (1, 1));
    assert_eq!(to.read(0, 1000), pattern(1000, 1));
    assert_eq!(to.read(1000, 24), pattern(24, 2));
    // One byte more than the QP takes.
    let big = Buffer::new(1025);
    assert!(crate::two_device_fixture::try_post(&qps[0], &Work::send(1).inline(&big)).is_err());
}

#[test]
fn immediate_data_and_solicited_events_arrive() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc));
    receive(&qps[1], 0, &[]);
    post(&qps[0], &Work::send(0).immediate(0x0102_0304));
    let [sent, received] = both(&pair, &qps);
    assert_eq!((sent.len(), received.len()), (1, 1));
    assert_eq!((received[0].flags, received[0].immediate), (wc_flags::WITH_IMM, 0x0102_0304));
}

#[test]
fn unsignalled_sends_complete_silently_but_hold_their_slot() {
    let pair = Pair::new();
    let options = Options::new(Service::Rc).with(|o| (o.send_max, o.recv_max) = (8, 64));
    let qps = pair.connected(&options);
    (0..20).for_each(|id| receive(&qps[1], id, &[]));
    for id in 0..7 {
        post(&qps[0], &Work::send(id).flags(0));
    }
    post(&qps[0], &Work::send(7));
    pair.settle();
    // All are done, but no poll was made: the queue is full.
    let full = Err(omniverb_device::PostError::Full);
    assert_eq!(crate::two_device_fixture::try_post(&qps[0], &Work::send(8)), full);
    let sent = poll(&qps[0].send_cq);
    assert_eq!(sent.len(), 1);
    success(&sent[0], 7, wc_opcode::SEND, 0);
    for id in 8..16 {
        post(&qps[0], &Work::send(id).flags(send_flags::SOLICITED));
    }
    assert_eq!(crate::two_device_fixture::try_post(&qps[0], &Work::send(8)), full);
    pair.settle();
    // Unsignalled ones only: their slots come back with the next signalled completion, and there
    // will be none. That is the application's mistake on hardware, too.
    assert!(poll(&qps[0].send_cq).is_empty());
    assert_eq!(crate::two_device_fixture::try_post(&qps[0], &Work::send(8)), full);
    assert_eq!(poll(&qps[1].recv_cq).len(), 16);
}

#[test]
fn a_qp_that_signals_all_signals_all() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc).with(|o| o.signaling = Signaling::All));
    (0..5).for_each(|id| receive(&qps[1], id, &[]));
    (0..5).for_each(|id| post(&qps[0], &Work::send(id).flags(0)));
    let [sent, received] = both(&pair, &qps);
    let ids = |list: &[Wc]| list.iter().map(|wc| wc.wr_id).collect::<Vec<_>>();
    assert_eq!((ids(&sent), ids(&received)), ((0..5).collect(), (0..5).collect()));
}

#[test]
fn the_receive_queue_is_full_until_polled() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc).with(|o| o.recv_max = 4));
    (0..4).for_each(|id| receive(&qps[1], id, &[]));
    let full = Err(omniverb_device::PostError::Full);
    assert_eq!(qps[1].post_recv(4, &[]), full);
    post(&qps[0], &Work::send(0));
    pair.settle();
    assert_eq!(qps[1].post_recv(4, &[]), full);
    assert_eq!(poll(&qps[1].recv_cq).len(), 1);
    receive(&qps[1], 4, &[]);
    assert_eq!(qps[1].post_recv(5, &[]), full);
}

/// 1,000 small messages are in the ring before the receiver's progress thread looks for the first
/// time, and nothing comes after them.
#[test]
fn a_full_ring_is_served_to_the_end_by_progress_alone() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc).with(|o| o.recv_max = 1000));
    (0..1000).for_each(|id| receive(&qps[1], id, &[]));
    (0..1000).for_each(|id| {
        post(&qps[0], &Work::send(id));
        assert_eq!(poll(&qps[0].send_cq).len(), 1);
    });
    while pair.sides[1].shared.progress().is_busy {}
    let mut out = vec![Wc::default(); 2000];
    // Looks at what is there; does not look at the ring.
    assert_eq!(qps[1].recv_cq.poll(&mut out), 1000);
}
