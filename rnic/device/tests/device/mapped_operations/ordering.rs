//! Mapped operations among others: what comes before what.

use super::{FIRST, bench, bench_of};
use crate::two_device_fixture::{Options, outcomes, poll, post, receive, to_state};
use crate::work_request_helpers::{Work, part};
use omniverb_device::qp_attributes::State;
use omniverb_device::{access, send_flags, status, wc_opcode};
use omniverb_terms::Service;

/// What was sent before has its effect before.
#[test]
fn mapped_operations_do_not_overtake() {
    let bench = bench().granted(access::REMOTE);
    receive(&bench.qps[1], 9, &[]);
    // In the ring: a WRITE beside the mapped pages, and a SEND.
    post(&bench.qps[0], &Work::write(1, bench.at(0)).sge(part(&bench.local, 0, 8)));
    post(&bench.qps[0], &Work::send(2).flags(0));
    // These could go through the mapping, but would overtake.
    post(&bench.qps[0], &Work::write(3, bench.at(FIRST)).sge(part(&bench.local, 0, 8)));
    post(&bench.qps[0], &Work::fetch_add(4, bench.at(FIRST + 8), 1).sge(part(&bench.local, 64, 8)));
    post(&bench.qps[0], &Work::read(5, bench.at(FIRST)).sge(part(&bench.local, 80, 8)));
    assert!(bench.is_zero(&bench.shadow));
    bench.pair.settle();
    let sent = outcomes(&bench.qps[0].send_cq);
    assert_eq!(sent, [1, 3, 4, 5].map(|id| (id, status::SUCCESS)));
    // Now nothing is under way any more.
    post(&bench.qps[0], &Work::write(6, bench.at(FIRST)).sge(part(&bench.local, 0, 8)));
    assert_eq!(outcomes(&bench.qps[0].send_cq), [(6, status::SUCCESS)]);
}

/// A mediated READ whose answer is still coming keeps what it read, whatever a later mapped WRITE
/// does; with a fence the WRITE waits for it.
#[test]
fn a_fence_waits_for_the_answer() {
    let bench = bench().granted(access::REMOTE);
    let read = Work::read(1, bench.at(0)).sge(part(&bench.local, 0, 8));
    let write = Work::write(2, bench.at(FIRST)).sge(part(&bench.local, 0, 8));
    post(&bench.qps[0], &read);
    bench.qps[1].pump();
    // The READ was consumed, its answer waits in the ring.
    bench.there.write(0, &[7; 8]);
    let fenced = write.clone().and(send_flags::FENCE);
    post(&bench.qps[0], &fenced);
    assert!(bench.is_zero(&bench.shadow) && bench.here.read(0, 8) != [0; 8]);
    bench.qps[0].pump();
    assert_eq!(outcomes(&bench.qps[0].send_cq), [(1, status::SUCCESS), (2, status::SUCCESS)]);
    assert_eq!((bench.here.read(0, 8), bench.shadow.read(0, 8)), (vec![0; 8], vec![0; 8]));
}

#[test]
fn immediate_data_follows_what_is_placed() {
    for service in [Service::Rc, Service::Uc] {
        let bench = bench_of(&Options::new(service)).granted(access::REMOTE);
        let work = Work::write(1, bench.at(FIRST)).sge(part(&bench.local, 0, 100)).immediate(6);
        if service == Service::Rc {
            // Without a receive, nothing is placed.
            post(&bench.qps[0], &work);
            assert!(bench.is_zero(&bench.shadow));
            receive(&bench.qps[1], 2, &[]);
        } else {
            receive(&bench.qps[1], 2, &[]);
            post(&bench.qps[0], &work);
        }
        bench.pair.settle();
        assert_eq!(outcomes(&bench.qps[0].send_cq), [(1, status::SUCCESS)]);
        let received = poll(&bench.qps[1].recv_cq);
        assert_eq!(
            (received[0].opcode, received[0].byte_len),
            (wc_opcode::RECV_RDMA_WITH_IMM, 100)
        );
        assert_eq!((received[0].wr_id, received[0].immediate), (2, 6));
        assert_eq!(bench.shadow.read(0, 100), bench.here.read(0, 100));
        assert!(bench.is_zero(&bench.there));
    }
}

/// UC waits for no peer: not for one that closed before it took the immediate data, either.
#[test]
fn uc_does_not_wait_for_the_immediate_to_be_taken() {
    let bench = bench_of(&Options::new(Service::Uc)).granted(access::REMOTE);
    receive(&bench.qps[1], 2, &[]);
    bench.pair.settle();
    let work = Work::write(1, bench.at(FIRST)).sge(part(&bench.local, 0, 100)).immediate(6);
    post(&bench.qps[0], &work);
    to_state(&bench.qps[1], State::Reset);
    bench.pair.wait(1_000_000_000);
    bench.pair.wait(1_000_000_000);
    assert_eq!(outcomes(&bench.qps[0].send_cq), [(1, status::SUCCESS)]);
}

#[test]
fn no_more_than_max_rd_atomic_are_under_way() {
    let options = Options::new(Service::Rc).with(|o| o.attributes.max_rd_atomic = 2);
    let bench = bench_of(&options);
    for id in 0..6 {
        bench.there.write(id * 8, &(id as u64 + 100).to_ne_bytes());
        let work = Work::read(id as u64, bench.at(id * 8));
        post(&bench.qps[0], &work.sge(part(&bench.local, id * 8, 8)));
    }
    // The responder serves what is there; each turn of the requester brings two more.
    for round in 1..=3 {
        bench.qps[1].pump();
        bench.qps[0].pump();
        assert_eq!(poll(&bench.qps[0].send_cq).len(), 2, "round {round}");
    }
    for id in 0..6 {
        assert_eq!(bench.here.number(id * 8), id as u64 + 100);
    }
}
