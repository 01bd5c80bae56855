//! Tests an application that refuses a request and fails its QP at once.
//!
//! What it said before is passed on, in order, and the refusal last.

use super::app_and_qp_of_one_end::{Side, side};
use omniverb_link::{Nak, Request, Response};
use omniverb_ring::UserMemory;
use omniverb_terms::{Refusal, Rkey, Service};
use omniverb_transport::Ecn;
use omniverb_wire::{DATAGRAM_MAX, Packet};

/// Everything that one has to say, to the other.
fn talk(from: &mut Side, to: &mut Side) {
    let mut datagram = vec![0; DATAGRAM_MAX];
    from.engine.serve(1);
    while let Some(length) = from.engine.transmit(1, &mut datagram) {
        to.engine.packet(1, &Packet::parse(&datagram[..length]).unwrap(), Ecn::Unmarked);
    }
    from.engine.after();
    to.engine.after();
}

/// The responses to the peer when READs of `reads` bytes are answered, and the next request is
/// refused.
fn told(reads: &[u64]) -> Vec<Response> {
    let [mut asker, mut holder] = [(); 2].map(|()| side(Service::Rc, 1));
    for &length in reads.iter().chain(&[8]) {
        let request = Request::Read { address: 0, rkey: Rkey(5), length };
        assert_eq!(asker.application.send_request(&request, 0, []), Ok(true));
    }
    talk(&mut asker, &mut holder);
    for &length in reads {
        let (_, record) = holder.application.next_request().unwrap().expect("a READ");
        let response = Response::ReadData { last: true };
        let data = vec![7; length as usize];
        let sent =
            UserMemory::lend(&data, |data| holder.application.send_response(&response, data));
        assert_eq!(sent, Ok(true));
        holder.application.pass_request(&record);
    }
    holder.application.publish_requests();
    let refusal = Response::Nak { code: Nak::Refused(Refusal::RemoteAccess) };
    assert_eq!(holder.application.send_response(&refusal, UserMemory::EMPTY), Ok(true));
    holder.application.close();
    // The engine may look in between: at the data first, and at the rest with its last packets.
    talk(&mut holder, &mut asker);
    asker.engine.serve(1);
    let mut told = Vec::new();
    while let Some((response, record)) = asker.application.next_response().unwrap() {
        told.push(response);
        asker.application.pass_response(&record);
    }
    told
}

/// The refusal is lost, and the application that refused has closed: a repeated request is refused
/// again.
#[test]
fn a_lost_refusal_is_sent_again() {
    let [mut asker, mut holder] = [(); 2].map(|()| side(Service::Rc, 1));
    let request = Request::Read { address: 0, rkey: Rkey(5), length: 8 };
    assert_eq!(asker.application.send_request(&request, 0, []), Ok(true));
    talk(&mut asker, &mut holder);
    let refusal = Response::Nak { code: Nak::Refused(Refusal::RemoteAccess) };
    assert_eq!(holder.application.send_response(&refusal, UserMemory::EMPTY), Ok(true));
    holder.application.close();
    let mut datagram = vec![0; DATAGRAM_MAX];
    holder.engine.serve(1);
    let mut lost = 0;
    while holder.engine.transmit(1, &mut datagram).is_some() {
        lost += 1;
    }
    holder.engine.after();
    assert_eq!(lost, 1);
    let mut now = 1;
    while asker.engine.next_timeout().is_some() {
        now = asker.engine.next_timeout().unwrap_or(now);
        asker.engine.timeout(now);
        asker.engine.serve(now);
        talk(&mut asker, &mut holder);
        talk(&mut holder, &mut asker);
    }
    let told = asker.application.next_response().unwrap().map(|(response, _)| response);
    assert_eq!(told, Some(refusal));
}

#[test]
fn a_refusal_behind_data_arrives() {
    for reads in [&[][..], &[8], &[600], &[8, 8], &[600, 8, 600]] {
        let told = told(reads);
        let data = told.iter().filter(|r| **r == Response::ReadData { last: true }).count();
        assert_eq!(data, reads.len(), "{reads:?}: {told:?}");
        assert_eq!(
            told.last(),
            Some(&Response::Nak { code: Nak::Refused(Refusal::RemoteAccess) }),
            "{reads:?}"
        );
    }
}
