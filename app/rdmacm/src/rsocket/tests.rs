//! Tests sockets when something goes wrong, with verbs and a daemon of our own.

use core::ffi::c_int;
use core::ptr::{null, null_mut};
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::{fs, thread};

use libc::{AF_INET, EAGAIN, ENODEV, O_NONBLOCK, POLLERR, POLLIN, SOCK_STREAM, pollfd};
use omniverb_abi::*;
use omniverb_sys::clock;
use omniverb_sys::seqpacket::BlockingMode;
use omniverb_terms::Errno;

use super::buffer_settings::Settings;
use super::poll;
use super::readiness_wait::{WaitLimit, enter, leave, until};
use super::socket_calls::*;
use super::stream_connection::{ConnectionState, Stream, StreamEndpoint};
use super::stream_socket::{OwnedCmId, Phase, Socket};
use super::waiter_election::{SleepOn, SleepStep, WakeReason};
use super::wire_format::Hello;
use crate::address_calls;
use crate::event_queue::EventSource;
use crate::id_registry;
use crate::id_state::IdShell;
use crate::testing::c_call_helpers::{alone, here, said};
use crate::testing::{fake_daemon, fake_ibverbs};

fn socket() -> Socket {
    Socket::new(AF_INET, 0).unwrap()
}

/// Has something irrelevant happen to a socket.
fn wake(socket: &Socket) {
    // SAFETY: live while it is locked.
    let token = unsafe { IdShell::of(socket.lock().id.0) }.token;
    id_registry::push(token, EventSource::User { status: 0, argument: 0 });
}

#[test]
fn a_queue_pair_that_failed_breaks_a_stream_that_only_receives() {
    let _alone = alone();
    let id = OwnedCmId::new(RDMA_PS_TCP, IBV_QPT_RC).unwrap();
    let address = here(7);
    // SAFETY: live; the stream goes first.
    let mut stream = unsafe {
        address_calls::resolve_address(id.0, null(), (&raw const address).cast()).unwrap();
        address_calls::resolve_route(id.0).unwrap();
        let ends = StreamEndpoint::new(id.0, &Settings::default()).unwrap();
        let peer = Hello::decode(&ends.hello()).unwrap();
        Stream::new(ends, peer)
    };
    stream.progress();
    assert!(stream.link() == ConnectionState::Up && stream.is_readable());
    fake_ibverbs::complete(ibv_wc { status: IBV_WC_WR_FLUSH_ERR, ..ibv_wc::default() });
    stream.progress();
    assert!(stream.link() == ConnectionState::Broken && !stream.is_readable());
    drop(stream);
}

#[test]
fn patience_ends_whatever_happens_meanwhile() {
    let _alone = alone();
    let socket = socket();
    wake(&socket);
    let patience = WaitLimit::Until(clock::now() + 10_000_000);
    assert_eq!(until(&socket, patience, |_| false).err(), Some(Errno::EAGAIN));
}

/// What came of waiting with that patience, for what holds after a hundred signals at the latest;
/// those have a handler with these flags.
fn interrupted(flags: c_int, patience: WaitLimit) -> Result<(), Errno> {
    static HOLDS: AtomicBool = AtomicBool::new(false);
    static SIGNALS: AtomicU32 = AtomicU32::new(0);
    extern "C" fn count(_: c_int) {
        SIGNALS.fetch_add(1, Ordering::Relaxed);
    }
    let handle = |handler: usize, flags| {
        // SAFETY: numbers and a handler: zero is valid for the rest. It is used only here.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            (action.sa_sigaction, action.sa_flags) = (handler, flags);
            assert_eq!(libc::sigaction(libc::SIGUSR2, &action, null_mut()), 0);
        }
    };
    handle(count as extern "C" fn(c_int) as usize, flags);
    HOLDS.store(false, Ordering::Relaxed);
    SIGNALS.store(0, Ordering::Relaxed);
    let socket = Arc::new(socket());
    let waits = socket.clone();
    let (say, said) = mpsc::channel();
    let thread = thread::spawn(move || {
        // SAFETY: no preconditions.
        say.send(unsafe { libc::gettid() }).unwrap();
        until(&*waits, patience, |_| HOLDS.load(Ordering::Relaxed)).map(drop)
    });
    // Of signals that come before it sleeps nothing is to be seen.
    let name = format!("/proc/self/task/{}/stat", said.recv().unwrap());
    let is_asleep = || fs::read_to_string(&name).unwrap().contains(") S ");
    while socket.lock().gate.is_open() || !is_asleep() {
        thread::yield_now();
    }
    while SIGNALS.load(Ordering::Relaxed) < 100 && !thread.is_finished() {
        // SAFETY: not joined yet.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR2) };
        thread::yield_now();
    }
    HOLDS.store(true, Ordering::Relaxed);
    wake(&socket);
    let result = thread.join().unwrap();
    handle(libc::SIG_IGN, libc::SA_RESTART);
    result
}

#[test]
fn signals_do_not_end_waiting_for_the_end() {
    let _alone = alone();
    assert_eq!(interrupted(0, WaitLimit::seconds(600)), Ok(()));
}

#[test]
fn signals_end_other_waiting_unless_their_handlers_say_that_it_goes_on() {
    let _alone = alone();
    assert_eq!(interrupted(0, WaitLimit::Endless), Err(crate::errno::of(libc::EINTR)));
    assert_eq!(interrupted(libc::SA_RESTART, WaitLimit::Endless), Ok(()));
    let limited = WaitLimit::limited(BlockingMode::Blocking, Some(600_000_000_000));
    assert_eq!(interrupted(libc::SA_RESTART, limited), Err(crate::errno::of(libc::EINTR)));
}

#[test]
fn a_forked_child_closes_what_it_inherited_and_touches_nothing() {
    let _alone = alone();
    let number = ov_rsocket(AF_INET, SOCK_STREAM, 0);
    let socket = super::fd_table::stream(number).unwrap();
    // As if another thread were within a call.
    let inner = socket.lock();
    // SAFETY: the child does this and ends, by the signal if it hangs.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no preconditions.
        unsafe {
            libc::alarm(20);
            let is_right = ov_rclose(number) == 0 && ov_rclose(number) != 0;
            libc::_exit(i32::from(!is_right));
        }
    }
    let mut status = -1;
    // SAFETY: our child; a place for a number.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    drop(inner);
    drop(socket);
    assert_eq!(ov_rclose(number), 0);
}

#[test]
fn a_forked_child_that_closes_a_datagram_socket_keeps_no_address() {
    let _alone = alone();
    let number = ov_rsocket(AF_INET, libc::SOCK_DGRAM, 0);
    // SAFETY: the child does this and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no preconditions.
        unsafe {
            libc::alarm(20);
            let is_right = ov_rclose(number) == 0 && libc::fcntl(number, libc::F_GETFD) == -1;
            libc::_exit(i32::from(!is_right));
        }
    }
    let mut status = -1;
    // SAFETY: our child; a place for a number.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(ov_rclose(number), 0);
}

#[test]
fn a_second_waiter_at_a_listener_keeps_no_thread_awake() {
    let _alone = alone();
    let socket = socket();
    let mut inner = socket.lock();
    inner.phase = Phase::Listening;
    let (mut first, second) = (enter(&mut *inner).unwrap(), enter(&mut *inner).unwrap());
    first[0].revents = POLLIN;
    leave(&mut *inner, &first);
    // The second was not woken: the first has taken the request.
    assert_eq!(inner.gate.enter(SleepOn::Others), SleepStep::Sleep);
    assert!(!inner.gate.leave(WakeReason::Nothing));
    leave(&mut *inner, &second);
}

#[test]
fn a_sleeper_looks_once_more() {
    let _alone = alone();
    let number = ov_rsocket(AF_INET, SOCK_STREAM, 0);
    super::fd_table::stream(number).unwrap().lock().phase = Phase::Failed;
    let mut files = [pollfd { fd: number, events: POLLIN, revents: 0 }];
    // What it had to tell was taken notice of by another thread: no descriptor tells it.
    poll::PollSet::of(&mut files).sleep(-1).unwrap();
    assert_eq!(ov_rclose(number), 0);
}

#[test]
fn a_listener_without_its_daemon_fails_each_time() {
    let _alone = alone();
    let number = ov_rsocket(AF_INET, SOCK_STREAM, 0);
    let address = here(4711);
    let length = size_of::<libc::sockaddr_in>() as u32;
    // SAFETY: as long as it says it is.
    said(unsafe { ov_rbind(number, (&raw const address).cast(), length) }).unwrap();
    said(ov_rlisten(number, 1)).unwrap();
    assert_eq!(ov_rfcntl(number, libc::F_SETFL, O_NONBLOCK.into()), 0);
    // SAFETY: no place for an address.
    let accept = || said(unsafe { ov_raccept(number, null_mut(), null_mut()) });
    assert_eq!(accept(), Err(EAGAIN));
    fake_daemon::die();
    assert_eq!([accept(), accept(), accept()], [Err(ENODEV); 3]);
    let mut files = [pollfd { fd: number, events: POLLIN, revents: 0 }];
    assert_eq!(poll::poll(&mut files, -1), Ok(1));
    assert_ne!(files[0].revents & POLLERR, 0);
    assert_eq!(ov_rclose(number), 0);
}
