//! Fuzzes both ends of a ring whose other end writes anything anywhere.

use crate::fuzz_input::Script;
use omniverb_ring::shared_atomics::Ordering;
use omniverb_ring::{Consumer, DoorbellPage, Producer, UserMemory, Window, WordMemory};

/// The bytes choose a ring's size and then what its hostile end writes and when the honest ends
/// look. A window of exactly the ring's size panics on any access beside it.
pub fn ring_consumer(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let capacity = 256 << (script.byte() % 6);
    let (incoming, outgoing) = (Window::private(capacity), Window::private(capacity));
    let words = Window::private(64);
    let mut consumer = Consumer::new(incoming.clone(), words.clone(), 0);
    let mut producer = Producer::new(outgoing, words.clone(), 8);
    let bell = DoorbellPage::new(Window::private(omniverb_ring::doorbell::PAGE_BYTES));
    while !script.is_over() {
        match script.byte() % 8 {
            0..=2 => {
                let at = match script.byte() % 2 {
                    0 => script.number(capacity / 8) * 8,
                    _ => (consumer.position() as usize + script.number(8) * 8) % capacity,
                };
                let word = match script.byte() % 2 {
                    // A header, likely to be a good one.
                    0 => 1 << 63 | script.word() << 59 | script.number(capacity) as u64,
                    _ => script.word(),
                };
                incoming.store(at, word, Ordering::Relaxed);
            }
            3 => {
                let position = consumer.position() as usize % capacity;
                let pad = 3 << 62 | (capacity - position) as u64;
                incoming.store(position, pad, Ordering::Relaxed);
            }
            4 => {
                let near = producer.position().wrapping_sub(script.word());
                words.store(8, near, Ordering::Relaxed);
            }
            5 => send(&mut producer, &mut script),
            6 => {
                bell.set_ready(script.word() as u32);
                bell.take_ready(|slot| assert!(slot < omniverb_ring::doorbell::SLOTS));
            }
            _ => take(&mut consumer, &mut script),
        }
    }
}

fn send(producer: &mut Producer<Window>, script: &mut Script<'_>) {
    let extra = usize::from(script.byte() & 7);
    let length = script.number(producer.payload_max() + 1);
    let Ok(Some(at)) = producer.reserve(extra, length) else { return };
    for index in 0..extra {
        producer.extra(at, index, u64::MAX);
    }
    UserMemory::lend(&vec![7; length], |bytes| producer.payload(at, extra, 0, bytes));
    producer.publish(at, 1, extra, length);
    assert!(producer.consumed(0).is_ok_and(|consumed| consumed <= producer.position()));
}

fn take(consumer: &mut Consumer<Window>, script: &mut Script<'_>) {
    let Ok(Some(record)) = consumer.head() else { return };
    for index in 0..record.extra {
        consumer.extra(&record, index);
    }
    let from = script.number(record.length + 1);
    let mut target = vec![0; record.length - from];
    UserMemory::lend_mut(&mut target, |target| consumer.payload(&record, from, target));
    let before = consumer.position();
    consumer.pass(&record);
    assert!(consumer.position() > before);
    if script.byte() % 2 == 0 {
        consumer.publish();
    }
}
