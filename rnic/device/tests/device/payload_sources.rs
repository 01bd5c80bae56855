//! Sources: payload that stays in a region which the far end has mapped, and when it does not.

use crate::engine_link_fixture::{drain, options, ready};
use crate::guarded_buffer::{Buffer, pattern};
use crate::two_device_fixture::{Options, Pair, outcomes, post};
use crate::work_request_helpers::{Work, part};
use omniverb_device::memory_region::NO_RKEY;
use omniverb_terms::{Rkey, Service};

use omniverb_device::{Qp, Region, Sge, access, status};
use omniverb_link::{Endpoint, PeekedRequest, Request, Source};
use omniverb_ring::UserMemory;
use std::sync::Arc;

const BYTES: usize = 1 << 20;
/// So much is copied before the far end is asked to map a region.
const WORTH: usize = 4 << 20;

struct Case {
    pair: Pair,
    qp: Arc<Qp>,
    far: Endpoint,
    buffer: Buffer,
    region: Arc<Region>,
    /// Where its first whole page begins; the offsets below are from there.
    begin: usize,
}

/// A QP that has sent enough from a region, and a far end that has mapped it.
fn offered(service: Service, flags: u32) -> Case {
    let mut case = case(&options(service), flags);
    for id in 0..(WORTH / (64 << 10)) as u64 {
        assert_eq!(case.far.sources_wanted(), [NO_RKEY; 4], "{id}");
        post(&case.qp, &Work::write(id, (0, Rkey(1))).sge(case.part(0, 64 << 10)));
        while case.next().is_some() {
            drain(&mut case.far);
        }
        assert_eq!(outcomes(&case.qp.send_cq), [(id, status::SUCCESS)]);
    }
    let epoch = case.far.peer_epoch();
    let wanted = case.far.sources_wanted().into_iter().filter(|key| *key != NO_RKEY);
    for key in wanted.collect::<Vec<_>>() {
        assert_eq!(key, case.region.rkey);
        case.far.publish_source(key, epoch);
    }
    let wants = case.far.sources_wanted() != [NO_RKEY; 4];
    assert_eq!(wants, service == Service::Rc && case.region.rkey != NO_RKEY);
    case
}

fn case(options: &Options, flags: u32) -> Case {
    case_of(options, flags, BYTES)
}

fn case_of(options: &Options, flags: u32, bytes: usize) -> Case {
    let pair = Pair::new();
    let (qp, far) = ready(&pair, options);
    let buffer = Buffer::pattern(bytes, 1);
    let region = pair.sides[0].register_in(crate::two_device_fixture::PD, &buffer, flags);
    let begin = buffer.address().wrapping_neg() as usize % 4096;
    Case { pair, qp, far, buffer, region, begin }
}

impl Case {
    /// The record at the head; it stays there.
    fn next(&mut self) -> Option<PeekedRequest> {
        // What is at the head is right behind what was consumed.
        self.far.request_after(self.far.requests_passed()).unwrap()
    }

    fn part(&self, offset: usize, length: usize) -> Sge {
        part(&self.region, self.begin + offset, length)
    }

    /// What was there at first.
    fn was(&self, offset: usize, length: usize) -> Vec<u8> {
        pattern(BYTES, 1)[self.begin + offset..][..length].to_vec()
    }

    fn write(&self, id: u64, offset: usize, length: usize) {
        post(&self.qp, &Work::write(id, (0x9000, Rkey(1))).sge(self.part(offset, length)));
    }

    fn in_ring(&self, ahead: &PeekedRequest) -> Vec<u8> {
        let mut bytes = vec![0; ahead.record.length];
        UserMemory::lend_mut(&mut bytes, |to| self.far.request_payload(&ahead.record, 0, to));
        bytes
    }

    fn source(&self, offset: usize) -> Option<Source> {
        let address = self.buffer.address() + (self.begin + offset) as u64;
        Some(Source { key: self.region.rkey, address })
    }
}

#[test]
fn a_mapped_payload_is_not_copied() {
    let mut case = offered(Service::Rc, access::LOCAL_WRITE | access::REMOTE);
    case.write(100, 8192, 100_000);
    let ahead = case.next().unwrap();
    assert_eq!((ahead.source, ahead.record.length), (case.source(8192), 61_440));
    let Request::WriteFirst { address, rkey, total, .. } = ahead.request else { panic!() };
    assert_eq!((address, rkey, total), (0x9000, Rkey(1), 100_000));
    assert!(!case.far.is_filled(ahead.end));
    let more = case.far.request_after(ahead.end).unwrap().unwrap();
    assert_eq!((more.source, more.record.length), (case.source(8192 + 61_440), 38_560));
    assert!(outcomes(&case.qp.send_cq).is_empty(), "not before it is consumed");
    case.far.pass_requests_until(more.end);
    assert_eq!(outcomes(&case.qp.send_cq), [(100, status::SUCCESS)]);
    // SENDs as well, with all that belongs to them.
    let sge = case.part(4096, 4096);
    post(&case.qp, &Work::send(101).immediate(7).sge(sge));
    let ahead = case.next().unwrap();
    assert_eq!(ahead.source, case.source(4096));
    assert!(matches!(ahead.request, Request::Send { immediate: 7, .. }));
    case.far.pass_requests_until(ahead.end);
    // Short ones do not, nor lists.
    post(&case.qp, &Work::send(102).sge(case.part(4096, 4095)));
    let list = Work::send(103).sge(case.part(0, 8192));
    post(&case.qp, &list.sge(case.part(0, 8192)));
    let found = drain(&mut case.far);
    assert_eq!(found.iter().map(|(_, bytes)| bytes.len()).collect::<Vec<_>>(), [4095, 16384]);
}

#[test]
fn what_the_engine_wants_filled_is_filled() {
    let mut case = offered(Service::Rc, access::LOCAL_WRITE | access::REMOTE);
    for id in 0..3 {
        case.write(100 + id, 10_000 * id as usize, 10_000);
    }
    let first = case.next().unwrap();
    case.far.pass_requests_until(first.end);
    case.buffer.write(case.begin, &[0; 10_000]); // it is complete: the application may use it again
    assert_eq!(outcomes(&case.qp.send_cq), [(100, status::SUCCESS)]);
    let second = case.next().unwrap();
    case.far.want_filled(second.end);
    assert!(!case.far.is_filled(second.end));
    // Whether a thread polls or not.
    case.pair.settle();
    let third = case.far.request_after(second.end).unwrap().unwrap();
    for (ahead, at) in [(&second, 10_000), (&third, 20_000)] {
        assert!(case.far.is_filled(ahead.end) && ahead.source.is_some());
        assert!(case.in_ring(ahead) == case.was(at, 10_000));
    }
    case.write(103, 0, 10_000);
    let fourth = case.far.request_after(third.end).unwrap().unwrap();
    assert!(!case.far.is_filled(fourth.end) && fourth.source.is_some(), "one by one");
    case.far.withdraw_source(case.region.rkey);
    case.write(104, 12_288, 10_000);
    let fifth = case.far.request_after(fourth.end).unwrap().unwrap();
    assert!(fifth.source.is_none() && case.in_ring(&fifth) == case.was(12_288, 10_000));
}

#[test]
fn before_pages_go_back_everything_is_filled() {
    let mut case = offered(Service::Rc, access::LOCAL_WRITE | access::REMOTE);
    case.write(100, 0, 50_000);
    let epoch = case.far.peer_epoch();
    case.qp.revoke_grants();
    let first = case.next().unwrap();
    assert_ne!(case.far.peer_epoch(), epoch);
    assert!(case.far.is_filled(first.end));
    case.buffer.write(0, &[0; BYTES]);
    assert!(case.in_ring(&first) == case.was(0, 50_000));
    assert_eq!(case.far.sources_wanted(), [NO_RKEY; 4], "it is to be worth it again");
    // The offer was for pages that went.
    case.write(101, 0, 50_000);
    let second = case.far.request_after(first.end).unwrap().unwrap();
    assert!(second.source.is_none());
    // An offer that comes late is for those, too.
    case.far.publish_source(case.region.rkey, epoch);
    case.write(102, 0, 50_000);
    assert!(case.far.request_after(second.end).unwrap().unwrap().source.is_none());
}

#[test]
fn what_peers_may_not_reach_is_never_asked_for() {
    for (service, flags) in
        [(Service::Rc, access::LOCAL_WRITE), (Service::Uc, access::LOCAL_WRITE | access::REMOTE)]
    {
        let mut case = offered(service, flags);
        case.far.publish_source(case.region.rkey, case.far.peer_epoch());
        case.write(100, 0, 8192);
        assert!(case.next().unwrap().source.is_none());
    }
}

#[test]
fn what_was_flushed_is_not_touched_any_more() {
    let mut case = offered(Service::Rc, access::LOCAL_WRITE | access::REMOTE);
    case.write(100, 0, 50_000);
    let first = case.next().unwrap();
    crate::two_device_fixture::to_state(&case.qp, omniverb_device::qp_attributes::State::Err);
    assert_eq!(outcomes(&case.qp.send_cq), [(100, status::WR_FLUSH_ERR)]);
    let before = case.in_ring(&first);
    case.buffer.write(case.begin, &[0xee; 50_000]);
    case.qp.revoke_grants();
    assert!(case.in_ring(&first) == before && !case.far.is_filled(first.end));
}

/// Trying again for want of room is not sending.
#[test]
fn only_bytes_that_were_copied_count() {
    let mut case = case(&options(Service::Rc), access::LOCAL_WRITE | access::REMOTE);
    for id in 0..8 {
        case.write(id, 0, 64 << 10);
    }
    for _ in 0..1000 {
        assert!(outcomes(&case.qp.send_cq).is_empty());
    }
    assert_eq!(case.far.sources_wanted(), [NO_RKEY; 4]);
    assert!(case.next().is_some());
}

/// All of its pages move, once.
#[test]
fn from_a_large_region_more_is_sent_before_it_is_moved() {
    let flags = access::LOCAL_WRITE | access::REMOTE;
    let mut case = case_of(&options(Service::Rc), flags, 6 << 20);
    let mut copied = 0;
    while case.far.sources_wanted() == [NO_RKEY; 4] {
        case.write(1, 0, 64 << 10);
        while case.next().is_some() {
            drain(&mut case.far);
        }
        assert_eq!(outcomes(&case.qp.send_cq).len(), 1);
        copied += 64 << 10;
    }
    assert_eq!(copied, 6 << 20);
}

/// Only the far end that asked for it understands such a record.
#[test]
fn a_queue_pair_takes_no_source_from_its_peer() {
    let mut case = case(&options(Service::Rc), access::LOCAL_WRITE | access::REMOTE);
    let request = Request::Send { flags: 0x1100, immediate: 0 };
    let source = case.source(0).unwrap();
    case.far.send_request_from(&request, 4096, source).unwrap();
    case.pair.settle();
    assert_eq!(case.qp.state(), omniverb_device::qp_attributes::State::Err);
}
