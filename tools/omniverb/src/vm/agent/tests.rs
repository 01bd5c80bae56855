//! Tests what an agent keeps of processes, and for how long.

use super::*;
use crate::vm::guest_window_discovery::FoundWindows;
use omniverb_ring::{DoorbellPage, doorbell};
use omniverb_session::Message;
use omniverb_session::body::{BellClosed, Extent as Said, LinkReady};
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_sys::{Access, Extent, futex, memfd};
use omniverb_terms::{Gid, Qpn};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::thread;

const WINDOW_BYTES: u64 = 1 << 20;
const SESSION: u32 = 5;

struct Bench {
    agent: Agent,
    /// The host's end of the port.
    host: Relay,
    /// A process: by what it calls, and by what it hears events.
    process: [OwnedFd; 2],
}

fn bench() -> Bench {
    let (port, far) = UnixStream::pair().unwrap();
    let mut relay = Relay::new(port.into(), Reads::Always).unwrap();
    let ((calls, process), (events, heard)) =
        (seqpacket::pair().unwrap(), seqpacket::pair().unwrap());
    relay.add(SESSION, calls);
    relay.set_events(SESSION, events);
    let window = Arc::new(memfd::create("window", WINDOW_BYTES).unwrap());
    let (listener, _) = seqpacket::pair().unwrap();
    let agent = Agent {
        opener: None,
        keeping: Keeping::none(),
        sockets: 0,
        relay,
        window,
        sharing: Sharing::new(FoundWindows::default()).unwrap(),
        has_said_pairs: false,
        listener,
        network: None,
        tried: clock::now(),
        wakes: Wakes::new().unwrap(),
        woken: false,
        last: 0,
        told: None,
        sessions: 4,
        full: false,
    };
    Bench { agent, host: Relay::new(far.into(), Reads::Always).unwrap(), process: [process, heard] }
}

/// A link with the engine: its doorbell, and where that is.
fn ready(bell: u64, offset: u64) -> Message {
    let bell_memory = Said { offset, length: 2 * doorbell::PAGE_BYTES as u64 };
    let none = Gid::from(IpAddr::from([0; 4]));
    LinkReady {
        qpn: Qpn(1),
        peer_qpn: Qpn(2),
        side: 0,
        request_bytes: 0,
        response_bytes: 0,
        bell_new: 1,
        bell,
        bell_side: 0,
        loopback: 0,
        local_slot: 0,
        peer_slot: 0,
        sgid: none,
        dgid: none,
        engine: 1,
        traced: 0,
        refused: 0,
        carried: 0,
        memory: Said::NONE,
        bell_memory,
    }
    .into()
}

impl Bench {
    /// The host says this to a session.
    fn say(&mut self, session: u32, message: &Message) {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = omniverb_session::encode(0, message, &mut bytes);
        let bytes = bytes[..length].to_vec();
        self.agent.frame(Frame { kind: FrameKind::Event, session, bytes });
    }

    fn bells(&self) -> usize {
        self.agent.wakes.len()
    }

    /// The frames that the agent has sent, by kind.
    fn said(&mut self) -> Vec<FrameKind> {
        let mut said = Vec::new();
        drop(self.agent.relay.wait(&[], Some(0)).unwrap());
        for news in self.host.wait(&[], Some(100)).unwrap() {
            let News::Frame(frame) = news else { panic!("{news:?}") };
            said.push(frame.kind);
        }
        said
    }
}

#[test]
fn the_doorbells_of_a_process_go_with_it() {
    let mut bench = bench();
    bench.say(SESSION, &ready(1, 0));
    bench.say(SESSION, &ready(2, 8192));
    assert_eq!(bench.bells(), 2);
    bench.say(SESSION, &BellClosed { bell: 1 }.into());
    assert_eq!(bench.bells(), 1);
    for bell in 10..20 {
        bench.say(SESSION, &ready(bell, 8192));
    }
    assert!(bench.bells() <= 4);
    bench.agent.frame(Frame { kind: FrameKind::Close, session: SESSION, bytes: Vec::new() });
    assert_eq!(bench.bells(), 0);
    // The host had said it before it heard that.
    bench.say(SESSION, &ready(3, 0));
    assert_eq!(bench.bells(), 0);
}

/// A process that would sleep on a doorbell without a listener is disconnected.
#[test]
fn a_process_without_a_doorbell_is_lost() {
    let mut bench = bench();
    bench.say(SESSION, &ready(1, 0));
    bench.say(SESSION, &ready(2, WINDOW_BYTES));
    assert!(bench.bells() == 0 && !bench.agent.relay.has(SESSION));
    assert_eq!(bench.said(), [FrameKind::Lost]);
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let mut hear = |socket: &OwnedFd| {
        seqpacket::receive(socket.as_fd(), &mut bytes, seqpacket::BlockingMode::NonBlocking)
            .unwrap()
            .0
    };
    // The earlier messages, then none.
    assert!(hear(&bench.process[1]) > 0);
    assert_eq!(bench.process.each_ref().map(hear), [0, 0]);
}

#[test]
fn a_message_wakes_a_sleeper_and_a_ring_is_reported() {
    let mut bench = bench();
    bench.say(SESSION, &ready(1, 0));
    let memory = Extent::new(bench.agent.window.clone(), 0, 2 * doorbell::PAGE_BYTES as u64);
    let memory = memory.map(Access::ReadWrite).unwrap();
    let page = |side: usize| {
        DoorbellPage::new(memory.part(side * doorbell::PAGE_BYTES, doorbell::PAGE_BYTES).unwrap())
    };
    let own = page(0);
    let before = futex::low(own.rung());
    let sleeper = thread::spawn(move || {
        while futex::low(own.rung()) == before {
            futex::wait(own.rung(), before, Duration::from_secs(60));
        }
    });
    // As the engine does, of whose kernel no wake comes here.
    page(0).count_ring();
    bench.agent.frame(Frame { kind: FrameKind::Word, session: 0, bytes: Vec::new() });
    bench.agent.wake();
    sleeper.join().unwrap();
    // The other way round.
    let engine = page(1);
    for _ in 0..2 {
        engine.count_ring();
        futex::wake(engine.rung(), 1);
        while !omniverb_sys::eventfd::readable(bench.agent.wakes.rung(), None).unwrap() {}
        bench.agent.other(RUNG).unwrap();
        assert_eq!(bench.said(), [FrameKind::Word]);
    }
}

/// An agent that cannot find windows is not told of their absence.
#[test]
fn an_agent_answers_messages_about_windows() {
    let mut bench = bench();
    let mut hears = |bits: u64| {
        let bytes = bits.to_le_bytes().to_vec();
        bench.agent.frame(Frame { kind: FrameKind::Pairs, session: 0, bytes });
        // Something that is said in any case.
        bench.agent.relay.say(FrameKind::Word, 0, Vec::new());
        bench.said()
    };
    assert_eq!(hears(0), [FrameKind::Word]);
    assert_eq!(hears(1), [FrameKind::Pairs, FrameKind::Word]);
    // The host may wait for it.
    assert_eq!(hears(0), [FrameKind::Pairs, FrameKind::Word]);
}

/// Questions to a process about its pages, and its answers, are checked first: without a pinner
/// they are not passed on.
#[test]
fn reports_of_pages_are_checked_by_the_agent() {
    use omniverb_session::body::{Pin, Pinned};
    use omniverb_session::vm::{self, Message as AtDoor};
    use omniverb_terms::{Errno, Rkey};
    let mut bench = bench();
    let pin = Pin { token: 7, rkey: Rkey(1), qpn: Qpn(2), start: 4096, length: 4096 };
    let pinned = Pinned { token: 7, epoch: 1, ring: 3, start: 4096, length: 4096 };
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let length = omniverb_session::encode(0, &pinned.into(), &mut bytes);
    let Agent { keeping, relay, .. } = &mut bench.agent;
    let mut takes =
        |speaker, channel| keeping.takes(relay, speaker, (SESSION, channel), &bytes[..length]);
    assert!(!takes(Speaker::Process, Channel::Calls));
    assert!(!takes(Speaker::Host, Channel::Events), "a host has no pages to keep");
    assert!(takes(Speaker::Process, Channel::Events));
    bench.say(SESSION, &pin.into());
    bench.say(SESSION + 1, &pin.into());
    drop(bench.agent.relay.wait(&[], Some(0)).unwrap());
    let news = bench.host.wait(&[], Some(100)).unwrap();
    // Ended sessions get no answers, and unasked answers are not passed on.
    let [News::Frame(Frame { kind: FrameKind::Pinned, session: SESSION, bytes })] = &news[..]
    else {
        panic!("{news:?}")
    };
    let Ok((_, AtDoor::TellPinned(told))) = vm::decode(bytes) else { panic!("not that") };
    assert_eq!((told.token, told.errno, told.count), (7, Errno::EPERM, 0));
    let heard = seqpacket::receive(
        bench.process[1].as_fd(),
        &mut [0; MESSAGE_BYTES_MAX],
        seqpacket::BlockingMode::NonBlocking,
    );
    assert!(heard.is_err(), "it was asked");
}

/// A process that says it has pinned something is believed once, if it was asked for just that.
#[test]
fn answers_of_unasked_processes_are_ignored() {
    use crate::vm::page_pinner::Pinner;
    use omniverb_session::body::{Adopted, Pin, Pinned};
    use omniverb_session::written;
    use omniverb_terms::{Errno, Rkey};
    let mut bench = bench();
    let (ours, pinner) = seqpacket::pair().unwrap();
    let Agent { keeping, relay, .. } = &mut bench.agent;
    *keeping = Keeping::of(Some(Pinner::stand_in(ours)));
    let says = |keeping: &mut Keeping, relay: &mut Relay, session: u32, token: u64| {
        let said = Pinned { token, epoch: 1, ring: 3, start: 4096, length: 4096 };
        let from = (session, Channel::Events);
        assert!(keeping.takes(relay, Speaker::Process, from, &written(0, &said.into())));
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        seqpacket::receive(pinner.as_fd(), &mut bytes, seqpacket::BlockingMode::NonBlocking).is_ok()
    };
    let asked = |keeping: &mut Keeping, relay: &mut Relay, token: u64| {
        let pin = Pin { token, rkey: Rkey(1), qpn: Qpn(2), start: 4096, length: 4096 };
        seqpacket::send(pinner.as_fd(), &written(SESSION.into(), &pin.into()), &[]).unwrap();
        assert!(keeping.hear(relay).is_ok());
    };
    assert!(!says(keeping, relay, SESSION, 7), "it was not asked");
    asked(keeping, relay, 7);
    for (session, token) in [(SESSION, 8), (SESSION + 1, 7)] {
        assert!(!says(keeping, relay, session, token), "{session} {token}");
    }
    assert!(says(keeping, relay, SESSION, 7));
    assert!(!says(keeping, relay, SESSION, 7), "once");
    asked(keeping, relay, 9);
    asked(keeping, relay, 10);
    let refused: Message = Adopted { token: 9, errno: Errno::EAGAIN, epoch: 0 }.into();
    let from = (SESSION, Channel::Events);
    let passed = !keeping.takes(relay, Speaker::Process, from, &written(0, &refused));
    assert!(passed, "the host hears of it");
    assert!(!says(keeping, relay, SESSION, 9), "it has refused");
    keeping.gone(SESSION - 1);
    assert!(says(keeping, relay, SESSION, 10), "another one is gone");
    asked(keeping, relay, 11);
    keeping.gone(SESSION);
    assert!(!says(keeping, relay, SESSION, 11), "it is gone");
}

/// The page pinner is gone: the host is told that no process exists any more, before we end.
#[test]
fn without_the_page_keeper_all_sessions_end() {
    let mut bench = bench();
    let error = bench.agent.give_up().to_string();
    assert!(error.contains("has ended"), "{error}");
    assert_eq!(bench.said(), [FrameKind::Lost], "its process lives, and has what is its");
    assert_eq!(bench.agent.relay.len(), 0);
    let heard = seqpacket::receive(
        bench.process[0].as_fd(),
        &mut [0; 8],
        seqpacket::BlockingMode::NonBlocking,
    );
    assert_eq!(heard.unwrap().0, 0, "its daemon is gone");
}
