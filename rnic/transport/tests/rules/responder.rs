//! Rules for the responder.

use crate::script::{End, Parts, add, config, make, read, send, write};
use omniverb_transport::{Answer, Config, Delivery, Event, Fetched, Refusal};
use omniverb_wire::{AtomicEth, ImmDt, Reth};

fn end() -> End {
    End::new(config())
}

#[test]
fn one_acknowledgement_for_a_batch() {
    let mut end = end();
    for psn in 500..503 {
        end.receive(&send(psn, 10));
    }
    assert_eq!(end.sent(), ["11 502 1f msn 3"]);
    // Unasked, after 32 packets at the latest.
    for psn in 503..534 {
        end.receive(&make(0x04, psn, Parts::default()));
        assert_eq!(end.sent(), [""; 0]);
    }
    end.receive(&make(0x04, 534, Parts::default()));
    assert_eq!(end.sent(), ["11 534 1f msn 35"]);
}

#[test]
fn one_nak_per_gap_until_the_missing_packet_is_here() {
    let mut end = end();
    end.receive(&send(502, 10));
    end.receive(&send(503, 10));
    assert_eq!(end.sent(), ["11 500 60 msn 0"]);
    end.receive(&send(504, 10));
    assert_eq!(end.sent(), [""; 0]);
    end.receive(&send(500, 10));
    assert_eq!(end.sent(), ["11 500 1f msn 1"]);
    end.receive(&send(503, 10));
    assert_eq!(end.sent(), ["11 501 60 msn 1"]);
    assert_eq!(end.script.take_log(), ["send Only 0+10"]);
}

#[test]
fn a_duplicate_is_acknowledged_and_not_executed() {
    let mut end = end();
    end.receive(&send(500, 10));
    end.receive(&send(501, 10));
    end.sent();
    end.receive(&send(500, 10));
    end.receive(&write(0x0a, 499, Some(4), 4));
    assert_eq!(end.sent(), ["11 501 1f msn 2"]);
    assert_eq!(end.script.take_log().len(), 2);
}

#[test]
fn no_receive_is_said_once_and_the_packet_is_taken_when_it_comes_again() {
    let mut end = end();
    end.script.answers.push_back(Delivery::NotReady);
    end.receive(&send(500, 10));
    end.receive(&send(501, 10));
    assert_eq!(end.sent(), ["11 500 2c msn 0"]);
    end.receive(&send(502, 10));
    assert_eq!(end.sent(), [""; 0]);
    end.receive(&send(500, 10));
    end.receive(&send(501, 10));
    assert_eq!(end.sent(), ["11 501 1f msn 2"]);
}

#[test]
fn only_the_immediate_data_of_a_write_take_a_receive() {
    let mut end = end();
    end.receive(&write(0x06, 500, Some(300), 256));
    end.script.answers.push_back(Delivery::NotReady);
    let immediate = Some(ImmDt([1, 2, 3, 4]));
    end.receive(&make(0x09, 501, Parts { ask: true, immediate, payload: 44, ..Parts::default() }));
    assert_eq!(end.sent(), ["11 500 1f msn 0", "11 501 2c msn 0"]);
    end.receive(&make(0x09, 501, Parts { ask: true, immediate, payload: 44, ..Parts::default() }));
    assert_eq!(end.sent(), ["11 501 1f msn 1"]);
    let log = end.script.take_log();
    assert_eq!(log[0], "write 4000 7 300 First 0+256");
    assert_eq!(log[2], "write 4000 7 300 Last 256+44");
}

#[test]
fn a_packet_in_the_middle_of_a_write_may_name_exactly_what_is_left() {
    let first = write(0x06, 500, Some(600), 256);
    let named = |code, psn, (address, key, left), payload| {
        let reth = Some(Reth::new(address, key, left));
        make(code, psn, Parts { ask: true, reth, payload, ..Parts::default() })
    };
    let mut end = End::new(Config { name_all: true, ..config() });
    end.receive(&first);
    end.receive(&named(0x06, 501, (0x4100, 7, 344), 256));
    end.receive(&named(0x0a, 502, (0x4200, 7, 88), 88));
    assert_eq!(end.sent(), ["11 502 1f msn 1"]);
    let parts = ["First 0+256", "Middle 256+256", "Last 512+88"];
    assert_eq!(end.script.take_log(), parts.map(|part| format!("write 4000 7 600 {part}")));
    // Anything else, or to who does not know of it, is a message within a message.
    let wrong = [(0x4101, 7, 344), (0x4100, 8, 344), (0x4100, 7, 345), (0x4000, 7, 600)];
    for (name_all, reth) in
        wrong.map(|it| (true, it)).into_iter().chain([(false, (0x4100, 7, 344))])
    {
        let mut end = End::new(Config { name_all, ..config() });
        end.receive(&first);
        end.receive(&named(0x06, 501, reth, 256));
        assert_eq!(end.sent(), ["11 500 1f msn 0", "11 501 61 msn 0"], "{reth:x?}");
    }
}

#[test]
fn reads_are_answered_in_packets_and_count_when_accepted() {
    let mut end = end();
    end.receive(&read(500, 0x1000, 7, 600));
    end.receive(&send(503, 1));
    end.receive(&read(504, 0, 0, 0));
    let expected =
        ["0d 500 1f msn 1", "0e 501", "0f 502 1f msn 1", "11 503 1f msn 2", "10 504 1f msn 3"];
    assert_eq!(end.sent(), expected);
    assert_eq!(end.script.released.len(), 2);
}

#[test]
fn every_packet_that_answers_a_read_may_have_a_syndrome() {
    let mut end = End::new(Config { name_all: true, ..config() });
    end.receive(&read(500, 0x1000, 7, 600));
    let first = ["0d 500 1f msn 1", "0d 501 1f msn 1", "10 502 1f msn 1"];
    assert_eq!(end.sent(), first);
    end.receive(&read(501, 0x1100, 7, 344));
    assert_eq!(end.sent(), first[1..]);
}

#[test]
fn a_repeated_read_is_answered_from_where_it_was_asked_for() {
    let mut end = end();
    end.receive(&read(500, 0x1000, 7, 600));
    end.sent();
    end.receive(&read(501, 0x1100, 7, 344));
    assert_eq!(end.sent(), ["0d 501 1f msn 1", "0f 502 1f msn 1"]);
    assert_eq!(end.script.take_log()[1], "read 1100 7 344");
    // Another key, another range, another place: not answered at all.
    end.receive(&read(501, 0x1100, 8, 344));
    end.receive(&read(501, 0x1100, 7, 345));
    end.receive(&read(501, 0x1101, 7, 344));
    end.receive(&read(499, 0x1100, 7, 344));
    assert_eq!(end.sent(), [""; 0]);
    // The key is checked anew; a refusal is not told.
    end.script.answers.push_back(Delivery::Refused(Refusal::RemoteAccess));
    end.receive(&read(501, 0x1100, 7, 344));
    assert_eq!((end.sent(), end.events()), (vec![], vec![]));
}

#[test]
fn a_read_repeated_while_it_is_answered_starts_again_and_stays_in_order() {
    let mut end = end();
    end.script.fetches.extend([Fetched::Filled, Fetched::Filled, Fetched::Later]);
    end.receive(&read(500, 0x1000, 7, 1024));
    end.receive(&send(504, 1));
    assert_eq!(end.sent(), ["0d 500 1f msn 1", "0e 501"]);
    // What was not sent yet is on its way anyhow.
    end.receive(&read(502, 0x1200, 7, 512));
    end.receive(&read(501, 0x1100, 7, 768));
    let expected = ["0d 501 1f msn 1", "0e 502", "0f 503 1f msn 1", "11 504 1f msn 2"];
    assert_eq!(end.sent(), expected);
    assert_eq!(end.script.released.len(), 2);
}

#[test]
fn atomics_are_executed_once_and_answered_as_often_as_asked() {
    let mut end = end();
    end.receive(&add(500, 0x2000));
    end.receive(&add(501, 0x2000));
    assert_eq!(end.sent(), ["12 500 1f msn 1 = 0", "12 501 1f msn 2 = 5"]);
    end.receive(&add(500, 0x2000));
    end.receive(&add(501, 0x2000));
    assert_eq!(end.sent(), ["12 500 1f msn 2 = 0", "12 501 1f msn 2 = 5"]);
    assert_eq!(end.script.counter, 10);
}

#[test]
fn only_so_many_atomics_are_remembered() {
    let mut end = End::new(Config { max_dest_rd_atomic: 2, ..config() });
    for psn in 500..503 {
        end.receive(&add(psn, 0x2000));
        end.sent();
    }
    end.receive(&add(500, 0x2000));
    assert_eq!(end.sent(), [""; 0]);
    end.receive(&add(501, 0x2000));
    assert_eq!(end.sent(), ["12 501 1f msn 3 = 5"]);
    assert_eq!(end.script.counter, 15);
}

/// What is invalid, after the packets that lead up to it.
#[test]
fn invalid_requests_are_refused() {
    let long = Some(Reth::new(0, 7, u32::MAX));
    let odd = Some(AtomicEth::new(0x2004, 7, 1, 1));
    let reth = |total| Some(Reth::new(0x4000, 7, total));
    let parts = |payload, reth| Parts { payload, reth, ..Parts::default() };
    let cases = [
        ("MIDDLE without FIRST", vec![], make(0x01, 500, parts(256, None))),
        ("LAST without FIRST", vec![], make(0x02, 500, parts(1, None))),
        ("WRITE LAST without FIRST", vec![], make(0x08, 500, parts(1, None))),
        ("ONLY inside", vec![make(0x00, 500, parts(256, None))], send(501, 1)),
        (
            "WRITE inside SEND",
            vec![make(0x00, 500, parts(256, None))],
            make(0x08, 501, parts(1, None)),
        ),
        ("READ inside", vec![make(0x00, 500, parts(256, None))], read(501, 0, 0, 0)),
        ("atomic inside", vec![make(0x00, 500, parts(256, None))], add(501, 0x2000)),
        ("short FIRST", vec![], make(0x00, 500, parts(255, None))),
        ("long ONLY", vec![], send(500, 257)),
        ("empty LAST", vec![make(0x00, 500, parts(256, None))], make(0x02, 501, parts(0, None))),
        (
            "WRITE longer than announced",
            vec![make(0x06, 500, parts(256, reth(300)))],
            make(0x08, 501, parts(45, None)),
        ),
        (
            "WRITE shorter than announced",
            vec![make(0x06, 500, parts(256, reth(300)))],
            make(0x08, 501, parts(43, None)),
        ),
        ("WRITE ONLY of another length", vec![], make(0x0a, 500, parts(9, reth(10)))),
        ("WRITE FIRST of one packet", vec![], make(0x06, 500, parts(256, reth(256)))),
        ("READ beyond 2^31", vec![], make(0x0c, 500, parts(0, long))),
        (
            "atomic at an odd address",
            vec![],
            make(0x13, 500, Parts { atomic: odd, ..Parts::default() }),
        ),
    ];
    for (what, before, packet) in cases {
        let mut end = end();
        let count = before.len();
        before.iter().for_each(|packet| end.receive(packet));
        end.receive(&packet);
        let sent = end.sent();
        let nak = format!("11 {} 61 msn 0", 500 + count);
        assert_eq!(sent.last(), Some(&nak), "{what}: {sent:?}");
        assert_eq!(end.events(), [Event::Refused(Refusal::InvalidRequest)], "{what}");
        // Deaf from now on.
        end.receive(&send(500 + count as u32, 1));
        assert_eq!(end.sent(), [""; 0], "{what}");
    }
}

#[test]
fn more_reads_than_agreed_on_are_refused() {
    let mut end = End::new(Config { max_dest_rd_atomic: 1, ..config() });
    end.script.fetches.push_back(Fetched::Later);
    end.receive(&read(500, 0x1000, 7, 100));
    end.receive(&add(501, 0x2000));
    assert_eq!(end.sent(), [""; 0]);
    end.connection.resume(end.now);
    assert_eq!(end.sent(), ["10 500 1f msn 1", "11 501 61 msn 1"]);
    let mut end = End::new(Config { max_dest_rd_atomic: 0, ..config() });
    end.receive(&read(500, 0x1000, 7, 100));
    assert_eq!(end.sent(), ["11 500 61 msn 0"]);
}

#[test]
fn late_answers_leave_in_order() {
    let mut end = end();
    end.script.answers.extend([Delivery::Later, Delivery::Done, Delivery::Later]);
    end.receive(&send(500, 1));
    end.receive(&send(501, 1));
    end.receive(&add(502, 0x2000));
    end.receive(&send(504, 1));
    assert_eq!(end.sent(), [""; 0]);
    let tickets = end.script.tickets.clone();
    end.connection.answer(tickets[2], Answer::Original(77));
    assert_eq!(end.sent(), [""; 0]);
    // Repeated meanwhile: still one execution.
    end.receive(&send(500, 1));
    end.receive(&add(502, 0x2000));
    end.connection.answer(tickets[0], Answer::Done);
    assert_eq!(end.sent(), ["11 501 1f msn 2", "12 502 1f msn 3 = 77", "11 503 60 msn 3"]);
    assert_eq!(end.script.take_log().len(), 3);
}

#[test]
fn a_late_refusal_comes_after_what_was_before_it() {
    let mut end = end();
    end.script.answers.extend([Delivery::Later, Delivery::Later, Delivery::Later]);
    for psn in 500..503 {
        end.receive(&send(psn, 1));
    }
    let tickets = end.script.tickets.clone();
    end.connection.answer(tickets[1], Answer::Refused(Refusal::RemoteAccess));
    assert_eq!(end.sent(), [""; 0]);
    end.connection.done_through(tickets[0]);
    assert_eq!(end.sent(), ["11 500 1f msn 1", "11 501 62 msn 1"]);
    assert_eq!(end.events(), [Event::Refused(Refusal::RemoteAccess)]);
}

#[test]
fn a_receive_found_missing_late() {
    let mut end = end();
    end.script.answers.extend([Delivery::Later, Delivery::Later]);
    end.receive(&send(500, 1));
    end.receive(&send(501, 1));
    let tickets = end.script.tickets.clone();
    end.connection.answer(tickets[0], Answer::NotReady);
    assert_eq!(end.sent(), ["11 500 2c msn 0"]);
    // Still missing when the requester tries again.
    end.receive(&send(500, 1));
    end.receive(&send(501, 1));
    assert_eq!(end.sent(), ["11 500 2c msn 0"]);
    end.connection.done_through(tickets[1]);
    assert_eq!(end.sent(), ["11 501 1f msn 2"]);
    assert_eq!(end.script.take_log().len(), 2);
}

#[test]
fn a_read_that_turns_out_to_be_forbidden_is_refused_at_the_answer_it_lacks() {
    let mut end = end();
    let refused = Fetched::Refused(Refusal::RemoteAccess);
    end.script.fetches.extend([Fetched::Filled, refused]);
    end.receive(&read(500, 0x1000, 7, 600));
    assert_eq!(end.sent(), ["0d 500 1f msn 1", "11 501 62 msn 1"]);
    assert_eq!(end.script.released.len(), 1);
}

#[test]
fn a_packet_without_room_is_dropped_and_asked_for_when_there_is_room() {
    let mut end = end();
    end.script.answers.push_back(Delivery::Full);
    end.receive(&send(500, 1));
    end.receive(&send(501, 1));
    assert_eq!(end.sent(), [""; 0]);
    end.connection.resume(end.now);
    assert_eq!(end.sent(), ["11 500 60 msn 0"]);
    end.receive(&send(500, 1));
    assert_eq!(end.sent(), ["11 500 1f msn 1"]);
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
    assert_eq!(end.sent(), ["11 503 1f msn 4", "11 504 60 msn 4"]);
}

#[test]
fn a_qp_answers_before_it_may_send() {
    let mut end = end();
    end.receive(&send(500, 1));
    let sending = omniverb_transport::Sending {
        sq_psn: 77,
        max_rd_atomic: 1,
        timeout: 14,
        retry_count: 7,
        rnr_retry: 7,
    };
    end.connection.ready_to_send(&sending);
    end.submit(1, crate::script::SEND, 1);
    assert_eq!(end.sent(), ["11 500 1f msn 1", "04 77 ask"]);
}

#[test]
fn congestion_is_told_at_most_once_in_a_while() {
    let mut end = end();
    for psn in 500..510 {
        end.receive_marked(&send(psn, 1), true);
    }
    assert_eq!(end.sent(), ["81 0", "11 509 1f msn 10"]);
    end.now += 1_000_000;
    end.receive_marked(&send(510, 1), true);
    assert_eq!(end.sent(), ["81 0", "11 510 1f msn 11"]);
}

/// Where the peer takes it in first, an acknowledgement lets one request packet go before it: both
/// are one train, whose last packet may be shorter but not longer than the others.
#[test]
fn an_acknowledgement_behind_one_request() {
    let mut end = End::new(Config { acknowledge_behind: true, ..config() });
    assert!(!end.connection.may_wait(), "nothing to say");
    end.receive(&send(500, 1));
    assert!(end.connection.may_wait());
    for id in 0..3 {
        end.submit(id, crate::script::SEND, 1);
    }
    assert!(!end.connection.may_wait(), "there is company");
    let requests = ["04 1000 ask", "11 500 1f msn 1", "04 1001 ask", "04 1002 ask"];
    assert_eq!(end.sent(), requests);
    // One that would be the longer one goes first.
    end.receive(&send(501, 1));
    end.submit(3, crate::script::SEND, 0);
    assert_eq!(end.sent(), ["11 501 1f msn 2", "04 1003 ask"]);
    // Nobody answers.
    end.receive(&send(502, 1));
    assert_eq!(end.sent(), ["11 502 1f msn 3"]);
    // More than one packet, or an answer that is not an acknowledgement, does not wait.
    end.receive(&make(0x00, 503, Parts { payload: crate::script::MTU, ..Parts::default() }));
    end.receive(&make(0x02, 504, Parts { payload: 1, ask: true, ..Parts::default() }));
    assert!(!end.connection.may_wait());
    assert_eq!(end.sent(), ["11 504 1f msn 4"]);
    end.receive(&read(505, 0, 0, 1));
    assert!(!end.connection.may_wait());
}
