//! What a client makes of a daemon that lies about sizes, files, bells and grants.

use super::*;

/// Both tests talk to the same daemon.
static TURN: Mutex<()> = Mutex::new(());

fn ready(qpn: u32) -> LinkReady {
    LinkReady {
        qpn,
        peer_qpn: 0x200,
        request_bytes: 1 << 16,
        response_bytes: 1 << 12,
        bell_new: 1,
        ..LinkReady::new_zeroed()
    }
}

fn files(link: u64) -> Vec<OwnedFd> {
    let memory = [link, BELL_BYTES].map(|bytes| memfd::create("test", bytes).unwrap());
    memory.into()
}

fn says(process: &Process, message: impl Into<Message>, files: Vec<OwnedFd>) {
    let events = vec![(message.into(), files)];
    plans().push_back(Plan { events, answer: None, wrong_tag: false });
    let _ = process.client.gids();
    process.client.take_events();
    process.work(&mut Bytes(&[7; 64]));
}

fn links(process: &Process) -> usize {
    process.qps.iter().map(|qp| qp.peers().len()).sum()
}

#[test]
fn nothing_that_is_not_as_it_should_be_becomes_a_link() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let process = Process::new().unwrap();
    process.client.progress.listen(&process.client);
    let qpn = process.qps[0].number;
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
        |ready| ready.qpn = 0x7777,
        |ready| ready.side = u32::MAX,
    ];
    for (bell, change) in (100..).zip(changes) {
        let mut wrong = LinkReady { bell, ..ready(qpn) };
        change(&mut wrong);
        says(&process, wrong, files(good));
        assert_eq!(links(&process), 0, "{wrong:?}");
    }
    for (bell, length) in (200..).zip([0, 8, good - 8, good + 4096, 1 << 30]) {
        says(&process, LinkReady { bell, ..ready(qpn) }, files(length));
        assert_eq!(links(&process), 0, "link memory of {length} bytes");
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
fn grants_that_nobody_asked_for_and_lies_about_their_size_break_nothing() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let process = Process::new().unwrap();
    process.client.progress.listen(&process.client);
    let qpn = process.qps[0].number;
    let good = layout::link_bytes(1 << 16, 1 << 12) as u64;
    says(&process, ready(qpn), files(good));
    for length in [0, 1, 4096, 1 << 40, u64::MAX - 4095, u64::MAX] {
        for start in [0, 4096, u64::MAX - 4095, u64::MAX] {
            let granted = Granted {
                qpn,
                peer_qpn: 0x200,
                access: 0xf,
                addr: start,
                length,
                page_start: start,
                page_length: 4096,
                ..Granted::new_zeroed()
            };
            for rkey in 0..4 {
                let file = vec![memfd::create("test", 4096).unwrap()];
                says(&process, Granted { rkey, ..granted }, file);
            }
            says(&process, Granted { page_length: length, ..granted }, Vec::new());
        }
    }
    assert!(process.client.gids().is_err() || process.client.session.events().is_some());
}

#[test]
fn whatever_a_daemon_says() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..150 {
        let bytes: Vec<u8> = (0..700)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 24) as u8
            })
            .collect();
        daemon_says(&bytes);
    }
}

#[test]
fn a_bell_without_links_wakes_nobody_and_goes_with_its_daemon() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let process = Process::new().unwrap();
    process.client.progress.listen(&process.client);
    let qpn = process.qps[0].number;
    let good = layout::link_bytes(1 << 16, 1 << 12) as u64;
    let heard = || {
        process.client.hear_bells();
        crate::lock(&process.client.bells)
            .values()
            .map(|bell| bell.heard_as.is_some())
            .collect::<Vec<_>>()
    };
    says(&process, LinkReady { bell: 400, ..ready(qpn) }, files(good));
    assert_eq!((links(&process), heard()), (1, vec![true]));
    let closed = LinkClosed { qpn, peer_qpn: 0x200, reason: 2, ..LinkClosed::new_zeroed() };
    says(&process, closed, Vec::new());
    let (none, same) = (QpMask::empty(), QpAttributes::default());
    process.qps[0].modify(none, State::Reset, &same, None).unwrap();
    assert_eq!(heard(), [false]);
    process.client.daemon_lost();
    assert_eq!(heard(), []);
}
