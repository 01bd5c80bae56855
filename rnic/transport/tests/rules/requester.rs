//! Rules for the requester: how messages are cut, how many packets leave, and when one asks.

use crate::scripted_upper_layer::*;
use omniverb_terms::Rkey;
use omniverb_transport::{
    AddressedPackets, Config, Ecn, GatherOutcome, MESSAGE_MAX, Operation, Request, RequestId,
    Status, SubmitError,
};
use omniverb_wire::{Packet, PacketPosition, write_notification};

#[test]
fn messages_are_cut_and_completed_in_order() {
    let mut end = end();
    end.submit(1, SEND, 600);
    end.submit(2, SEND, 0);
    let write = |total| Operation::Write {
        address: 0x9000,
        key: Rkey(7),
        total,
        immediate: Some([1; 4]),
        solicited: true,
    };
    end.submit(3, write(256), 256);
    end.submit(4, write(257), 257);
    let expected = [
        "SEND-FIRST psn 1000",
        "SEND-MIDDLE psn 1001",
        "SEND-LAST psn 1002 ask",
        "SEND-ONLY psn 1003 ask",
    ];
    let more = [
        "WRITE-ONLY-IMM psn 1004 solicited ask 0x9000+256 rkey 0x7 imm 01010101",
        "WRITE-FIRST psn 1005 0x9000+257 rkey 0x7",
        "WRITE-LAST-IMM psn 1006 solicited ask imm 01010101",
    ];
    assert_eq!(end.sent(), [&expected[..], &more[..]].concat());
    end.receive(&ack(1003));
    assert_eq!(end.statuses(), [(1, Status::Success), (2, Status::Success)]);
    end.receive(&ack(1006));
    assert_eq!(end.statuses(), [(3, Status::Success), (4, Status::Success)]);
    assert_eq!(end.connection.poll_timeout(), None);
}

#[test]
fn pieces_of_one_message() {
    let mut end = end();
    for (id, place, length) in [
        (1, PacketPosition::First, 512),
        (2, PacketPosition::Middle, 256),
        (3, PacketPosition::Last, 5),
    ] {
        let request =
            Request { id: RequestId(id), operation: SEND, srq: 0, length, place, is_fenced: false };
        end.connection.submit(request).unwrap();
    }
    assert_eq!(
        end.sent(),
        [
            "SEND-FIRST psn 1000",
            "SEND-MIDDLE psn 1001 ask",
            "SEND-MIDDLE psn 1002 ask",
            "SEND-LAST psn 1003 ask"
        ]
    );
    end.receive(&ack(1001));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    let place = PacketPosition::First;
    let request =
        Request { id: RequestId(4), operation: SEND, srq: 0, length: 100, place, is_fenced: false };
    assert!(end.connection.submit(request).is_err());
}

#[test]
fn a_send_in_pieces_is_no_longer_than_a_message() {
    let mut end = end();
    let mut submit = |id, place, length| {
        let (operation, is_fenced) = (SEND, false);
        let request = Request { id: RequestId(id), operation, srq: 0, length, place, is_fenced };
        end.connection.submit(request)
    };
    assert_eq!(submit(1, PacketPosition::First, MESSAGE_MAX - 512), Ok(()));
    assert_eq!(submit(2, PacketPosition::Middle, 256), Ok(()));
    for (place, length) in [(PacketPosition::Middle, 512), (PacketPosition::Last, 257)] {
        assert_eq!(submit(3, place, length), Err(SubmitError::Length));
    }
    assert_eq!(submit(3, PacketPosition::Middle, 256), Ok(()));
    assert_eq!(submit(4, PacketPosition::Middle, 256), Err(SubmitError::Length), "endless");
}

#[test]
fn the_window_is_kept_and_its_last_packet_asks() {
    let mut end = End::new(Config { window: 8, ..config() });
    end.submit(1, SEND, 256 * 20);
    let sent = end.sent();
    assert_eq!(sent.len(), 8);
    assert_eq!(sent[7], "SEND-MIDDLE psn 1007 ask");
    end.receive(&ack(1007));
    assert_eq!(end.sent().len(), 8);
}

#[test]
fn a_notification_narrows_the_window() {
    let mut end = end();
    let before = end.connection.counters().window;
    let mut datagram = [0; 64];
    let length = write_notification(&mut datagram, ME).unwrap();
    let packet = Packet::parse(&datagram[..length]).unwrap();
    end.connection.handle_packet(end.now, &packet, Ecn::Unmarked, &mut end.script);
    assert_eq!(end.connection.counters().window, before / 2);
}

fn write(total: u64, immediate: Option<[u8; 4]>) -> Operation {
    Operation::Write { address: 0x9000, key: Rkey(7), total, immediate, solicited: false }
}

#[test]
fn every_packet_of_a_write_may_name_what_is_left() {
    let mut end = End::new(Config { naming: AddressedPackets::Every, ..config() });
    end.submit(1, write(600, None), 600);
    end.submit(2, write(600, Some([1; 4])), 600);
    let first = [
        "WRITE-FIRST psn 1000 0x9000+600 rkey 0x7",
        "WRITE-FIRST psn 1001 0x9100+344 rkey 0x7",
        "WRITE-ONLY psn 1002 ask 0x9200+88 rkey 0x7",
    ];
    let second = [
        "WRITE-FIRST psn 1003 0x9000+600 rkey 0x7",
        "WRITE-FIRST psn 1004 0x9100+344 rkey 0x7",
        "WRITE-ONLY-IMM psn 1005 ask 0x9200+88 rkey 0x7 imm 01010101",
    ];
    assert_eq!(end.sent(), [first, second].concat());
    end.receive(&sequence_nak(1001)); // lost in the middle
    assert_eq!(end.sent()[..2], first[1..]);
    end.receive(&ack(1005));
    assert_eq!(end.statuses(), [(1, Status::Success), (2, Status::Success)]);
    // In pieces, each of which knows where it stands.
    for (id, place, length) in [(3, PacketPosition::First, 512), (4, PacketPosition::Last, 88)] {
        let operation = write(600, None);
        let request =
            Request { id: RequestId(id), operation, srq: 0, length, place, is_fenced: false };
        end.connection.submit(request).unwrap();
    }
    let pieces = [
        "WRITE-FIRST psn 1006 0x9000+600 rkey 0x7",
        "WRITE-FIRST psn 1007 ask 0x9100+344 rkey 0x7",
        "WRITE-ONLY psn 1008 ask 0x9200+88 rkey 0x7",
    ];
    assert_eq!(end.sent(), pieces);
}

#[test]
fn a_burst_waits_until_it_is_worth_a_system_call() {
    let mut end = End::new(Config { burst: 16, ..config() });
    end.submit(1, SEND, 256 * 100);
    assert_eq!(end.sent().len(), 32);
    end.receive(&ack(1003));
    assert!(end.sent().is_empty(), "room for 8, and a quarter of the window is 9");
    end.receive(&ack(1007));
    assert_eq!(end.sent().len(), 16, "and the window has grown");
    let mut end = End::new(Config { burst: 16, ..config() });
    end.submit(1, SEND, 256 * 36);
    assert_eq!(end.sent().len(), 32);
    end.receive(&ack(1003));
    assert_eq!(end.sent().len(), 4, "all there are");
}

#[test]
fn an_acknowledgement_is_asked_for_at_the_end_of_what_there_is() {
    let mut end = End::new(Config { ask_every: Some(64), ..config() });
    for id in 0..3 {
        end.submit(id, SEND, 1);
    }
    assert_eq!(end.sent(), ["SEND-ONLY psn 1000", "SEND-ONLY psn 1001", "SEND-ONLY psn 1002 ask"]);
    end.submit(3, SEND, 256 * 40);
    let asked: Vec<usize> =
        (0..).zip(end.sent()).filter(|(_, p)| p.contains("ask")).map(|(at, _)| at).collect();
    assert_eq!(asked, [15, 28], "every 16, and where the window ends");
}

#[test]
fn an_acknowledgement_is_asked_for_before_what_may_have_to_wait() {
    let mut end = End::new(Config { ask_every: Some(64), ..config() });
    end.submit(1, SEND, 256 * 20);
    end.submit(2, SEND, 1);
    // It waits for half of the window, and nothing else would move that on.
    end.submit(3, READ, 256 * 100);
    assert_eq!(end.sent().last().unwrap(), "SEND-ONLY psn 1020 ask");
    end.receive(&ack(1020));
    assert_eq!(end.sent().len(), 1);
}

#[test]
fn an_operation_begins_with_a_permit_and_goes_on_without() {
    let mut end = end();
    end.connection.operations().require();
    end.submit(1, SEND, 600);
    end.submit(2, SEND, 0);
    assert!(end.sent().is_empty() && end.connection.operations().is_awaited());
    end.connection.operations().give();
    let first = ["SEND-FIRST psn 1000", "SEND-MIDDLE psn 1001", "SEND-LAST psn 1002 ask"];
    assert_eq!(end.sent(), first, "the next one may wait for long: this one asks");
    assert!(end.connection.operations().is_awaited());
    // What is sent again has begun.
    end.receive(&sequence_nak(1001));
    assert_eq!(end.sent(), first[1..]);
    // A permit is for one, and is not lost while nothing can be sent.
    end.connection.operations().give();
    end.script.gathers.push_back(GatherOutcome::Later);
    assert_eq!(end.sent(), ["SEND-ONLY psn 1003 ask"]);
    end.submit(3, SEND, 1);
    end.connection.operations().give();
    assert!(end.sent().is_empty() && !end.connection.operations().is_awaited());
    end.connection.resume(end.now);
    assert_eq!(end.sent(), ["SEND-ONLY psn 1004 ask"]);
    // Pieces of one message are one operation, and a READ is one.
    for (id, place, length) in [(4, PacketPosition::First, 256), (5, PacketPosition::Last, 5)] {
        let request =
            Request { id: RequestId(id), operation: SEND, srq: 0, length, place, is_fenced: false };
        end.connection.submit(request).unwrap();
    }
    end.submit(6, Operation::Read { address: 0x9000, key: Rkey(7) }, 600);
    end.connection.operations().give();
    assert_eq!(end.sent(), ["SEND-FIRST psn 1005 ask", "SEND-LAST psn 1006 ask"]);
    end.connection.operations().give();
    assert_eq!(end.sent().len(), 1);
    end.submit(7, SEND, 0);
    assert!(end.sent().is_empty());
    end.connection.operations().lift();
    assert_eq!(end.sent(), ["SEND-ONLY psn 1010 ask"]);
    assert!(!end.connection.operations().is_awaited());
}
