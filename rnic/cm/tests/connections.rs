//! Tests two managers over a line that loses, doubles and reorders messages, as a seed decides.
//! Neither waits for ever, and both come to the same end.

use omniverb_cm::sidr::status;
use omniverb_cm::{
    CmAction, Connection, Event, Mad, Message, Path, Private, Reply, Request, Resolution, Resolve,
    SidrOutcome, State, Transport, reject_reason,
};
use omniverb_terms::{Psn, Qkey, Qpn, Service};
use proptest::prelude::*;
use std::collections::BTreeMap;

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1000 * MILLISECOND;
/// Longer than anything lasts.
const LONG: u64 = 3600 * SECOND;

fn request() -> Request {
    Request {
        communication: 7,
        vendor: 0,
        options: 0,
        service: 1,
        device: 70,
        queue_key: Qkey(0),
        queue_pair: Qpn(0x17),
        responder_resources: 3,
        initiator_depth: 5,
        contexts: (0, 0),
        remote_timeout: 20,
        local_timeout: 20,
        transport: Transport::Of(Service::Rc),
        has_flow_control: false,
        psn: Psn::new(100),
        retry_count: 6,
        partition_key: 0xffff,
        path_mtu: 3,
        has_datagram_channels: false,
        rnr_retry: 5,
        manager_retries: 15,
        has_srq: false,
        primary: Path { ack_timeout: 17, ..Path::default() },
        alternate: Path::default(),
        may_propose_path: false,
        private: [1; 92],
    }
}

fn reply() -> Reply {
    Reply {
        communication: 0,
        remote: 0,
        queue_key: Qkey(0),
        queue_pair: Qpn(0x29),
        vendor: 0,
        options: 0,
        context: 0,
        psn: Psn::new(200),
        responder_resources: 4,
        initiator_depth: 2,
        ack_delay: 15,
        failover: 0,
        has_flow_control: false,
        rnr_retry: 7,
        has_srq: false,
        device: 90,
        private: [2; 196],
    }
}

/// A random number that a seed decides.
struct SeededRandom(u64);

impl SeededRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

/// What the line does to messages, in percent.
#[derive(Clone, Copy, Debug, Default)]
struct LineFaults {
    lost: u64,
    doubled: u64,
    late: u64,
}

/// A connection's two ends, and what is on its way.
struct World {
    now: u64,
    chance: SeededRandom,
    line: LineFaults,
    /// Who asks, who is asked.
    ends: [Option<Connection>; 2],
    told: [Vec<Event>; 2],
    /// By when it arrives.
    under_way: BTreeMap<(u64, u64), (usize, Mad)>,
    count: u64,
    sent: usize,
    /// A farewell (DREQ) of who asks has arrived.
    farewell_arrived: bool,
}

impl World {
    fn new(seed: u64, line: LineFaults) -> World {
        let mut steps = Vec::new();
        let asks = Connection::ask(request(), 0x1_0000_0007, 0, &mut steps);
        let mut world = World {
            now: 0,
            chance: SeededRandom(seed),
            line,
            ends: [Some(asks), None],
            told: [Vec::new(), Vec::new()],
            under_way: BTreeMap::new(),
            count: 0,
            sent: 0,
            farewell_arrived: false,
        };
        world.take(0, steps);
        world
    }

    fn take(&mut self, end: usize, steps: Vec<CmAction>) {
        for step in steps {
            match step {
                CmAction::Tell(event) => self.told[end].push(event),
                CmAction::Send(mad) => {
                    self.sent += 1;
                    let copies = 1 + usize::from(self.chance.percent(self.line.doubled));
                    for _ in 0..copies {
                        self.send(1 - end, mad.clone());
                    }
                }
            }
        }
    }

    fn send(&mut self, to: usize, mad: Mad) {
        if self.chance.percent(self.line.lost) {
            return;
        }
        let late = if self.chance.percent(self.line.late) { self.chance.next() % 5000 } else { 0 };
        self.count += 1;
        let at = self.now + (1 + late) * MILLISECOND;
        self.under_way.insert((at, self.count), (to, mad));
    }

    fn act(&mut self, end: usize, what: impl FnOnce(&mut Connection, u64, &mut Vec<CmAction>)) {
        let mut steps = Vec::new();
        if let Some(connection) = &mut self.ends[end] {
            what(connection, self.now, &mut steps);
        }
        self.take(end, steps);
    }

    fn state(&self, end: usize) -> Option<State> {
        self.ends[end].as_ref().map(Connection::state)
    }

    /// When the next thing happens.
    fn next(&self) -> Option<u64> {
        let arrives = self.under_way.first_key_value().map(|((at, _), _)| *at);
        let ends = self.ends.iter().flatten().filter_map(Connection::deadline);
        ends.chain(arrives).min()
    }

    /// The next thing happens; false: nothing is left to happen until `until`.
    fn step(&mut self, until: u64) -> bool {
        let Some(at) = self.next().filter(|at| *at <= until) else {
            self.now = self.now.max(until);
            return false;
        };
        self.now = self.now.max(at);
        if let Some(entry) = self.under_way.first_entry()
            && entry.key().0 <= self.now
        {
            let (to, mad) = entry.remove();
            self.arrive(to, &mad);
            return true;
        }
        for end in 0..2 {
            self.act(end, |connection, now, steps| connection.tick(now, steps));
        }
        true
    }

    fn arrive(&mut self, to: usize, mad: &Mad) {
        if let (None, 1, Message::Request(request)) = (&self.ends[1], to, &mad.message) {
            self.ends[1] = Some(Connection::asked(request, mad.transaction, 9));
            return;
        }
        self.farewell_arrived |= to == 1 && matches!(mad.message, Message::Disconnect(_));
        self.act(to, |connection, now, steps| connection.arrived(mad, now, steps));
    }

    fn run(&mut self, until: u64) {
        let mut steps = 0;
        while self.step(until) {
            steps += 1;
            assert!(steps < 100_000, "they talk for ever");
        }
    }

    /// What both users do who want the connection.
    fn connect(&mut self) {
        let end = self.now + LONG;
        while self.step(end) {
            if self.state(1) == Some(State::Asked) {
                self.act(1, |c, now, steps| c.accept(reply(), now, steps).unwrap());
            }
            if self.state(0) == Some(State::Answered) {
                self.act(0, |c, _, steps| c.establish(steps).unwrap());
            }
        }
    }
}

fn names(told: &[Event]) -> Vec<&'static str> {
    let name = |event: &Event| match event {
        Event::Answered(_) => "answered",
        Event::Established => "established",
        Event::Rejected { .. } => "rejected",
        Event::Unreachable => "unreachable",
        Event::Disconnected => "disconnected",
        Event::Over => "over",
    };
    told.iter().map(name).collect()
}

/// A line that loses less than so many of a hundred messages.
fn line(lost: u64) -> impl Strategy<Value = LineFaults> {
    (0..lost, 0..50u64, 0..50u64).prop_map(|(lost, doubled, late)| LineFaults {
        lost,
        doubled,
        late,
    })
}

#[test]
fn both_learn_what_their_queue_pairs_need() {
    let mut world = World::new(1, LineFaults::default());
    world.connect();
    assert_eq!(names(&world.told[0]), ["answered"]);
    assert_eq!(names(&world.told[1]), ["established"]);
    let [asks, asked] = world.ends.each_ref().map(|end| *end.as_ref().unwrap().terms());
    assert_eq!((asks.local_qpn, asks.remote_qpn), (Qpn(0x17), Qpn(0x29)));
    assert_eq!((asked.local_qpn, asked.remote_qpn), (Qpn(0x29), Qpn(0x17)));
    // Each side says what the other begins with: kernels do, too.
    assert_eq!((asks.local_psn, asks.remote_psn), (Psn::new(200), Psn::new(100)));
    assert_eq!((asked.local_psn, asked.remote_psn), (Psn::new(100), Psn::new(200)));
    assert_eq!((asked.responder_resources, asked.initiator_depth), (4, 2));
    assert_eq!((asks.responder_resources, asks.initiator_depth), (2, 4));
    assert_eq!((asks.retry_count, asks.rnr_retry, asked.rnr_retry), (6, 7, 5));
    assert_eq!((asks.path_mtu, asked.path_mtu, asked.ack_timeout), (3, 3, 17));
    assert_eq!(world.sent, 3, "REQ, REP, RTU");
}

#[test]
fn the_listener_knows_the_offer_before_it_answers() {
    let connection = Connection::asked(&request(), 1, 9);
    let terms = connection.terms();
    assert_eq!((terms.responder_resources, terms.initiator_depth), (5, 3), "crossed");
    assert_eq!((terms.remote_qpn, terms.local_psn), (Qpn(0x17), Psn::new(100)));
}

#[test]
fn a_refusal_brings_its_reason_and_data() {
    let mut world = World::new(1, LineFaults::default());
    world.run(SECOND / 100);
    world.act(1, |c, _, steps| c.reject(reject_reason::CONSUMER, [5; 148], steps).unwrap());
    world.run(LONG);
    let expected = Event::Rejected { reason: reject_reason::CONSUMER, private: [5; 148] };
    assert_eq!(world.told[0], [expected]);
    assert_eq!((world.state(0), world.state(1)), (Some(State::Closed), Some(State::Closed)));
}

#[test]
fn an_unanswered_request_ends_when_kernels_give_up() {
    let mut world = World::new(1, LineFaults { lost: 100, ..LineFaults::default() });
    world.run(73 * SECOND);
    assert_eq!(names(&world.told[0]), [""; 0]);
    world.run(75 * SECOND);
    assert_eq!(names(&world.told[0]), ["unreachable"]);
    assert_eq!(world.state(0), Some(State::Closed));
}

#[test]
fn a_slow_decision_is_waited_for() {
    let mut world = World::new(1, LineFaults::default());
    world.run(90 * SECOND);
    assert_eq!(world.told[0], []);
    assert!(world.sent < 12, "it is asked for time, not again and again: {}", world.sent);
    world.connect();
    assert_eq!(names(&world.told[1]), ["established"]);
}

#[test]
fn a_connection_ends_once_for_each() {
    for both in [false, true] {
        let mut world = World::new(1, LineFaults::default());
        world.connect();
        for end in 0..=usize::from(both) {
            world.act(end, |c, now, steps| c.disconnect(now, steps).unwrap());
        }
        world.run(LONG * 2);
        assert_eq!(names(&world.told[0])[1..], ["disconnected", "over"]);
        assert_eq!(names(&world.told[1])[1..], ["disconnected", "over"]);
        world.act(0, |c, now, steps| assert!(c.disconnect(now, steps).is_err()));
    }
}

#[test]
fn an_unheard_dreq_leaves_the_peer_and_frees_its_sender() {
    let mut world = World::new(1, LineFaults::default());
    world.connect();
    world.line.lost = 100;
    world.act(0, |c, now, steps| c.disconnect(now, steps).unwrap());
    world.run(LONG * 2);
    assert_eq!(names(&world.told[0])[1..], ["disconnected", "over"]);
    assert_eq!(names(&world.told[1])[1..], [""; 0]);
    assert_eq!(world.state(1), Some(State::Established));
}

#[test]
fn what_is_not_its_time_is_refused() {
    let mut world = World::new(1, LineFaults::default());
    world.act(0, |c, now, steps| {
        assert!(c.accept(reply(), now, steps).is_err());
        assert!(c.reject(28, [0; 148], steps).is_err());
        assert!(c.establish(steps).is_err());
        assert!(c.disconnect(now, steps).is_err());
        assert!(steps.is_empty());
    });
    world.connect();
    world.act(1, |c, now, steps| {
        assert!(c.accept(reply(), now, steps).is_err());
        assert!(c.reject(28, [0; 148], steps).is_err());
        assert!(c.establish(steps).is_ok());
    });
}

#[test]
fn a_side_without_the_connection_rejects_its_peers_messages() {
    let end_of = |until: fn(&World) -> bool, forgets: usize| {
        let mut world = World::new(1, LineFaults::default());
        while !until(&world) && world.step(LONG) {}
        if world.state(1) == Some(State::Asked) && !until(&world) {
            world.act(1, |c, now, steps| c.accept(reply(), now, steps).unwrap());
        }
        while !until(&world) && world.step(LONG) {}
        assert!(until(&world));
        world.act(forgets, |c, _, steps| c.destroy(steps));
        world.run(LONG * 2);
        assert_eq!(world.state(0), Some(State::Closed));
        names(&world.told[1 - forgets]).pop()
    };
    assert_eq!(end_of(|w| w.state(1) == Some(State::Asked), 0), Some("rejected"));
    assert_eq!(end_of(|w| w.state(1) == Some(State::Asked), 1), Some("rejected"));
}

#[test]
fn a_question_is_answered_however_often_it_comes() {
    let question = || Resolve { request: 3, partition_key: 0xffff, service: 1, private: [0; 216] };
    let mut steps = Vec::new();
    let mut asks = Resolution::ask(question(), 5, 0, &mut steps);
    let mut asked = Resolution::asked(&question(), 5);
    asked.asked_again(&mut steps);
    assert_eq!(steps.len(), 1, "it has not decided");
    asked.answer(status::VALID, (Qpn(9), Qkey(77)), [4; 136], &mut steps).unwrap();
    assert!(asked.answer(status::VALID, (Qpn(9), Qkey(77)), [4; 136], &mut steps).is_err());
    asked.asked_again(&mut steps);
    let [_, CmAction::Send(first), CmAction::Send(second)] = &steps[..] else {
        panic!("{steps:?}")
    };
    assert_eq!(first, second);
    let Message::Resolved(resolved) = &first.message else { panic!("{first:?}") };
    assert_eq!((resolved.queue_pair, resolved.queue_key, resolved.status), (Qpn(9), Qkey(77), 0));
    assert_eq!(asks.answered(resolved), Some(SidrOutcome::Answer(resolved.clone())));
    assert_eq!(asks.answered(resolved), None, "once");
    assert_eq!(asks.deadline(), None);
    let mut vain = Resolution::ask(question(), 5, 0, &mut steps);
    let mut found = None;
    while let Some(at) = vain.deadline() {
        found = vain.tick(at, &mut steps);
    }
    assert_eq!(found, Some(SidrOutcome::Silence));
}

proptest! {
    /// Where half of all messages are lost, all tries of one may be: then there is no connection.
    #[test]
    fn a_connection_works_on_any_line(seed: u64, line in line(25)) {
        let mut world = World::new(seed, line);
        world.connect();
        prop_assert_eq!(world.state(0), Some(State::Established));
        prop_assert_eq!(world.state(1), Some(State::Established));
        prop_assert_eq!(names(&world.told[0]), ["answered"]);
        prop_assert_eq!(names(&world.told[1]), ["established"]);
        world.act(0, |c, now, steps| c.disconnect(now, steps).unwrap());
        world.run(LONG * 2);
        prop_assert_eq!(&names(&world.told[0])[1..], ["disconnected", "over"]);
        // Seven farewells can all be lost; then it has not heard of the end, as with kernels.
        let heard: &[&str] =
            if world.farewell_arrived { &["disconnected", "over"] } else { &[] };
        prop_assert_eq!(&names(&world.told[1])[1..], heard);
    }

    #[test]
    fn whatever_users_do_no_call_waits_for_ever(
        seed: u64,
        line in line(50),
        deeds in prop::collection::vec((0..2usize, 0..7u8, 0..3000u64), 0..20),
    ) {
        let mut world = World::new(seed, line);
        for (end, deed, pause) in deeds {
            world.run(world.now + pause * MILLISECOND);
            let private: Private<148> = [0; 148];
            world.act(end, |c, now, steps| match deed {
                0 => drop(c.accept(reply(), now, steps)),
                1 => drop(c.reject(28, private, steps)),
                2 | 3 => drop(c.establish(steps)),
                4 => drop(c.disconnect(now, steps)),
                5 => c.destroy(steps),
                _ => c.end_as_stale(now, steps),
            });
        }
        // Users who decide nothing are waited for as long as they are there; these go.
        world.run(world.now + 2 * LONG);
        for end in 0..2 {
            world.act(end, |c, _, steps| c.destroy(steps));
        }
        world.run(world.now + 2 * LONG);
        prop_assert_eq!(world.next(), None);
        for told in &world.told {
            let names = names(told);
            let once = |name| names.iter().filter(|other| **other == name).count() <= 1;
            for name in ["answered", "established", "rejected", "unreachable", "over"] {
                prop_assert!(once(name), "{:?}", names);
            }
            let ends = ["rejected", "unreachable", "over"];
            let last = names.iter().position(|name| ends.contains(name));
            prop_assert!(last.is_none_or(|at| at + 1 == names.len()), "{:?}", names);
        }
    }

    #[test]
    fn forged_messages_break_nothing_but_their_connection(
        seed: u64,
        noise in prop::collection::vec((0..2usize, 0..9u8, any::<[u8; 232]>()), 0..30),
    ) {
        let mut world = World::new(seed, LineFaults::default());
        for (to, kind, fields) in noise {
            world.run(world.now + 10 * MILLISECOND);
            let mut bytes = [0; 256];
            bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
            bytes[17] = 0x10 + kind;
            bytes[24..].copy_from_slice(&fields);
            if let Ok(mad) = Mad::parse(&bytes) {
                world.arrive(to, &mad);
            }
        }
        world.run(world.now + LONG);
        for end in 0..2 {
            world.act(end, |c, _, steps| c.destroy(steps));
        }
        world.run(world.now + LONG);
        prop_assert_eq!(world.next(), None);
    }
}
