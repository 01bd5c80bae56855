//! Tests what a proxy passes on, and when it ends.

use super::*;
use crate::vm::pair_window_wakes::Side;
use crate::vm::pair_window_wakes::WakeBridge;
use crate::vm::{machine_window, pair_windows};
use omniverb_sys::memfd;

fn bridge() -> PairWindows {
    PairWindows { bridge: WakeBridge::new(Side::Host).unwrap(), present: 0, going: 0, more: None }
}

/// The first message of an agent with this window, in this boot.
fn begin(window: u64, boot: u8) -> Vec<u8> {
    let bytes = AgentBegin { window, number: 1, boot: [boot; 16] }.written();
    Frame { kind: FrameKind::Begin, session: 0, bytes }.encode()
}

#[test]
fn messages_of_a_proxy_are_handled() {
    for (over, code) in ProxyEnd::ALL {
        assert_eq!(ProxyEnd::of(Some(i32::from(code))), over);
    }
    assert_eq!(ProxyEnd::of(None), ProxyEnd::Broken);
    assert_eq!(ProxyEnd::of(Some(101)), ProxyEnd::Broken);
}

#[test]
fn the_last_word_tells_a_parting_from_a_death() {
    let ends = || seqpacket::pair().unwrap();
    let (ours, theirs) = ends();
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let said = omniverb_session::vm::Parted { reserved: 0 };
    let length = encode(0, &said.into(), &mut bytes);
    seqpacket::send(theirs.as_fd(), &bytes[..length], &[]).unwrap();
    drop(theirs);
    assert_eq!(last_word(ours.as_fd()), ProxyEnd::Detached);
    assert_eq!(last_word(ours.as_fd()), ProxyEnd::Daemon);
    // Like `last_word`, for a client with a call under way.
    let ask = |theirs: OwnedFd, ours: OwnedFd| {
        drop(theirs);
        let (port, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let open = Frame { kind: FrameKind::Open, session: 1, bytes: vec![0; 8] };
        let begin = begin(u64::from_le_bytes([7; 8]), 0);
        rustix::io::write(&far, &[begin, open.encode()].concat()).unwrap();
        serve(port.into(), ours, u64::from_le_bytes([7; 8]), 4, bridge())
    };
    let (ours, theirs) = ends();
    seqpacket::send(theirs.as_fd(), &bytes[..length], &[]).unwrap();
    assert_eq!(ask(theirs, ours), ProxyEnd::Detached);
    let (ours, theirs) = ends();
    assert_eq!(ask(theirs, ours), ProxyEnd::Daemon);
}

#[test]
fn an_agent_that_goes_on_with_another_proxy_begins_anew() {
    let (ours, _theirs) = seqpacket::pair().unwrap();
    let (port, far) = std::os::unix::net::UnixStream::pair().unwrap();
    let late = Frame { kind: FrameKind::Close, session: 1, bytes: Vec::new() };
    rustix::io::write(&far, &late.encode()).unwrap();
    assert_eq!(serve(port.into(), ours, 7, 4, bridge()), ProxyEnd::Broken);
}

#[test]
fn the_boot_id_is_an_agents_first_message() {
    let (ours, theirs) = seqpacket::pair().unwrap();
    let (port, far) = std::os::unix::net::UnixStream::pair().unwrap();
    let open = Frame { kind: FrameKind::Open, session: 1, bytes: vec![0; 8] };
    // Of another machine's agent nothing is believed, nor of one that knows of no boot.
    let said = [begin(8, 2), begin(7, 0), begin(7, 3), open.encode()].concat();
    rustix::io::write(&far, &said).unwrap();
    let serving = std::thread::spawn(move || serve(port.into(), ours, 7, 4, bridge()));
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let mut hear = || {
        let received =
            seqpacket::receive(theirs.as_fd(), &mut bytes, seqpacket::BlockingMode::Blocking);
        decode(&bytes[..received.unwrap().0]).unwrap()
    };
    let (tag, Message::Booted(told)) = hear() else { panic!() };
    assert_eq!(told.boot, [3; 16]);
    let mut answer = [0; MESSAGE_BYTES_MAX];
    let done = omniverb_session::body::Done { take_back: 0 };
    let length = encode(tag, &done.into(), &mut answer);
    seqpacket::send(theirs.as_fd(), &answer[..length], &[]).unwrap();
    assert!(matches!(hear(), (_, Message::OpenSession(_))));
    drop(theirs);
    assert_eq!(serving.join().unwrap(), ProxyEnd::Daemon);
}

/// Doorbells in a later window are heard.
#[test]
fn a_later_window_has_doorbells() {
    let (ours, theirs) = seqpacket::pair().unwrap();
    let (port, far) = std::os::unix::net::UnixStream::pair().unwrap();
    let (supervisor, more) = seqpacket::pair().unwrap();
    let mut agent = Relay::new(far.into(), Reads::Always).unwrap();
    let bytes = AgentBegin { window: 7, number: 1, boot: [0; 16] }.written();
    agent.begin(&Frame { kind: FrameKind::Begin, session: 0, bytes });
    agent.say(FrameKind::Pairs, 0, vec![0; 8]);
    let windows = PairWindows { more: Some(more), ..bridge() };
    let serving = std::thread::spawn(move || serve(port.into(), ours, 7, 4, windows));
    drop(agent.wait(&[], Some(0)).unwrap());
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let (length, _) =
        seqpacket::receive(theirs.as_fd(), &mut bytes, seqpacket::BlockingMode::Blocking).unwrap();
    let Ok((tag, Message::TellPairs(_))) = decode(&bytes[..length]) else { panic!() };
    let length = encode(tag, &omniverb_session::body::Done { take_back: 0 }.into(), &mut bytes);
    seqpacket::send(theirs.as_fd(), &bytes[..length], &[]).unwrap();
    let file = memfd::create("pair", 4 << 20).unwrap();
    seqpacket::send(supervisor.as_fd(), b"+\x01", &[file.as_fd()]).unwrap();
    let is_rung = |one: &News| matches!(one, News::Frame(frame) if frame.kind == FrameKind::Rung);
    // Other words may come before, of windows.
    let mut rung = |milliseconds| loop {
        let news = agent.wait(&[], Some(milliseconds)).unwrap();
        if news.is_empty() || news.iter().any(is_rung) {
            break !news.is_empty();
        }
    };
    // A new listener reports once.
    while rung(300) {}
    let data = machine_window::data(4 << 20);
    let bell = data.offset + omniverb_session::pair_window::bell_pages(data.length).offset;
    let bells = omniverb_sys::Extent::new(&file, bell, omniverb_session::pair_window::BELL_BYTES);
    let bells = bells.map(omniverb_sys::Access::ReadWrite).unwrap();
    let page = omniverb_ring::doorbell::PAGE_BYTES;
    omniverb_sys::doorbell_listener::ring(&omniverb_ring::DoorbellPage::new(
        bells.part(page, page).unwrap(),
    ));
    assert!(rung(20_000), "not heard");
    // A supervisor that is gone is nothing to a proxy.
    drop(supervisor);
    while rung(100) {}
    omniverb_sys::doorbell_listener::ring(&omniverb_ring::DoorbellPage::new(
        bells.part(page, page).unwrap(),
    ));
    assert!(rung(20_000), "not heard");
    drop(agent);
    assert_eq!(serving.join().unwrap(), ProxyEnd::Machine);
}

#[test]
fn only_packets_and_messages_pass_both_ways() {
    let (ours, theirs) = seqpacket::pair().unwrap();
    let (port, far) = std::os::unix::net::UnixStream::pair().unwrap();
    let frame = |kind, bytes| Frame { kind, session: 0, bytes };
    let packet = |length: usize| frame(FrameKind::Packet, vec![0; length]);
    let mut agent = Relay::new(far.into(), Reads::Always).unwrap();
    let bytes = AgentBegin { window: 7, number: 1, boot: [0; 16] }.written();
    agent.begin(&frame(FrameKind::Begin, bytes));
    // The port is not open yet.
    let port_frame = frame(FrameKind::Port, Vec::new());
    let head = proxied_udp::HEAD_BYTES;
    for said in [packet(head), port_frame, packet(0), packet(head - 1), packet(head + 1)] {
        agent.say(said.kind, 0, said.bytes);
    }
    agent.say(FrameKind::Word, 0, Vec::new());
    let serving = std::thread::spawn(move || serve(port.into(), ours, 7, 4, bridge()));
    drop(agent.wait(&[], Some(0)).unwrap());
    let mut bytes = [0; PACKET_BYTES_MAX];
    let mut receive = |from: &OwnedFd| {
        let received =
            seqpacket::receive(from.as_fd(), &mut bytes, seqpacket::BlockingMode::Blocking);
        bytes[..received.unwrap().0].to_vec()
    };
    let Ok((tag, Message::OpenPort(_))) = decode(&receive(&theirs)) else { panic!() };
    let (queue, engine) = seqpacket::pair().unwrap();
    let opened = omniverb_session::vm::PortOpened { reserved: 0 };
    let mut answer = [0; MESSAGE_BYTES_MAX];
    let length = encode(tag, &opened.into(), &mut answer);
    seqpacket::send(theirs.as_fd(), &answer[..length], &[queue.as_fd()]).unwrap();
    assert_eq!(receive(&engine).len(), head + 1);
    assert!(proxied_udp::is_word(&receive(&engine)));
    seqpacket::send(engine.as_fd(), &[3; 100], &[]).unwrap();
    proxied_udp::say(engine.as_fd());
    let mut came = Vec::new();
    while came.len() < 3 {
        for news in agent.wait(&[], None).unwrap() {
            let News::Frame(frame) = news else { panic!("{news:?}") };
            came.push((frame.kind, frame.bytes.len()));
        }
    }
    // Before all that: which pair windows there are, though there are none.
    assert_eq!(came, [(FrameKind::Pairs, 8), (FrameKind::Packet, 100), (FrameKind::Word, 0)]);
    drop(agent);
    assert_eq!(serving.join().unwrap(), ProxyEnd::Machine);
}

/// The agent hears of windows that come and go, and the supervisor of those that it has released.
#[test]
fn windows_come_and_go() {
    let ((ours, theirs), (more, supervisor)) =
        (seqpacket::pair().unwrap(), seqpacket::pair().unwrap());
    let (port, far) = std::os::unix::net::UnixStream::pair().unwrap();
    let windows = PairWindows { more: Some(more), ..bridge() };
    let serving = std::thread::spawn(move || serve(port.into(), ours, 7, 4, windows));
    let mut frames = omniverb_session::vm::Frames::default();
    let mut hear = || {
        let mut bytes = [0; 256];
        loop {
            if let Some(frame) = frames.next_frame().unwrap() {
                break frame;
            }
            let length = rustix::io::read(&far, &mut bytes).unwrap();
            frames.feed(&bytes[..length]);
        }
    };
    let mut told = || loop {
        let frame = hear();
        if frame.kind == FrameKind::Pairs {
            break u64::from_le_bytes(frame.bytes.try_into().unwrap());
        }
    };
    let file = memfd::create("pair", 2 << 20).unwrap();
    let give =
        |number| seqpacket::send(supervisor.as_fd(), &[b'+', number], &[file.as_fd()]).unwrap();
    give(2);
    rustix::io::write(&far, &begin(7, 0)).unwrap();
    while told() != 0b10 {}
    give(3);
    assert_eq!(told(), 0b110);
    let says = |bits: u64, told| {
        let bytes = bits.to_le_bytes().to_vec();
        let frame = Frame { kind: FrameKind::Pairs, session: 0, bytes };
        rustix::io::write(&far, &frame.encode()).unwrap();
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let mode = seqpacket::BlockingMode::Blocking;
        let length = seqpacket::receive(theirs.as_fd(), &mut bytes, mode).unwrap().0;
        let (tag, Message::TellPairs(tells)) = decode(&bytes[..length]).unwrap() else { panic!() };
        assert_eq!(tells.present, told);
        let done = omniverb_session::body::Done { take_back: 0 };
        let length = encode(tag, &done.into(), &mut bytes);
        seqpacket::send(theirs.as_fd(), &bytes[..length], &[]).unwrap();
    };
    says(0b110, 0b110);
    seqpacket::send(supervisor.as_fd(), &[pair_windows::GOES, 2], &[]).unwrap();
    assert_eq!(told(), 0b100);
    // It has not been released yet; no process gets any of it.
    says(0b110, 0b100);
    let moment = Some(std::time::Duration::from_millis(100));
    assert!(!omniverb_sys::eventfd::readable(supervisor.as_fd(), moment).unwrap());
    says(0b100, 0b100);
    let mut word = [0; 2];
    seqpacket::receive(supervisor.as_fd(), &mut word, seqpacket::BlockingMode::Blocking).unwrap();
    assert_eq!(word, [pair_windows::GOES, 2]);
    give(2);
    assert_eq!(told(), 0b110);
    // A number in use is malformed.
    give(3);
    assert_eq!(serving.join().unwrap(), ProxyEnd::Broken);
}
