//! Tests that a nap ends when what it waits for has happened, once, and not before.

mod common;

use common::ends;
use omniverb_link::layout::{self, word};
use omniverb_link::{Endpoint, Request, Response};
use omniverb_ring::shared_atomics::Ordering;
use omniverb_ring::{UserMemory, WordMemory};

/// Sends so many requests of 1000 bytes; where each ends.
fn send(end: &mut Endpoint, count: usize) -> Vec<u64> {
    let mut one = || {
        let request = Request::Send { flags: 0x1100, immediate: 0 };
        let sent = UserMemory::lend(&[7; 1000], |bytes| end.send_request(&request, 1000, [&bytes]));
        assert!(sent.unwrap());
        end.request_position()
    };
    (0..count).map(|_| one()).collect()
}

/// Whether a sleeper would go on sleeping.
fn sleeps(nap: &omniverb_link::poller_sleep::PollerNap) -> bool {
    let (word, value) = nap.place();
    word.load(Ordering::Acquire) as u32 == value
}

#[test]
fn is_over_when_enough_is_consumed() {
    let (_, [mut app, mut engine]) = ends();
    let positions = send(&mut app, 8);
    assert!(!engine.nap_is_over(), "nobody naps");
    let bytes = app.under_way().unwrap();
    assert_eq!(bytes, positions[7]);
    let nap = app.begin_nap(bytes / 2).unwrap().unwrap();
    engine.pass_requests_until(positions[2]);
    assert!(!engine.nap_is_over() && sleeps(&nap));
    engine.pass_requests_until(positions[3]);
    assert!(engine.nap_is_over());
    engine.answer_nap();
    assert!(!sleeps(&nap) && !engine.nap_is_over(), "woken once");
    drop(nap);
    let nap = app.begin_nap(positions[0]).unwrap().unwrap();
    assert!(sleeps(&nap) && !engine.nap_is_over(), "another one");
    engine.pass_requests_until(positions[7]);
    assert!(engine.nap_is_over());
    drop(nap);
    assert!(!engine.nap_is_over(), "it woke by itself");
    assert!(app.begin_nap(0).unwrap().is_none(), "nothing to wait for");
}

#[test]
fn is_over_when_something_is_given() {
    let (_, [mut app, mut engine]) = ends();
    send(&mut app, 8);
    let nap = app.begin_nap(4000).unwrap().unwrap();
    assert!(!engine.nap_is_over());
    let answer = Response::AtomicResult { original: 3 };
    assert!(UserMemory::lend(&[], |none| engine.send_response(&answer, none)).unwrap());
    assert!(engine.nap_is_over());
    engine.answer_nap();
    assert!(!sleeps(&nap));
    drop(nap);
    assert!(app.begin_nap(4000).unwrap().is_none(), "it is to be looked at first");
}

#[test]
fn words_of_a_hostile_peer_do_no_harm() {
    let (memory, [mut app, mut engine]) = ends();
    send(&mut app, 8);
    let write = |side, at, value| memory.store(layout::side(side) + at, value, Ordering::Relaxed);
    write(1, word::WOKEN, u64::MAX);
    let nap = app.begin_nap(4000).unwrap().unwrap();
    let (_, value) = nap.place();
    assert_eq!(value, u32::MAX);
    assert_ne!(memory.load(layout::side(0) + word::NAP, Ordering::Relaxed), 0);
    for nap in [u64::MAX, 1, 0] {
        write(0, word::NAP, nap);
        write(0, word::NAP_UNTIL, u64::MAX);
        assert!(!engine.nap_is_over(), "never consumed as much");
        write(0, word::NAP_UNTIL, 0);
        assert_eq!(engine.nap_is_over(), nap != 0);
        engine.answer_nap();
        assert!(!engine.nap_is_over());
    }
}
