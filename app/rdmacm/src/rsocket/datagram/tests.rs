//! What must hold of datagram sockets whose peers, or queue pairs, do what they should not; with
//! verbs and a daemon of our own, and the kernel's loopback.

use core::net::SocketAddr;

use libc::iovec;
use omniverb_abi::{IBV_WC_WR_FLUSH_ERR, ibv_wc};
use omniverb_sys::clock;
use omniverb_terms::Errno;

use super::calls::Datagrams;
use super::kernel::Kernel;
use super::peers::PEERS_MAX;
use super::socket::Inner;
use super::wire::Knock;
use crate::rsocket::vector::Vector;
use crate::rsocket::wait::{Awaited, Patience, until};
use crate::testing::below;
use crate::testing::program::alone;

fn socket() -> (Datagrams, SocketAddr) {
    let socket = Datagrams::new(false, libc::O_NONBLOCK, 0).unwrap();
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
    unsafe { inner.send(Some(to), &mut Vector::new(&[part]), true) }
}

fn read(socket: &Datagrams) -> (Vec<u8>, SocketAddr) {
    let patience = Patience::Until(clock::now() + 10_000_000_000);
    let mut inner = until(socket, patience, |inner| inner.has_arrived()).unwrap();
    let mut room = [0; 64];
    let part = iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    // SAFETY: so many bytes.
    let (bytes, from) = unsafe { inner.read(&mut Vector::new(&[part]), false) }.unwrap();
    (room[..bytes].to_vec(), from)
}

/// Takes what has come until the peer's queue pair is known.
fn learn(socket: &Datagrams, peer: SocketAddr) {
    let patience = Patience::Until(clock::now() + 10_000_000_000);
    drop(until(socket, patience, |inner| inner.knows(peer)).unwrap());
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
    below::complete(ibv_wc { status: IBV_WC_WR_FLUSH_ERR, ..ibv_wc::default() });
    assert_eq!(send(&mut one.lock(), second, b"lost"), Ok(4));
    drop(until(&one, Patience::None, |inner| inner.has_arrived()));
    assert!(!one.lock().knows(second));
    assert_eq!(send(&mut one.lock(), second, b"again"), Ok(5));
    assert_eq!(read(&other), (b"again".to_vec(), first));
}

#[test]
fn strangers_fill_no_more_than_there_is_room_for() {
    let _alone = alone();
    let (flooded, address) = socket();
    let header = Knock { is_data: true, qpn: 7 }.encode(address.ip());
    let most = usize::from(flooded.lock().settings.receive_queue);
    for _ in 0..most / 16 + 8 {
        let stranger = Kernel::new(false).unwrap();
        for _ in 0..16 {
            stranger.send(&[header.bytes(), b"flood"].concat(), address, true).unwrap();
        }
        // What is neither is passed by.
        stranger.send(b"something else", address, true).unwrap();
        flooded.lock().take_all();
    }
    let inner = flooded.lock();
    assert!(inner.arrived() <= most && inner.arrived() > 0, "{}", inner.arrived());
    assert!(inner.known() <= PEERS_MAX);
}

#[test]
fn what_does_not_fit_is_refused_and_so_is_another_family() {
    let _alone = alone();
    let ((one, _), (_other, second)) = (socket(), socket());
    let too_long = send(&mut one.lock(), second, &[0; 2033]);
    assert_eq!(too_long, Err(crate::errno::of(libc::EMSGSIZE)));
    assert_eq!(send(&mut one.lock(), second, &[0; 2032]), Ok(2032));
    let six = "[::1]:7".parse().unwrap();
    assert_eq!(send(&mut one.lock(), six, b"x"), Err(crate::errno::of(libc::EAFNOSUPPORT)));
}
