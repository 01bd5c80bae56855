//! The words that a far end on a network reads: what is said is what is heard, and a word that is
//! none of them is nothing.

use omniverb_link::layout::{self, word};
use omniverb_link::qp_attributes_for_engine::{GlobalRoute, ReceiveAttributes, SendAttributes};
use omniverb_link::{Doorbell, Endpoint, EndpointParts, Request};
use omniverb_ring::doorbell::PAGE_BYTES;
use omniverb_ring::shared_atomics::Ordering;
use omniverb_ring::{DoorbellPage, Window, WordMemory};
use omniverb_terms::Psn;
use proptest::prelude::*;
use std::sync::Arc;

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) }
}

fn receiving() -> impl Strategy<Value = ReceiveAttributes> {
    (0..1u32 << 24, 1..=5u8, 0..32u8, any::<u8>()).prop_map(
        |(rq_psn, path_mtu, min_rnr_timer, max_dest_rd_atomic)| ReceiveAttributes {
            rq_psn: Psn::new(rq_psn),
            path_mtu,
            min_rnr_timer,
            max_dest_rd_atomic,
        },
    )
}

fn sending() -> impl Strategy<Value = SendAttributes> {
    (0..1u32 << 24, 0..32u8, 0..8u8, 0..8u8, any::<u8>()).prop_map(
        |(sq_psn, timeout, retry_count, rnr_retry, max_rd_atomic)| SendAttributes {
            sq_psn: Psn::new(sq_psn),
            timeout,
            retry_count,
            rnr_retry,
            max_rd_atomic,
        },
    )
}

fn route() -> impl Strategy<Value = GlobalRoute> {
    (any::<u8>(), any::<u8>(), 0..1u32 << 20).prop_map(|(traffic_class, hop_limit, flow_label)| {
        GlobalRoute { traffic_class, hop_limit, flow_label }
    })
}

/// Words as a peer may write them: mostly nearly right.
fn words() -> impl Strategy<Value = u64> {
    let bits = 1..64u32;
    prop_oneof![
        any::<u64>(),
        receiving().prop_map(|it| it.encode()),
        sending().prop_map(|it| it.encode()),
        route().prop_map(|it| it.encode()),
        (receiving(), bits.clone()).prop_map(|(it, bit)| it.encode() ^ 1 << bit),
        (sending(), bits.clone()).prop_map(|(it, bit)| it.encode() ^ 1 << bit),
        (route(), bits).prop_map(|(it, bit)| it.encode() ^ 1 << bit),
    ]
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn attributes_are_read_as_written(
        receiving in receiving(),
        sending in sending(),
        route in route(),
    ) {
        prop_assert_eq!(ReceiveAttributes::decode(receiving.encode()), Some(receiving));
        prop_assert_eq!(SendAttributes::decode(sending.encode()), Some(sending));
        prop_assert_eq!(GlobalRoute::decode(route.encode()), Some(route));
    }

    /// Whatever is heard is in range, and says all that the word says.
    #[test]
    fn anything_else_is_nothing(word in words()) {
        if let Some(it) = ReceiveAttributes::decode(word) {
            prop_assert!((1..=5).contains(&it.path_mtu));
            prop_assert!(it.min_rnr_timer < 32);
            prop_assert_eq!(it.encode(), word);
        }
        if let Some(it) = SendAttributes::decode(word) {
            prop_assert!(it.timeout < 32);
            prop_assert!(it.retry_count < 8 && it.rnr_retry < 8);
            prop_assert_eq!(it.encode(), word);
        }
        if let Some(it) = GlobalRoute::decode(word) {
            prop_assert!(it.flow_label < 1 << 20);
            prop_assert_eq!(it.encode(), word);
        }
        let unset = word & !(1 << 63);
        prop_assert_eq!(ReceiveAttributes::decode(unset), None);
        prop_assert_eq!(SendAttributes::decode(unset), None);
        prop_assert_eq!(GlobalRoute::decode(unset), None);
    }
}

/// Applications pass whatever is in their structs: numbers are cut, not smeared over others.
#[test]
fn numbers_that_are_too_long_are_cut() {
    let route = GlobalRoute { flow_label: u32::MAX, ..GlobalRoute::default() };
    assert_eq!(GlobalRoute::decode(route.encode()).unwrap().flow_label, 0xf_ffff);
}

struct Ringer(DoorbellPage<Window>);

impl Doorbell for Ringer {
    fn page(&self) -> &DoorbellPage<Window> {
        &self.0
    }
    fn kick(&self) {}
}

fn ends(request_bytes: usize) -> (Window, [Endpoint; 2], [Arc<Ringer>; 2]) {
    let memory = Window::private(layout::link_bytes(request_bytes, layout::RESPONSE_BYTES_MIN));
    let ringers = [0, 1].map(|_| Arc::new(Ringer(DoorbellPage::new(Window::private(PAGE_BYTES)))));
    let ends = [0, 1].map(|side| {
        Endpoint::new(EndpointParts {
            memory: memory.clone(),
            side,
            request_bytes,
            response_bytes: layout::RESPONSE_BYTES_MIN,
            doorbell: ringers[side].clone(),
            peer_slot: 9,
        })
        .unwrap()
    });
    (memory, ends, ringers)
}

#[test]
fn each_side_says_its_own() {
    let (memory, [mut app, mut engine], ringers) = ends(layout::REQUEST_BYTES_MIN);
    assert_eq!(engine.peer_receiving(), None);
    assert_eq!(engine.peer_sending(), None);
    assert_eq!(engine.peer_global_route(), None);
    let receiving =
        ReceiveAttributes { rq_psn: Psn::new(7), path_mtu: 5, ..ReceiveAttributes::default() };
    let sending = SendAttributes { sq_psn: Psn::new(8), timeout: 14, ..SendAttributes::default() };
    let route = GlobalRoute { hop_limit: 64, ..GlobalRoute::default() };
    app.publish_receiving(&receiving);
    app.publish_sending(&sending);
    // A waiting peer is told.
    assert!(!ringers[0].0.has_ready());
    engine.set_blocked(true);
    app.publish_global_route(&route);
    assert!(ringers[0].0.has_ready());
    assert_eq!(engine.peer_receiving(), Some(receiving));
    assert_eq!(engine.peer_sending(), Some(sending));
    assert_eq!(engine.peer_global_route(), Some(route));
    assert_eq!(app.peer_receiving(), None);
    memory.store(layout::side(0) + word::RECEIVING, u64::MAX, Ordering::Relaxed);
    assert_eq!(engine.peer_receiving(), None);
}

/// A consumer in the middle of a long batch lets the producer go on, however small the ring is.
#[test]
fn consumption_is_published_by_the_size_of_the_ring() {
    let bytes = layout::REQUEST_BYTES_MIN;
    let (memory, [mut sender, mut receiver], _ringers) = ends(bytes);
    let consumed = layout::side(1) + word::REQUEST_CONSUMED;
    let request = Request::Send { flags: 0x1100, immediate: 0 };
    let mut sent = 0;
    while sender.send_request(&request, 0, []).unwrap() {
        sent += 1;
    }
    let mut behind = 0;
    for passed in 1..=sent {
        let (_, record) = receiver.next_request().unwrap().unwrap();
        receiver.pass_request(&record);
        behind = behind.max(passed * 8 - memory.load(consumed, Ordering::Relaxed));
    }
    assert!(behind <= bytes as u64 / 8, "{behind} bytes were kept back");
    assert!(sender.send_request(&request, 0, []).unwrap());
}
