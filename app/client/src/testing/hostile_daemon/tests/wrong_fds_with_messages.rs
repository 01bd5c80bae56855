//! A daemon that puts too few files beside a message, or too many, or others than belong there.

use super::*;
use omniverb_device::opcode;

fn delivers(process: &Process, message: impl Into<Message>, files: Vec<OwnedFd>) {
    plans().push_back(HostileAnswers {
        events: vec![(message.into(), files)],
        ..HostileAnswers::default()
    });
    let _ = process.client.gids();
    process.client.take_events();
}

fn memory(bytes: u64) -> OwnedFd {
    memfd::create("test", bytes).unwrap()
}

/// As many files as there can be beside a message, or fewer.
fn some(count: usize, bytes: u64) -> Vec<OwnedFd> {
    (0..count).map(|_| memory(bytes)).collect()
}

const COUNTS: std::ops::RangeInclusive<usize> = 0..=omniverb_session::DESCRIPTORS_MAX;

#[test]
fn a_link_is_made_of_its_memory_and_that_of_a_new_bell_and_of_nothing_else() {
    let _turn = lock(&TURN);
    let process = Process::new().unwrap();
    process.client.listen();
    let ready = ready(process.qps[0].number.0);
    let bytes = ready.memory.length.max(BELL_BYTES);
    for count in COUNTS.filter(|count| *count != 2) {
        delivers(&process, LinkReady { bell: 800, ..ready }, some(count, bytes));
        assert_eq!(links(&process), 0, "{count} files");
    }
    delivers(&process, LinkReady { bell: 800, ..ready }, some(2, bytes));
    assert_eq!(links(&process), 1);
    // Another one by the same bell takes its place only if it is sound.
    let datagrams = process.qps[1].number;
    let other = LinkReady { bell: 800, bell_new: 0, qpn: datagrams, ..ready };
    for count in COUNTS.filter(|count| *count != 1) {
        delivers(&process, other, some(count, bytes));
        assert_eq!(links(&process), 1, "{count} files");
    }
    delivers(&process, other, vec![seqpacket::pair().unwrap().0]);
    assert_eq!(links(&process), 1, "a socket");
    delivers(&process, other, some(1, bytes));
    assert_eq!(links(&process), 2);
}

/// Whether what the daemon grants with these files is mapped.
fn is_mapped(bell: u64, with: Vec<OwnedFd>) -> bool {
    let process = Process::new().unwrap();
    process.client.listen();
    let qp = &process.qps[0];
    let link = ready(qp.number.0);
    let files = files(link.memory.length);
    // As if the peer were there.
    let state = layout::side(1) + layout::word::STATE;
    rustix::io::pwrite(&files[0], &layout::state::OPEN.to_ne_bytes(), state as u64).unwrap();
    delivers(&process, LinkReady { bell, ..link }, files);
    // What is written to where nothing is mapped has it asked for.
    let rkey = Rkey(3);
    let entry =
        Sge { address: process.memory.as_ptr() as u64 + (1 << 40), length: 8, lkey: process.lkey };
    qp.post_send(&SendWork {
        address: PAGE,
        rkey,
        data: Data::Gather(&[entry]),
        ..SendWork::new(1, opcode::RDMA_WRITE, send_flags::SIGNALED)
    })
    .unwrap();
    let granted = Granted {
        qpn: qp.number,
        peer_qpn: Qpn(0x200),
        rkey,
        access: 0xf,
        addr: PAGE,
        length: PAGE,
        page_start: PAGE,
        memory: Extent { offset: 0, length: PAGE },
        ..Granted::new_zeroed()
    };
    delivers(&process, granted, with);
    qp.drop_oldest_grant()
}

#[test]
fn a_grant_is_one_file() {
    let _turn = lock(&TURN);
    for (bell, count) in (810..).zip(COUNTS) {
        assert_eq!(is_mapped(bell, some(count, PAGE)), count == 1, "{count} files");
    }
    assert!(!is_mapped(819, vec![seqpacket::pair().unwrap().0]), "a socket");
}

#[test]
fn a_question_for_pages_has_one_file_if_they_are_to_be_moved() {
    let _turn = lock(&TURN);
    let process = Process::new().unwrap();
    process.client.listen();
    let answer = |fresh, files| {
        let memory = Extent { offset: 0, length: PAGE };
        let (qpn, rkey) = (process.qps[0].number, Rkey(0x7777));
        let ask = Adopt { token: 5, qpn, rkey, start: PAGE, fresh, memory, trusted: 0 };
        *lock(&ADOPTED) = None;
        delivers(&process, ask, files);
        // The daemon hears the answer before the next call.
        let _ = process.client.gids();
        lock(&ADOPTED).take().map(|adopted| (adopted.token, adopted.errno))
    };
    for count in COUNTS {
        // There is no such key.
        let errno = |right| Some((5, if count == right { Errno::EACCES } else { Errno::EPROTO }));
        assert_eq!(answer(1, some(count, PAGE)), errno(1), "{count} files");
        assert_eq!(answer(0, some(count, PAGE)), errno(0), "{count} files, and there already");
    }
    assert_eq!(answer(1, vec![seqpacket::pair().unwrap().0]), Some((5, Errno::EPROTO)));
}

#[test]
fn traces_go_to_one_file() {
    let _turn = lock(&TURN);
    let process = Process::new().unwrap();
    process.client.listen();
    let bytes = omniverb_link::captured_operations_ring::TRACE_BYTES as u64;
    let begin = TraceBegin { memory: Extent { offset: 0, length: bytes } };
    for count in COUNTS {
        delivers(&process, begin, some(count, bytes));
        assert_eq!(process.client.tracing.tracer().is_some(), count == 1, "{count} files");
    }
}

#[test]
fn files_beside_a_message_that_has_none_are_closed_and_it_counts() {
    let _turn = lock(&TURN);
    let process = Process::new().unwrap();
    process.client.listen();
    let qpn = process.qps[0].number;
    let link = ready(qpn.0);
    delivers(&process, LinkReady { bell: 820, ..link }, files(link.memory.length));
    assert_eq!(process.qps[0].peers().len(), 1);
    let closed = LinkClosed { qpn, peer_qpn: Qpn(0x200), reason: CLOSED_BY_DEATH, reserved: 0 };
    let (ours, theirs) = seqpacket::pair().unwrap();
    delivers(&process, closed, vec![theirs]);
    let heard = seqpacket::receive(ours.as_fd(), &mut [0; 8], seqpacket::BlockingMode::NonBlocking);
    assert!(matches!(heard, Ok((0, _))), "it is closed");
    assert_eq!(process.qps[0].query().0, State::Err);
}
