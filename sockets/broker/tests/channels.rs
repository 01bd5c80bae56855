//! Processes that listen and reach for each other, by hand.

mod common;

use common::{Broker, HANGS, Process, close_elsewhere, have_many_descriptors, lingering};
use omniverb_formats::broker_message::{BYTES, Refusal, Reply, Request, Side};
use omniverb_formats::channel_layout;
use omniverb_formats::socket_status_rows::{self, Row};
use omniverb_ring::WordMemory;
use omniverb_ring::shared_atomics::Ordering;
use omniverb_sys::{Access, Extent, memfd, seqpacket};
use rustix::event::{PollFd, PollFlags, poll};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

/// Listens, and says so.
fn listen(process: &Process, tag: u64, at: &str) -> TcpListener {
    let listener = TcpListener::bind((at, 0)).unwrap();
    say_listens(process, tag, &listener);
    listener
}

fn say_listens(process: &Process, tag: u64, listener: &TcpListener) {
    process.say(Request::Listen { tag }, &[listener.as_fd()]);
    assert_eq!(process.hear().unwrap().0, Reply::Listening { tag, why: None });
}

fn say_reaches(process: &Process, tag: u64, to: SocketAddr) {
    let address = match to.ip() {
        std::net::IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(address) => address.octets(),
    };
    process.say(Request::OpenChannel { tag, address, port: to.port(), from: [0; 16] }, &[]);
}

/// The answer to a client that asks for a channel to an address.
fn reach(process: &Process, tag: u64, to: SocketAddr) -> Reply {
    say_reaches(process, tag, to);
    process.hear().unwrap().0
}

fn to(listener: &TcpListener) -> SocketAddr {
    let port = listener.local_addr().unwrap().port();
    (Ipv4Addr::LOCALHOST, port).into()
}

/// The channel that a process is given next: as it is called, the side, and what comes with it.
fn given(process: &Process, tag: u64) -> (u64, Side, [OwnedFd; 2]) {
    match process.hear_all().unwrap() {
        (Reply::Channel { tag: said, name, side, ends: None }, files) if said == tag => {
            (name, side, files.try_into().unwrap())
        }
        other => panic!("{other:?}"),
    }
}

fn is_closed(end: &OwnedFd) -> bool {
    let mut over = [PollFd::new(end, PollFlags::IN)];
    assert_eq!(poll(&mut over, Some(&HANGS.try_into().unwrap())).unwrap(), 1, "nothing comes");
    rustix::io::read(end, &mut [0; 8]) == Ok(0)
}

/// The listeners of processes: cookie and address. The channels of processes: name, the process at
/// the other end, and whether this one has asked.
type ConnectionTable = (Vec<(u64, SocketAddr)>, Vec<(u64, u64, bool)>);

fn shown(broker: &Broker, name: u64) -> ConnectionTable {
    let asks = broker.call();
    asks.say(Request::ShowSockets, &[]);
    let (mut listeners, mut channels) = (Vec::new(), Vec::new());
    loop {
        let mut bytes = [0; socket_status_rows::BYTES];
        let got =
            seqpacket::receive(asks.calls.as_fd(), &mut bytes, seqpacket::BlockingMode::Blocking);
        match Row::decode(&bytes[..got.unwrap().0]).unwrap() {
            Row::Listener(one) => listeners.push((one.process, one.local)),
            Row::Channel(one) => {
                assert_eq!(one.name, name);
                channels.push((one.process, one.peer, one.has_asked));
            }
            Row::End => break,
            _ => {}
        }
    }
    (listeners, channels)
}

#[test]
fn both_are_given_the_same_memory_and_ends_that_are_joined() {
    let broker = Broker::start("channel");
    let [one, two] = [(); 2].map(|()| broker.connect());
    let listener = listen(&two, 6, "0.0.0.0");
    say_reaches(&one, 5, to(&listener));
    let (name, side, [memory, end]) = given(&one, 5);
    let (same, far_side, [far_memory, far_end]) = given(&two, 6);
    assert_eq!((name, side, far_side), (same, Side::First, Side::Second));
    let map = |file: OwnedFd| {
        assert_eq!(memfd::size(file.as_fd()).unwrap(), channel_layout::BYTES as u64);
        let extent = Extent::new(file, 0, channel_layout::BYTES as u64);
        extent.map_exactly(channel_layout::BYTES, Access::ReadWrite).unwrap()
    };
    assert!(memfd::seal_future_write(memory.as_fd()).is_err(), "its seals are not final");
    let (ours, theirs) = (map(memory), map(far_memory));
    assert!((0..channel_layout::BYTES / 8).all(|word| ours.load(word * 8, Ordering::Relaxed) == 0));
    ours.store(channel_layout::BYTES - 8, 7, Ordering::Relaxed);
    assert_eq!(theirs.load(channel_layout::BYTES - 8, Ordering::Relaxed), 7);
    let mut bytes = [0; 8];
    assert!(rustix::io::read(&far_end, &mut bytes).is_err(), "it waits");
    for (from, at) in [(&end, &far_end), (&far_end, &end)] {
        assert_eq!(rustix::io::write(from, b"x"), Ok(1));
        assert_eq!(rustix::io::read(at, &mut bytes), Ok(1));
    }
    // Whichever of the two asks: there is a channel, until one of them says that it has ended.
    assert_eq!(reach(&one, 7, to(&listener)), Reply::ChannelKnown { tag: 7, name, until: 0 });
    let back = listen(&one, 8, "127.0.0.1");
    assert_eq!(reach(&two, 9, to(&back)), Reply::ChannelKnown { tag: 9, name, until: 0 });
    for ends in [&one, &two] {
        ends.say(Request::ChannelEnded { name }, &[]);
        ends.settle();
        say_reaches(&two, 9, to(&back));
        let (next, Side::First, _) = given(&two, 9) else { panic!("it has not asked") };
        let (same, Side::Second, _) = given(&one, 8) else { panic!("it has asked") };
        assert!(next == same && next != name);
        // What one had before is another one.
        two.say(Request::ChannelEnded { name }, &[]);
        assert_eq!(reach(&two, 9, to(&back)), Reply::ChannelKnown { tag: 9, name: next, until: 0 });
        two.say(Request::ChannelEnded { name: next }, &[]);
        two.settle();
    }
    drop((end, far_end));
}

#[test]
fn a_process_that_leaves_is_closed_and_forgotten() {
    let broker = Broker::start("goes");
    let [one, two] = [(); 2].map(|()| broker.connect());
    let listener = listen(&two, 6, "127.0.0.1");
    say_reaches(&one, 5, to(&listener));
    let (name, _, [_, end]) = given(&one, 5);
    assert_eq!(shown(&broker, name).1.len(), 2);
    // Another process has the socket, too, so the kernel has it still.
    drop(two);
    assert!(is_closed(&end));
    let three = broker.connect();
    // The broker has heard of it by now, or soon.
    let until = std::time::Instant::now() + HANGS;
    while reach(&one, 6, to(&listener))
        != (Reply::NoChannel { tag: 6, is_heard: true, is_coming: false })
    {
        assert!(std::time::Instant::now() < until, "it is known still");
    }
    assert_eq!(shown(&broker, name).1.len(), 1, "the other one has it still");
    one.say(Request::ChannelEnded { name }, &[]);
    one.settle();
    assert_eq!(shown(&broker, name).1, []);
    say_listens(&three, 7, &listener);
    say_reaches(&one, 8, to(&listener));
    let (name, Side::First, _) = given(&one, 8) else { panic!("it has not asked") };
    // A process that is gone is never chosen.
    for tag in 9..13 {
        assert_eq!(reach(&one, tag, to(&listener)), Reply::ChannelKnown { tag, name, until: 0 });
    }
}

#[test]
fn there_is_no_channel_without_a_registered_listener() {
    let broker = Broker::start("nobody");
    let [one, two] = [(); 2].map(|()| broker.connect());
    let nobody = |tag| Reply::NoChannel { tag, is_heard: false, is_coming: false };
    let yet = |tag| Reply::NoChannel { tag, is_heard: true, is_coming: false };
    let listener = listen(&two, 6, "0.0.0.0");
    let there = to(&listener);
    assert_eq!(reach(&two, 1, there), yet(1), "itself");
    let to6 = (std::net::Ipv6Addr::LOCALHOST, there.port()).into();
    assert_eq!(reach(&one, 2, to6), nobody(2), "by the other family");
    // An unregistered listener at exactly that address is the one that the kernel would choose.
    let exact = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(reach(&one, 3, to(&exact)), yet(3));
    two.say(Request::Unlisten { tag: 5 }, &[]);
    two.say(Request::Unlisten { tag: 6 }, &[]);
    two.settle();
    assert_eq!(reach(&one, 4, there), yet(4), "it was taken back");
    say_listens(&two, 6, &listener);
    // The duplicate is closed: the port is free again.
    drop(listener);
    assert_eq!(reach(&one, 5, there), nobody(5), "it is closed");
    let again = TcpListener::bind(there).unwrap();
    assert_eq!(reach(&one, 6, there), yet(6), "it is another one");
    say_listens(&two, 7, &again);
    // Each time the same one is named.
    let named = [8, 9].map(|tag| {
        say_reaches(&two, tag, there);
        loop {
            match two.hear_any().unwrap().0 {
                Reply::ListenerIs { tag: said, socket, .. } if said == tag => break socket,
                other => assert!(!matches!(other, Reply::ListenerIs { .. }), "{other:?}"),
            }
        }
    });
    assert_eq!(named[0], named[1]);
    say_reaches(&one, 7, there);
    let (_, Side::First, _) = given(&one, 7) else { panic!("it has not asked") };
}

#[test]
fn those_that_share_a_socket_are_reached_in_turn() {
    let broker = Broker::start("turns");
    let [one, two, three] = [(); 3].map(|()| broker.connect());
    let listener = listen(&two, 6, "127.0.0.1");
    say_listens(&three, 7, &listener);
    say_reaches(&one, 1, to(&listener));
    say_reaches(&one, 2, to(&listener));
    let [(first, ..), (second, ..)] = [1, 2].map(|tag| given(&one, tag));
    assert_eq!([given(&two, 6).0, given(&three, 7).0], [first, second]);
    assert_eq!(
        reach(&one, 3, to(&listener)),
        Reply::ChannelKnown { tag: 3, name: first, until: 0 }
    );
    assert_eq!(
        reach(&one, 4, to(&listener)),
        Reply::ChannelKnown { tag: 4, name: second, until: 0 }
    );
    say_reaches(&two, 5, to(&listener));
    assert_eq!(given(&two, 5).0, given(&three, 7).0);
}

#[test]
fn non_listeners_are_refused_and_bad_messages_end_the_connection() {
    let broker = Broker::start("wrong");
    let one = broker.connect();
    let (pair, _other) = seqpacket::pair().unwrap();
    let file = memfd::create("test", 4096).unwrap();
    for wrong in [pair.as_fd(), file.as_fd()] {
        one.say(Request::Listen { tag: 1 }, &[wrong]);
        let refused = Reply::Listening { tag: 1, why: Some(Refusal::NotConnected) };
        assert_eq!(one.hear().unwrap().0, refused);
    }
    one.say(Request::ChannelEnded { name: 77 }, &[]);
    one.settle();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let file = listener.as_fd();
    let reach = Request::OpenChannel { tag: 1, address: [0; 16], port: 1, from: [0; 16] };
    for (request, files) in [
        (Request::Listen { tag: 1 }, &[][..]),
        (Request::Listen { tag: 1 }, &[file, file]),
        (Request::Unlisten { tag: 1 }, &[file]),
        (reach, &[file]),
        (Request::ChannelEnded { name: 1 }, &[file]),
    ] {
        let one = broker.connect();
        one.say(request, files);
        assert!(one.hear().is_none(), "{request:?}");
    }
}

#[test]
fn a_listing_has_listeners_and_channels() {
    let broker = Broker::start("shown");
    let [one, two] = [(); 2].map(|()| broker.connect());
    let listener = listen(&two, 6, "127.0.0.1");
    let closed = listen(&two, 7, "127.0.0.1");
    drop(closed);
    say_reaches(&one, 5, to(&listener));
    let (name, ..) = given(&one, 5);
    let (listeners, channels) = shown(&broker, name);
    let [(at, local)] = listeners[..] else { panic!("{listeners:?}") };
    assert_eq!(local, to(&listener));
    let [first, second] = channels[..] else { panic!("{channels:?}") };
    assert!([first, second].contains(&(at, if first.0 == at { first.1 } else { second.1 }, false)));
    assert_eq!((first.0, first.1, first.2), (second.1, second.0, !second.2));
}

/// What it sends takes a minute to close each time.
#[test]
fn a_slow_close_holds_up_no_other_client() {
    let broker = Broker::start("slow");
    let [slow, one, two] = [(); 3].map(|()| broker.connect());
    let (file, _peer) = lingering();
    slow.say(Request::Listen { tag: 1 }, &[file.as_fd()]);
    close_elsewhere(file);
    let listener = listen(&two, 6, "127.0.0.1");
    say_reaches(&one, 5, to(&listener));
    let (_, Side::First, _) = given(&one, 5) else { panic!("it has not asked") };
}

/// A listener that reads nothing is not introduced, and nothing of the attempt stays.
#[test]
fn a_listener_that_does_not_read_is_not_introduced() {
    have_many_descriptors();
    let broker = Broker::start("idle");
    let idle = broker.connect();
    let listener = listen(&idle, 6, "127.0.0.1");
    let (mut told, mut all) = (0, Vec::new());
    let last = loop {
        let one = broker.connect();
        say_reaches(&one, 1, to(&listener));
        match one.hear_all().unwrap() {
            (Reply::Channel { .. }, files) => all.push((one, files)),
            (reply, _) => break (one, reply),
        }
        told += 1;
        assert!(told < 200);
    };
    assert_eq!(
        (last.1, told > 10),
        (Reply::NoChannel { tag: 1, is_heard: true, is_coming: false }, true)
    );
    assert_eq!(
        reach(&last.0, 2, to(&listener)),
        Reply::NoChannel { tag: 2, is_heard: true, is_coming: false }
    );
    // A process that reads again is introduced again.
    let names: Vec<u64> = (0..told).map(|_| given(&idle, 6).0).collect();
    // And by others, if it has not as many channels as it may have: it says which have ended.
    all.truncate(told / 2);
    for name in names.into_iter().skip(told / 2) {
        idle.say(Request::ChannelEnded { name }, &[]);
    }
    let begun = Instant::now();
    loop {
        say_reaches(&last.0, 3, to(&listener));
        match last.0.hear_all().unwrap() {
            (Reply::Channel { name, .. }, _) => break assert_eq!(name, given(&idle, 6).0),
            (reply, _) => {
                assert_eq!(reply, Reply::NoChannel { tag: 3, is_heard: true, is_coming: false })
            }
        }
        assert!(begun.elapsed() < HANGS);
        std::thread::yield_now();
    }
}

/// A client that reads nothing is not introduced either: the listener finds the other end closed.
#[test]
fn a_flooding_client_harms_no_other() {
    let broker = Broker::start("floods");
    let [flood, one, two] = [(); 3].map(|()| broker.connect());
    let listener = listen(&two, 6, "127.0.0.1");
    let own = TcpListener::bind("127.0.0.1:0").unwrap();
    for tag in 0..2000 {
        flood.say(Request::Listen { tag }, &[own.as_fd()]);
        flood.say(Request::Unlisten { tag: tag / 2 }, &[]);
        say_reaches(&flood, tag, to(&own));
    }
    say_reaches(&flood, 1, to(&listener));
    let (_, Side::Second, [_, end]) = given(&two, 6) else { panic!("it has asked") };
    assert!(is_closed(&end));
    say_reaches(&one, 5, to(&listener));
    let (_, Side::First, _) = given(&one, 5) else { panic!("it has not asked") };
    // It is parted with when it has been answered, or not.
    seqpacket::send(flood.calls.as_fd(), &[9; BYTES], &[]).unwrap();
    let mut over = [PollFd::new(&flood.calls, PollFlags::RDHUP)];
    assert_eq!(poll(&mut over, Some(&HANGS.try_into().unwrap())).unwrap(), 1);
    let told = std::iter::from_fn(|| flood.hear()).count();
    assert!((10..150).contains(&told), "{told}");
}
