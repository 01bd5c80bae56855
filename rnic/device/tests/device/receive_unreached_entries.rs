//! A receive is checked for the bytes that a message touches, not for its whole list: as rdma_rxe
//! and hardware do it.

use crate::guarded_buffer::Buffer;
use crate::two_device_fixture::{
    Options, PD, Pair, QKEY, gid, outcomes, poll, post, receive, to_init, to_rts,
};
use crate::work_request_helpers::{Work, part, remote, whole};
use omniverb_device::qp_attributes::State;
use omniverb_device::send_work_request::Destination;
use omniverb_device::{Region, Sge, Srq, status};
use omniverb_terms::{Lkey, Service};

const NOT_A_KEY: Lkey = Lkey(0xdead_0000);

/// An entry that reaches beyond the end of its region.
fn wide(region: &Region, offset: usize, beyond: u32) -> Sge {
    let inside = part(region, offset, region.memory.len() - offset);
    Sge { length: inside.length + beyond, ..inside }
}

/// An entry whose key was never given.
fn keyless(region: &Region) -> Sge {
    Sge { lkey: NOT_A_KEY, ..whole(region) }
}

/// Posts a receive with this list to a pair of that service, sends it `length` bytes, and says
/// what became of the receive.
fn received(service: Service, srq: bool, length: usize, list: impl Fn(&Region) -> Vec<Sge>) -> u32 {
    let pair = Pair::new();
    let own = Options::new(service);
    let queue = srq.then(|| Srq::new(&pair.sides[1].shared, PD, 8, 4).unwrap());
    let theirs = Options::new(service).with(|o| o.srq = queue.clone());
    let qps = match service {
        Service::Ud => {
            let qps = [0, 1].map(|side| pair.sides[side].qp([&own, &theirs][side]));
            for qp in &qps {
                to_init(qp, &own);
                to_rts(qp, &own);
            }
            pair.join(&qps, own.ring_bytes);
            qps
        }
        _ => pair.connected_with([&own, &theirs]),
    };
    let (from, to) = (Buffer::pattern(length.max(1), 1), Buffer::new(300_000));
    let (local, target) = (pair.sides[0].register(&from), pair.sides[1].register(&to));
    let list = list(&target);
    match &queue {
        Some(queue) => queue.post(5, &list).unwrap(),
        None => receive(&qps[1], 5, &list),
    }
    let work = Work::send(1).sge(part(&local, 0, length));
    let destination = Destination { dgid: gid(1), sgid: gid(0), qpn: qps[1].number };
    match service {
        Service::Ud => post(&qps[0], &work.to(destination, QKEY)),
        _ => post(&qps[0], &work),
    }
    pair.settle();
    let completions = poll(&qps[1].recv_cq);
    assert_eq!(completions.len(), 1, "{service:?}, {length} bytes");
    let why = completions[0].status;
    if service == Service::Rc {
        let sent = if why == status::SUCCESS { status::SUCCESS } else { status::REM_OP_ERR };
        assert_eq!(outcomes(&qps[0].send_cq), [(1, sent)]);
    }
    if why == status::SUCCESS {
        let grh = if service == Service::Ud { 40 } else { 0 };
        let placed = list.iter().scan(length + grh, |left, sge| {
            let count = (sge.length as usize).min(*left);
            *left -= count;
            Some(to.read((sge.address - target.iova) as usize, count))
        });
        let placed: Vec<u8> = placed.flatten().collect();
        assert!(placed[grh..] == from.read(0, length)[..], "{service:?}, {length} bytes");
    }
    why
}

/// Services, whether with an SRQ, and bytes in front of a message.
const RECEIVERS: [(Service, bool, usize); 6] = [
    (Service::Rc, false, 0),
    (Service::Rc, true, 0),
    (Service::Uc, false, 0),
    (Service::Uc, true, 0),
    (Service::Ud, false, 40),
    (Service::Ud, true, 40),
];

#[test]
fn an_entry_may_be_wider_than_its_region() {
    for (service, srq, before) in RECEIVERS {
        let room = 10 + before;
        let list = |region: &Region| vec![wide(region, 300_000 - room, 3)];
        for (length, why) in [(1, 0), (10, 0), (11, status::LOC_PROT_ERR)] {
            assert_eq!(received(service, srq, length, list), why, "{service:?} {length}");
        }
    }
}

#[test]
fn an_entry_that_is_not_reached_needs_no_key() {
    for (service, srq, before) in RECEIVERS {
        let list = |region: &Region| vec![part(region, 0, 16 + before), keyless(region)];
        for (length, why) in [(0, 0), (16, 0), (17, status::LOC_PROT_ERR)] {
            assert_eq!(received(service, srq, length, list), why, "{service:?} {length}");
        }
    }
    // The header of a datagram is as good as its message.
    let list = |region: &Region| vec![part(region, 0, 39), keyless(region)];
    assert_eq!(received(Service::Ud, false, 0, list), status::LOC_PROT_ERR);
    // An empty message touches nothing.
    for service in [Service::Rc, Service::Uc] {
        assert_eq!(received(service, false, 0, |region| vec![keyless(region)]), 0);
    }
}

#[test]
fn messages_of_many_records_are_checked_record_by_record() {
    for (service, srq, _) in RECEIVERS.into_iter().filter(|(service, ..)| *service != Service::Ud) {
        let list = |region: &Region| vec![part(region, 0, 100_000), wide(region, 200_000, 50_000)];
        assert_eq!(received(service, srq, 200_000, list), 0);
        assert_eq!(received(service, srq, 200_001, list), status::LOC_PROT_ERR);
    }
}

#[test]
fn a_write_with_immediate_touches_no_receive() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc));
    let (from, to) = (Buffer::pattern(64, 1), Buffer::new(64));
    let (local, target) = (pair.sides[0].register(&from), pair.sides[1].register(&to));
    receive(&qps[1], 5, &[keyless(&target)]);
    let write = Work::write(1, remote(&target, 0)).sge(whole(&local)).immediate(7);
    post(&qps[0], &write);
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(1, status::SUCCESS)]);
    assert_eq!(outcomes(&qps[1].recv_cq), [(5, status::SUCCESS)]);
    assert_eq!(to.all(), from.all());
}

#[test]
fn a_wide_receive_leaves_later_ones_whole() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc));
    let (from, to) = (Buffer::pattern(64, 1), Buffer::new(64));
    let (local, target) = (pair.sides[0].register(&from), pair.sides[1].register(&to));
    receive(&qps[1], 5, &[wide(&target, 32, 100)]);
    receive(&qps[1], 6, &[part(&target, 0, 32)]);
    for id in [1, 2] {
        post(&qps[0], &Work::send(id).sge(part(&local, (id as usize - 1) * 32, 32)));
    }
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(1, status::SUCCESS), (2, status::SUCCESS)]);
    assert_eq!(outcomes(&qps[1].recv_cq), [(5, status::SUCCESS), (6, status::SUCCESS)]);
    assert_eq!(to.read(32, 32), from.read(0, 32));
    assert_eq!(to.read(0, 32), from.read(32, 32));
    assert_eq!(qps[1].state(), State::Rts);
}
