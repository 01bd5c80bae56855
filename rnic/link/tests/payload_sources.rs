//! Sources: what is said of a payload that is elsewhere arrives, at a far end only; offers hold for
//! one key and one epoch; filling is said and seen.

mod common;

use common::ends;
use omniverb_link::layout;
use omniverb_link::payload_source::SOURCES;
use omniverb_link::record::SOURCE;
use omniverb_link::{Broken, Request, Source};
use omniverb_ring::shared_atomics::Ordering;
use omniverb_ring::{UserMemory, WordMemory};
use omniverb_terms::Rkey;
use proptest::prelude::*;

proptest! {
    #[test]
    fn source_descriptions_arrive_as_sent(
        kind in 0..3,
        flags in (0_u32..1 << 6).prop_map(|flags| flags << 8),
        (address, total) in (any::<u64>(), any::<u32>()),
        (rkey, immediate) in any::<(u32, u32)>(),
        (key, at) in (any::<u32>(), any::<u64>()),
        length in 1_usize..8000,
    ) {
        let (_, [mut app, mut engine]) = ends();
        let total = u64::from(total);
        let request = match kind {
            0 => Request::Send { flags, immediate },
            1 => Request::WriteFirst { flags, address, rkey: Rkey(rkey), immediate, total },
            _ => Request::WriteMore { flags, immediate },
        };
        let source = Source { key: Rkey(key), address: at };
        let record = app.send_request_from(&request, length, source).unwrap().unwrap();
        prop_assert!(matches!(engine.next_request(), Err(Broken)), "not for a queue pair");
        let ahead = engine.request_after(0).unwrap().unwrap();
        prop_assert_eq!((ahead.request, ahead.source), (request, Some(source)));
        prop_assert_eq!((ahead.record.length, ahead.end), (length, record.end()));
        // Filled, and what comes behind it is as it was.
        let more = Request::WriteMore { flags: 0, immediate: 1 };
        UserMemory::lend(&[9; 40], |data| app.send_request(&more, 40, [&data])).unwrap();
        prop_assert!(!engine.is_filled(ahead.end));
        engine.want_filled(ahead.end);
        prop_assert_eq!(app.fill_wanted(), record.end());
        let payload: Vec<u8> = (0..length).map(|at| at as u8).collect();
        UserMemory::lend(&payload, |payload| app.fill(&record, payload));
        app.publish_filled();
        prop_assert!(engine.is_filled(ahead.end));
        let mut found = vec![0; length];
        UserMemory::lend_mut(&mut found, |to| engine.request_payload(&ahead.record, 0, to));
        prop_assert!(found == payload);
        let behind = engine.request_after(ahead.end).unwrap().unwrap();
        prop_assert_eq!((behind.request, behind.source), (more, None));
    }
}

#[test]
fn an_offer_holds_for_one_key_and_one_epoch() {
    let (_, [mut app, mut engine]) = ends();
    assert_eq!(engine.sources_wanted(), [Rkey(0); SOURCES]);
    for number in 1..100 {
        let key = Rkey(number << 8);
        app.want_source(key);
        assert!(engine.sources_wanted().contains(&key), "{key}");
        assert!(!app.peer_reaches(key));
        engine.publish_source(key, engine.peer_epoch());
        assert!(app.peer_reaches(key) && !app.peer_reaches(Rkey(number << 8 | 1)));
    }
    assert!(!app.peer_reaches(Rkey(0)), "no key");
    engine.withdraw_source(Rkey(98 << 8));
    engine.withdraw_source(Rkey(77));
    assert!(!app.peer_reaches(Rkey(98 << 8)) && app.peer_reaches(Rkey(99 << 8)));
    app.advance_epoch();
    assert!(!app.peer_reaches(Rkey(99 << 8)), "pages may have gone back");
    engine.publish_source(Rkey(99 << 8), engine.peer_epoch());
    assert!(app.peer_reaches(Rkey(99 << 8)));
    app.forget_sources();
    assert_eq!(engine.sources_wanted(), [Rkey(0); SOURCES]);
}

/// Other records with this flag are no requests.
#[test]
fn only_what_carries_data_has_a_source() {
    let (memory, [mut app, engine]) = ends();
    let read = Request::Read { address: 1, rkey: Rkey(2), length: 3 };
    assert!(
        app.send_request_from(&read, 0, Source { key: Rkey(1), address: 2 }).unwrap().is_none()
    );
    assert!(engine.request_after(0).unwrap().is_none());
    app.send_request(&read, 0, []).unwrap();
    let at = layout::request_ring(0, layout::REQUEST_BYTES_MIN);
    let header = memory.load(at, Ordering::Relaxed);
    memory.store(at, header | u64::from(SOURCE) << 32, Ordering::Relaxed);
    assert!(matches!(engine.request_after(0), Err(Broken)));
}
