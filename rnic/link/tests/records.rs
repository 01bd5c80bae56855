//! Records: what is sent is what is taken, and anything else is refused without a panic.

use omniverb_link::record::{IMMEDIATE, INVALIDATE, SOURCE};
use omniverb_link::{Nak, Request, Response};
use omniverb_ring::spsc::TAG_END;
use omniverb_ring::{Consumer, Producer, Window};
use omniverb_terms::{Placement, Qkey, Qpn, Refusal, Rkey, Selectivity};
use proptest::prelude::*;

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) }
}

fn ring() -> (Producer<Window>, Consumer<Window>) {
    let (ring, words) = (Window::private(1024), Window::private(8));
    (Producer::new(ring.clone(), words.clone(), 0), Consumer::new(ring, words, 0))
}

/// Puts a record into a ring and hands it to `take`.
fn through<R>(
    tag: u32,
    extra: &[u64],
    length: usize,
    take: impl FnOnce(&Consumer<Window>, &omniverb_ring::Record) -> R,
) -> R {
    let (mut producer, mut consumer) = ring();
    let at = producer.reserve(extra.len(), length).unwrap().unwrap();
    for (index, word) in extra.iter().enumerate() {
        producer.extra(at, index, *word);
    }
    producer.publish(at, tag, extra.len(), length);
    let record = consumer.head().unwrap().unwrap();
    take(&consumer, &record)
}

fn requests() -> impl Strategy<Value = Request> {
    let flags = (0..TAG_END >> 8).prop_map(|flags| flags << 8 & !SOURCE);
    let (a, b, c, k, i) = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>());
    (0..12, flags, (a, b, c), (k, i)).prop_map(
        |(kind, flags, (address, b, c), (rkey, immediate))| match kind {
            0 => Request::Send {
                flags,
                // Without one of these flags nothing comes along.
                immediate: if flags & (IMMEDIATE | INVALIDATE) == 0 { 0 } else { immediate },
            },
            1 => Request::WriteFirst { flags, address, rkey: Rkey(rkey), immediate, total: b },
            2 => Request::WriteMore { flags, immediate },
            3 => Request::Read { address, rkey: Rkey(rkey), length: b },
            4 => Request::CompareSwap { address, rkey: Rkey(rkey), compare: b, swap: c },
            5 => Request::FetchAdd { address, rkey: Rkey(rkey), add: b },
            6 => {
                let value = b.to_ne_bytes();
                Request::AtomicWrite { address, rkey: Rkey(rkey), value }
            }
            7 => Request::Flush {
                address,
                rkey: Rkey(rkey),
                length: b,
                placement: Placement::from_bits(c as u8 % 3 + 1).unwrap(),
                selectivity: Selectivity::from_code((c >> 32) as u8 & 1).unwrap(),
            },
            8 => Request::ForSrq { number: rkey },
            9 => Request::ReadAgain { address, rkey: Rkey(rkey), length: b },
            10 => Request::Grouped { flags, immediate, qkey: Qkey(rkey), source: Qpn(b as u32) },
            _ => Request::Datagram { flags, immediate, qkey: Qkey(rkey) },
        },
    )
}

fn responses() -> impl Strategy<Value = Response> {
    prop_oneof![
        any::<bool>().prop_map(|last| Response::ReadData { last }),
        any::<u64>().prop_map(|original| Response::AtomicResult { original }),
        (1..=7u64).prop_map(|code| Response::Nak { code: Nak::decode(code).unwrap() }),
        Just(Response::Gone),
    ]
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn requests_survive_the_ring(request in requests(), length in 0..100usize) {
        let (tag, words, extra) = request.encode();
        prop_assert!(tag < TAG_END && extra <= words.len());
        let taken = through(tag, &words[..extra], length, Request::decode);
        prop_assert_eq!(taken, Some(request));
    }

    #[test]
    fn responses_survive_the_ring(response in responses(), length in 0..100usize) {
        let (tag, word, extra) = response.encode();
        prop_assert!(tag < TAG_END && extra <= 1);
        let taken = through(tag, &[word][..extra], length, Response::decode);
        prop_assert_eq!(taken, Some(response));
    }

    /// Whatever a peer writes is refused, or means one thing: what it means when written again.
    #[test]
    fn anything_else_is_refused(
        operation in prop_oneof![0..40u32, any::<u32>()],
        flags in any::<u32>(),
        extra in prop::collection::vec(any::<u64>(), 0..8),
    ) {
        let tag = (operation & 0xff | flags << 8) % TAG_END;
        if let Some(request) = through(tag, &extra, 0, Request::decode) {
            let (tag, words, count) = request.encode();
            prop_assert!(count <= extra.len().max(1));
            prop_assert_eq!(through(tag, &words[..count], 0, Request::decode), Some(request));
        }
        if let Some(response) = through(tag, &extra, 0, Response::decode) {
            let (tag, word, count) = response.encode();
            let again = through(tag, &[word][..count], 0, Response::decode);
            prop_assert_eq!(again, Some(response));
            prop_assert_eq!(through(tag, &[word][..count], 0, Request::decode), None);
        }
    }
}

#[test]
fn refusal_codes_survive_encoding() {
    for (number, code) in [
        (1, Nak::Refused(Refusal::InvalidRequest)),
        (2, Nak::Refused(Refusal::RemoteAccess)),
        (3, Nak::Refused(Refusal::RemoteOperation)),
        (4, Nak::RetryExceeded),
        (5, Nak::RnrRetryExceeded),
        (6, Nak::BadResponse),
        (7, Nak::Flushed),
    ] {
        assert_eq!((code.encode(), Nak::decode(number)), (number, Some(code)));
    }
    for number in [0, 8, 1 << 32 | 1, u64::MAX] {
        assert_eq!(Nak::decode(number), None);
    }
}
