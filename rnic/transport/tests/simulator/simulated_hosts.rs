//! Simulates two hosts and the network between them, in one thread, on a virtual clock.

use crate::application::{Application, Behaviour};
use crate::model::Plan;
use crate::trace::Trace;
use omniverb_transport::fault_injection::{Faults, FaultyLine};
use omniverb_transport::splitmix64::Random;
use omniverb_transport::{
    Config, Connection, Ecn, Event, Request, RunOutcome, Status, Time, Transmit,
};
use omniverb_wire::{DATAGRAM_MAX, IcrcFlow, IcrcVerdict, Identification, Packet, WriteRun};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

/// Everything that a run depends on.
pub struct Scenario {
    pub seed: u64,
    pub configs: [Config; 2],
    pub faults: Faults,
    pub manners: [Behaviour; 2],
    pub plans: [Rc<Plan>; 2],
    /// Picoseconds per byte that each host is allowed to send, as a rate limit; 0: none.
    pub paces: [u64; 2],
    /// When the thread of each host does not run.
    pub stops: [Vec<(Time, Time)>; 2],
    /// Nothing may take longer.
    pub limit: Time,
}

/// Of the time that a thread does not run so much passes for its connections.
pub const NOTICED: Time = 2_000_000;

struct Host {
    /// See [`Scenario::stops`].
    stops: Vec<(Time, Time)>,
    /// See [`Scenario::paces`], and when it may send again.
    pace: u64,
    free: Time,
    config: Config,
    connection: Connection,
    application: Application,
    /// Not submitted yet.
    waiting: VecDeque<Request>,
    /// Submitted, not over.
    under_way: VecDeque<Request>,
    statuses: Vec<Status>,
    first_failure: Option<usize>,
    failed: bool,
    handovers: u64,
    next_handover: Time,
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    pub time: Time,
    pub sent: u64,
    pub resent: u64,
    /// Runs made, and runs taken.
    pub runs: [u64; 2],
    /// Connections that went on in the place of others.
    pub handovers: u64,
    /// Status of every request of each host.
    pub statuses: [Vec<Status>; 2],
    /// The message that the first request without success belongs to.
    pub failed: [Option<usize>; 2],
}

pub struct World {
    hosts: [Host; 2],
    /// The line to each host.
    lines: [FaultyLine; 2],
    flows: [IcrcFlow; 2],
    now: Time,
    limit: Time,
    random: Random,
    /// Runs made, and runs taken.
    runs: [u64; 2],
    /// Time after which another connection goes on in the place of one; 0: none ever does.
    handover_every: Time,
    trace: Trace,
}

impl Host {
    /// Its own time, which passes while it runs.
    fn time(&self, now: Time) -> Time {
        let over = self.stops.iter().filter(|(_, end)| *end <= now);
        now - over.map(|(begin, end)| (end - begin).saturating_sub(NOTICED)).sum::<Time>()
    }

    /// Until when it does not run, if it does not.
    fn stops_until(&self, now: Time) -> Option<Time> {
        let stop = self.stops.iter().find(|(begin, end)| (*begin..*end).contains(&now));
        stop.map(|(_, end)| *end)
    }

    /// When it wants to do something.
    fn next_time(&self, now: Time) -> Option<Time> {
        if let Some(end) = self.stops_until(now) {
            return Some(end);
        }
        let own = self.time(now);
        // It takes its time to submit.
        let more = !self.waiting.is_empty() && self.under_way.len() < 32 && !self.failed;
        let submit = more.then_some(own + 1000);
        let free = (self.free > own).then_some(self.free);
        let next = self.application.next_time();
        let timers = [self.connection.poll_timeout(), next, submit, free];
        timers.into_iter().flatten().min().map(|time| now + time.saturating_sub(own))
    }
}

impl Host {
    /// Another connection goes on in the place of this one, if it can.
    fn hand_over(&mut self) {
        let Some(snapshot) = self.connection.snapshot().filter(|_| !self.failed) else { return };
        let Some(tickets) = self.application.tickets_of(&snapshot.responder.unanswered) else {
            return;
        };
        let mut next = Connection::new(self.config.clone()).unwrap();
        next.restore_responder(&snapshot.responder).unwrap();
        next.restore_requester(&snapshot.requester).unwrap();
        self.under_way.iter().for_each(|request| next.submit(*request).unwrap());
        next.resume_sent(&snapshot.requester).unwrap();
        let same = next.snapshot().expect("what was restored can be given on");
        assert_eq!(same, snapshot);
        self.application.number_on_from(tickets);
        self.connection = next;
        self.handovers += 1;
    }
}

impl World {
    pub fn new(scenario: &Scenario) -> World {
        let mut random = Random::new(scenario.seed ^ 0xfeed);
        let mut host = |index: usize| {
            let config = scenario.configs[index].clone();
            let mine = scenario.plans[index].clone();
            let theirs = scenario.plans[1 - index].clone();
            let mtu = config.path_mtu as u64;
            let messages = 0..mine.items.len();
            let waiting = messages.flat_map(|m| mine.requests(m, &mut random, mtu)).collect();
            let dice = Random::new(random.next());
            Host {
                stops: scenario.stops[index].clone(),
                pace: scenario.paces[index],
                free: 0,
                connection: Connection::new(config.clone()).unwrap(),
                config,
                application: Application::new(index, mine, theirs, scenario.manners[index], dice),
                waiting,
                under_way: VecDeque::new(),
                statuses: Vec::new(),
                first_failure: None,
                failed: false,
                handovers: 0,
                next_handover: 0,
            }
        };
        let hosts = [host(0), host(1)];
        let address = |host: u8| -> IpAddr {
            if scenario.seed.is_multiple_of(2) {
                Ipv4Addr::new(10, 77, 0, 1 + host).into()
            } else {
                Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1 + u16::from(host)).into()
            }
        };
        let flow = |from, to| IcrcFlow { source: from, destination: to, source_port: 0xc123 };
        World {
            hosts,
            lines: [0xbad, 0xdead]
                .map(|salt| FaultyLine::new(scenario.faults.clone(), scenario.seed ^ salt)),
            flows: [flow(address(0), address(1)), flow(address(1), address(0))],
            now: 0,
            limit: scenario.limit,
            random,
            runs: [0; 2],
            handover_every: 0,
            trace: Trace::default(),
        }
    }

    /// Connections are replaced by others that go on, after so much time as a rule.
    pub fn with_handovers(self, handover_every: Time) -> World {
        World { handover_every, ..self }
    }

    /// Runs until nothing is left to do.
    pub fn run(mut self) -> Outcome {
        let mut standing = 0;
        loop {
            for index in 0..2 {
                self.turn(index);
            }
            if self.hosts.iter().all(|host| host.under_way.is_empty() && host.waiting.is_empty()) {
                break;
            }
            let host = |index: usize| self.hosts[index].next_time(self.now);
            let times = [self.arrival_time(), host(0), host(1)];
            let Some(next) = times.into_iter().flatten().min() else {
                panic!("at {} nothing will ever happen again", self.now);
            };
            standing = if next > self.now { 0 } else { standing + 1 };
            assert!(standing < 10_000, "time stands still at {}", self.now);
            self.now = self.now.max(next);
            assert!(self.now < self.limit, "not over after {} ns", self.limit);
        }
        self.drain();
        let [first, second] = &self.hosts;
        let resent = [first, second].map(|host| host.connection.counters().resent);
        Outcome {
            time: self.now,
            sent: self.lines.iter().map(|line| line.done().sent).sum(),
            resent: resent.iter().sum(),
            runs: self.runs,
            handovers: first.handovers + second.handovers,
            failed: [first.first_failure, second.first_failure],
            statuses: self.hosts.map(|host| host.statuses),
        }
    }

    fn arrival_time(&self) -> Option<Time> {
        let arrival = |(line, host): (&FaultyLine, &Host)| {
            let time = line.next_time()?.max(self.now);
            Some(host.stops_until(time).unwrap_or(time))
        };
        self.lines.iter().zip(&self.hosts).filter_map(arrival).min()
    }

    /// What is still under way must do no harm.
    fn drain(&mut self) {
        for _ in 0..10_000 {
            let Some(next) = self.arrival_time() else { break };
            self.now = self.now.max(next);
            for index in 0..2 {
                self.turn(index);
            }
        }
        if self.hosts.iter().any(|host| host.failed) {
            return;
        }
        for index in 0..2 {
            let there = &self.hosts[1 - index].application;
            let plan = &self.hosts[index].application.mine;
            assert!(there.written == plan.written, "memory after WRITEs of host {index}");
            assert_eq!(there.counters, plan.counters, "counters of host {index}");
        }
    }

    /// One host does all it can at this moment.
    fn turn(&mut self, index: usize) {
        // What lies in its sockets comes first.
        self.arrivals(index);
        if self.hosts[index].stops_until(self.now).is_some() {
            return;
        }
        let host = &mut self.hosts[index];
        let now = host.time(self.now);
        host.application.act(now, &mut host.connection);
        if host.connection.poll_timeout().is_some_and(|time| time <= now) {
            host.connection.handle_timeout(now);
        }
        while let Some(request) = host.waiting.front() {
            if host.under_way.len() >= 32 || host.failed || self.random.chance(300) {
                break;
            }
            host.connection.submit(*request).unwrap();
            host.under_way.push_back(*request);
            host.waiting.pop_front();
        }
        for to in 0..2 {
            self.arrivals(to);
        }
        for index in 0..2 {
            self.transmit(index);
            self.events(index);
            let host = &mut self.hosts[index];
            if self.handover_every > 0 && host.next_handover <= self.now {
                host.hand_over();
                host.next_handover = self.now + self.random.below(2 * self.handover_every);
            }
        }
    }

    fn arrivals(&mut self, to: usize) {
        if self.hosts[to].stops_until(self.now).is_some() {
            return;
        }
        let now = self.hosts[to].time(self.now);
        let flow = self.flows[1 - to];
        // The identification is known, as if the kernel had told.
        let known = Some(Identification::ZERO);
        let arrived = std::iter::from_fn(|| self.lines[to].arrival(self.now));
        let sound = arrived.filter(|flight| flow.check(&flight.bytes, known) == IcrcVerdict::Exact);
        let flights: Vec<_> = sound.collect();
        let mut rest = &flights[..];
        while let Some((first, others)) = rest.split_first() {
            let host = &mut self.hosts[to];
            host.application.now = now;
            let length = first.bytes.len();
            let alike = rest
                .iter()
                .take(8)
                .take_while(|it| it.bytes.len() == length && it.ecn == Ecn::Unmarked);
            let train: Vec<u8> = alike.flat_map(|it| it.bytes.iter().copied()).collect();
            if let Some(run) = WriteRun::of(&train, length)
                && host.connection.handle_run(&run, &mut host.application) == RunOutcome::All
            {
                self.runs[1] += 1;
                rest = &rest[run.count()..];
                continue;
            }
            rest = others;
            let Ok(packet) = Packet::parse(&first.bytes) else { continue };
            let application = &mut host.application;
            host.connection.handle_packet(now, &packet, first.ecn, application);
        }
    }

    fn transmit(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        if host.stops_until(self.now).is_some() {
            return;
        }
        let own = host.time(self.now);
        let mut datagrams = vec![0; 9 * DATAGRAM_MAX];
        for _ in 0..4096 {
            if host.free > own {
                // Its peer is told all the same, on account.
                let wait = host.free - own;
                let told = host.connection.poll_delay(own, wait, &mut datagrams);
                if let Some(length) = told {
                    host.free += length as u64 * host.pace / 1000;
                    self.flows[index].seal(&mut datagrams[..length], 0);
                    self.trace.sent(self.now, index, &datagrams[..length]);
                    self.lines[1 - index].send(self.now, (), &datagrams[..length]);
                }
                return;
            }
            let application = &mut host.application;
            let sent = host.connection.poll_transmit(own, &mut datagrams, application);
            let Some(Transmit { length, .. }) = sent else { return };
            // Who has a rate limit asks before every packet.
            let most = if host.pace == 0 { self.random.below(9) as usize } else { 0 };
            let room = &mut datagrams[..];
            let alike = host.connection.poll_alike(own, room, length, most, application);
            self.runs[0] += u64::from(alike > 0);
            host.free = own + length as u64 * host.pace / 1000;
            for bytes in datagrams.chunks_mut(length).take(1 + alike) {
                self.flows[index].seal(bytes, 0);
                self.trace.sent(self.now, index, bytes);
                self.lines[1 - index].send(self.now, (), bytes);
            }
        }
        panic!("host {index} does not stop sending");
    }

    fn events(&mut self, index: usize) {
        let [first, second] = &mut self.hosts;
        let (host, there) = if index == 0 { (first, second) } else { (second, first) };
        while let Some(event) = host.connection.poll_event() {
            match event {
                Event::Completed { id, status, original } => {
                    let oldest = host.under_way.pop_front().map(|request| request.id);
                    assert_eq!(oldest, Some(id), "completions in order");
                    host.statuses.push(status);
                    let item = (id.0 >> 32) as usize;
                    if status != Status::Success {
                        host.first_failure.get_or_insert(item);
                    } else {
                        assert!(there.application.answered_before(item), "{item} acknowledged");
                        there.application.heard = item + 1;
                        assert_eq!(original, host.application.mine.originals[item]);
                    }
                }
                Event::Failed(_) | Event::Refused(_) => {
                    host.failed = true;
                    host.waiting.clear();
                    host.connection.close(&mut host.application);
                }
            }
        }
    }
}
