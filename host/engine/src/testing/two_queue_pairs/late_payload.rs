//! Tests payload that the application fills into the ring very late.

use super::app_and_qp_of_one_end::{Side, side};
use super::source_region::{KEY, Shelf};
use crate::pages::link_grants::insert;
use crate::pages::mapped_memory_budget::Mappings;
use omniverb_datapath::peer_features;
use omniverb_link::record::{FIRST, LAST};
use omniverb_link::{Request, Response};
use omniverb_ring::UserMemory;
use omniverb_terms::Service;
use omniverb_transport::Ecn;
use omniverb_wire::{DATAGRAM_MAX, Packet};

/// Longer than all retries together.
const HOUR: u64 = 3_600_000_000_000;
/// Bytes of the rest of a message.
const LENGTH: usize = 900;

/// Everything that one has to say now, to the other; how many packets.
pub(super) fn talk(now: u64, from: &mut Side, to: &mut Side) -> usize {
    let (mut datagram, mut count) = (vec![0; DATAGRAM_MAX], 0);
    from.engine.serve(now);
    while let Some(length) = from.engine.transmit(now, &mut datagram) {
        to.engine.packet(now, &Packet::parse(&datagram[..length]).unwrap(), Ecn::Unmarked);
        count += 1;
    }
    from.engine.after();
    to.engine.after();
    count
}

#[test]
fn payload_that_is_filled_late_arrives() {
    let [mut asker, mut holder] = [(); 2].map(|()| side(Service::Rc, peer_features::ALL));
    let (mut shelf, budget) = (Shelf::new(), Mappings::default().budget());
    let whole = Request::Send { flags: FIRST | LAST, immediate: 0 };
    assert_eq!(shelf.send(&mut asker.application, &whole, &[1; LENGTH]), None, "not reached yet");
    asker.engine.serve(1);
    assert_eq!(asker.engine.application.pages().0.take_wanted().map(|(key, _)| key), Some(KEY));
    insert(&mut asker.engine.application, shelf.grant(&budget).unwrap(), 0);
    asker.engine.serve(1);
    // Its beginning leaves. The rest is in the first page of the region, which the engine does not
    // have.
    let begins = Request::Send { flags: FIRST, immediate: 0 };
    let application = &mut asker.application;
    let sent = UserMemory::lend(&[2; 512], |part| application.send_request(&begins, 512, [&part]));
    assert_eq!(sent, Ok(true));
    let ends = Request::Send { flags: LAST, immediate: 0 };
    assert_eq!(shelf.send(application, &ends, &[2; LENGTH]), Some(true));
    assert_eq!(talk(1, &mut asker, &mut holder), 2);
    let mut now = 1;
    for _ in 0..10 {
        now += HOUR;
        if asker.engine.next_timeout().is_some_and(|at| at <= now) {
            asker.engine.timeout(now);
        }
        assert_eq!(talk(now, &mut asker, &mut holder), 0);
        assert!(asker.engine.take_failure().is_none());
    }
    shelf.fill_if_wanted(&mut asker.application);
    assert_eq!(talk(now, &mut asker, &mut holder), 1 + LENGTH / 256);
    let mut bytes = 0;
    while let Some((_, record)) = holder.application.next_request().unwrap() {
        bytes += record.length;
        holder.application.pass_request(&record);
    }
    holder.application.publish_requests();
    assert_eq!(bytes, 512 + LENGTH);
    talk(now, &mut holder, &mut asker);
    asker.engine.serve(now);
    assert!(asker.application.request_consumed(asker.application.request_position()).unwrap());
    assert!(asker.engine.take_failure().is_none());
    let told = asker.application.next_response().unwrap().map(|(response, _)| response);
    assert!(!matches!(told, Some(Response::Nak { .. })), "{told:?}");
}
