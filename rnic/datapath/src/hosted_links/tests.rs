//! Two hosts back to back: messages arrive once and in order, whatever the line does.

use super::*;
use crate::pages::mapped_pages::NoPages;
use crate::peer_features;
use crate::testing::end;
use omniverb_link::Request;
use omniverb_link::layout::{REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN, link_bytes};
use omniverb_link::qp_attributes_for_engine::{ReceiveAttributes, SendAttributes};
use omniverb_link::record::{FIRST, LAST};
use omniverb_ring::{UserMemory, Window};
use omniverb_terms::Psn;
use omniverb_transport::splitmix64::Random;
use std::net::{IpAddr, Ipv4Addr};

const TRAIN_MAX: usize = 16;

/// A host, its applications, and trains that are under way from it.
struct Host {
    links: HostedLinks<NoPages>,
    applications: Vec<Endpoint>,
    /// Of messages of which some is still to come.
    parts: Vec<Vec<u8>>,
    posted: u32,
    sent: Vec<(IcrcFlow, Vec<u8>, usize)>,
    next: Next,
}

fn address(host: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, host).into()
}

fn flow(from: u8, to: u8) -> IcrcFlow {
    let (source, destination) = (address(from), address(to));
    IcrcFlow { source, destination, source_port: 50_000 + u16::from(from) }
}

fn host(number: u8, peer: u8, links: u32) -> Host {
    let mut host = Host {
        links: HostedLinks::new(0, TRAIN_MAX, Allowance::default()),
        applications: Vec::new(),
        parts: vec![Vec::new(); links as usize],
        posted: 1 << 16,
        sent: Vec::new(),
        next: Next::Now,
    };
    for qpn in 0..links {
        let memory = Window::private(link_bytes(REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN));
        let (mut application, far) = (end(&memory, 0).unwrap(), end(&memory, 1).unwrap());
        application.publish_receiving(&ReceiveAttributes {
            rq_psn: Psn::new(9),
            path_mtu: 1,
            min_rnr_timer: 1,
            max_dest_rd_atomic: 4,
        });
        application.publish_sending(&SendAttributes {
            sq_psn: Psn::new(9),
            timeout: 10,
            retry_count: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
        });
        application.publish_credits(host.posted, 1 << 12);
        application.open(0);
        let index = host.links.attach(LinkEnd {
            endpoint: far,
            request_bytes: REQUEST_BYTES_MIN,
            qpn: Qpn(100 + qpn),
            peer_qpn: Qpn(100 + qpn),
            flow: flow(number, peer),
            peer_port: 50_000 + u16::from(peer),
            features: peer_features::ALL,
        });
        assert_eq!(index, qpn as usize);
        host.applications.push(application);
    }
    // From the first turn on it takes packets.
    (0..links.div_ceil(LINKS_AT_ONCE as u32)).for_each(|_| host.turn(0, Company::None));
    host
}

impl Host {
    fn post(&mut self, index: usize, data: &[u8]) -> bool {
        let request = Request::Send { flags: FIRST | LAST, immediate: 0 };
        let application = &mut self.applications[index];
        let sent = UserMemory::lend(data, |part| {
            application.send_request(&request, data.len(), [&part]).unwrap()
        });
        if sent {
            self.links.touch(index);
        }
        sent
    }

    /// The next message, if all of it is there; each packet is a record.
    fn take(&mut self, index: usize) -> Option<Vec<u8>> {
        let application = &mut self.applications[index];
        while let Some((request, record)) = application.next_request().unwrap() {
            let Request::Send { flags, .. } = request else { panic!("{request:?}") };
            let mut data = vec![0; record.length];
            UserMemory::lend_mut(&mut data, |to| application.request_payload(&record, 0, to));
            application.pass_request(&record);
            application.publish_requests();
            self.parts[index].extend(data);
            self.links.touch(index);
            if flags & LAST != 0 {
                self.posted += 1;
                application.publish_credits(self.posted, 1 << 12);
                return Some(std::mem::take(&mut self.parts[index]));
            }
        }
        None
    }

    /// Everything that was posted is acknowledged.
    fn is_idle(&mut self) -> bool {
        self.applications.iter_mut().all(|application| application.under_way().unwrap() == 0)
    }

    fn turn(&mut self, clock: u64, company: Company) {
        let now = self.links.now(clock);
        let sent = &mut self.sent;
        self.next = self.links.turn(now, company, |(flow, port), train, segment| {
            assert_eq!(IpAddr::from([10, 0, 0, (port - 50_000) as u8]), flow.destination);
            assert!(train.len().div_ceil(segment) <= TRAIN_MAX);
            sent.push((*flow, train.to_vec(), segment));
        });
    }

    fn hear(&mut self, clock: u64, trains: Vec<(IcrcFlow, Vec<u8>, usize)>) {
        let now = self.links.now(clock);
        for (flow, train, stride) in trains {
            self.links.arrived(now, &flow, Ecn::Unmarked, (&train, stride));
        }
        self.links.has_read_all();
    }
}

fn message(link: usize, number: usize, random: &mut Random) -> Vec<u8> {
    let length = 8 + random.between(0, 1200) as usize;
    let mut data = vec![(link + number) as u8; length];
    data[..8].copy_from_slice(&(number as u64).to_le_bytes());
    data
}

/// Sends so many messages both ways on each link over a line that loses so many packets of a
/// hundred; when it is over.
fn exchange(seed: u64, links: u32, count: usize, loss: u64) -> u64 {
    let mut random = Random::new(seed);
    let mut hosts = [host(1, 2, links), host(2, 1, links)];
    let mut posted = vec![[0; 2]; links as usize];
    let mut taken = posted.clone();
    let mut waiting: Vec<[Option<Vec<u8>>; 2]> = (0..links).map(|_| [None, None]).collect();
    let mut clock = 1_000;
    for _ in 0..200_000 {
        for (side, host) in hosts.iter_mut().enumerate() {
            for link in 0..links as usize {
                while posted[link][side] < count && random.between(0, 3) > 0 {
                    let number = posted[link][side];
                    let next = waiting[link][side].take();
                    let data = next.unwrap_or_else(|| message(link, number, &mut random));
                    if !host.post(link, &data) {
                        waiting[link][side] = Some(data);
                        break;
                    }
                    posted[link][side] += 1;
                }
            }
            let company = if random.between(0, 1) == 0 { Company::None } else { Company::MayCome };
            host.turn(clock, company);
        }
        for side in 0..2 {
            let mut trains = std::mem::take(&mut hosts[side].sent);
            for (_, train, segment) in &mut trains {
                let kept: Vec<u8> = train
                    .chunks(*segment)
                    .filter(|_| random.between(1, 100) > loss)
                    .flatten()
                    .copied()
                    .collect();
                // A train whose last packet is short stays one.
                *train = kept;
            }
            trains.retain(|(_, train, _)| !train.is_empty());
            let other = &mut hosts[1 - side];
            other.hear(clock, trains);
            for (link, taken) in taken.iter_mut().enumerate() {
                while let Some(data) = other.take(link) {
                    let number = u64::from_le_bytes(data[..8].try_into().unwrap()) as usize;
                    assert_eq!(number, taken[side], "in order, and once");
                    assert!(data[8..].iter().all(|byte| *byte == (link + number) as u8));
                    taken[side] += 1;
                }
            }
        }
        let [one, other] = &mut hosts;
        let over = taken.iter().all(|taken| *taken == [count; 2]);
        if over && one.is_idle() && other.is_idle() {
            assert!(one.links.next_failure().is_none() && other.links.next_failure().is_none());
            return clock;
        }
        clock += 20_000;
    }
    panic!("{taken:?} of {posted:?} arrived");
}

#[test]
fn messages_of_all_links_arrive_once_and_in_order_on_a_good_line_and_a_bad_one() {
    for seed in 0..12 {
        exchange(seed, 1 + (seed as u32 % 3) * 20, 60, [0, 0, 2, 5][seed as usize % 4]);
    }
}

#[test]
fn an_acknowledgement_waits_for_an_answer_and_leaves_with_it() {
    let mut hosts = [host(1, 2, 1), host(2, 1, 1)];
    let [one, other] = &mut hosts;
    assert!(one.post(0, &[1; 8]));
    one.turn(1_000, Company::None);
    assert_eq!(one.sent.len(), 1, "the first message leaves at once");
    other.hear(2_000, std::mem::take(&mut one.sent));
    other.turn(2_000, Company::MayCome);
    assert!(other.sent.is_empty() && other.links.holds_some());
    assert_eq!(other.take(0), Some(vec![1; 8]));
    assert!(other.post(0, &[2; 8]));
    other.turn(2_500, Company::None);
    let [(_, train, segment)] = &other.sent[..] else { panic!("one train") };
    assert_eq!(train.len().div_ceil(*segment), 2, "an answer and an acknowledgement");
    assert!(acknowledges(&train[*segment..]));
}

#[test]
fn a_held_acknowledgement_leaves_by_itself_in_a_turn_without_company() {
    let mut hosts = [host(1, 2, 1), host(2, 1, 1)];
    let [one, other] = &mut hosts;
    assert!(one.post(0, &[1; 8]));
    one.turn(1_000, Company::None);
    other.hear(2_000, std::mem::take(&mut one.sent));
    other.turn(2_000, Company::MayCome);
    assert!(other.sent.is_empty());
    other.turn(2_100, Company::None);
    assert_eq!(other.sent.len(), 1);
    one.hear(2_200, std::mem::take(&mut other.sent));
    one.turn(2_200, Company::None);
    assert!(one.is_idle());
}

#[test]
fn packets_of_others_and_damaged_ones_are_dropped() {
    let mut hosts = [host(1, 2, 1), host(2, 1, 1)];
    let [one, other] = &mut hosts;
    assert!(one.post(0, &[1; 8]));
    one.turn(1_000, Company::None);
    let (good, train, segment) = one.sent.pop().unwrap();
    let mut damaged = train.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let elsewhere = [
        IcrcFlow { source: address(3), ..good },
        IcrcFlow { destination: address(3), ..good },
        IcrcFlow { source_port: 50_003, ..good },
    ];
    let strange = elsewhere.map(|flow| {
        let mut sealed = train.clone();
        flow.seal(&mut sealed, 0);
        (flow, sealed, segment)
    });
    other.hear(2_000, strange.into_iter().chain([(good, damaged, segment)]).collect());
    other.turn(2_000, Company::None);
    assert!(other.sent.is_empty() && other.take(0).is_none());
    other.hear(3_000, vec![(good, train, segment)]);
    other.turn(3_000, Company::None);
    assert_eq!(other.take(0), Some(vec![1; 8]));
}

#[test]
fn a_peer_that_is_silent_for_too_long_is_told_of_once() {
    let mut one = host(1, 2, 1);
    assert!(one.post(0, &[1; 8]));
    let mut clock = 1_000;
    let mut turns = 0;
    let failure = loop {
        one.turn(clock, Company::None);
        if let Some(failure) = one.links.next_failure() {
            break failure;
        }
        let until = match one.next {
            Next::Now => clock,
            Next::At(at) => at.max(clock + 1_000),
            Next::Never => panic!("an answer is missing"),
        };
        one.links.sleeps(Some(until));
        clock = until;
        turns += 1;
        assert!(turns < 10_000);
    };
    assert_eq!(failure, (Qpn(100), Qpn(100), Status::RetryExceeded));
    assert!(one.links.next_failure().is_none());
    one.links.detach(Qpn(100));
    assert!(one.links.is_empty() && one.links.alarms.is_empty());
}
