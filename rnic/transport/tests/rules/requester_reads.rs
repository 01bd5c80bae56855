//! Rules for the requester: READs and atomics, and what their answers do.

use crate::scripted_upper_layer::*;
use omniverb_transport::{Config, Event, PlaceOutcome, Request, RequestId, Status};
use omniverb_wire::{Aeth, AtomicAckEth, CREDITS_INVALID, PacketPosition, Syndrome};

fn atomic_result(psn: u32, original: u64) -> HandmadePacket {
    let aeth = Some(Aeth::new(Syndrome::Ack(CREDITS_INVALID), 0));
    let result = Some(AtomicAckEth::new(original));
    make(ATOMIC_ACKNOWLEDGE, psn, PacketParts { aeth, result, ..PacketParts::default() })
}

#[test]
fn unrequested_answers_are_ignored() {
    let mut end = end();
    end.submit(1, SEND, 1);
    end.receive(&ack(1000)); // not sent yet
    end.sent();
    for (psn, syndrome) in [(1001, 0x1f), (1001, 0x62), (999, 0x62), (1000, 0x65), (1000, 0x40)] {
        end.receive(&acknowledge(psn, syndrome));
    }
    end.receive(&read_data(READ_RESPONSE_ONLY, 1000, 1));
    end.receive(&atomic_result(1000, 1));
    assert_eq!(end.events(), []);
    end.receive(&ack(1000));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn reads_are_placed_and_acknowledge_what_is_before_them() {
    let mut end = end();
    end.submit(1, SEND, 1);
    end.submit(2, READ, 600);
    end.submit(3, READ, 0);
    assert_eq!(
        end.sent(),
        [
            "SEND-ONLY psn 1000 ask",
            "READ-REQUEST psn 1001 ask 0x1000+600 rkey 0x7",
            "READ-REQUEST psn 1004 ask 0x1000+0 rkey 0x7"
        ]
    );
    end.receive(&read_data(READ_RESPONSE_FIRST, 1001, 256));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    end.receive(&read_data(READ_RESPONSE_MIDDLE, 1002, 256));
    end.receive(&read_data(READ_RESPONSE_LAST, 1003, 88));
    end.receive(&read_data(READ_RESPONSE_ONLY, 1004, 0));
    assert_eq!(end.statuses(), [(2, Status::Success), (3, Status::Success)]);
    assert_eq!(end.script.take_log(), ["place 2 0+256", "place 2 256+256", "place 2 512+88"]);
}

#[test]
fn a_missing_read_answer_is_asked_for_from_where_it_is_missing() {
    let mut end = end();
    end.submit(1, READ, 1000);
    end.submit(2, SEND, 1);
    end.sent();
    end.receive(&read_data(READ_RESPONSE_FIRST, 1000, 256));
    end.receive(&read_data(READ_RESPONSE_MIDDLE, 1002, 256));
    end.receive(&read_data(READ_RESPONSE_LAST, 1003, 232));
    assert_eq!(
        end.sent(),
        ["READ-REQUEST psn 1001 ask 0x1100+744 rkey 0x7", "SEND-ONLY psn 1004 ask"]
    );
    // An acknowledgement from beyond says the same, but nothing new.
    end.receive(&ack(1004));
    assert_eq!(end.sent(), [""; 0]);
    end.receive(&read_data(READ_RESPONSE_FIRST, 1001, 256));
    end.receive(&ack(1004));
    assert_eq!(
        end.sent(),
        ["READ-REQUEST psn 1002 ask 0x1200+488 rkey 0x7", "SEND-ONLY psn 1004 ask"]
    );
    end.receive(&read_data(READ_RESPONSE_FIRST, 1002, 256));
    end.receive(&read_data(READ_RESPONSE_LAST, 1003, 232));
    end.receive(&ack(1004));
    assert_eq!(end.statuses(), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn a_read_answer_of_a_wrong_length_fails() {
    for payload in [0, 255, 257] {
        let mut end = end();
        end.submit(1, READ, 256);
        end.sent();
        end.receive(&read_data(READ_RESPONSE_ONLY, 1000, payload));
        assert_eq!(end.statuses(), [(1, Status::BadResponse)], "{payload}");
    }
}

#[test]
fn read_data_without_room_are_asked_for_again() {
    let mut end = end();
    end.submit(1, READ, 512);
    end.sent();
    end.script.placements.extend([PlaceOutcome::Done, PlaceOutcome::Full]);
    end.receive(&read_data(READ_RESPONSE_FIRST, 1000, 256));
    end.receive(&read_data(READ_RESPONSE_LAST, 1001, 256));
    assert_eq!(end.sent(), [""; 0]);
    end.connection.resume(end.now);
    assert_eq!(end.sent(), ["READ-REQUEST psn 1001 ask 0x1100+256 rkey 0x7"]);
    end.receive(&read_data(READ_RESPONSE_ONLY, 1001, 256));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn only_so_many_reads_and_atomics_are_under_way() {
    let mut end = End::new(Config { max_rd_atomic: 2, ..config() });
    for id in 0..3 {
        end.submit(id, ADD, 8);
    }
    end.submit(3, SEND, 1);
    assert_eq!(
        end.sent(),
        [
            "FETCH-ADD psn 1000 ask 0x2000 rkey 0x7 add 0x1",
            "FETCH-ADD psn 1001 ask 0x2000 rkey 0x7 add 0x1"
        ]
    );
    end.receive(&atomic_result(1000, 40));
    assert_eq!(
        end.sent(),
        ["FETCH-ADD psn 1002 ask 0x2000 rkey 0x7 add 0x1", "SEND-ONLY psn 1003 ask"]
    );
    let event = Event::Completed { id: RequestId(0), status: Status::Success, original: Some(40) };
    assert_eq!(end.events(), [event]);
    // The answer to 1001 is lost: it goes out again unchanged, with all that follows.
    end.receive(&atomic_result(1002, 42));
    assert_eq!(
        end.sent(),
        [
            "FETCH-ADD psn 1001 ask 0x2000 rkey 0x7 add 0x1",
            "FETCH-ADD psn 1002 ask 0x2000 rkey 0x7 add 0x1",
            "SEND-ONLY psn 1003 ask"
        ]
    );
}

#[test]
fn a_fence_waits_for_reads() {
    let mut end = end();
    end.submit(1, READ, 10);
    let id = RequestId(2);
    let request = Request {
        id,
        operation: SEND,
        srq: 0,
        length: 1,
        place: PacketPosition::Only,
        is_fenced: true,
    };
    end.connection.submit(request).unwrap();
    assert_eq!(end.sent(), ["READ-REQUEST psn 1000 ask 0x1000+10 rkey 0x7"]);
    end.receive(&read_data(READ_RESPONSE_ONLY, 1000, 10));
    assert_eq!(end.sent(), ["SEND-ONLY psn 1001 ask"]);
}

#[test]
fn memory_that_is_gone_fails_the_read() {
    let mut end = end();
    end.submit(1, SEND, 1);
    end.submit(2, READ, 10);
    end.submit(3, SEND, 1);
    end.sent();
    end.script.placements.push_back(PlaceOutcome::Failed);
    end.receive(&read_data(READ_RESPONSE_ONLY, 1001, 10));
    let expected = [(1, Status::Success), (2, Status::LocalProtection), (3, Status::Flushed)];
    assert_eq!(end.statuses(), expected);
}
