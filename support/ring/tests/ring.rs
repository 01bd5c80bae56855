//! The ring against a queue, against hostile ends, and across threads.

use omniverb_ring::shared_atomics::Ordering;
use omniverb_ring::{Broken, Consumer, Producer, UserMemory, Window, WordMemory};
use proptest::prelude::*;
use std::collections::VecDeque;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(miri) { 4 } else { cases },
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

struct Ring {
    ring: Window,
    words: Window,
    producer: Producer<Window>,
    consumer: Consumer<Window>,
}

fn ring(capacity: usize) -> Ring {
    let (ring, words) = (Window::private(capacity), Window::private(64));
    let producer = Producer::new(ring.clone(), words.clone(), 8);
    let consumer = Consumer::new(ring.clone(), words.clone(), 8);
    Ring { ring, words, producer, consumer }
}

#[derive(Clone, Debug, PartialEq)]
struct SentRecord {
    tag: u32,
    extra: Vec<u64>,
    payload: Vec<u8>,
}

/// Sends, the payload in two pieces; false: no room.
fn send(producer: &mut Producer<Window>, record: &SentRecord) -> Result<bool, Broken> {
    let SentRecord { tag, extra, payload } = record;
    let Some(at) = producer.reserve(extra.len(), payload.len())? else { return Ok(false) };
    for (index, word) in extra.iter().enumerate() {
        producer.extra(at, index, *word);
    }
    let (front, back) = payload.split_at(payload.len() / 3);
    UserMemory::lend(front, |bytes| producer.payload(at, extra.len(), 0, bytes));
    UserMemory::lend(back, |bytes| producer.payload(at, extra.len(), front.len(), bytes));
    producer.publish(at, *tag, extra.len(), payload.len());
    Ok(true)
}

/// Takes the record at the head.
fn receive(consumer: &mut Consumer<Window>) -> Result<Option<SentRecord>, Broken> {
    let Some(record) = consumer.head()? else { return Ok(None) };
    let extra = (0..record.extra).map(|index| consumer.extra(&record, index)).collect();
    let mut payload = vec![0; record.length];
    let (front, back) = payload.split_at_mut(record.length / 2);
    let middle = front.len();
    UserMemory::lend_mut(front, |target| consumer.payload(&record, 0, target));
    UserMemory::lend_mut(back, |target| consumer.payload(&record, middle, target));
    consumer.pass(&record);
    Ok(Some(SentRecord { tag: record.tag, extra, payload }))
}

#[derive(Clone, Debug)]
enum Step {
    Send { tag: u32, extra: usize, length: usize, content: u64 },
    Receive,
    Publish,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let send = (0..1u32 << 27, 0..=7usize, any::<prop::sample::Index>(), any::<u64>()).prop_map(
        |(tag, extra, length, content)| Step::Send {
            tag,
            extra,
            length: length.index(1 << 20),
            content,
        },
    );
    prop::collection::vec(
        prop_oneof![4 => send, 4 => Just(Step::Receive), 1 => Just(Step::Publish)],
        0..if cfg!(miri) { 40 } else { 300 },
    )
}

fn record(step: &Step, payload_max: usize) -> Option<SentRecord> {
    let Step::Send { tag, extra, length, content } = *step else { return None };
    let length = length % (payload_max + 1);
    Some(SentRecord {
        tag,
        extra: (0..extra as u64).map(|index| content ^ index).collect(),
        payload: (0..length).map(|at| (content >> (at % 57)) as u8).collect(),
    })
}

proptest! {
    #![proptest_config(config(400))]

    /// What goes in comes out, in order; and there is room exactly when there should be.
    #[test]
    fn records_leave_in_order(size in 8..14u32, steps in steps()) {
        let Ring { mut producer, mut consumer, .. } = ring(1 << size);
        let (capacity, payload_max) = (1u64 << size, producer.payload_max());
        let mut model = VecDeque::new();
        let mut published = 0;
        for step in &steps {
            match step {
                Step::Send { .. } => {
                    let record = record(step, payload_max).unwrap();
                    let payload = record.payload.len().next_multiple_of(8);
                    let bytes = 8 + 8 * record.extra.len() + payload;
                    let at = producer.position() % capacity;
                    let pad = if at + bytes as u64 > capacity { capacity - at } else { 0 };
                    let room = capacity - (producer.position() - published);
                    let fits = bytes as u64 + pad + 8 <= room;
                    prop_assert_eq!(send(&mut producer, &record), Ok(fits));
                    if fits {
                        model.push_back(record);
                    }
                }
                Step::Receive => {
                    prop_assert_eq!(consumer.has_news(), !model.is_empty());
                    prop_assert_eq!(receive(&mut consumer), Ok(model.pop_front()));
                }
                Step::Publish => {
                    let news = consumer.unpublished() != 0;
                    prop_assert_eq!(consumer.publish(), news);
                    published = consumer.position();
                    let position = producer.position();
                    prop_assert_eq!(producer.consumed(position), Ok(published));
                }
            }
        }
        while let Some(record) = model.pop_front() {
            prop_assert_eq!(receive(&mut consumer), Ok(Some(record)));
        }
        prop_assert_eq!(receive(&mut consumer), Ok(None));
    }

    /// Other ends go on at any moment where these have ended.
    #[test]
    fn other_ends_go_on(size in 8..12u32, steps in steps()) {
        let Ring { ring, words, mut producer, mut consumer } = ring(1 << size);
        let mut model = VecDeque::new();
        for (number, step) in steps.iter().enumerate() {
            match record(step, producer.payload_max()) {
                Some(record) => {
                    if send(&mut producer, &record) == Ok(true) {
                        model.push_back(record);
                    }
                }
                None => prop_assert_eq!(receive(&mut consumer), Ok(model.pop_front())),
            }
            if number % 3 == 0 {
                let position = producer.position();
                producer = Producer::new(ring.clone(), words.clone(), 8);
                prop_assert!(producer.resume_at(position) && !producer.resume_at(position + 4));
                prop_assert!(producer.consumed(position).is_ok());
            }
            if number % 4 == 0 {
                let position = consumer.position();
                consumer = Consumer::new(ring.clone(), words.clone(), 8);
                prop_assert!(consumer.resume_at(position) && !consumer.resume_at(u64::MAX - 7));
                prop_assert_eq!(producer.consumed(position), Ok(position));
            }
        }
    }

    /// An empty ring takes a record of any size at any place.
    #[test]
    fn an_empty_ring_has_room(size in 8..12u32, shapes in prop::collection::vec(steps(), 1..4)) {
        let Ring { mut producer, mut consumer, .. } = ring(1 << size);
        let payload_max = producer.payload_max();
        for record in shapes.iter().flatten().filter_map(|step| record(step, payload_max)) {
            prop_assert_eq!(send(&mut producer, &record), Ok(true));
            prop_assert_eq!(receive(&mut consumer), Ok(Some(record)));
            consumer.publish();
        }
    }
}

/// A word that is likely to do harm: a header with fields of all sizes, or anything.
fn hostile_word() -> impl Strategy<Value = u64> {
    let header =
        (0..4u64, 0..8u64, any::<u32>(), 0..70_000u64).prop_map(|(kind, extra, tag, length)| {
            kind << 62 | extra << 59 | u64::from(tag >> 5) << 32 | length
        });
    prop_oneof![4 => header, 1 => any::<u64>(), 1 => 0..70_000u64, 1 => Just(u64::MAX)]
}

#[derive(Clone, Debug)]
enum Attack {
    Write {
        at: prop::sample::Index,
        word: u64,
    },
    /// A pad that ends where the ring ends, at the consumer's head.
    Pad,
    Consumed {
        word: u64,
    },
    ConsumedNear {
        off: i64,
    },
    Use,
}

fn attacks() -> impl Strategy<Value = Vec<Attack>> {
    prop::collection::vec(
        prop_oneof![
            3 => (any::<prop::sample::Index>(), hostile_word())
                .prop_map(|(at, word)| Attack::Write { at, word }),
            1 => Just(Attack::Pad),
            1 => hostile_word().prop_map(|word| Attack::Consumed { word }),
            1 => (-64..64i64).prop_map(|off| Attack::ConsumedNear { off }),
            4 => Just(Attack::Use),
        ],
        0..if cfg!(miri) { 40 } else { 300 },
    )
}

proptest! {
    #![proptest_config(config(600))]

    /// A producer that writes anything anywhere: the consumer takes arbitrary records or says
    /// `Broken`, and never leaves the ring (a window of exactly the ring's size panics if it does).
    #[test]
    fn a_consumer_survives_a_hostile_producer(size in 8..12u32, attacks in attacks()) {
        let Ring { ring, words, mut consumer, .. } = ring(1 << size);
        for attack in &attacks {
            match *attack {
                Attack::Write { at, word } => {
                    ring.store(at.index(1 << (size - 3)) * 8, word, Ordering::Relaxed);
                }
                Attack::Pad => {
                    let at = consumer.position() % (1 << size);
                    let pad = 3 << 62 | ((1 << size) - at);
                    ring.store(at as usize, pad, Ordering::Relaxed);
                }
                Attack::Consumed { word } => words.store(8, word, Ordering::Relaxed),
                Attack::ConsumedNear { .. } => {}
                Attack::Use => {
                    let before = consumer.position();
                    if let Ok(Some(record)) = receive(&mut consumer) {
                        let bytes = 8 + 8 * record.extra.len() + record.payload.len();
                        prop_assert!(bytes < 1 << size);
                        prop_assert!(consumer.position() > before);
                    }
                    consumer.publish();
                }
            }
        }
    }

    /// A consumer that publishes any position: the producer believes only what can be, and what
    /// has not been consumed for all it knows is never overwritten.
    #[test]
    fn a_producer_survives_a_hostile_consumer(
        size in 8..12u32, attacks in attacks(), steps in steps(),
    ) {
        let Ring { ring, words, mut producer, .. } = ring(1 << size);
        let payload_max = producer.payload_max();
        let mut records = steps.iter().filter_map(|step| record(step, payload_max)).cycle();
        let mut believed = 0;
        for attack in &attacks {
            match *attack {
                Attack::Write { at, word } => {
                    ring.store(at.index(1 << (size - 3)) * 8, word, Ordering::Relaxed);
                }
                Attack::Consumed { word } => words.store(8, word, Ordering::Relaxed),
                Attack::ConsumedNear { off } => {
                    let near = producer.position().wrapping_add_signed(off);
                    words.store(8, near, Ordering::Relaxed);
                }
                Attack::Pad => {
                    let claimed = words.load(8, Ordering::Relaxed);
                    let position = producer.position();
                    let possible = (believed..=position).contains(&claimed);
                    match producer.consumed(position) {
                        Ok(consumed) => {
                            prop_assert!(consumed == believed || (possible && consumed == claimed));
                            believed = consumed;
                        }
                        Err(Broken) => prop_assert!(!possible),
                    }
                }
                Attack::Use => {
                    let Some(record) = records.next() else { continue };
                    let before = producer.position();
                    let claimed = words.load(8, Ordering::Relaxed);
                    if send(&mut producer, &record) == Ok(true) {
                        let bytes = producer.position() - before;
                        // It may have looked at the claim on the way.
                        let known = if (believed..=before).contains(&claimed) {
                            claimed.max(believed)
                        } else {
                            believed
                        };
                        prop_assert!(before + bytes + 8 - known <= 1 << size);
                    }
                    believed = producer.consumed(0).unwrap();
                }
            }
        }
    }
}

/// Two threads, a small ring: everything arrives, in order and intact.
#[test]
fn records_cross_threads_in_order() {
    let rounds: usize = if cfg!(miri) { 60 } else { 300_000 };
    let Ring { mut producer, mut consumer, .. } = ring(1024);
    let payload_max = producer.payload_max();
    let make = move |number: usize| SentRecord {
        tag: number as u32 & 0x7ff_ffff,
        extra: (0..number % 8).map(|index| (number * 31 + index) as u64).collect(),
        payload: vec![number as u8; number * 7 % (payload_max + 1)],
    };
    let sender = std::thread::spawn(move || {
        for number in 0..rounds {
            let record = make(number);
            while !send(&mut producer, &record).unwrap() {
                std::thread::yield_now();
            }
        }
    });
    for number in 0..rounds {
        let record = loop {
            match receive(&mut consumer).unwrap() {
                Some(record) => break record,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(record, make(number));
        if number % 3 == 0 {
            consumer.publish();
        }
        if !consumer.has_news() {
            consumer.publish();
        }
    }
    sender.join().unwrap();
}
