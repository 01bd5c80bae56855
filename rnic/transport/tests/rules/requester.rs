//! Rules for the requester and the completer.

use crate::script::{ADD, End, Parts, READ, SEND, acknowledge, config, make, read_data};
use omniverb_transport::{Config, Event, Operation, Placed, Request, RequestId, Status};
use omniverb_wire::{Aeth, AtomicAckEth, Packet, Place, Syndrome, write_delay, write_notification};

fn end() -> End {
    End::new(config())
}

fn atomic_result(psn: u32, original: u64) -> crate::script::Made {
    let aeth = Some(Aeth::new(Syndrome::Ack(0x1f), 0));
    let result = Some(AtomicAckEth::new(original));
    make(0x12, psn, Parts { aeth, result, ..Parts::default() })
}

#[test]
fn messages_are_cut_and_completed_in_order() {
    let mut end = end();
    end.submit(1, SEND, 600);
    end.submit(2, SEND, 0);
    let write = |total| Operation::Write {
        address: 0x9000,
        key: 7,
        total,
        immediate: Some([1; 4]),
        solicited: true,
    };
    end.submit(3, write(256), 256);
    end.submit(4, write(257), 257);
    let expected = ["00 1000", "01 1001", "02 1002 ask", "04 1003 ask"];
    let more = ["0b 1004 ask 9000+256", "06 1005 9000+257", "09 1006 ask"];
    assert_eq!(end.sent(), [&expected[..], &more[..]].concat());
    end.receive(&acknowledge(1003, 0x1f));
    assert_eq!(end.statuses(), [(1, Status::Success), (2, Status::Success)]);
    end.receive(&acknowledge(1006, 0x1f));
    assert_eq!(end.statuses(), [(3, Status::Success), (4, Status::Success)]);
    assert_eq!(end.connection.poll_timeout(), None);
}

#[test]
fn pieces_of_one_message() {
    let mut end = end();
    for (id, place, length) in
        [(1, Place::First, 512), (2, Place::Middle, 256), (3, Place::Last, 5)]
    {
        let request = Request { id: RequestId(id), operation: SEND, length, place, fence: false };
        end.connection.submit(request).unwrap();
    }
    assert_eq!(end.sent(), ["00 1000", "01 1001 ask", "01 1002 ask", "02 1003 ask"]);
    end.receive(&acknowledge(1001, 0x1f));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    let place = Place::First;
    let request = Request { id: RequestId(4), operation: SEND, length: 100, place, fence: false };
    assert!(end.connection.submit(request).is_err());
}

#[test]
fn the_window_is_kept_and_its_last_packet_asks() {
    let mut end = End::new(Config { window: 8, ..config() });
    end.submit(1, SEND, 256 * 20);
    let sent = end.sent();
    assert_eq!(sent.len(), 8);
    assert_eq!(sent[7], "01 1007 ask");
    end.receive(&acknowledge(1007, 0x1f));
    assert_eq!(end.sent().len(), 8);
}

#[test]
fn a_sequence_nak_goes_back_once_and_spends_a_retry() {
    let mut end = End::new(Config { retry_count: 1, ..config() });
    for id in 0..4 {
        end.submit(id, SEND, 1);
    }
    assert_eq!(end.sent().len(), 4);
    end.receive(&acknowledge(1001, 0x60));
    end.receive(&acknowledge(1001, 0x60));
    assert_eq!(end.sent(), ["04 1001 ask", "04 1002 ask", "04 1003 ask"]);
    assert_eq!(end.statuses(), [(0, Status::Success)]);
    end.receive(&acknowledge(1002, 0x1f));
    // Progress gave the retry back.
    end.receive(&acknowledge(1003, 0x60));
    assert_eq!(end.sent(), ["04 1003 ask"]);
    end.receive(&acknowledge(1003, 0x1f));
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
    // Three times 67 ms: the first try and two retries.
    let timeout = 4096 << 14;
    assert_eq!(end.now - begin, 3 * timeout);
    assert!(times > 6, "sent again {times} times");
    assert!(end.sent().is_empty() && end.connection.poll_timeout().is_none());
}

#[test]
fn without_a_timeout_it_tries_for_ever() {
    let mut end = End::new(Config { timeout: 0, retry_count: 0, ..config() });
    end.submit(1, SEND, 1);
    end.sent();
    for _ in 0..100 {
        end.wait();
        assert_eq!(end.sent(), ["04 1000 ask"]);
    }
    end.receive(&acknowledge(1000, 0x1f));
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
    end.receive(&acknowledge(1001, 0x60));
    end.receive(&acknowledge(1001, 0x2c));
    assert_eq!(end.statuses(), [(0, Status::Success)]);
    assert_eq!(end.sent(), [""; 0]);
    assert_eq!(end.wait(), 640_000);
    assert_eq!(end.sent(), ["04 1001 ask", "04 1002 ask"]);
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

#[test]
fn refusals_hit_the_request_they_name() {
    let cases = [
        (0x61, Status::RemoteInvalidRequest),
        (0x62, Status::RemoteAccess),
        (0x63, Status::RemoteOperation),
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
fn answers_nobody_asked_for_are_ignored() {
    let mut end = end();
    end.submit(1, SEND, 1);
    end.receive(&acknowledge(1000, 0x1f)); // not sent yet
    end.sent();
    for (psn, syndrome) in [(1001, 0x1f), (1001, 0x62), (999, 0x62), (1000, 0x65), (1000, 0x40)] {
        end.receive(&acknowledge(psn, syndrome));
    }
    end.receive(&read_data(0x10, 1000, 1));
    end.receive(&atomic_result(1000, 1));
    assert_eq!(end.events(), []);
    end.receive(&acknowledge(1000, 0x1f));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn reads_are_placed_and_acknowledge_what_is_before_them() {
    let mut end = end();
    end.submit(1, SEND, 1);
    end.submit(2, READ, 600);
    end.submit(3, READ, 0);
    assert_eq!(end.sent(), ["04 1000 ask", "0c 1001 ask 1000+600", "0c 1004 ask 1000+0"]);
    end.receive(&read_data(0x0d, 1001, 256));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    end.receive(&read_data(0x0e, 1002, 256));
    end.receive(&read_data(0x0f, 1003, 88));
    end.receive(&read_data(0x10, 1004, 0));
    assert_eq!(end.statuses(), [(2, Status::Success), (3, Status::Success)]);
    assert_eq!(end.script.take_log(), ["place 2 0+256", "place 2 256+256", "place 2 512+88"]);
}

#[test]
fn a_missing_read_answer_is_asked_for_from_where_it_is_missing() {
    let mut end = end();
    end.submit(1, READ, 1000);
    end.submit(2, SEND, 1);
    end.sent();
    end.receive(&read_data(0x0d, 1000, 256));
    end.receive(&read_data(0x0e, 1002, 256));
    end.receive(&read_data(0x0f, 1003, 232));
    assert_eq!(end.sent(), ["0c 1001 ask 1100+744", "04 1004 ask"]);
    // An acknowledgement from beyond says the same, but nothing new.
    end.receive(&acknowledge(1004, 0x1f));
    assert_eq!(end.sent(), [""; 0]);
    end.receive(&read_data(0x0d, 1001, 256));
    end.receive(&acknowledge(1004, 0x1f));
    assert_eq!(end.sent(), ["0c 1002 ask 1200+488", "04 1004 ask"]);
    end.receive(&read_data(0x0d, 1002, 256));
    end.receive(&read_data(0x0f, 1003, 232));
    end.receive(&acknowledge(1004, 0x1f));
    assert_eq!(end.statuses(), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn a_read_answer_of_a_wrong_length_fails() {
    for payload in [0, 255, 257] {
        let mut end = end();
        end.submit(1, READ, 256);
        end.sent();
        end.receive(&read_data(0x10, 1000, payload));
        assert_eq!(end.statuses(), [(1, Status::BadResponse)], "{payload}");
    }
}

#[test]
fn read_data_without_room_are_asked_for_again() {
    let mut end = end();
    end.submit(1, READ, 512);
    end.sent();
    end.script.placements.extend([Placed::Done, Placed::Full]);
    end.receive(&read_data(0x0d, 1000, 256));
    end.receive(&read_data(0x0f, 1001, 256));
    assert_eq!(end.sent(), [""; 0]);
    end.connection.resume(end.now);
    assert_eq!(end.sent(), ["0c 1001 ask 1100+256"]);
    end.receive(&read_data(0x10, 1001, 256));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn only_so_many_reads_and_atomics_are_under_way() {
    let mut end = End::new(Config { max_rd_atomic: 2, ..config() });
    for id in 0..3 {
        end.submit(id, ADD, 8);
    }
    end.submit(3, SEND, 1);
    assert_eq!(end.sent(), ["14 1000 ask", "14 1001 ask"]);
    end.receive(&atomic_result(1000, 40));
    assert_eq!(end.sent(), ["14 1002 ask", "04 1003 ask"]);
    let event = Event::Completed { id: RequestId(0), status: Status::Success, original: Some(40) };
    assert_eq!(end.events(), [event]);
    // The answer to 1001 is lost: it goes out again unchanged, with all that follows.
    end.receive(&atomic_result(1002, 42));
    assert_eq!(end.sent(), ["14 1001 ask", "14 1002 ask", "04 1003 ask"]);
}

#[test]
fn a_fence_waits_for_reads() {
    let mut end = end();
    end.submit(1, READ, 10);
    let id = RequestId(2);
    let request = Request { id, operation: SEND, length: 1, place: Place::Only, fence: true };
    end.connection.submit(request).unwrap();
    assert_eq!(end.sent(), ["0c 1000 ask 1000+10"]);
    end.receive(&read_data(0x10, 1000, 10));
    assert_eq!(end.sent(), ["04 1001 ask"]);
}

#[test]
fn a_notification_narrows_the_window() {
    let mut end = end();
    let before = end.connection.counters().window;
    let mut datagram = [0; 64];
    let length = write_notification(&mut datagram, 0x11).unwrap();
    let packet = Packet::parse(&datagram[..length]).unwrap();
    end.connection.handle_packet(end.now, &packet, false, &mut end.script);
    assert_eq!(end.connection.counters().window, before / 2);
}

/// The peer says that its answers take so many seconds.
fn delay(end: &mut End, seconds: u32) {
    let mut datagram = [0; 64];
    let length = write_delay(&mut datagram, 0x11, seconds * 1_000_000).unwrap();
    let packet = Packet::parse(&datagram[..length]).unwrap();
    end.connection.handle_packet(end.now, &packet, false, &mut end.script);
}

const SECOND: u64 = 1_000_000_000;

#[test]
fn a_peer_that_says_it_is_slow_is_waited_for() {
    let mut end = End::new(Config { retry_count: 0, ..config() });
    end.submit(1, SEND, 1);
    end.sent();
    delay(&mut end, 2);
    delay(&mut end, 1); // the longer one counts
    assert_eq!(end.wait(), 2 * SECOND);
    assert_eq!(end.sent(), ["04 1000 ask"], "asked again, when that time is over");
    end.receive(&acknowledge(1000, 0x1f));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert_eq!(end.connection.poll_timeout(), None);
    delay(&mut end, 2);
    assert_eq!(end.connection.poll_timeout(), None, "nothing is waited for");
}

#[test]
fn a_peer_that_only_says_that_it_is_slow_is_given_up() {
    let mut end = End::new(Config { retry_count: 7, ..config() });
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
fn memory_that_is_gone_fails_the_read() {
    let mut end = end();
    end.submit(1, SEND, 1);
    end.submit(2, READ, 10);
    end.submit(3, SEND, 1);
    end.sent();
    end.script.placements.push_back(Placed::Failed);
    end.receive(&read_data(0x10, 1001, 10));
    let expected = [(1, Status::Success), (2, Status::LocalProtection), (3, Status::Flushed)];
    assert_eq!(end.statuses(), expected);
}

fn write(total: u64, immediate: Option<[u8; 4]>) -> Operation {
    Operation::Write { address: 0x9000, key: 7, total, immediate, solicited: false }
}

#[test]
fn every_packet_of_a_write_may_name_what_is_left() {
    let mut end = End::new(Config { name_all: true, ..config() });
    end.submit(1, write(600, None), 600);
    end.submit(2, write(600, Some([1; 4])), 600);
    let first = ["06 1000 9000+600", "06 1001 9100+344", "0a 1002 ask 9200+88"];
    let second = ["06 1003 9000+600", "06 1004 9100+344", "0b 1005 ask 9200+88"];
    assert_eq!(end.sent(), [first, second].concat());
    end.receive(&acknowledge(1001, 0x60)); // lost in the middle
    assert_eq!(end.sent()[..2], first[1..]);
    end.receive(&acknowledge(1005, 0x1f));
    assert_eq!(end.statuses(), [(1, Status::Success), (2, Status::Success)]);
    // In pieces, each of which knows where it stands.
    for (id, place, length) in [(3, Place::First, 512), (4, Place::Last, 88)] {
        let operation = write(600, None);
        let request = Request { id: RequestId(id), operation, length, place, fence: false };
        end.connection.submit(request).unwrap();
    }
    let pieces = ["06 1006 9000+600", "06 1007 ask 9100+344", "0a 1008 ask 9200+88"];
    assert_eq!(end.sent(), pieces);
}

#[test]
fn a_burst_waits_until_it_is_worth_a_system_call() {
    let mut end = End::new(Config { burst: 16, ..config() });
    end.submit(1, SEND, 256 * 100);
    assert_eq!(end.sent().len(), 32);
    end.receive(&acknowledge(1003, 0x1f));
    assert!(end.sent().is_empty(), "room for 8, and a quarter of the window is 9");
    end.receive(&acknowledge(1007, 0x1f));
    assert_eq!(end.sent().len(), 16, "and the window has grown");
    let mut end = End::new(Config { burst: 16, ..config() });
    end.submit(1, SEND, 256 * 36);
    assert_eq!(end.sent().len(), 32);
    end.receive(&acknowledge(1003, 0x1f));
    assert_eq!(end.sent().len(), 4, "all there are");
}

#[test]
fn an_acknowledgement_is_asked_for_at_the_end_of_what_there_is() {
    let mut end = End::new(Config { ask_every: Some(64), ..config() });
    for id in 0..3 {
        end.submit(id, SEND, 1);
    }
    assert_eq!(end.sent(), ["04 1000", "04 1001", "04 1002 ask"]);
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
    assert_eq!(end.sent().last().unwrap(), "04 1020 ask");
    end.receive(&acknowledge(1020, 0x1f));
    assert_eq!(end.sent().len(), 1);
}
