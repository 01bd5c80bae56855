//! Rules for a connection that goes on where another one has ended.

use crate::scripted_upper_layer::*;
use omniverb_terms::Psn;
use omniverb_transport::snapshot::{
    ConnectionSnapshot, IncomingMessage, OpenMessage, RememberedAnswer, RememberedSnapshot,
    SentExtent, SnapshotError,
};
use omniverb_transport::{Delivery, LateAnswer, MESSAGE_MAX, Status};

/// A SEND, a READ of three packets and an atomic under way; of the READ one packet is here. From
/// the peer an atomic was answered, and of three SENDs two wait for the layer above.
fn busy() -> End {
    let mut end = end();
    end.receive(&add(500, 0x2000));
    end.script.answers.extend([Delivery::Done, Delivery::Later, Delivery::Later]);
    [501, 502, 503].into_iter().for_each(|psn| end.receive(&send(psn, 8)));
    submit(&mut end);
    end.sent();
    end.receive(&ack(1000));
    end.receive(&read_data(READ_RESPONSE_FIRST, 1001, MTU));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    end
}

fn submit(end: &mut End) {
    end.submit(1, SEND, 10);
    under_way(end);
}

fn under_way(end: &mut End) {
    end.submit(2, READ, 600);
    end.submit(3, ADD, 8);
}

/// Another end, in this state.
fn next(snapshot: &ConnectionSnapshot) -> Result<End, SnapshotError> {
    let mut next = end();
    next.connection.restore_responder(&snapshot.responder)?;
    next.connection.restore_requester(&snapshot.requester)?;
    under_way(&mut next);
    next.connection.resume_sent(&snapshot.requester)?;
    Ok(next)
}

#[test]
fn what_is_under_way_goes_again_under_its_psns() {
    let mut old = busy();
    let snapshot = old.connection.snapshot().unwrap();
    let requester = &snapshot.requester;
    assert_eq!((requester.first, requester.acknowledged, requester.sent), (Psn::new(1001), 1, 4));
    let extents = [SentExtent { first: 0, count: 3 }, SentExtent { first: 3, count: 1 }];
    assert_eq!(requester.extents, extents);
    let mut next = next(&snapshot).unwrap();
    assert_eq!(next.connection.snapshot(), Some(snapshot));
    let sent = next.sent();
    // The rest of the READ asks for what it asked for before, and is the first to find out.
    assert_eq!(sent, ["ACK psn 501 msn 2", "READ-REQUEST psn 1002 ask 0x1100+344 rkey 0x7"]);
    next.receive(&read_data(READ_RESPONSE_FIRST, 1002, MTU));
    next.receive(&read_data(READ_RESPONSE_LAST, 1003, 600 - 2 * MTU));
    assert_eq!(next.script.take_log(), ["place 2 256+256", "place 2 512+88"]);
    assert_eq!(next.statuses(), [(2, Status::Success)]);
    assert_eq!(next.sent(), ["FETCH-ADD psn 1004 ask 0x2000 rkey 0x7 add 0x1"]);
}

#[test]
fn what_was_executed_is_not_executed_again_and_what_waits_is_acknowledged() {
    let mut old = busy();
    let snapshot = old.connection.snapshot().unwrap();
    let waiting: Vec<_> = snapshot.responder.unanswered.iter().map(|part| part.ticket).collect();
    let mut next = next(&snapshot).unwrap();
    next.sent();
    next.receive(&add(500, 0x2000));
    assert_eq!(next.sent(), ["ATOMIC-ACKNOWLEDGE psn 500 msn 2 original 0x0"]);
    assert!(next.script.take_log().is_empty());
    next.receive(&send(504, 8));
    assert!(next.script.tickets.iter().all(|ticket| !waiting.contains(ticket)));
    next.connection.answer(waiting[0], LateAnswer::Done);
    next.connection.done_through(waiting[1]);
    assert_eq!(next.sent(), ["ACK psn 504 msn 5"]);
}

#[test]
fn nothing_is_given_on_that_is_not_complete() {
    let mut end = end();
    end.script.answers.push_back(Delivery::Later);
    end.receive(&add(500, 0x2000));
    assert_eq!(end.connection.snapshot(), None, "an atomic is not answered");
    end.connection.answer(end.script.tickets[0], LateAnswer::Original(4));
    assert_eq!(end.connection.snapshot(), None, "nor has its answer left");
    end.sent();
    end.connection.rest();
    end.receive(&send(501, 8));
    let snapshot = end.connection.snapshot().unwrap();
    assert_eq!(snapshot.responder.expected, Psn::new(501), "it takes no requests at rest");
    assert_eq!(
        snapshot.responder.remembered,
        [RememberedSnapshot { back: 1, answer: RememberedAnswer::Found(4) }]
    );
    end.submit(1, SEND, 1);
    assert!(end.sent().is_empty(), "nor does it ask for anything");
    assert_eq!(end.connection.poll_timeout(), None);
    let mut end = self::end();
    end.submit(1, SEND, 1);
    end.sent();
    end.receive(&ack(1000));
    assert_eq!(end.connection.snapshot(), None, "the layer above has not heard of its SEND");
    end.events();
    assert!(end.connection.snapshot().is_some());
}

/// Each of these is wrong in one point.
#[test]
fn impossible_states_are_refused() {
    let good = busy().connection.snapshot().unwrap();
    let refused = |what: &str, change: &dyn Fn(&mut ConnectionSnapshot)| {
        let mut bad = good.clone();
        change(&mut bad);
        assert!(bad != good && next(&bad).is_err(), "{what}");
    };
    refused("more than was submitted", &|bad| bad.requester.sent = 5);
    refused("more acknowledged than sent", &|bad| bad.requester.acknowledged = 5);
    refused("the oldest is over", &|bad| bad.requester.acknowledged = 3);
    refused("a gap", &|bad| bad.requester.extents[1].first = 2);
    refused("an extent of two requests", &|bad| bad.requester.extents[0].count = 4);
    refused("an extent of nothing", &|bad| bad.requester.extents[1].count = 0);
    refused("one too few", &|bad| bad.requester.extents.truncate(1));
    refused("one too many", &|bad| {
        let more = SentExtent { first: 3, count: 1 };
        bad.requester.extents.push(more);
    });
    refused("far too many packets", &|bad| bad.requester.sent = u32::MAX);
    refused("a piece of a packet", &|bad| {
        bad.requester.open = Some(OpenMessage::Send { bytes: 9 });
    });
    refused("an endless WRITE", &|bad| {
        bad.requester.open = Some(OpenMessage::Write { left: MESSAGE_MAX });
    });
    refused("part of a packet", &|bad| {
        bad.responder.message = Some(IncomingMessage::Send { offset: 9 });
    });
    refused("more than there is", &|bad| {
        let (address, key, total) = (0, omniverb_terms::Rkey(1), 256);
        bad.responder.message = Some(IncomingMessage::Write { address, key, total, offset: 256 });
    });
    refused("tickets backwards", &|bad| bad.responder.unanswered.reverse());
    refused("too much unanswered", &|bad| {
        let part = bad.responder.unanswered[0];
        bad.responder.unanswered = vec![part; 257];
    });
    refused("an atomic to come", &|bad| bad.responder.remembered[0].back = 2);
    refused("an atomic of this moment", &|bad| bad.responder.remembered[0].back = 0);
    refused("far too long ago", &|bad| bad.responder.remembered[0].back = u32::MAX);
    refused("more than agreed on", &|bad| {
        let one = bad.responder.remembered[0];
        bad.responder.remembered = vec![one; 17];
    });
    refused("two at one place", &|bad| {
        let one = bad.responder.remembered[0];
        bad.responder.remembered.push(one);
    });
    refused("too many messages", &|bad| bad.responder.messages = 1 << 24);
}
