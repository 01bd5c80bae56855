//! Tests what a process traces through its ring while packets are captured.

use omniverb_link::Broken;
use omniverb_link::captured_operations_ring::{
    Key, Kind, PIECE, TRACE_BYTES, TRACE_RING_BYTES, Trace, TraceReader, Tracer,
};
use omniverb_ring::shared_atomics::Ordering;
use omniverb_ring::{UserMemory, Window, WordMemory};
use omniverb_terms::{Psn, Qkey, Qpn, Rkey};
use proptest::prelude::*;

fn some() -> Trace {
    Trace {
        kind: Kind::Write,
        flags: 1 << 10,
        time: 77,
        qpn: Qpn(0xab_cdef),
        peer_qpn: Qpn(0x12_3456),
        path_mtu: 3,
        code: 9,
        psn: Psn::MAX,
        messages: 0x80_0001,
        keep: 4096,
        address: u64::MAX,
        key: Key::Remote(Rkey(0xdead_beef)),
        immediate: 0xcafe_f00d,
        first: 5,
        second: 0,
    }
}

#[test]
fn traces_are_read_as_written() {
    let memory = Window::private(TRACE_BYTES);
    let tracer = Tracer::new(&memory).unwrap();
    let mut reader = TraceReader::new(&memory).unwrap();
    assert_eq!(reader.take(), Ok(None));
    reader.want(100_000);
    assert_eq!(tracer.keep(), 4096);
    let told = UserMemory::lend(b"hello", |bytes| {
        tracer.record(&some(), 5, &[bytes.first(2), UserMemory::EMPTY, bytes.skip(2)])
    });
    assert!(told);
    assert_eq!(reader.take(), Ok(Some((some(), &b"hello"[..]))));
    assert_eq!(reader.take(), Ok(None));
    assert!(Tracer::new(&Window::private(TRACE_BYTES - 1)).is_none());
}

#[test]
fn the_key_of_a_datagram_is_one_of_a_queue_pair() {
    let memory = Window::private(TRACE_BYTES);
    let tracer = Tracer::new(&memory).unwrap();
    let mut reader = TraceReader::new(&memory).unwrap();
    let datagram = Trace { kind: Kind::Datagram, key: Key::Queue(Qkey(0x99)), ..some() };
    let read = Trace { kind: Kind::Read, key: Key::Remote(Rkey(0x99)), ..some() };
    for told in [datagram, read] {
        assert!(tracer.record(&told, 0, &[]));
        assert_eq!(reader.take(), Ok(Some((told, &[][..]))));
    }
}

#[test]
fn a_full_ring_loses_and_goes_on_when_it_was_read() {
    let memory = Window::private(TRACE_BYTES);
    let tracer = Tracer::new(&memory).unwrap();
    let mut reader = TraceReader::new(&memory).unwrap();
    let bytes = vec![7; PIECE as usize];
    let tell = || UserMemory::lend(&bytes, |bytes| tracer.record(&some(), bytes.len(), &[bytes]));
    let mut told = 0;
    while tell() {
        told += 1;
    }
    tracer.lose(3);
    assert!(told > TRACE_RING_BYTES / (PIECE as usize + 100) - 2, "{told}");
    assert_eq!(reader.lost(), 3);
    for _ in 0..told {
        assert_eq!(reader.take().unwrap().unwrap().1, &bytes[..]);
    }
    assert!(!tell(), "not given back yet");
    reader.publish();
    assert!(tell());
    assert!(reader.take().unwrap().is_some());
}

proptest! {
    /// Whatever is in the memory, reading ends, and what comes out is within bounds.
    #[test]
    fn nothing_in_the_ring_is_believed(words in proptest::collection::vec(any::<u64>(), 1..64)) {
        let memory = Window::private(TRACE_BYTES);
        for (index, word) in words.iter().enumerate() {
            // Some look like headers.
            let header = index % 9 == 0;
            let word = if header { word & 0x1fff | 7 << 59 | 1 << 63 | 2 << 32 } else { *word };
            memory.store(4096 + 8 * index, word, Ordering::Relaxed);
        }
        let mut reader = TraceReader::new(&memory).unwrap();
        for _ in 0..words.len() {
            match reader.take() {
                Ok(Some((_, payload))) => prop_assert!(payload.len() as u64 <= PIECE),
                Ok(None) | Err(Broken) => break,
            }
        }
    }
}
