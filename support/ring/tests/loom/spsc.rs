//! Tests one producer and one consumer on a ring so small that it wraps.

use loom::thread;
use omniverb_ring::loom_memory::Words;
use omniverb_ring::{Consumer, Producer, UserMemory};

/// Extra words and payload bytes of a record.
type Shape = (usize, usize);

fn word(record: usize, index: usize) -> u64 {
    0x1000 + record as u64 * 16 + index as u64
}

/// Sends records of these shapes; the consumer publishes after every `batch` of them.
fn check(shapes: &'static [Shape], batch: usize, preemptions: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let (ring, words) = (Words::all(64), Words::at(8, [0]));
        let mut producer = Producer::new(ring.clone(), words.clone(), 0);
        let mut consumer = Consumer::new(ring, words, 0);
        let sender = thread::spawn(move || {
            for (number, &(extra, length)) in shapes.iter().enumerate() {
                let at = loop {
                    match producer.reserve(extra, length) {
                        Ok(Some(at)) => break at,
                        Ok(None) => thread::yield_now(),
                        Err(broken) => panic!("{broken:?}"),
                    }
                };
                for index in 0..extra {
                    producer.extra(at, index, word(number, index));
                }
                let bytes = word(number, 8).to_ne_bytes();
                UserMemory::lend(&bytes[..length], |bytes| producer.payload(at, extra, 0, bytes));
                producer.publish(at, number as u32, extra, length);
            }
        });
        for (number, &(extra, length)) in shapes.iter().enumerate() {
            let record = loop {
                match consumer.head() {
                    Ok(Some(record)) => break record,
                    Ok(None) => thread::yield_now(),
                    Err(broken) => panic!("{broken:?}"),
                }
            };
            assert_eq!((record.tag, record.extra, record.length), (number as u32, extra, length));
            for index in 0..extra {
                assert_eq!(consumer.extra(&record, index), word(number, index));
            }
            let mut bytes = [0; 8];
            UserMemory::lend_mut(&mut bytes[..length], |target| {
                consumer.payload(&record, 0, target);
            });
            assert_eq!(bytes[..length], word(number, 8).to_ne_bytes()[..length]);
            consumer.pass(&record);
            if (number + 1) % batch == 0 {
                consumer.publish();
            }
        }
        sender.join().unwrap();
        assert_eq!(consumer.head(), Ok(None));
    });
}

/// Bytes 0..24, 24..40, a pad, 0..24 again over the first record.
#[test]
fn a_pad_and_the_space_of_the_first_record() {
    check(&[(2, 0), (0, 8), (1, 8)], 1, 3);
}

/// Ends exactly at the end of the ring: the zero behind it goes to its start.
#[test]
fn the_zero_behind_wraps() {
    check(&[(2, 0), (1, 8), (1, 0), (0, 8)], 1, 3);
}

/// More than two laps of records of one word, where payload of earlier laps becomes headers.
#[test]
fn headers_where_payload_was() {
    check(&[(0, 8), (2, 0), (0, 0), (0, 0), (1, 0), (0, 0), (0, 8)], 1, 2);
}

/// The consumer publishes late.
#[test]
fn space_comes_back_in_batches() {
    check(&[(2, 0), (0, 8), (1, 8), (0, 0), (0, 8), (0, 0)], 2, 2);
}

/// Payload over payload that the consumer must have copied out.
#[test]
fn payload_where_payload_was() {
    check(&[(0, 8), (0, 8), (0, 8), (0, 8), (0, 8)], 1, 2);
}
