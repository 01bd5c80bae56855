//! Rules for the responder: which packets are taken, and what it says of them.

use crate::scripted_upper_layer::*;
use omniverb_terms::{Psn, Refusal, Rkey};
use omniverb_transport::{
    Acknowledgements, AddressedPackets, Config, DelayNotices, Delivery, Ecn, Event,
};
use omniverb_wire::{AtomicEth, ImmDt, Reth};

#[test]
fn one_acknowledgement_for_a_batch() {
    let mut end = end();
    for psn in 500..503 {
        end.receive(&send(psn, 10));
    }
    assert_eq!(end.sent(), ["ACK psn 502 msn 3"]);
    // Unasked, after 32 packets at the latest.
    for psn in 503..534 {
        end.receive(&make(SEND_ONLY, psn, PacketParts::default()));
        assert_eq!(end.sent(), [""; 0]);
    }
    end.receive(&make(SEND_ONLY, 534, PacketParts::default()));
    assert_eq!(end.sent(), ["ACK psn 534 msn 35"]);
}

#[test]
fn one_nak_per_gap_until_the_missing_packet_is_here() {
    let mut end = end();
    end.receive(&send(502, 10));
    end.receive(&send(503, 10));
    assert_eq!(end.sent(), ["NAK sequence psn 500 msn 0"]);
    end.receive(&send(504, 10));
    assert_eq!(end.sent(), [""; 0]);
    end.receive(&send(500, 10));
    assert_eq!(end.sent(), ["ACK psn 500 msn 1"]);
    end.receive(&send(503, 10));
    assert_eq!(end.sent(), ["NAK sequence psn 501 msn 1"]);
    assert_eq!(end.script.take_log(), ["send Only 0+10"]);
}

#[test]
fn a_duplicate_is_acknowledged_and_not_executed() {
    let mut end = end();
    end.receive(&send(500, 10));
    end.receive(&send(501, 10));
    end.sent();
    end.receive(&send(500, 10));
    end.receive(&write(WRITE_ONLY, 499, Some(4), 4));
    assert_eq!(end.sent(), ["ACK psn 501 msn 2"]);
    assert_eq!(end.script.take_log().len(), 2);
}

#[test]
fn no_receive_is_said_once_and_the_packet_is_taken_when_it_comes_again() {
    let mut end = end();
    end.script.answers.push_back(Delivery::NotReady);
    end.receive(&send(500, 10));
    end.receive(&send(501, 10));
    assert_eq!(end.sent(), ["RNR-NAK timer 12 psn 500 msn 0"]);
    end.receive(&send(502, 10));
    assert_eq!(end.sent(), [""; 0]);
    end.receive(&send(500, 10));
    end.receive(&send(501, 10));
    assert_eq!(end.sent(), ["ACK psn 501 msn 2"]);
    // What came behind it was no gap of the network's.
    let counters = end.connection.counters();
    assert_eq!((counters.not_ready_said, counters.out_of_order), (1, 0));
    end.receive(&send(503, 10));
    end.receive(&send(504, 10));
    assert_eq!(end.connection.counters().out_of_order, 1, "one gap");
}

#[test]
fn a_late_receive_is_announced_once_to_the_refused_sender() {
    let mut end = End::new(Config { delay_notices: DelayNotices::Agreed, ..config() });
    end.connection.receive_came();
    assert_eq!(end.sent(), [""; 0]);
    let missing = "RNR-NAK timer 12 psn 500 msn 0";
    end.script.answers.extend([Delivery::NotReady, Delivery::NotReady]);
    end.receive(&send(500, 10));
    assert_eq!(end.sent(), [missing]);
    end.connection.receive_came();
    end.connection.receive_came();
    assert_eq!(end.sent(), ["CNP delay 0 us"]);
    // It came before the word that it is missing left: that goes first.
    end.receive(&send(500, 10));
    end.connection.receive_came();
    assert_eq!(end.sent(), [missing, "CNP delay 0 us"]);
    end.receive(&send(500, 10));
    end.connection.receive_came();
    assert_eq!(end.sent(), ["ACK psn 500 msn 1"]);
    // Others would not understand.
    let mut end = self::end();
    end.script.answers.push_back(Delivery::NotReady);
    end.receive(&send(500, 10));
    end.connection.receive_came();
    assert_eq!(end.sent(), [missing]);
}

#[test]
fn only_the_immediate_data_of_a_write_take_a_receive() {
    let mut end = end();
    end.receive(&write(WRITE_FIRST, 500, Some(300), 256));
    end.script.answers.push_back(Delivery::NotReady);
    let immediate = Some(ImmDt([1, 2, 3, 4]));
    end.receive(&make(
        WRITE_LAST_IMM,
        501,
        PacketParts { ask: true, immediate, payload: 44, ..PacketParts::default() },
    ));
    assert_eq!(end.sent(), ["ACK psn 500 msn 0", "RNR-NAK timer 12 psn 501 msn 0"]);
    end.receive(&make(
        WRITE_LAST_IMM,
        501,
        PacketParts { ask: true, immediate, payload: 44, ..PacketParts::default() },
    ));
    assert_eq!(end.sent(), ["ACK psn 501 msn 1"]);
    let log = end.script.take_log();
    assert_eq!(log[0], "write 4000 7 300 First 0+256");
    assert_eq!(log[2], "write 4000 7 300 Last 256+44");
}

#[test]
fn a_packet_in_the_middle_of_a_write_may_name_exactly_what_is_left() {
    let first = write(WRITE_FIRST, 500, Some(600), 256);
    let named = |code, psn, (address, key, left), payload| {
        let reth = Some(Reth::new(address, Rkey(key), left));
        make(code, psn, PacketParts { ask: true, reth, payload, ..PacketParts::default() })
    };
    // Also to who has not heard that its peer names them, and names none itself.
    for naming in [AddressedPackets::Every, AddressedPackets::First] {
        let mut end = End::new(Config { naming, ..config() });
        end.receive(&first);
        end.receive(&named(WRITE_FIRST, 501, (0x4100, 7, 344), 256));
        end.receive(&named(WRITE_ONLY, 502, (0x4200, 7, 88), 88));
        assert_eq!(end.sent(), ["ACK psn 502 msn 1"]);
        let parts = ["First 0+256", "Middle 256+256", "Last 512+88"];
        assert_eq!(end.script.take_log(), parts.map(|part| format!("write 4000 7 600 {part}")));
    }
    // Anything else is a message within a message.
    for reth in [(0x4101, 7, 344), (0x4100, 8, 344), (0x4100, 7, 345), (0x4000, 7, 600)] {
        let mut end = end();
        end.receive(&first);
        end.receive(&named(WRITE_FIRST, 501, reth, 256));
        assert_eq!(
            end.sent(),
            ["ACK psn 500 msn 0", "NAK invalid request psn 501 msn 0"],
            "{reth:x?}"
        );
    }
}

/// What is invalid, after the packets that lead up to it.
#[test]
fn invalid_requests_are_refused() {
    let long = Some(Reth::new(0, Rkey(7), u32::MAX));
    let odd = Some(AtomicEth::new(0x2004, Rkey(7), 1, 1));
    let reth = |total| Some(Reth::new(0x4000, Rkey(7), total));
    let parts = |payload, reth| PacketParts { payload, reth, ..PacketParts::default() };
    let cases = [
        ("MIDDLE without FIRST", vec![], make(SEND_MIDDLE, 500, parts(256, None))),
        ("LAST without FIRST", vec![], make(SEND_LAST, 500, parts(1, None))),
        ("WRITE LAST without FIRST", vec![], make(WRITE_LAST, 500, parts(1, None))),
        ("ONLY inside", vec![make(SEND_FIRST, 500, parts(256, None))], send(501, 1)),
        (
            "WRITE inside SEND",
            vec![make(SEND_FIRST, 500, parts(256, None))],
            make(WRITE_LAST, 501, parts(1, None)),
        ),
        ("READ inside", vec![make(SEND_FIRST, 500, parts(256, None))], read(501, 0, 0, 0)),
        ("atomic inside", vec![make(SEND_FIRST, 500, parts(256, None))], add(501, 0x2000)),
        ("short FIRST", vec![], make(SEND_FIRST, 500, parts(255, None))),
        ("long ONLY", vec![], send(500, 257)),
        (
            "empty LAST",
            vec![make(SEND_FIRST, 500, parts(256, None))],
            make(SEND_LAST, 501, parts(0, None)),
        ),
        (
            "WRITE longer than announced",
            vec![make(WRITE_FIRST, 500, parts(256, reth(300)))],
            make(WRITE_LAST, 501, parts(45, None)),
        ),
        (
            "WRITE shorter than announced",
            vec![make(WRITE_FIRST, 500, parts(256, reth(300)))],
            make(WRITE_LAST, 501, parts(43, None)),
        ),
        ("WRITE ONLY of another length", vec![], make(WRITE_ONLY, 500, parts(9, reth(10)))),
        ("WRITE FIRST of one packet", vec![], make(WRITE_FIRST, 500, parts(256, reth(256)))),
        ("READ beyond 2^31", vec![], make(READ_REQUEST, 500, parts(0, long))),
        (
            "atomic at an odd address",
            vec![],
            make(COMPARE_SWAP, 500, PacketParts { atomic: odd, ..PacketParts::default() }),
        ),
    ];
    for (what, before, packet) in cases {
        let mut end = end();
        let count = before.len();
        before.iter().for_each(|packet| end.receive(packet));
        end.receive(&packet);
        let sent = end.sent();
        let nak = format!("NAK invalid request psn {} msn 0", 500 + count);
        assert_eq!(sent.last(), Some(&nak), "{what}: {sent:?}");
        assert_eq!(end.events(), [Event::Refused(Refusal::InvalidRequest)], "{what}");
        // Deaf from now on, but to who has not heard that.
        let after = 500 + count as u32;
        end.script.take_log();
        end.receive(&send(after + 1, 1));
        assert_eq!(end.sent(), [""; 0], "{what}");
        end.receive(&send(after, 1));
        assert_eq!((end.sent(), end.script.take_log()), (vec![nak], vec![]), "{what}");
    }
}

#[test]
fn a_packet_without_room_is_dropped_and_asked_for_when_there_is_room() {
    let mut end = end();
    end.script.answers.push_back(Delivery::Full);
    end.receive(&send(500, 1));
    end.receive(&send(501, 1));
    assert_eq!(end.sent(), [""; 0]);
    end.connection.resume(end.now);
    assert_eq!(end.sent(), ["NAK sequence psn 500 msn 0"]);
    end.receive(&send(500, 1));
    assert_eq!(end.sent(), ["ACK psn 500 msn 1"]);
}

#[test]
fn what_waits_for_an_answer_is_bounded() {
    let mut end = End::new(Config { unanswered_max: 4, ..config() });
    end.script.answers.extend([Delivery::Later; 4]);
    for psn in 500..600 {
        end.receive(&send(psn, 1));
    }
    assert_eq!(end.script.tickets.len(), 4);
    assert_eq!(end.sent(), [""; 0]);
    end.connection.done_through(end.script.tickets[3]);
    assert_eq!(end.sent(), ["ACK psn 503 msn 4", "NAK sequence psn 504 msn 4"]);
}

#[test]
fn a_qp_answers_before_it_may_send() {
    let mut end = end();
    end.receive(&send(500, 1));
    let sending = omniverb_transport::SendParameters {
        sq_psn: Psn::new(77),
        max_rd_atomic: 1,
        timeout: 14,
        retry_count: 7,
        rnr_retry: 7,
    };
    end.connection.ready_to_send(&sending);
    end.submit(1, SEND, 1);
    assert_eq!(end.sent(), ["ACK psn 500 msn 1", "SEND-ONLY psn 77 ask"]);
}

#[test]
fn congestion_notifications_are_rate_limited() {
    let mut end = end();
    for psn in 500..510 {
        end.receive_marked(&send(psn, 1), Ecn::CongestionExperienced);
    }
    assert_eq!(end.sent(), ["CNP", "ACK psn 509 msn 10"]);
    end.now += 1_000_000;
    end.receive_marked(&send(510, 1), Ecn::CongestionExperienced);
    assert_eq!(end.sent(), ["CNP", "ACK psn 510 msn 11"]);
}

/// Where the peer takes it in first, an acknowledgement lets one request packet go before it: both
/// are one train, whose last packet may be shorter but not longer than the others.
#[test]
fn an_acknowledgement_behind_one_request() {
    let mut end = End::new(Config { acknowledgements: Acknowledgements::Behind, ..config() });
    assert!(!end.connection.may_wait(), "nothing to say");
    end.receive(&send(500, 1));
    assert!(end.connection.may_wait());
    for id in 0..3 {
        end.submit(id, SEND, 1);
    }
    assert!(!end.connection.may_wait(), "there is company");
    let requests = [
        "SEND-ONLY psn 1000 ask",
        "ACK psn 500 msn 1",
        "SEND-ONLY psn 1001 ask",
        "SEND-ONLY psn 1002 ask",
    ];
    assert_eq!(end.sent(), requests);
    // One that would be the longer one goes first.
    end.receive(&send(501, 1));
    end.submit(3, SEND, 0);
    assert_eq!(end.sent(), ["ACK psn 501 msn 2", "SEND-ONLY psn 1003 ask"]);
    // Nobody answers.
    end.receive(&send(502, 1));
    assert_eq!(end.sent(), ["ACK psn 502 msn 3"]);
    // More than one packet, or an answer that is not an acknowledgement, does not wait.
    end.receive(&make(SEND_FIRST, 503, PacketParts { payload: MTU, ..PacketParts::default() }));
    end.receive(&make(
        SEND_LAST,
        504,
        PacketParts { payload: 1, ask: true, ..PacketParts::default() },
    ));
    assert!(!end.connection.may_wait());
    assert_eq!(end.sent(), ["ACK psn 504 msn 4"]);
    end.receive(&read(505, 0, 0, 1));
    assert!(!end.connection.may_wait());
}
