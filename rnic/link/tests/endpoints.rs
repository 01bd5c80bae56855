//! Two ends of a link, and what one believes of the other.

use omniverb_link::Credit;
use omniverb_link::layout::{self, RNR_VALID, word};
use omniverb_link::{
    Broken, Doorbell, Endpoint, EndpointParts, EndpointPositions, Nak, Request, Response,
};
use omniverb_ring::doorbell::PAGE_BYTES;
use omniverb_ring::shared_atomics::Ordering;
use omniverb_ring::{DoorbellPage, UserMemory, Window, WordMemory};
use omniverb_terms::Refusal;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

const REQUESTS: usize = layout::REQUEST_BYTES_MIN;
const RESPONSES: usize = layout::RESPONSE_BYTES_MIN;

struct Ringer {
    page: DoorbellPage<Window>,
    kicks: AtomicUsize,
}

impl Doorbell for Ringer {
    fn page(&self) -> &DoorbellPage<Window> {
        &self.page
    }
    fn kick(&self) {
        self.kicks.fetch_add(1, Ordering::Relaxed);
    }
}

fn ringer() -> Arc<Ringer> {
    Arc::new(Ringer {
        page: DoorbellPage::new(Window::private(PAGE_BYTES)),
        kicks: AtomicUsize::new(0),
    })
}

struct Link {
    memory: Window,
    ends: [Endpoint; 2],
    /// What side n rings.
    ringers: [Arc<Ringer>; 2],
}

fn link() -> Link {
    let memory = Window::private(layout::link_bytes(REQUESTS, RESPONSES));
    let ringers = [ringer(), ringer()];
    let ends = [0, 1].map(|side| {
        Endpoint::new(EndpointParts {
            memory: memory.clone(),
            side,
            request_bytes: REQUESTS,
            response_bytes: RESPONSES,
            doorbell: ringers[side].clone(),
            peer_slot: 5 + side as u32,
        })
        .unwrap()
    });
    Link { memory, ends, ringers }
}

const SEND: Request = Request::Send { flags: 0x1100, immediate: 0 };

#[test]
fn parts_that_do_not_fit_together() {
    let attach = |bytes: usize, side, request_bytes, response_bytes| {
        let doorbell = ringer();
        Endpoint::new(EndpointParts {
            memory: Window::private(bytes),
            side,
            request_bytes,
            response_bytes,
            doorbell,
            peer_slot: 0,
        })
        .is_some()
    };
    let bytes = layout::link_bytes(REQUESTS, RESPONSES);
    assert!(attach(bytes, 0, REQUESTS, RESPONSES) && attach(bytes, 1, REQUESTS, RESPONSES));
    assert!(!attach(bytes, 2, REQUESTS, RESPONSES));
    assert!(!attach(bytes - 8, 0, REQUESTS, RESPONSES));
    assert!(!attach(bytes, 0, REQUESTS * 2, RESPONSES));
    assert!(!attach(bytes, 0, REQUESTS - 8, RESPONSES));
    assert!(!attach(bytes, 0, REQUESTS / 2, RESPONSES));
    assert!(!attach(bytes, 0, REQUESTS, RESPONSES / 2));
    assert!(!attach(bytes, 0, 0, 0));
    assert!(!attach(bytes, 0, usize::MAX, usize::MAX));
    assert!(!attach(bytes, usize::MAX, REQUESTS, RESPONSES));
}

#[test]
fn both_directions_at_once() {
    let Link { mut ends, .. } = link();
    let texts: [&[u8]; 2] = [b"from side 0", b"from side 1, longer"];
    for (end, text) in ends.iter_mut().zip(texts) {
        UserMemory::lend(text, |text| {
            let (front, back) = (text.first(3), text.skip(3));
            assert_eq!(end.send_request(&SEND, text.len(), [&front, &back]), Ok(true));
            assert_eq!(end.send_response(&Response::ReadData { last: true }, text), Ok(true));
        });
        let position = end.request_position();
        assert_eq!(end.request_consumed(position), Ok(false));
    }
    for (end, text) in ends.iter_mut().zip([texts[1], texts[0]]) {
        assert!(end.has_news());
        let (request, record) = end.next_request().unwrap().unwrap();
        let mut bytes = vec![0; record.length];
        UserMemory::lend_mut(&mut bytes, |target| end.request_payload(&record, 0, target));
        assert_eq!((request, &bytes[..]), (SEND, text));
        end.pass_request(&record);
        end.publish_requests();
        let (response, record) = end.next_response().unwrap().unwrap();
        let mut bytes = vec![0; record.length];
        UserMemory::lend_mut(&mut bytes, |target| end.response_payload(&record, 0, target));
        assert_eq!((response, &bytes[..]), (Response::ReadData { last: true }, text));
        end.pass_response(&record);
        assert!(!end.has_news());
    }
    for end in &mut ends {
        let position = end.request_position();
        assert_eq!(end.request_consumed(position), Ok(true));
    }
}

/// Whatever fills the ring of answers, and wherever it has come to, one refusal fits in behind it.
#[test]
fn a_refusal_always_finds_room() {
    let bytes = [7; RESPONSES];
    for (first, length) in (0..RESPONSES / 4 - 64).step_by(8).map(|first| (first, first % 440)) {
        let Link { ends: [mut sender, mut receiver], .. } = link();
        let mut answer = |response: Response, length: usize| {
            UserMemory::lend(&bytes[..length], |data| sender.send_response(&response, data))
        };
        // Elsewhere than at the ring's beginning.
        assert_eq!(answer(Response::ReadData { last: true }, first), Ok(true));
        let (_, record) = receiver.next_response().unwrap().unwrap();
        receiver.pass_response(&record);
        while answer(Response::ReadData { last: true }, length) == Ok(true) {}
        while answer(Response::AtomicResult { original: 7 }, 0) == Ok(true) {}
        assert_eq!(
            answer(Response::Nak { code: Nak::Refused(Refusal::RemoteAccess) }, 0),
            Ok(true),
            "{first}"
        );
    }
}

#[test]
fn granted_credits_can_always_be_used() {
    let Link { ends: [mut sender, mut receiver], .. } = link();
    assert_eq!(sender.credit(), Credit::None);
    receiver.publish_credits(2, 100);
    assert_eq!(sender.credit(), Credit::Promised { floor: 100 });
    sender.use_credit();
    // A shorter receive is posted: what is known already stays promised as it was.
    receiver.publish_credits(3, 50);
    assert_eq!(sender.credit(), Credit::Promised { floor: 100 });
    sender.use_credit();
    assert_eq!(sender.credit(), Credit::Promised { floor: 50 });
    sender.use_credit();
    assert_eq!(sender.credit(), Credit::None);
    receiver.publish_no_credits();
    assert_eq!(sender.credit(), Credit::Unpromised);
    receiver.publish_credits(4, u32::MAX);
    assert_eq!(sender.credit(), Credit::Promised { floor: u32::MAX.into() });
}

#[test]
fn credits_count_beyond_32_bits() {
    let Link { ends: [mut sender, mut receiver], .. } = link();
    let mut posted = 0u32;
    // In strides, since four thousand million messages take too long.
    for _ in 0..10 {
        for _ in 0..1000 {
            posted = posted.wrapping_add(1);
            receiver.publish_credits(posted, 8);
            assert_eq!(sender.credit(), Credit::Promised { floor: 8 });
            sender.use_credit();
            assert_eq!(sender.credit(), Credit::None);
        }
    }
    // More than the number space holds is no valid promise.
    receiver.publish_credits(posted.wrapping_add(0x8000_0000), 8);
    assert_eq!(sender.credit(), Credit::None);
    // The greatest count and floor are not mistaken for "no credits".
    receiver.publish_credits(u32::MAX, u32::MAX);
    assert_ne!(sender.credit(), Credit::Unpromised);
}

#[test]
fn another_end_goes_on_where_one_has_ended() {
    let Link { ends: [mut application, mut first], memory, ringers } = link();
    application.publish_credits(3, 8);
    let send = |end: &mut Endpoint, byte: u8| {
        assert_ne!(end.credit(), Credit::None);
        end.use_credit();
        UserMemory::lend(&[byte], |byte| end.send_request(&SEND, 1, [&byte])).unwrap()
    };
    assert!(send(&mut first, 1) && send(&mut first, 2));
    assert_eq!(application.send_request(&SEND, 0, []), Ok(true));
    let data = Response::ReadData { last: true };
    assert_eq!(application.send_response(&data, UserMemory::EMPTY), Ok(true));
    let (_, record) = first.next_response().unwrap().unwrap();
    first.pass_response(&record);
    let positions = first.positions();
    drop(first);
    let mut next = Endpoint::new(EndpointParts {
        memory,
        side: 1,
        request_bytes: REQUESTS,
        response_bytes: RESPONSES,
        doorbell: ringers[1].clone(),
        peer_slot: 6,
    })
    .unwrap();
    assert!(!next.resume_at(&EndpointPositions { responses_in: 4, ..positions }));
    assert!(next.resume_at(&positions));
    assert_eq!(next.positions(), positions);
    assert_eq!(next.next_response(), Ok(None));
    assert!(next.next_request().unwrap().is_some(), "it was not taken before");
    assert!(send(&mut next, 3));
    assert_eq!(next.credit(), Credit::None, "three receives in all");
    for expected in 1..=3 {
        let (_, record) = application.next_request().unwrap().unwrap();
        let mut byte = [0];
        UserMemory::lend_mut(&mut byte, |byte| application.request_payload(&record, 0, byte));
        assert_eq!(byte[0], expected);
        application.pass_request(&record);
    }
    application.publish_requests();
    assert_eq!(next.request_consumed(next.request_position()), Ok(true));
}

#[test]
fn positions_that_cannot_be_break_the_link() {
    let Link { memory, ends: [mut sender, _receiver], .. } = link();
    assert_eq!(sender.send_request(&SEND, 0, []), Ok(true));
    let position = sender.request_position();
    let consumed = layout::side(1) + word::REQUEST_CONSUMED;
    memory.store(consumed, position + 8, Ordering::Relaxed);
    assert_eq!(sender.request_consumed(position), Err(Broken));
    memory.store(consumed, position, Ordering::Relaxed);
    assert_eq!(sender.request_consumed(position), Ok(true));
    // Back again.
    assert_eq!(sender.send_request(&SEND, 0, []), Ok(true));
    memory.store(consumed, position - 8, Ordering::Relaxed);
    assert_eq!(sender.request_consumed(position + 16), Err(Broken));
}

#[test]
fn a_receiver_that_lacks_a_receive_says_where() {
    let Link { memory, ends: [mut sender, mut receiver], .. } = link();
    assert_eq!(sender.peer_lacks_receive(), Ok(false));
    assert_eq!(sender.send_request(&SEND, 0, []), Ok(true));
    assert_eq!(sender.peer_lacks_receive(), Ok(false));
    receiver.next_request().unwrap().unwrap();
    receiver.report_lack_of_receive();
    assert_eq!(sender.peer_lacks_receive(), Ok(true));
    let (_, record) = receiver.next_request().unwrap().unwrap();
    receiver.pass_request(&record);
    receiver.publish_requests();
    assert_eq!(sender.peer_lacks_receive(), Ok(false));
    memory.store(layout::side(1) + word::RNR, RNR_VALID | 0xffff, Ordering::Relaxed);
    assert_eq!(sender.peer_lacks_receive(), Ok(false));
}

#[test]
fn rnr_timers_are_clamped() {
    let Link { memory, ends: [sender, mut receiver], .. } = link();
    for (said, believed) in
        [(640_000, 640_000), (0, 10_000), (u64::MAX, 655_360_000), (655_360_000, 655_360_000)]
    {
        receiver.open(said);
        assert_eq!(sender.peer_rnr_timer(), believed);
    }
    assert!(sender.peer_is_open() && !sender.peer_has_closed());
    receiver.close();
    assert!(!sender.peer_is_open() && sender.peer_has_closed());
    memory.store(layout::side(1) + word::STATE, 77, Ordering::Relaxed);
    assert!(!sender.peer_is_open() && !sender.peer_has_closed());
}

#[test]
fn consumption_rings_a_waiting_peers_doorbell() {
    let Link { ends: [mut sender, mut receiver], ringers, .. } = link();
    let told = |side: usize| {
        let mut slots = Vec::new();
        ringers[side].page.take_ready(|slot| slots.push(slot));
        (slots, ringers[side].kicks.swap(0, Ordering::Relaxed))
    };
    // No thread waits or sleeps.
    sender.send_request(&SEND, 0, []).unwrap();
    assert_eq!(told(0), (vec![], 0));
    // The receiver does not look by itself.
    receiver.set_watched(false);
    sender.send_request(&SEND, 0, []).unwrap();
    assert_eq!(told(0), (vec![5], 0));
    ringers[0].page.want_kick();
    sender.send_request(&SEND, 0, []).unwrap();
    sender.send_request(&SEND, 0, []).unwrap();
    assert_eq!(told(0), (vec![5], 1));
    receiver.set_watched(true);
    sender.send_request(&SEND, 0, []).unwrap();
    assert_eq!(told(0), (vec![], 0));
    // The sender waits for room, credits, or the peer to open.
    let (_, record) = receiver.next_request().unwrap().unwrap();
    receiver.pass_request(&record);
    receiver.publish_requests();
    assert_eq!(told(1), (vec![], 0));
    sender.set_blocked(true);
    receiver.publish_credits(1, 1);
    assert_eq!(told(1), (vec![6], 0));
    let (_, record) = receiver.next_request().unwrap().unwrap();
    receiver.pass_request(&record);
    receiver.publish_requests();
    assert_eq!(told(1), (vec![6], 0));
    receiver.publish_requests();
    assert_eq!(told(1), (vec![], 0), "no news");
    receiver.open(1);
    assert_eq!(told(1), (vec![6], 0));
    receiver.close();
    assert_eq!(told(1), (vec![6], 0));
}

#[test]
fn revocations_are_seen() {
    let Link { ends: [sender, mut receiver], .. } = link();
    let before = sender.peer_epoch();
    receiver.advance_epoch();
    assert_ne!(sender.peer_epoch(), before);
}

#[test]
fn a_side_at_granted_pages_is_seen_and_learns_whether_it_was_waited_for() {
    let Link { ends: [mut owner, peer], .. } = link();
    let epoch = peer.peer_epoch();
    assert!(!owner.peer_reaches_pages());
    assert!(peer.enter_pages(epoch));
    assert!(owner.peer_reaches_pages());
    owner.advance_epoch();
    assert!(peer.leave_pages(epoch), "the owner waited");
    assert!(!owner.peer_reaches_pages());
    assert!(!peer.enter_pages(epoch), "void");
    assert!(!owner.peer_reaches_pages());
    let epoch = peer.peer_epoch();
    assert!(peer.enter_pages(epoch));
    owner.advance_epoch();
    owner.advance_epoch();
    assert!(!peer.leave_pages(epoch), "the owner gave up");
    assert!(!owner.peer_reaches_pages());
}

#[test]
fn a_side_at_pages_is_seen_until_it_leaves_when_the_link_ends() {
    let Link { memory, ends: [mut owner, peer], .. } = link();
    let epoch = peer.peer_epoch();
    assert!(peer.enter_pages_that_stay(epoch) && owner.peer_reaches_pages_that_stay());
    owner.advance_epoch();
    let stays = owner.stay();
    owner.close();
    drop(owner);
    assert!(stays.is_there());
    assert!(peer.leave_pages(epoch) && !stays.is_there());
    assert!(!peer.enter_pages_that_stay(epoch), "void");
    // The memory is for something else then.
    (0..memory.len()).step_by(8).for_each(|at| memory.store(at, 7, Ordering::Relaxed));
    assert!(!stays.is_there());
}
