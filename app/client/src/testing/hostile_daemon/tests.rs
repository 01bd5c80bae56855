//! What a client makes of a daemon that lies about sizes, files, bells and grants.

use super::*;
use crate::testing::xorshift64::Random;
use omniverb_session::body::CLOSED_BY_PEER;
use omniverb_terms::{Errno, Gid, Qpn, Rkey, Service};
use std::time::{Duration, Instant};

mod wrong_fds_with_messages;

/// Both tests talk to the same daemon.
static TURN: Mutex<()> = Mutex::new(());

fn ready(qpn: u32) -> LinkReady {
    LinkReady {
        qpn: Qpn(qpn),
        peer_qpn: Qpn(0x200),
        request_bytes: 1 << 16,
        response_bytes: 1 << 12,
        bell_new: 1,
        memory: Extent { offset: 0, length: layout::link_bytes(1 << 16, 1 << 12) as u64 },
        bell_memory: Extent { offset: 0, length: BELL_BYTES },
        ..LinkReady::new_zeroed()
    }
}

fn files(link: u64) -> Vec<OwnedFd> {
    let memory = [link, BELL_BYTES].map(|bytes| memfd::create("test", bytes).unwrap());
    memory.into()
}

fn says(process: &Process, message: impl Into<Message>, files: Vec<OwnedFd>) {
    let events = vec![(message.into(), files)];
    plans().push_back(HostileAnswers { events, answer: None, wrong_tag: false });
    let _ = process.client.gids();
    process.client.take_events();
    process.work(&mut Bytes(&[7; 64]));
}

fn links(process: &Process) -> usize {
    process.qps.iter().map(|qp| qp.peers().len()).sum()
}

#[test]
fn nothing_that_is_not_as_it_should_be_becomes_a_link() {
    let _turn = lock(&TURN);
    let process = Process::new().unwrap();
    process.client.listen();
    let qpn = process.qps[0].number.0;
    let good = layout::link_bytes(1 << 16, 1 << 12) as u64;
    type Change = fn(&mut LinkReady);
    let changes: [Change; 11] = [
        |ready| ready.request_bytes = 0,
        |ready| ready.request_bytes = u32::MAX,
        |ready| ready.request_bytes = 1 << 31,
        |ready| ready.request_bytes -= 8,
        |ready| ready.response_bytes = 3,
        |ready| ready.response_bytes = 1 << 16,
        |ready| ready.side = 2,
        |ready| ready.bell_side = u32::MAX,
        |ready| ready.bell_new = 0,
        |ready| ready.qpn = Qpn(0x7777),
        |ready| ready.side = u32::MAX,
    ];
    for (bell, change) in (100..).zip(changes) {
        let mut wrong = LinkReady { bell, ..ready(qpn) };
        change(&mut wrong);
        says(&process, wrong, files(good));
        assert_eq!(links(&process), 0, "{wrong:?}");
    }
    for (bell, length) in (200..).zip([0, 8, good - 8, good - 4096]) {
        says(&process, LinkReady { bell, ..ready(qpn) }, files(length));
        assert_eq!(links(&process), 0, "a file of {length} bytes");
    }
    let places = [
        (0, 0),
        (0, 8),
        (0, good - 4096),
        (0, good + 4096),
        (8, good),
        (4096, good),
        (1 << 40, good),
        (u64::MAX - 4095, good),
        (0, u64::MAX),
    ];
    for (bell, (offset, length)) in (220..).zip(places) {
        let memory = Extent { offset, length };
        says(&process, LinkReady { bell, memory, ..ready(qpn) }, files(good));
        assert_eq!(links(&process), 0, "{memory:?}");
        let bell_memory = memory;
        says(&process, LinkReady { bell: bell + 20, bell_memory, ..ready(qpn) }, files(good));
        assert_eq!(links(&process), 0, "a bell: {memory:?}");
    }
    for missing in 0..2 {
        let mut some = files(good);
        some.truncate(missing);
        says(&process, LinkReady { bell: 300, ..ready(qpn) }, some);
        assert_eq!(links(&process), 0, "{missing} descriptors");
    }
    for place in 0..2 {
        let mut some = files(good);
        let open = rustix::fs::memfd_create("open", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&open, [good, BELL_BYTES][place]).unwrap();
        some[place] = open;
        says(&process, LinkReady { bell: 400 + place as u64, ..ready(qpn) }, some);
        assert_eq!(links(&process), 0, "unsealed memory");
    }
    says(&process, LinkReady { bell: 500, ..ready(qpn) }, files(good));
    assert_eq!(links(&process), 1, "one that is as it should be");
}

#[test]
fn memory_may_be_anywhere_in_a_file() {
    let _turn = lock(&TURN);
    let process = Process::new().unwrap();
    process.client.listen();
    let ready = ready(process.qps[0].number.0);
    let length = ready.memory.length;
    // The bell before the link, in one file, with something in front, between and behind.
    let file = memfd::create("test", length + BELL_BYTES + 3 * PAGE).unwrap();
    let bell_memory = Extent { offset: PAGE, length: BELL_BYTES };
    let memory = Extent { offset: PAGE + BELL_BYTES + PAGE, length };
    let both = vec![file.try_clone().unwrap(), file.try_clone().unwrap()];
    says(&process, LinkReady { bell: 600, memory, bell_memory, ..ready }, both);
    assert_eq!(links(&process), 1);
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::fs::File::from(file), &mut bytes).unwrap();
    let written: Vec<u64> = (0..).zip(bytes).filter(|(_, b)| *b != 0).map(|(at, _)| at).collect();
    assert!(!written.is_empty(), "the link is open");
    let place = |at: &u64| {
        let inside = |e: Extent| (e.offset..e.offset + e.length).contains(at);
        inside(memory) || inside(bell_memory)
    };
    assert!(written.iter().all(place), "and nothing else was written: {written:?}");
}

#[test]
fn unrequested_grants_and_wrong_sizes_break_nothing() {
    let _turn = lock(&TURN);
    let process = Process::new().unwrap();
    process.client.listen();
    let qpn = process.qps[0].number.0;
    let good = layout::link_bytes(1 << 16, 1 << 12) as u64;
    says(&process, ready(qpn), files(good));
    for length in [0, 1, 4096, 1 << 40, u64::MAX - 4095, u64::MAX] {
        for start in [0, 4096, u64::MAX - 4095, u64::MAX] {
            let granted = Granted {
                qpn: Qpn(qpn),
                peer_qpn: Qpn(0x200),
                access: 0xf,
                addr: start,
                length,
                page_start: start,
                memory: Extent { offset: 0, length: 4096 },
                ..Granted::new_zeroed()
            };
            for rkey in 0..4 {
                let file = vec![memfd::create("test", 4096).unwrap()];
                says(&process, Granted { rkey: Rkey(rkey), ..granted }, file);
            }
            let memory = Extent { offset: 0, length };
            says(&process, Granted { memory, ..granted }, Vec::new());
            let file = vec![memfd::create("test", 4096).unwrap()];
            let memory = Extent { offset: start, length: 4096 };
            says(&process, Granted { memory, ..granted }, file);
        }
    }
    assert!(process.client.gids().is_err() || process.client.session.events().is_some());
}

#[test]
fn whatever_a_daemon_says() {
    let _turn = lock(&TURN);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..150 {
        let bytes: Vec<u8> = random.by_ref().take(700).map(|word| (word >> 24) as u8).collect();
        daemon_says(&bytes);
    }
}

/// A link for a group comes when it likes, or goes, or is of no use, and may have been detached by
/// then; what is attached is what the program said.
#[test]
fn a_link_of_a_group_lasts_as_long_as_the_attachment_and_no_longer() {
    let _turn = lock(&TURN);
    let process = Process::new().unwrap();
    process.client.listen();
    // No thread asks for links anew beside this.
    let _attaching = lock(&process.client.groups.attaching);
    let qp = &process.qps[1];
    assert_eq!(qp.service, Service::Ud);
    let group = Gid::from(std::net::Ipv4Addr::new(239, 1, 2, 3));
    let peer_qpn = Qpn::of_group(0);
    let ready = LinkReady { peer_qpn, dgid: group, engine: 1, ..ready(qp.number.0) };
    let good = layout::link_bytes(1 << 16, 1 << 12) as u64;
    let qps = &process.client.qps;
    let unlinked = || qps.unlinked_groups(qp.number);
    // No queue pair is attached, or not any more.
    says(&process, LinkReady { bell: 700, ..ready }, files(good));
    assert_eq!(links(&process), 0);
    assert!(qps.attach(qp.number, group) && !qps.attach(qp.number, group));
    says(&process, LinkReady { bell: 701, ..ready }, files(8));
    assert_eq!((links(&process), unlinked()), (0, vec![group]), "of no use");
    // The link is there before the answer that names it.
    says(&process, LinkReady { bell: 702, ..ready }, files(good));
    assert_eq!((links(&process), unlinked()), (1, vec![]));
    qps.group_answered(qp.number, group, peer_qpn);
    assert_eq!(qps.await_group(qp.number, group, Instant::now()), Ok(()));
    // Another one takes its place.
    says(&process, LinkReady { bell: 703, ..ready }, files(good));
    assert_eq!((links(&process), unlinked()), (1, vec![]));
    // It ends, though that was not asked for: one is needed.
    let closed =
        LinkClosed { qpn: qp.number, peer_qpn, reason: CLOSED_BY_PEER, ..LinkClosed::new_zeroed() };
    says(&process, closed, Vec::new());
    assert_eq!(unlinked(), [group]);
    // So does one before the answer that names it.
    qps.begin_group_request(qp.number);
    says(&process, closed, Vec::new());
    qps.group_answered(qp.number, group, peer_qpn);
    let late = Instant::now() + Duration::from_secs(60);
    assert_eq!(qps.await_group(qp.number, group, late), Err(Errno::EHOSTUNREACH));
    qps.begin_group_request(qp.number);
    qps.group_answered(qp.number, group, peer_qpn);
    assert_eq!(qps.await_group(qp.number, group, Instant::now()), Err(Errno::ETIMEDOUT));
    // With the daemon: the next one is to be asked.
    qps.group_unlinked(qp.number, None);
    assert_eq!(qps.await_group(qp.number, group, late), Err(Errno::EAGAIN));
    qps.begin_group_request(qp.number);
    qps.group_answered(qp.number, group, peer_qpn);
    assert!(qps.has_group_peer(qp.number, peer_qpn));
    assert_eq!(qps.detach(qp.number, group), Some(Some(peer_qpn)));
    assert!(!qps.has_group_peer(qp.number, peer_qpn));
    assert!(!qps.group_linked(qp.number, group, peer_qpn), "detached meanwhile");
    says(&process, LinkReady { bell: 704, ..ready }, files(good));
    assert!(!qps.is_attached(qp.number));
}

#[test]
fn a_doorbell_without_links_wakes_no_thread_and_goes_with_its_daemon() {
    let _turn = lock(&TURN);
    let process = Process::new().unwrap();
    process.client.listen();
    let qpn = process.qps[0].number.0;
    let good = layout::link_bytes(1 << 16, 1 << 12) as u64;
    let heard = || {
        let client = &process.client;
        client.bells.hear_all(&client.shared, &client.progress.sleep);
        client.bells.heard()
    };
    says(&process, LinkReady { bell: 400, ..ready(qpn) }, files(good));
    assert_eq!((links(&process), heard()), (1, vec![true]));
    let closed =
        LinkClosed { qpn: Qpn(qpn), peer_qpn: Qpn(0x200), reason: 2, ..LinkClosed::new_zeroed() };
    says(&process, closed, Vec::new());
    let (none, same) = (QpMask::empty(), QpAttributes::default());
    process.qps[0].modify(none, State::Reset, &same, None).unwrap();
    assert_eq!(heard(), [false]);
    process.client.daemon_lost();
    assert_eq!(heard(), []);
}
