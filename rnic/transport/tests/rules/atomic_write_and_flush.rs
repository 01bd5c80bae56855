//! Rules for what is executed once and finds nothing: ATOMIC WRITE and FLUSH (A19). Both are
//! answered like a READ of nothing.

use crate::scripted_upper_layer::*;
use omniverb_terms::{Placement, Refusal, Rkey, Selectivity};
use omniverb_transport::{
    Config, Delivery, Event, LateAnswer, Operation, Request, RequestId, Status, SubmitError,
};
use omniverb_wire::{Feth, PacketPosition, Reth};

const VALUE: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

const EIGHT: Operation = Operation::AtomicWrite { address: 0x2000, key: Rkey(7), value: VALUE };

fn flush_of(selectivity: Selectivity) -> Operation {
    let placement = Placement::GLOBAL;
    Operation::Flush { address: 0x4000, key: Rkey(7), length: 300, placement, selectivity }
}

fn flush(psn: u32, bits: u8) -> HandmadePacket {
    let placement = Placement::from_bits(bits & 0xf).unwrap();
    let selectivity = if bits & 0x10 == 0 { Selectivity::Range } else { Selectivity::Region };
    let flush = Some(Feth::new(placement, selectivity));
    let reth = Some(Reth::new(0x4000, Rkey(7), 300));
    make(FLUSH, psn, PacketParts { ask: true, flush, reth, ..PacketParts::default() })
}

/// A FLUSH without any placement.
fn made_of_nothing() -> HandmadePacket {
    let HandmadePacket(mut bytes) = flush(500, 1);
    bytes[15] = 0;
    HandmadePacket(bytes)
}

fn eight(psn: u32, address: u64, length: u32, payload: usize) -> HandmadePacket {
    let reth = Some(Reth::new(address, Rkey(7), length));
    make(ATOMIC_WRITE, psn, PacketParts { ask: true, reth, payload, ..PacketParts::default() })
}

#[test]
fn both_ask_and_are_over_when_nothing_was_read() {
    let mut end = end();
    end.submit(1, SEND, 1);
    end.submit(2, EIGHT, 8);
    end.submit(3, flush_of(Selectivity::Range), 0);
    end.submit(4, flush_of(Selectivity::Region), 0);
    assert_eq!(
        end.sent(),
        [
            "SEND-ONLY psn 1000 ask",
            "ATOMIC-WRITE psn 1001 ask 0x2000+8 rkey 0x7",
            "FLUSH psn 1002 ask global 0x4000+300 rkey 0x7",
            "FLUSH psn 1003 ask global region 0x4000+300 rkey 0x7"
        ]
    );
    // An acknowledgement is no answer to them.
    end.receive(&ack(1003));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert_eq!(end.sent().len(), 3, "they are asked for anew");
    for psn in 1001..1004 {
        end.receive(&read_data(READ_RESPONSE_ONLY, psn, 0));
    }
    let over = [(2, Status::Success), (3, Status::Success), (4, Status::Success)];
    assert_eq!(end.statuses(), over);
}

#[test]
fn an_answer_with_data_is_a_bad_one() {
    for operation in [(EIGHT, 8), (flush_of(Selectivity::Range), 0)] {
        let mut end = end();
        end.submit(1, operation.0, operation.1);
        end.sent();
        end.receive(&read_data(READ_RESPONSE_ONLY, 1000, 8));
        assert_eq!(end.statuses(), [(1, Status::BadResponse)]);
    }
}

#[test]
fn no_more_are_under_way_than_agreed_on() {
    let mut end = End::new(Config { max_rd_atomic: 1, ..config() });
    end.submit(1, EIGHT, 8);
    end.submit(2, flush_of(Selectivity::Range), 0);
    assert_eq!(end.sent(), ["ATOMIC-WRITE psn 1000 ask 0x2000+8 rkey 0x7"]);
    end.receive(&read_data(READ_RESPONSE_ONLY, 1000, 0));
    assert_eq!(end.sent().len(), 1);
}

#[test]
fn lengths_that_are_none() {
    let mut end = end();
    for (operation, length) in [(EIGHT, 7), (EIGHT, 16), (flush_of(Selectivity::Range), 1)] {
        let (id, place) = (RequestId(1), PacketPosition::Only);
        let request = Request { id, operation, srq: 0, length, place, is_fenced: false };
        assert_eq!(end.connection.submit(request), Err(SubmitError::Sequence));
    }
}

#[test]
fn executed_once_and_answered_as_often_as_asked() {
    let mut end = end();
    for (packet, what) in
        [(eight(500, 0x2000, 8, 8), "atomic 2000"), (flush(501, 1), "flush 4000 300")]
    {
        end.receive(&packet);
        assert_eq!(end.script.take_log(), [what]);
        let answer = end.sent();
        assert_eq!(answer.len(), 1);
        for _ in 0..2 {
            end.receive(&packet);
            assert_eq!(end.sent(), answer, "the same again");
        }
        assert_eq!(end.script.take_log(), [""; 0]);
    }
    end.receive(&send(502, 1));
    assert_eq!(end.sent(), ["ACK psn 502 msn 3"]);
}

#[test]
fn a_forgotten_duplicate_is_not_executed_again() {
    let mut end = End::new(Config { max_dest_rd_atomic: 1, ..config() });
    end.receive(&flush(500, 1));
    assert_eq!(end.sent(), ["READ-RESPONSE-ONLY psn 500 msn 1"]);
    end.receive(&eight(501, 0x2000, 8, 8));
    assert_eq!(end.sent(), ["READ-RESPONSE-ONLY psn 501 msn 2"]);
    end.script.take_log();
    end.receive(&flush(500, 1));
    assert_eq!((end.sent(), end.script.take_log()), (vec![], vec![]));
}

#[test]
fn late_answers_are_sent_in_order() {
    let mut end = end();
    end.script.answers.extend([Delivery::Later, Delivery::Later, Delivery::Later]);
    end.receive(&eight(500, 0x2000, 8, 8));
    end.receive(&flush(501, 0x11));
    end.receive(&flush(502, 2));
    let tickets = end.script.tickets.clone();
    end.connection.answer(tickets[1], LateAnswer::Original(0));
    assert_eq!(end.sent(), [""; 0], "in order");
    // What says that parts of messages are done says nothing of these.
    end.connection.done_through(tickets[2]);
    assert_eq!(end.sent(), [""; 0]);
    end.connection.answer(tickets[0], LateAnswer::Original(0));
    end.connection.answer(tickets[2], LateAnswer::Refused(Refusal::RemoteAccess));
    assert_eq!(
        end.sent(),
        [
            "READ-RESPONSE-ONLY psn 500 msn 1",
            "READ-RESPONSE-ONLY psn 501 msn 2",
            "NAK remote access psn 502 msn 2"
        ]
    );
    assert_eq!(end.events(), [Event::Refused(Refusal::RemoteAccess)]);
}

#[test]
fn malformed_calls_are_refused() {
    let bad = [
        eight(500, 0x2004, 8, 8),
        eight(500, 0x2000, 4, 8),
        eight(500, 0x2000, 8, 4),
        eight(500, 0x2000, 8, 12),
        made_of_nothing(),
    ];
    for packet in bad {
        let mut end = end();
        end.receive(&packet);
        assert_eq!(end.sent(), ["NAK invalid request psn 500 msn 0"]);
        assert_eq!(end.script.take_log(), [""; 0]);
    }
    for packet in [eight(501, 0x2000, 8, 8), flush(501, 1)] {
        let mut end = end();
        end.receive(&write(WRITE_FIRST, 500, Some(300), MTU));
        end.sent();
        end.receive(&packet);
        assert_eq!(end.sent().last().unwrap(), "NAK invalid request psn 501 msn 0");
    }
}
