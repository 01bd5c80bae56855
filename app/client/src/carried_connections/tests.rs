//! Two processes' connections in one test, over sockets of this network namespace.

use super::served_links::ServedLinks;
use super::*;
use omniverb_link::layout::{REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN, link_bytes};
use omniverb_link::qp_attributes_for_engine::{ReceiveAttributes, SendAttributes};
use omniverb_link::record::{FIRST, LAST};
use omniverb_link::{Doorbell, Endpoint, EndpointParts, Request};
use omniverb_ring::doorbell::PAGE_BYTES;
use omniverb_ring::{DoorbellPage, UserMemory, Window};
use omniverb_sys::datagram_trains::TrainSocket;
use omniverb_terms::{Psn, Qpn};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LIMIT: Duration = Duration::from_secs(20);

/// A process with one queue pair, by the application's end of its link.
struct Process {
    carried: Arc<CarriedConnections>,
    application: Endpoint,
    qpn: Qpn,
    peer_qpn: Qpn,
    port: u16,
    told: Arc<AtomicU32>,
}

struct NoQueuePairs;

impl QueuePairServer for NoQueuePairs {
    fn serve(&self) {}

    fn is_awaited(&self) -> bool {
        false
    }
}

struct Silent(DoorbellPage<Window>);

impl Doorbell for Silent {
    fn page(&self) -> &DoorbellPage<Window> {
        &self.0
    }

    fn kick(&self) {}
}

fn page() -> DoorbellPage<Window> {
    DoorbellPage::new(Window::private(PAGE_BYTES))
}

fn process(qpn: Qpn, peer_qpn: Qpn) -> Process {
    let told = Arc::new(AtomicU32::new(0));
    let count = told.clone();
    let tell = move || {
        count.fetch_add(1, Ordering::SeqCst);
    };
    let carried = CarriedConnections::new(tell);
    let memory = Window::private(link_bytes(REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN));
    let (doorbell, peer_slot) = carried.bell_of(qpn).unwrap();
    let mut application = Endpoint::new(EndpointParts {
        memory: memory.clone(),
        side: 0,
        request_bytes: REQUEST_BYTES_MIN,
        response_bytes: RESPONSE_BYTES_MIN,
        doorbell,
        peer_slot,
    })
    .unwrap();
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
    application.publish_credits(1 << 16, 1 << 12);
    application.open(0);
    let parts = HostingEnd {
        memory,
        request_bytes: REQUEST_BYTES_MIN,
        response_bytes: RESPONSE_BYTES_MIN,
        page: page(),
        slot: 0,
    };
    let engine: EngineBell = (Arc::new(Silent(page())), 0);
    let link = CarriedLink { parts, qpn, peer_qpn, local: LOCAL, peer: LOCAL, engine };
    let port = carried.carry(link, NoQueuePairs).unwrap();
    Process { carried, application, qpn, peer_qpn, port, told }
}

impl Process {
    fn is_told(&self, port: u16) {
        self.carried.set_peer_port(self.qpn, self.peer_qpn, port);
    }

    fn post(&mut self, data: &[u8]) {
        let request = Request::Send { flags: FIRST | LAST, immediate: 0 };
        let application = &mut self.application;
        let sent = UserMemory::lend(data, |part| {
            application.send_request(&request, data.len(), [&part]).unwrap()
        });
        assert!(sent);
        self.carried.posted();
    }

    /// The next message, of one packet.
    fn take(&mut self) -> Option<Vec<u8>> {
        let application = &mut self.application;
        let (_, record) = application.next_request().unwrap()?;
        let mut data = vec![0; record.length];
        UserMemory::lend_mut(&mut data, |to| application.request_payload(&record, 0, to));
        application.pass_request(&record);
        application.publish_requests();
        Some(data)
    }

    fn is_idle(&mut self) -> bool {
        self.application.under_way().unwrap() == 0
    }
}

/// Does this until there is something, for a while.
fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < LIMIT, "nothing came");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn pair() -> [Process; 2] {
    let [one, other] = [process(Qpn(17), Qpn(18)), process(Qpn(18), Qpn(17))];
    one.is_told(other.port);
    other.is_told(one.port);
    [one, other]
}

fn exchange(processes: &mut [Process; 2], polls: bool) {
    for number in 0..200_u32 {
        let (from, to) = (number as usize % 2, (number as usize + 1) % 2);
        processes[from].post(&number.to_le_bytes());
        let came = until(|| {
            if polls {
                processes.iter().for_each(|process| process.carried.poll());
            }
            processes[to].take()
        });
        assert_eq!(came, number.to_le_bytes());
    }
    until(|| processes.iter_mut().all(Process::is_idle).then_some(()));
}

#[test]
fn messages_arrive_by_polls_and_by_the_thread() {
    let mut processes = pair();
    exchange(&mut processes, true);
    exchange(&mut processes, false);
    for process in &processes {
        assert!(process.carried.has(process.qpn));
        process.carried.end(process.qpn);
        assert!(!process.carried.are_some());
    }
}

#[test]
fn requests_wait_until_the_peers_port_is_known() {
    let [mut one, mut other] = [process(Qpn(17), Qpn(18)), process(Qpn(18), Qpn(17))];
    one.post(b"early");
    other.is_told(one.port);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(other.take(), None);
    assert!(!one.is_idle());
    one.is_told(other.port);
    assert_eq!(until(|| other.take()), b"early");
    until(|| one.is_idle().then_some(()));
}

#[test]
fn a_way_that_is_blocked_leaves_the_link_to_the_engine() {
    let mut one = process(Qpn(17), Qpn(18));
    one.post(b"waits");
    // It answers nothing.
    let silent = TrainSocket::open(LOCAL, 0).unwrap();
    one.is_told(silent.local().port());
    until(|| (one.told.load(Ordering::SeqCst) > 0).then_some(()));
    let outcomes = one.carried.take_outcomes();
    let [Outcome::Given { qpn, peer_qpn, .. }] = &outcomes[..] else { panic!() };
    assert_eq!((*qpn, *peer_qpn), (one.qpn, one.peer_qpn));
    assert!(!one.carried.has(one.qpn) && !one.is_idle());
}

#[test]
fn a_link_whose_peer_names_no_port_is_left_to_the_engine_within_a_second_or_two() {
    let mut one = process(Qpn(17), Qpn(18));
    one.post(b"waits");
    until(|| (one.told.load(Ordering::SeqCst) > 0).then_some(()));
    let outcomes = one.carried.take_outcomes();
    assert!(matches!(&outcomes[..], [Outcome::Given { .. }]));
    assert!(!one.carried.are_some());
}

#[test]
fn an_ended_link_has_no_outcome() {
    let one = process(Qpn(17), Qpn(18));
    one.carried.give(one.qpn, one.peer_qpn);
    until(|| (one.told.load(Ordering::SeqCst) > 0).then_some(()));
    one.carried.end_link(one.qpn, Qpn(99));
    one.carried.end(one.qpn);
    assert!(one.carried.take_outcomes().is_empty());
}

#[test]
fn a_link_at_rest_is_given_with_its_state() {
    let mut processes = pair();
    exchange(&mut processes, false);
    let [one, _] = &processes;
    one.carried.give(one.qpn, Qpn(99));
    one.carried.give(one.qpn, one.peer_qpn);
    until(|| (one.told.load(Ordering::SeqCst) > 0).then_some(()));
    let outcomes = one.carried.take_outcomes();
    let [Outcome::Given { state, .. }] = &outcomes[..] else { panic!() };
    omniverb_datapath::handover::Handover::from_bytes(state).unwrap();
    assert!(!one.carried.are_some());
}

#[test]
fn only_the_peers_own_port_is_answered() {
    use omniverb_datapath::way_trial::{TrialDatagram, TrialNames, question, read};
    let [one, other] = [process(Qpn(17), Qpn(18)), process(Qpn(18), Qpn(17))];
    let peer = TrainSocket::open(LOCAL, 0).unwrap();
    let stranger = TrainSocket::open(LOCAL, 0).unwrap();
    let ours = SocketAddr::new(LOCAL, one.port);
    let names = |to, from| TrialNames { to, from, nonce: 7 };
    let ask = |socket: &TrainSocket, names: &TrialNames| {
        let asked = question(names);
        socket.send(&asked, asked.len(), &ours).unwrap();
        let limit = Some(Duration::from_millis(20));
        let mut buffer = [0; 100];
        while omniverb_sys::eventfd::readable(socket.as_fd(), limit).unwrap() {
            let received = socket.receive(&mut buffer).unwrap().unwrap();
            // It asks as well.
            if matches!(read(&buffer[..received.length]), Some(TrialDatagram::Answer(_))) {
                return true;
            }
        }
        false
    };
    let proper = names(one.qpn, one.peer_qpn);
    assert!(!ask(&peer, &proper), "the port is not known");
    one.is_told(peer.local().port());
    assert!(ask(&peer, &proper));
    assert!(!ask(&stranger, &proper));
    assert!(!ask(&peer, &names(other.qpn, one.peer_qpn)));
    assert!(!ask(&peer, &names(one.qpn, Qpn(99))));
    drop(other);
}

#[test]
fn a_bit_of_the_page_is_used_again() {
    let mut served = ServedLinks::new(0);
    for number in 0..omniverb_ring::doorbell::SLOTS {
        assert_eq!(served.take_slot(Qpn(1000 + number)), Some(number));
    }
    assert_eq!(served.take_slot(Qpn(7)), None);
    assert_eq!(served.take_slot(Qpn(1005)), Some(5), "its own, once more");
    served.forget(Qpn(1009));
    assert_eq!(served.take_slot(Qpn(7)), Some(9));
}
