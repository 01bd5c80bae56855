//! Tests what the peer refuses: which request that hits, and what is still waited for.

use crate::requester_retries::SECOND;
use crate::scripted_upper_layer::*;
use omniverb_terms::Refusal;
use omniverb_transport::{Config, Status};

#[test]
fn refusals_hit_the_request_they_name() {
    let cases = [
        (0x61, Status::Refused(Refusal::InvalidRequest)),
        (0x62, Status::Refused(Refusal::RemoteAccess)),
        (0x63, Status::Refused(Refusal::RemoteOperation)),
    ];
    for (syndrome, status) in cases {
        let mut end = end();
        for id in 0..3 {
            end.submit(id, SEND, 300);
        }
        end.sent();
        end.receive(&acknowledge(1003, syndrome));
        let expected = [(0, Status::Success), (1, status), (2, Status::Flushed)];
        assert_eq!(end.statuses(), expected);
        assert_eq!(end.sent(), [""; 0]);
    }
}

#[test]
fn a_refusal_behind_an_answer_that_was_lost_is_no_silence() {
    // With a timeout, and without one.
    for timeout in [14, 0] {
        let mut end = End::new(Config { timeout, ..config() });
        (1..4).for_each(|id| end.submit(id, READ, 600));
        assert_eq!(end.sent().len(), 3);
        end.receive(&acknowledge(1003, 0x62));
        assert_eq!(end.statuses(), [], "it may have been overtaken");
        assert_eq!(end.sent()[0], "READ-REQUEST psn 1000 ask 0x1000+600 rkey 0x7");
        let begin = end.now;
        let statuses = loop {
            end.wait();
            end.sent();
            let statuses = end.statuses();
            if !statuses.is_empty() {
                break statuses;
            }
        };
        let flushed = |id| (id, Status::Flushed);
        assert_eq!(statuses, [(1, Status::Refused(Refusal::RemoteAccess)), flushed(2), flushed(3)]);
        assert!(end.now - begin < SECOND, "{}", end.now - begin);
    }
}

#[test]
fn a_refusing_responder_still_answers_earlier_requests() {
    // Longer than one timeout; without one, than two answers take that are lost.
    for (timeout, time) in [(14, 3 * SECOND / 10), (0, 0)] {
        let mut end = End::new(Config { timeout, ..config() });
        (1..3).for_each(|id| end.submit(id, READ, 100));
        end.sent();
        end.receive(&acknowledge(1001, 0x62));
        let (begin, mut waits) = (end.now, 0);
        while end.now - begin < time || waits < 2 {
            end.sent();
            end.wait();
            waits += 1;
        }
        assert_eq!((end.statuses(), end.sent().is_empty()), (vec![], false));
        end.receive(&read_data(READ_RESPONSE_ONLY, 1000, 100));
        assert_eq!(
            end.statuses(),
            [(1, Status::Success), (2, Status::Refused(Refusal::RemoteAccess))]
        );
    }
}

#[test]
fn a_refusal_that_overtook_an_answer_hits_what_it_names() {
    let mut end = end();
    (1..4).for_each(|id| end.submit(id, READ, 100));
    end.sent();
    end.receive(&acknowledge(1001, 0x62));
    end.sent();
    end.receive(&read_data(READ_RESPONSE_ONLY, 1000, 100));
    let expected =
        [(1, Status::Success), (2, Status::Refused(Refusal::RemoteAccess)), (3, Status::Flushed)];
    assert_eq!(end.statuses(), expected);
    assert_eq!(end.connection.poll_timeout(), None);
}
