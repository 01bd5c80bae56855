//! Rules for the requester: what is sent again, when, and how often.

use crate::scripted_upper_layer::*;
use omniverb_terms::Rkey;
use omniverb_transport::{Config, DelayNotices, Ecn, Event, GatherOutcome, RequestId, Status};
use omniverb_wire::{Packet, Reth, write_delay};

pub const SECOND: u64 = 1_000_000_000;

#[test]
fn a_sequence_nak_goes_back_once_and_spends_a_retry() {
    let mut end = End::new(Config { retry_count: 1, ..config() });
    for id in 0..4 {
        end.submit(id, SEND, 1);
    }
    assert_eq!(end.sent().len(), 4);
    end.receive(&sequence_nak(1001));
    end.receive(&sequence_nak(1001));
    assert_eq!(
        end.sent(),
        ["SEND-ONLY psn 1001 ask", "SEND-ONLY psn 1002 ask", "SEND-ONLY psn 1003 ask"]
    );
    assert_eq!(end.statuses(), [(0, Status::Success)]);
    end.receive(&ack(1002));
    // Progress gave the retry back.
    end.receive(&sequence_nak(1003));
    assert_eq!(end.sent(), ["SEND-ONLY psn 1003 ask"]);
    end.receive(&ack(1003));
    assert_eq!(end.statuses().len(), 3);
}

#[test]
fn silence_is_answered_early_and_spends_no_retry() {
    let mut end = End::new(Config { timeout: 14, retry_count: 2, ..config() });
    end.submit(1, SEND, 1);
    end.sent();
    let begin = end.now;
    let mut times = 0;
    while end.events().is_empty() {
        end.wait();
        times += end.sent().len();
    }
    // The first try and two retries, each of 67 ms to four times that (9.9.2.1.1).
    let timeout = 4096 << 14;
    assert!((3 * timeout..=12 * timeout).contains(&(end.now - begin)), "{}", end.now - begin);
    assert!(times > 6, "sent again {times} times");
    assert!(end.sent().is_empty() && end.connection.poll_timeout().is_none());
}

/// Eight messages were sent, and nothing was heard.
fn silence(config: Config) -> End {
    let mut end = End::new(config);
    for id in 0..8 {
        end.submit(id, SEND, 1);
    }
    assert_eq!(end.sent().len(), 8);
    end.wait();
    assert_eq!(end.sent(), ["SEND-ONLY psn 1000 ask"], "one packet finds out");
    end
}

#[test]
fn a_peer_that_was_only_late_is_sent_hardly_anything_twice() {
    let mut end = silence(Config { retry_count: 0, ..config() });
    end.receive(&ack(1003));
    assert_eq!(end.sent(), ["SEND-ONLY psn 1004 ask"], "is the rest lost?");
    end.receive(&ack(1004)); // the original's answer, and not beyond what went again
    let rest = (1005..1008).map(|psn| format!("SEND-ONLY psn {psn} ask"));
    assert_eq!(end.sent(), rest.collect::<Vec<_>>());
    end.receive(&ack(1007));
    assert_eq!((end.sent(), end.statuses().len()), (vec![], 8));
    let counters = end.connection.counters();
    assert_eq!((counters.resent, counters.retries, counters.gaps_heard), (5, 1, 0));
    assert_eq!(end.connection.poll_timeout(), None);
    // It is over: what comes next is sent as ever.
    (8..16).for_each(|id| end.submit(id, SEND, 1));
    assert_eq!(end.sent().len(), 8);
}

#[test]
fn what_was_lost_is_sent_again_in_order_more_with_each_answer() {
    let mut end = silence(config());
    end.receive(&ack(1000));
    let more = (1001..1005).map(|psn| format!("SEND-ONLY psn {psn} ask"));
    assert_eq!(end.sent(), more.collect::<Vec<_>>());
    end.receive(&ack(1004));
    let rest = (1005..1008).map(|psn| format!("SEND-ONLY psn {psn} ask"));
    assert_eq!(end.sent(), rest.collect::<Vec<_>>());
}

#[test]
fn a_sequence_nak_says_that_all_from_there_on_is_lost() {
    let mut end = silence(config());
    end.receive(&sequence_nak(1002));
    let rest = (1002..1008).map(|psn| format!("SEND-ONLY psn {psn} ask"));
    assert_eq!(end.sent(), rest.collect::<Vec<_>>());
}

#[test]
fn a_read_that_is_not_answered_is_asked_for_by_itself() {
    let mut end = end();
    end.submit(1, READ, 600);
    end.submit(2, SEND, 1);
    end.submit(3, READ, 600);
    assert_eq!(end.sent().len(), 3);
    end.receive(&read_data(READ_RESPONSE_FIRST, 1000, 256));
    end.wait();
    assert_eq!(end.sent(), ["READ-REQUEST psn 1001 ask 0x1100+344 rkey 0x7"]);
    end.receive(&read_data(READ_RESPONSE_FIRST, 1001, 256));
    assert_eq!(end.sent(), [""; 0], "more of it comes");
    end.receive(&read_data(READ_RESPONSE_LAST, 1002, 88));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    let rest = ["SEND-ONLY psn 1003 ask", "READ-REQUEST psn 1004 ask 0x1000+600 rkey 0x7"];
    assert_eq!(end.sent(), rest);
}

#[test]
fn without_a_timeout_it_tries_for_ever() {
    let mut end = End::new(Config { timeout: 0, retry_count: 0, ..config() });
    end.submit(1, SEND, 1);
    end.sent();
    for _ in 0..100 {
        end.wait();
        assert_eq!(end.sent(), ["SEND-ONLY psn 1000 ask"]);
    }
    end.receive(&ack(1000));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn receiver_not_ready_waits_and_hears_no_sequence_nak_meanwhile() {
    let mut end = end();
    for id in 0..3 {
        end.submit(id, SEND, 1);
    }
    end.sent();
    end.receive(&acknowledge(1001, 0x2c));
    // What Linux rxe sends for the packets behind it.
    end.receive(&sequence_nak(1001));
    end.receive(&acknowledge(1001, 0x2c));
    assert_eq!(end.statuses(), [(0, Status::Success)]);
    assert_eq!(end.sent(), [""; 0]);
    let counters = end.connection.counters();
    assert_eq!((counters.not_ready_heard, counters.gaps_heard, counters.retries), (2, 1, 0));
    assert_eq!(end.wait(), 640_000);
    assert_eq!(end.sent(), ["SEND-ONLY psn 1001 ask", "SEND-ONLY psn 1002 ask"]);
}

#[test]
fn receiver_not_ready_ends_after_the_retries_or_never() {
    for rnr_retry in [0, 3] {
        let mut end = End::new(Config { rnr_retry, ..config() });
        end.submit(1, SEND, 1);
        end.submit(2, SEND, 1);
        end.sent();
        for _ in 0..rnr_retry {
            end.receive(&acknowledge(1000, 0x21));
            end.wait();
            assert_eq!(end.sent().len(), 2);
        }
        end.receive(&acknowledge(1000, 0x21));
        let (id, flushed) = (RequestId(1), RequestId(2));
        let status = Status::RnrRetryExceeded;
        let completed = |id, status| Event::Completed { id, status, original: None };
        let expected =
            [completed(id, status), completed(flushed, Status::Flushed), Event::Failed(status)];
        assert_eq!(end.events(), expected);
    }
    let mut end = end();
    end.submit(1, SEND, 1);
    end.sent();
    for _ in 0..100 {
        end.receive(&acknowledge(1000, 0x21));
        end.wait();
        assert_eq!(end.sent().len(), 1);
    }
}

/// RNR NAKs of this code until it has failed; how long that took.
fn unready(config: Config, code: u8) -> u64 {
    let mut end = End::new(config);
    end.submit(1, SEND, 1);
    end.sent();
    let begin = end.now;
    loop {
        end.receive(&acknowledge(1000, 0x20 | code));
        if let Some((_, status)) = end.statuses().first() {
            assert_eq!(*status, Status::RnrRetryExceeded);
            return end.now - begin;
        }
        end.wait();
        assert_eq!(end.sent(), ["SEND-ONLY psn 1000 ask"]);
    }
}

#[test]
fn a_receiver_that_is_late_is_waited_for_whatever_the_retries_allow() {
    let late = |rnr_retry| Config { rnr_retry, receiver_late: SECOND, ..config() };
    // A timer of 10 us does not have all of it sent again without end; one of 655 ms is heeded.
    assert_eq!(unready(late(0), 1), SECOND);
    assert_eq!(unready(late(0), 0), 2 * 655_360_000);
    // Retries that take as long as that count as ever.
    assert_eq!(unready(late(2), 0), 2 * 655_360_000);
    assert_eq!(unready(late(6), 0), 6 * 655_360_000);
    // 164 ms: five tries for nothing, until the two that are left would end after a second.
    assert_eq!(unready(late(2), 28), 7 * 163_840_000);
    // One receive after the other may be late.
    let mut end = End::new(late(0));
    for id in 0..4 {
        end.submit(id, SEND, 1);
        end.sent();
        end.receive(&acknowledge(1000 + id as u32, 0x20));
        end.wait();
        assert_eq!(end.sent().len(), 1);
        end.receive(&ack(1000 + id as u32));
        assert_eq!(end.statuses(), [(id, Status::Success)]);
    }
}

#[test]
fn a_peer_that_says_that_there_is_a_receive_is_not_waited_for() {
    let mut end = End::new(Config { delay_notices: DelayNotices::Agreed, ..config() });
    end.submit(1, SEND, 1);
    end.submit(2, SEND, 1);
    end.sent();
    delay(&mut end, 0);
    assert_eq!(end.sent(), [""; 0], "nothing was missing");
    end.receive(&acknowledge(1000, 0x20));
    assert_eq!(end.sent(), [""; 0]);
    delay(&mut end, 0);
    assert_eq!(end.sent(), ["SEND-ONLY psn 1000 ask", "SEND-ONLY psn 1001 ask"]);
    delay(&mut end, 0);
    assert_eq!(end.sent(), [""; 0]);
    end.receive(&ack(1001));
    assert_eq!(end.statuses().len(), 2);
    assert_eq!(end.connection.poll_timeout(), None);
}

/// The peer says that its answers take so many seconds.
fn delay(end: &mut End, seconds: u32) {
    let mut datagram = [0; 64];
    let length = write_delay(&mut datagram, ME, seconds * 1_000_000).unwrap();
    let packet = Packet::parse(&datagram[..length]).unwrap();
    end.connection.handle_packet(end.now, &packet, Ecn::Unmarked, &mut end.script);
}

#[test]
fn a_peer_that_says_it_is_slow_is_waited_for() {
    let mut end =
        End::new(Config { retry_count: 0, delay_notices: DelayNotices::Agreed, ..config() });
    end.submit(1, SEND, 1);
    end.sent();
    delay(&mut end, 2);
    delay(&mut end, 1); // the longer one counts
    assert_eq!(end.wait(), 2 * SECOND);
    assert_eq!(end.sent(), ["SEND-ONLY psn 1000 ask"], "asked again, when that time is over");
    end.receive(&ack(1000));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert_eq!(end.connection.poll_timeout(), None);
    delay(&mut end, 2);
    assert_eq!(end.connection.poll_timeout(), None, "nothing is waited for");
}

/// Anybody can write one: where the two have not agreed on them it changes nothing. Unless the peer
/// has shown that it is of our kind: it has heard who we are, and we were not answered.
#[test]
fn unnegotiated_notices_are_ignored() {
    let mut end = end();
    let left = |code, psn, address, left, payload| {
        let reth = Some(Reth::new(address, Rkey(7), left));
        make(code, psn, PacketParts { reth, payload, ..PacketParts::default() })
    };
    end.receive(&left(WRITE_FIRST, 500, 0x4000, 257, 256));
    // Whoever does not know where it stands in the order is not heard, either.
    end.receive(&left(WRITE_ONLY, 502, 0x4100, 1, 1));
    end.sent();
    end.submit(1, SEND, 1);
    end.sent();
    let deadline = end.connection.poll_timeout();
    delay(&mut end, 2);
    assert_eq!(end.connection.poll_timeout(), deadline, "not slow");
    end.receive(&acknowledge(1000, 0x20));
    delay(&mut end, 0);
    assert_eq!(end.sent(), [""; 0], "not ready");
    end.receive(&left(WRITE_ONLY, 501, 0x4100, 1, 1));
    delay(&mut end, 0);
    assert_eq!(end.sent(), ["SEND-ONLY psn 1000 ask"]);
}

/// It has heard who we are, and we have not heard who it is: what we wait for in vain it says that
/// it has, and it is not given up.
#[test]
fn a_side_waited_for_in_vain_may_say_that_it_is_there() {
    let mut end = End::new(Config { timeout: 14, retry_count: 2, ..config() });
    end.submit(1, SEND, 1);
    end.sent();
    // Until a retry is spent nothing is heard.
    let deadline = end.connection.poll_timeout();
    delay(&mut end, 2);
    assert_eq!(end.connection.poll_timeout(), deadline);
    // Otherwise it would be given up after twelve times 67 ms, at the latest.
    let begin = end.now;
    while end.now - begin < 10 * SECOND {
        end.wait();
        assert_eq!(end.statuses(), []);
        if !end.sent().is_empty() {
            delay(&mut end, 1);
        }
    }
    end.receive(&ack(1000));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn a_peer_that_only_says_that_it_is_slow_is_given_up() {
    let mut end =
        End::new(Config { retry_count: 7, delay_notices: DelayNotices::Agreed, ..config() });
    end.submit(1, SEND, 1);
    end.sent();
    let begin = end.now;
    while end.statuses().is_empty() {
        delay(&mut end, 4000);
        end.wait();
        end.sent();
    }
    assert!((60 * SECOND..62 * SECOND).contains(&(end.now - begin)), "{}", end.now - begin);
}

#[test]
fn payload_that_comes_late_is_no_loss() {
    let mut end = End::new(Config { retry_count: 0, ..config() });
    end.submit(1, SEND, 256 * 4);
    end.script.gathers.extend([GatherOutcome::Filled, GatherOutcome::Filled, GatherOutcome::Later]);
    assert_eq!(end.sent(), ["SEND-FIRST psn 1000", "SEND-MIDDLE psn 1001"]);
    // The peer owes no answer to these, and what it would answer was not sent.
    assert_eq!(end.connection.poll_timeout(), None);
    end.now += 3600 * SECOND;
    end.connection.handle_timeout(end.now);
    end.script.gathers.push_back(GatherOutcome::Later);
    end.connection.resume(end.now);
    assert_eq!(end.sent(), [""; 0]);
    assert_eq!(end.connection.poll_timeout(), None);
    end.connection.resume(end.now);
    assert_eq!(end.sent(), ["SEND-MIDDLE psn 1002 ask", "SEND-LAST psn 1003 ask"]);
    assert_eq!(end.connection.counters().resent, 0);
    end.receive(&ack(1003));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn what_was_asked_for_is_waited_for_although_payload_is_late() {
    let mut end = End::new(Config { retry_count: 0, ..config() });
    let halfway = [GatherOutcome::Filled; 18].into_iter().chain([GatherOutcome::Later]);
    end.submit(1, SEND, 256 * 40);
    end.script.gathers.extend(halfway.clone());
    assert_eq!(end.sent().len(), 18, "the sixteenth asks");
    let begin = end.now;
    while end.statuses().is_empty() {
        end.script.gathers = halfway.clone().collect();
        end.wait();
        end.sent();
    }
    assert!(end.now - begin < SECOND, "the peer is gone");
}

#[test]
fn payload_that_comes_late_once_more_is_one_retry() {
    let mut end = End::new(Config { retry_count: 1, ..config() });
    end.submit(1, SEND, 1);
    assert_eq!(end.sent(), ["SEND-ONLY psn 1000 ask"]);
    // It was lost, and cannot be sent again for a long time.
    end.script.gathers.push_back(GatherOutcome::Later);
    while end.connection.poll_timeout().is_some() {
        end.wait();
        assert_eq!(end.sent(), [""; 0]);
    }
    assert_eq!(end.statuses(), []);
    end.now += 3600 * SECOND;
    end.connection.resume(end.now);
    assert_eq!(end.sent(), ["SEND-ONLY psn 1000 ask"]);
    end.receive(&ack(1000));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}
