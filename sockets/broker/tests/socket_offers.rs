//! Processes that offer sockets, by hand.

mod common;

use common::{
    Broker, HANGS, HELLO, Process, close_elsewhere, diagnosis, ends, have_many_descriptors, light,
    lingering,
};
use omniverb_formats::broker_message::{BYTES, Refusal, Reply, Request, Side};
use omniverb_formats::link_layout;
use omniverb_ring::WordMemory;
use omniverb_ring::shared_atomics::Ordering;
use omniverb_sys::user_and_group_check::UsersAndGroups;
use omniverb_sys::{Access, Extent, seqpacket};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

/// A client that asks for the ranges first is shown them, and nothing else.
#[test]
fn ranges_of_light_connections_are_said() {
    let broker = Broker::start("ranges");
    let asks = broker.call();
    asks.say(Request::ShowRanges, &[]);
    let said: Vec<_> = std::iter::from_fn(|| asks.hear()).map(|(reply, _)| reply).collect();
    assert_eq!(said, light().into_iter().map(Reply::Range).collect::<Vec<_>>());
    let late = broker.connect();
    late.say(Request::ShowRanges, &[]);
    assert!(late.hear().is_none());
}

#[test]
fn both_ends_are_given_the_same_memory() {
    let broker = Broker::start("both");
    let [one, two] = [(); 2].map(|()| broker.connect());
    let (near, far) = ends();
    one.offer_first(5, &near);
    two.offer(6, &far);
    let (first, memory) = one.hear().unwrap();
    let (second, same) = two.hear().unwrap();
    let (
        Reply::Link { tag: 5, link, side: Side::First, .. },
        Reply::Link { tag: 6, link: other, side: Side::Second, .. },
    ) = (first, second)
    else {
        panic!("{first:?} {second:?}")
    };
    assert_eq!(link, other);
    let map = |file: Option<OwnedFd>| {
        let extent = Extent::new(file.unwrap(), 0, link_layout::BYTES as u64);
        extent.map_exactly(link_layout::BYTES, Access::ReadWrite).unwrap()
    };
    let (ours, theirs) = (map(memory), map(same));
    ours.store(link_layout::HEAD, 7, Ordering::Relaxed);
    assert_eq!(theirs.load(link_layout::HEAD, Ordering::Relaxed), 7);
    // The page says so a moment later; that it has said so is sure with the next message.
    [&one, &two].into_iter().for_each(Process::settle);
    assert!(one.mail() >= 3 && two.mail() >= 2);
}

#[test]
fn a_duplicate_delays_no_end() {
    let broker = Broker::start("end");
    let one = broker.connect();
    let (near, mut far) = ends();
    one.offer_first(1, &near);
    drop(near);
    assert_eq!(far.read(&mut [0; 8]).unwrap(), 0);
    assert!(far.write(b"x").is_ok());
}

/// Names come again: the process that had them before is given nothing.
#[test]
fn an_earlier_connection_is_not_the_other_end() {
    let broker = Broker::start("before");
    let [liar, victim] = [(); 2].map(|()| broker.connect());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();
    let before = TcpStream::connect(target).unwrap();
    let port = before.local_addr().unwrap();
    liar.offer_first(1, &before);
    // A reset: the names are free at once.
    rustix::net::sockopt::set_socket_linger(&before, Some(std::time::Duration::ZERO)).unwrap();
    drop(before);
    drop(listener.accept().unwrap());
    let again =
        socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::sockopt::set_socket_reuseaddr(&again, true).unwrap();
    rustix::net::bind(&again, &port).unwrap();
    rustix::net::connect(&again, &target).unwrap();
    let far = listener.accept().unwrap().0;
    assert_eq!(far.peer_addr().unwrap(), port);
    victim.offer_first(2, &far);
    // An offer that waited for a socket that is gone waits for nothing now.
    let refused = Reply::Refused { tag: 1, why: Refusal::NotProven };
    assert_eq!(liar.hear().unwrap().0, refused);
    let honest = broker.connect();
    honest.offer(3, &again);
    assert!(matches!(victim.hear().unwrap().0, Reply::Link { tag: 2, .. }));
    assert!(matches!(honest.hear().unwrap().0, Reply::Link { tag: 3, .. }));
    liar.settle();
}

#[test]
fn non_connections_are_refused_and_bad_messages_end_the_connection() {
    let broker = Broker::start("refused");
    let one = broker.connect();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    one.offer(1, &listener);
    let refused = Reply::Refused { tag: 1, why: Refusal::NotConnected };
    assert_eq!(one.hear().unwrap().0, refused);
    one.say(Request::LinkEnded { link: 77 }, &[]);
    seqpacket::send(one.calls.as_fd(), &[9; BYTES], &[]).unwrap();
    assert!(one.hear().is_none());
    // Hello has to come with the right socket, and soon.
    let two = broker.call();
    two.say(HELLO, &[listener.as_fd()]);
    assert!(two.hear().is_none());
    let three = broker.call();
    assert!(three.hear().is_none(), "who says nothing is parted with");
}

/// What is not read stays within a limit.
#[test]
fn a_client_that_reads_nothing_is_told_no_more() {
    let broker = Broker::start("unread");
    let idle = broker.connect();
    let (one, _other) = seqpacket::pair().unwrap();
    (0..200).for_each(|tag| idle.offer(tag, &one));
    // It is parted with when all have been answered, or not.
    seqpacket::send(idle.calls.as_fd(), &[9; BYTES], &[]).unwrap();
    // A client that reads meanwhile makes room.
    let mut over = [PollFd::new(&idle.calls, PollFlags::RDHUP)];
    assert_eq!(poll(&mut over, Some(&HANGS.try_into().unwrap())).unwrap(), 1);
    let told = std::iter::from_fn(|| idle.hear()).count();
    assert!((10..150).contains(&told), "{told}");
}

/// A newcomer from elsewhere has a place then, too (`src/admission.rs`).
#[test]
fn one_network_namespace_may_have_all_free_room() {
    have_many_descriptors();
    let broker = Broker::start("share");
    let all: Vec<Process> = (0..300).map(|_| broker.connect()).collect();
    drop((all, broker.connect()));
}

/// A process that is refused has sent something that takes a minute to close.
#[test]
fn a_refused_client_holds_up_no_other() {
    have_many_descriptors();
    let broker = Broker::start("lingers");
    let silent: Vec<Process> = (0..512).map(|_| broker.call()).collect();
    let mut peers = Vec::new();
    for _ in 0..20 {
        let (slow, peer) = lingering();
        let one = broker.call();
        _ = seqpacket::send(one.calls.as_fd(), b"text", &[slow.as_fd()]);
        close_elsewhere((slow, one));
        peers.push(peer);
    }
    // All of these are parted with, and then there is room.
    silent.iter().for_each(|one| assert!(one.hear().is_none()));
    let (near, far) = ends();
    let [one, two] = [(); 2].map(|()| broker.connect());
    one.offer_first(1, &near);
    two.offer(2, &far);
    assert!(matches!(one.hear().unwrap().0, Reply::Link { tag: 1, .. }));
}

#[test]
fn a_user_that_is_not_allowed_is_refused() {
    let uid = rustix::process::geteuid().as_raw();
    let only = |uid| Some(UsersAndGroups { users: vec![uid], groups: Vec::new() });
    Broker::start_for("allowed", only(uid)).connect();
    let broker = Broker::start_for("denied", only(uid + 1));
    let one = broker.call();
    let by = diagnosis();
    _ = seqpacket::send(one.calls.as_fd(), &HELLO.encode(), &[by.as_fd()]);
    assert!(one.hear().is_none());
}

/// What comes with hello takes a minute to close; others say hello meanwhile.
#[test]
fn clients_before_hello_have_a_small_share() {
    have_many_descriptors();
    let broker = Broker::start("silent");
    let (slow, _peer) = lingering();
    let hanging: Vec<Process> = (0..20).map(|_| broker.call()).collect();
    for one in &hanging {
        _ = seqpacket::send(one.calls.as_fd(), &HELLO.encode(), &[slow.as_fd()]);
    }
    close_elsewhere(slow);
    broker.connect().settle();
}
