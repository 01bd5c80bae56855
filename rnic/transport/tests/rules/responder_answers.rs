//! Rules for the responder: READs and atomics, and answers that the layer above gives late.

use crate::scripted_upper_layer::*;
use omniverb_terms::Refusal;
use omniverb_transport::{
    AddressedPackets, Config, DelayNotices, Delivery, Event, FetchOutcome, GoneReads, LateAnswer,
};

#[test]
fn reads_are_answered_in_packets_and_count_when_accepted() {
    let mut end = end();
    end.receive(&read(500, 0x1000, 7, 600));
    end.receive(&send(503, 1));
    end.receive(&read(504, 0, 0, 0));
    let expected = [
        "READ-RESPONSE-FIRST psn 500 msn 1",
        "READ-RESPONSE-MIDDLE psn 501",
        "READ-RESPONSE-LAST psn 502 msn 1",
        "ACK psn 503 msn 2",
        "READ-RESPONSE-ONLY psn 504 msn 3",
    ];
    assert_eq!(end.sent(), expected);
    assert_eq!(end.script.released.len(), 2);
}

#[test]
fn every_packet_that_answers_a_read_may_have_a_syndrome() {
    let mut end = End::new(Config { naming: AddressedPackets::Every, ..config() });
    end.receive(&read(500, 0x1000, 7, 600));
    let first = [
        "READ-RESPONSE-FIRST psn 500 msn 1",
        "READ-RESPONSE-FIRST psn 501 msn 1",
        "READ-RESPONSE-ONLY psn 502 msn 1",
    ];
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
    assert_eq!(
        end.sent(),
        ["READ-RESPONSE-FIRST psn 501 msn 1", "READ-RESPONSE-LAST psn 502 msn 1"]
    );
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
fn a_lost_answer_is_reported_and_ends_nothing() {
    for gone in [LateAnswer::Gone, LateAnswer::Refused(Refusal::RemoteAccess)] {
        // Not all can take it.
        for gone_reads in [GoneReads::Refused, GoneReads::Unanswered] {
            let mut end = End::new(Config { gone_reads, ..config() });
            end.receive(&read(500, 0x1000, 7, 600));
            assert_eq!(end.sent().len(), 3);
            end.script.answers.push_back(Delivery::Later);
            end.script.fetches.push_back(FetchOutcome::Later);
            end.receive(&read(501, 0x1100, 7, 344));
            assert_eq!(end.sent(), [""; 0]);
            let ticket = end.script.tickets[1];
            end.connection.answer(ticket, gone);
            let refused = ["NAK remote access psn 501 msn 1"];
            let said: &[&str] = if gone_reads == GoneReads::Refused { &refused } else { &[] };
            assert_eq!(end.sent(), said);
            end.receive(&send(503, 1));
            assert_eq!((end.sent(), end.events()), (vec!["ACK psn 503 msn 2".into()], vec![]));
        }
    }
}

#[test]
fn what_is_gone_is_told_once_however_often_it_is_asked_for_meanwhile() {
    let mut end = End::new(Config { gone_reads: GoneReads::Refused, ..config() });
    end.receive(&read(500, 0x1000, 7, 600));
    end.receive(&read(503, 0x1000, 7, 600));
    assert_eq!(end.sent().len(), 6);
    for _ in 0..100 {
        for (psn, skipped) in [(500, 0), (501, 256), (503, 0)] {
            end.script.answers.push_back(Delivery::Later);
            end.receive(&read(psn, 0x1000 + u64::from(skipped), 7, 600 - skipped));
            let ticket = *end.script.tickets.last().unwrap();
            end.connection.answer(ticket, LateAnswer::Gone);
            end.script.answers.clear();
        }
    }
    let told = ["NAK remote access psn 500 msn 2", "NAK remote access psn 503 msn 2"];
    assert_eq!(end.sent(), told);
    // It was lost.
    end.script.answers.push_back(Delivery::Later);
    end.receive(&read(501, 0x1100, 7, 344));
    end.connection.answer(*end.script.tickets.last().unwrap(), LateAnswer::Gone);
    assert_eq!(end.sent(), ["NAK remote access psn 501 msn 2"]);
}

#[test]
fn a_read_that_ends_while_it_is_answered_is_refused() {
    let mut end = end();
    end.script.answers.push_back(Delivery::Later);
    end.script.fetches.push_back(FetchOutcome::Later);
    end.receive(&read(500, 0x1000, 7, 600));
    end.sent();
    end.connection.answer(end.script.tickets[0], LateAnswer::Gone);
    assert_eq!(end.sent(), ["NAK remote access psn 500 msn 1"]);
    assert_eq!(end.events(), [Event::Refused(Refusal::RemoteAccess)]);
}

#[test]
fn a_repeated_request_gets_its_refusal_again() {
    let mut end = end();
    end.receive(&read(500, 0x1000, 7, 600));
    end.sent();
    end.script.answers.push_back(Delivery::Refused(Refusal::RemoteAccess));
    end.receive(&read(503, 0x1000, 7, 600));
    let refusal = ["NAK remote access psn 503 msn 1"];
    assert_eq!(end.sent(), refusal);
    // It was lost, or it and the answer before it.
    for psn in [503, 500] {
        end.receive(&read(psn, 0x1000, 7, 600));
        assert_eq!(end.sent(), refusal);
    }
    assert_eq!(end.events(), [Event::Refused(Refusal::RemoteAccess)]);
}

#[test]
fn a_read_repeated_while_it_is_answered_starts_again_and_stays_in_order() {
    let mut end = end();
    end.script.fetches.extend([FetchOutcome::Filled, FetchOutcome::Filled, FetchOutcome::Later]);
    end.receive(&read(500, 0x1000, 7, 1024));
    end.receive(&send(504, 1));
    assert_eq!(end.sent(), ["READ-RESPONSE-FIRST psn 500 msn 1", "READ-RESPONSE-MIDDLE psn 501"]);
    // What was not sent yet is on its way anyhow.
    end.receive(&read(502, 0x1200, 7, 512));
    end.receive(&read(501, 0x1100, 7, 768));
    let expected = [
        "READ-RESPONSE-FIRST psn 501 msn 1",
        "READ-RESPONSE-MIDDLE psn 502",
        "READ-RESPONSE-LAST psn 503 msn 1",
        "ACK psn 504 msn 2",
    ];
    assert_eq!(end.sent(), expected);
    assert_eq!(end.script.released.len(), 2);
}

#[test]
fn atomics_are_executed_once_and_answered_as_often_as_asked() {
    let mut end = end();
    end.receive(&add(500, 0x2000));
    end.receive(&add(501, 0x2000));
    assert_eq!(
        end.sent(),
        [
            "ATOMIC-ACKNOWLEDGE psn 500 msn 1 original 0x0",
            "ATOMIC-ACKNOWLEDGE psn 501 msn 2 original 0x5"
        ]
    );
    end.receive(&add(500, 0x2000));
    end.receive(&add(501, 0x2000));
    assert_eq!(
        end.sent(),
        [
            "ATOMIC-ACKNOWLEDGE psn 500 msn 2 original 0x0",
            "ATOMIC-ACKNOWLEDGE psn 501 msn 2 original 0x5"
        ]
    );
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
    assert_eq!(end.sent(), ["ATOMIC-ACKNOWLEDGE psn 501 msn 3 original 0x5"]);
    assert_eq!(end.script.counter, 15);
}

#[test]
fn more_reads_than_agreed_on_are_refused() {
    let mut end = End::new(Config { max_dest_rd_atomic: 1, ..config() });
    end.script.fetches.push_back(FetchOutcome::Later);
    end.receive(&read(500, 0x1000, 7, 100));
    end.receive(&add(501, 0x2000));
    assert_eq!(end.sent(), [""; 0]);
    end.connection.resume(end.now);
    assert_eq!(
        end.sent(),
        ["READ-RESPONSE-ONLY psn 500 msn 1", "NAK invalid request psn 501 msn 1"]
    );
    let mut end = End::new(Config { max_dest_rd_atomic: 0, ..config() });
    end.receive(&read(500, 0x1000, 7, 100));
    assert_eq!(end.sent(), ["NAK invalid request psn 500 msn 0"]);
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
    end.connection.answer(tickets[2], LateAnswer::Original(77));
    assert_eq!(end.sent(), [""; 0]);
    // Repeated meanwhile: still one execution.
    end.receive(&send(500, 1));
    end.receive(&add(502, 0x2000));
    end.connection.answer(tickets[0], LateAnswer::Done);
    assert_eq!(
        end.sent(),
        [
            "ACK psn 501 msn 2",
            "ATOMIC-ACKNOWLEDGE psn 502 msn 3 original 0x4d",
            "NAK sequence psn 503 msn 3"
        ]
    );
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
    end.connection.answer(tickets[1], LateAnswer::Refused(Refusal::RemoteAccess));
    assert_eq!(end.sent(), [""; 0]);
    end.connection.done_through(tickets[0]);
    assert_eq!(end.sent(), ["ACK psn 500 msn 1", "NAK remote access psn 501 msn 1"]);
    assert_eq!(end.events(), [Event::Refused(Refusal::RemoteAccess)]);
}

#[test]
fn a_receive_found_missing_late() {
    let mut end = end();
    end.script.answers.extend([Delivery::Later, Delivery::Later]);
    end.receive(&send(500, 1));
    end.receive(&send(501, 1));
    let tickets = end.script.tickets.clone();
    end.connection.answer(tickets[0], LateAnswer::NotReady);
    assert_eq!(end.sent(), ["RNR-NAK timer 12 psn 500 msn 0"]);
    // Still missing when the requester tries again.
    end.receive(&send(500, 1));
    end.receive(&send(501, 1));
    assert_eq!(end.sent(), ["RNR-NAK timer 12 psn 500 msn 0"]);
    end.connection.done_through(tickets[1]);
    assert_eq!(end.sent(), ["ACK psn 501 msn 2"]);
    assert_eq!(end.script.take_log().len(), 2);
}

#[test]
fn a_read_that_turns_out_to_be_forbidden_is_refused_at_the_answer_it_lacks() {
    let mut end = end();
    let refused = FetchOutcome::Refused(Refusal::RemoteAccess);
    end.script.fetches.extend([FetchOutcome::Filled, refused]);
    end.receive(&read(500, 0x1000, 7, 600));
    assert_eq!(
        end.sent(),
        ["READ-RESPONSE-FIRST psn 500 msn 1", "NAK remote access psn 501 msn 1"]
    );
    assert_eq!(end.script.released.len(), 1);
}

#[test]
fn a_repeated_request_in_progress_is_acknowledged_as_waiting() {
    let mut end = End::new(Config { delay_notices: DelayNotices::Agreed, ..config() });
    end.script.answers.extend([Delivery::Later, Delivery::Later]);
    end.receive(&send(500, 1));
    end.receive(&read(501, 0x1000, 7, 100));
    end.script.fetches.extend([FetchOutcome::Later, FetchOutcome::Later]);
    assert_eq!(end.sent(), [""; 0]);
    end.receive(&send(500, 1));
    assert_eq!(end.sent(), ["CNP delay 40000 us"]);
    end.receive(&send(500, 1));
    assert_eq!(end.sent(), [""; 0], "it has been told");
    end.now += 30_000_000;
    end.receive(&read(501, 0x1000, 7, 100));
    assert_eq!(end.sent(), ["CNP delay 40000 us"]);
    // What was answered before and is not there at once; what there is no room for.
    let mut end = End::new(Config { delay_notices: DelayNotices::Agreed, ..config() });
    end.receive(&read(500, 0x1000, 7, 100));
    end.sent();
    end.script.fetches.extend([FetchOutcome::Later, FetchOutcome::Later]);
    end.receive(&read(500, 0x1000, 7, 100));
    assert_eq!(end.sent(), [""; 0]);
    end.receive(&read(500, 0x1000, 7, 100));
    assert_eq!(end.sent(), ["CNP delay 40000 us"]);
    let mut end = End::new(Config { delay_notices: DelayNotices::Agreed, ..config() });
    end.script.answers.extend([Delivery::Full, Delivery::Full]);
    end.receive(&send(500, 1));
    assert_eq!(end.sent(), [""; 0]);
    end.receive(&send(500, 1));
    assert_eq!(end.sent(), ["CNP delay 40000 us"]);
    // Others would not understand.
    let mut end = self::end();
    end.script.answers.push_back(Delivery::Later);
    end.receive(&send(500, 1));
    end.receive(&send(500, 1));
    assert_eq!(end.sent(), [""; 0]);
}

/// Whatever was to be said when the queue pair went to the error state.
#[test]
fn a_failed_responder_sends_nothing() {
    let ends = |config: Config, before: fn(&mut End)| {
        let mut end = End::new(config);
        before(&mut end);
        end.connection.close(&mut end.script);
        end.connection.resume(end.now);
        assert_eq!(end.sent(), [""; 0]);
    };
    // Too much was unanswered to take a packet.
    ends(Config { unanswered_max: 4, ..config() }, |end| {
        end.script.answers.extend([Delivery::Later; 4]);
        (500..505).for_each(|psn| end.receive(&send(psn, 1)));
    });
    // The layer above had no room for one.
    ends(config(), |end| {
        end.script.answers.push_back(Delivery::Full);
        end.receive(&send(500, 1));
    });
    // A receive has come that was missing.
    ends(Config { delay_notices: DelayNotices::Agreed, ..config() }, |end| {
        end.script.answers.push_back(Delivery::NotReady);
        end.receive(&send(500, 1));
        assert_eq!(end.sent().len(), 1);
        end.connection.receive_came();
    });
    // The requester asks again for what was refused.
    ends(config(), |end| {
        end.script.answers.push_back(Delivery::Refused(Refusal::RemoteAccess));
        end.receive(&send(500, 1));
        assert_eq!(end.sent().len(), 1);
        end.receive(&send(500, 1));
    });
}
