//! Tests datagram sockets whose peers, or queue pairs, misbehave; with verbs and a daemon of our
//! own, and the kernel's loopback.

use core::net::SocketAddr;
use std::thread;

use libc::iovec;
use omniverb_abi::{IBV_WC_WR_FLUSH_ERR, ibv_wc};
use omniverb_sys::clock;
use omniverb_sys::seqpacket::BlockingMode;
use omniverb_terms::Errno;

use super::calls::Datagrams;
use super::datagram_socket::Inner;
use super::kernel_socket::{IpFamily, KernelSocket};
use super::wire_format::{self, DatagramPurpose, KernelDatagramHeader, ROUTE_BYTES};
use crate::rsocket::flow_control::ReadMode;
use crate::rsocket::iovec::IovecCursor;
use crate::rsocket::readiness_wait::{WaitLimit, WaitableSocket, WaitableState, enter, until};
use crate::rsocket::socket_options::SOL_RDMA;
use crate::testing::c_call_helpers::alone;
use crate::testing::fake_ibverbs;

fn socket() -> (Datagrams, SocketAddr) {
    let socket = Datagrams::new(IpFamily::Four, libc::O_NONBLOCK, 0).unwrap();
    let address = {
        let mut inner = socket.lock();
        inner.bind(([127, 0, 0, 1], 0).into()).unwrap();
        inner.kernel.source(([127, 0, 0, 1], 9).into()).unwrap()
    };
    (socket, address)
}

fn send(inner: &mut Inner, to: SocketAddr, bytes: &[u8]) -> Result<usize, Errno> {
    let part = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: so many bytes.
    unsafe { inner.send(Some(to), &mut IovecCursor::new(&[part]), BlockingMode::Blocking) }
}

fn ten_seconds() -> WaitLimit {
    WaitLimit::Until(clock::now() + 10_000_000_000)
}

/// A datagram between queue pairs: route header, name, data.
fn named(sender: [u8; 4], name: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; ROUTE_BYTES];
    bytes[20] = 0x45;
    bytes[32..36].copy_from_slice(&sender);
    bytes.extend_from_slice(wire_format::name(name.parse().unwrap()).bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// What a socket hears of what comes to its queue pair.
fn hears(socket: &Datagrams, bytes: &[u8], qpn: u32) -> usize {
    fake_ibverbs::arrive(bytes, qpn);
    drop(until(socket, WaitLimit::None, |_| false));
    socket.lock().arrived()
}

fn read(socket: &Datagrams) -> (Vec<u8>, SocketAddr) {
    let mut inner = until(socket, ten_seconds(), |inner| inner.has_arrived()).unwrap();
    let mut room = [0; 64];
    let part = iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    // SAFETY: so many bytes.
    let (bytes, from) =
        unsafe { inner.read(&mut IovecCursor::new(&[part]), ReadMode::Take) }.unwrap();
    (room[..bytes].to_vec(), from)
}

/// Takes what has come until the peer's queue pair is known.
fn learn(socket: &Datagrams, peer: SocketAddr) {
    drop(until(socket, ten_seconds(), |inner| inner.knows(peer)).unwrap());
}

#[test]
fn two_sockets_learn_of_each_others_queue_pairs() {
    let _alone = alone();
    let ((one, first), (other, second)) = (socket(), socket());
    assert_eq!(send(&mut one.lock(), second, b"hello"), Ok(5));
    assert!(!one.lock().knows(second));
    assert_eq!(read(&other), (b"hello".to_vec(), first));
    assert!(other.lock().knows(first));
    learn(&one, second);
    // From queue pair to queue pair: nothing comes through the kernel.
    assert_eq!(send(&mut one.lock(), second, b"again"), Ok(5));
    assert!(!one.lock().is_idle());
    let mut bytes = [0; 64];
    assert_eq!(other.lock().kernel.receive(&mut bytes), Err(Errno::EAGAIN));
}

#[test]
fn another_queue_pair_follows_one_that_failed_and_is_made_known() {
    let _alone = alone();
    let ((one, first), (other, second)) = (socket(), socket());
    send(&mut one.lock(), second, b"hello").unwrap();
    read(&other);
    learn(&one, second);
    fake_ibverbs::complete(ibv_wc { status: IBV_WC_WR_FLUSH_ERR, ..ibv_wc::default() });
    assert_eq!(send(&mut one.lock(), second, b"lost"), Ok(4));
    drop(until(&one, WaitLimit::None, |inner| inner.has_arrived()));
    assert!(!one.lock().knows(second));
    assert_eq!(send(&mut one.lock(), second, b"again"), Ok(5));
    assert_eq!(read(&other), (b"again".to_vec(), first));
}

#[test]
fn a_receive_only_process_announces_the_queue_pair_after_a_failed_one() {
    let _alone = alone();
    let ((one, first), (sink, second)) = (socket(), socket());
    send(&mut one.lock(), second, b"hello").unwrap();
    read(&sink);
    learn(&one, second);
    // It has worked.
    fake_ibverbs::complete(ibv_wc { wr_id: 1 << 32, ..ibv_wc::default() });
    fake_ibverbs::complete(ibv_wc { status: IBV_WC_WR_FLUSH_ERR, ..ibv_wc::default() });
    let old = sink.lock().qpn().unwrap();
    drop(until(&sink, WaitLimit::None, |inner| inner.has_arrived()));
    let new = sink.lock().qpn().unwrap();
    assert!(old != new && !sink.lock().knows(first));
    drop(until(&one, ten_seconds(), |inner| inner.knows_queue(second, new)).unwrap());
}

#[test]
fn unknown_senders_fill_a_bounded_queue() {
    let _alone = alone();
    let (flooded, address) = socket();
    let header =
        KernelDatagramHeader { purpose: DatagramPurpose::Data, qpn: 7 }.encode(address.ip());
    let most = usize::from(flooded.lock().settings.receive_queue);
    for _ in 0..most / 16 + 8 {
        let stranger = KernelSocket::new(IpFamily::Four).unwrap();
        for _ in 0..16 {
            stranger
                .send(&[header.bytes(), b"flood"].concat(), address, BlockingMode::Blocking)
                .unwrap();
        }
        // What is neither is passed by.
        stranger.send(b"something else", address, BlockingMode::Blocking).unwrap();
        flooded.lock().take_all();
    }
    let inner = flooded.lock();
    assert!(inner.arrived() <= most && inner.arrived() > 0, "{}", inner.arrived());
}

#[test]
fn endless_messages_keep_no_call_from_returning() {
    let _alone = alone();
    let ((one, _), (_other, second)) = (socket(), socket());
    send(&mut one.lock(), second, b"hello").unwrap();
    // Of no known peer: its room is free at once, and can be filled again.
    for _ in 0..5000 {
        fake_ibverbs::complete(ibv_wc { byte_len: 64, ..ibv_wc::default() });
    }
    assert_eq!(
        until(&one, WaitLimit::None, |inner| inner.has_arrived()).err(),
        Some(Errno::EAGAIN)
    );
    // Nor does a thread go to sleep over what has come and was not looked at.
    assert!(enter(&mut *one.lock()).is_err() && one.lock().has_more());
    assert!(fake_ibverbs::uncompleted() > 4000);
    drop(until(&one, WaitLimit::None, |_| false));
    assert!(!one.lock().has_more());
}

#[test]
fn a_sleeper_hears_of_a_queue_pair_of_another_thread() {
    let _alone = alone();
    let ((one, _), (_other, second)) = (socket(), socket());
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| until(&one, ten_seconds(), |inner| !inner.is_new()).map(drop));
        settles(|| !one.lock().gate().is_open());
        send(&mut one.lock(), second, b"hello").unwrap();
        assert_eq!(sleeper.join().unwrap(), Ok(()));
    });
}

fn settles(holds: impl Fn() -> bool) {
    while !holds() {
        thread::yield_now();
    }
}

#[test]
fn names_are_of_the_sockets_family_only() {
    let _alone = alone();
    let (one, address) = socket();
    let peer = KernelSocket::new(IpFamily::Four).unwrap();
    let source = peer.source(address).unwrap();
    send(&mut one.lock(), source, b"hello").unwrap();
    let host = [10, 0, 0, 2];
    assert_eq!(hears(&one, &named(host, "[::ffff:10.0.0.2]:53", b"x"), 7), 0);
    assert_eq!(hears(&one, &named(host, "10.0.0.3:53", b"x"), 7), 0);
    assert_eq!(hears(&one, &named(host, "10.0.0.2:53", b"x"), 7), 1);
    // Another queue pair than the one that is known to be at that address and port.
    let own = named([127, 0, 0, 1], &source.to_string(), b"x");
    assert_eq!(hears(&one, &own, 8), 2);
    let knock =
        KernelDatagramHeader { purpose: DatagramPurpose::Answer, qpn: 7 }.encode(source.ip());
    peer.send(knock.bytes(), address, BlockingMode::Blocking).unwrap();
    one.lock().take_all();
    assert_eq!(hears(&one, &own, 8), 2);
    assert_eq!(hears(&one, &own, 7), 3);
}

#[test]
fn options_that_would_not_be_heeded_are_refused() {
    let _alone = alone();
    let (one, _) = socket();
    // SAFETY: so many bytes.
    let set =
        |level, name, number: i32| unsafe { one.set(level, name, (&raw const number).cast(), 4) };
    for (level, name) in [
        (libc::IPPROTO_UDP, libc::UDP_GRO),
        (libc::IPPROTO_IP, libc::IP_RECVERR),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    ] {
        assert_eq!(set(level, name, 1), Err(Errno::EOPNOTSUPP), "{level} {name}");
    }
    assert_eq!(set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1), Ok(()));
    let time = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
    let length = size_of::<libc::timeval>() as u32;
    // SAFETY: so many bytes.
    let said =
        unsafe { one.set(libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const time).cast(), length) };
    assert_eq!((said, one.lock().receive_limit), (Ok(()), Some(20_000_000)));
    one.lock().flags = 0;
    // SAFETY: no room.
    assert_eq!(unsafe { one.receive(&[], 0) }.err(), Some(Errno::EAGAIN));
    // The least there is: the first datagram still arrives.
    assert_eq!(set(SOL_RDMA, 1, 0), Ok(()));
    one.lock().flags = libc::O_NONBLOCK;
    let ((other, first), to) = (socket(), one.lock().kernel.source(([127, 0, 0, 1], 9).into()));
    send(&mut other.lock(), to.unwrap(), b"hello").unwrap();
    assert_eq!(read(&one), (b"hello".to_vec(), first));
}

#[test]
fn what_does_not_fit_is_refused_and_so_is_another_family() {
    let _alone = alone();
    let ((one, _), (_other, second)) = (socket(), socket());
    let too_long = send(&mut one.lock(), second, &[0; 2033]);
    assert_eq!(too_long, Err(crate::errno::of(libc::EMSGSIZE)));
    assert_eq!(send(&mut one.lock(), second, &[0; 2032]), Ok(2032));
    let endless = iovec { iov_base: core::ptr::null_mut(), iov_len: usize::MAX };
    // SAFETY: it is too long to be looked at.
    let sent = unsafe {
        one.lock().send(Some(second), &mut IovecCursor::new(&[endless]), BlockingMode::Blocking)
    };
    assert_eq!(sent, Err(crate::errno::of(libc::EMSGSIZE)));
    let six = "[::1]:7".parse().unwrap();
    assert_eq!(send(&mut one.lock(), six, b"x"), Err(crate::errno::of(libc::EAFNOSUPPORT)));
}
