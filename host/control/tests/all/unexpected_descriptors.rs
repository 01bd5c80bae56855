//! Tests unexpected descriptors of every kind: other clients are served, and the daemon ends at
//! once.

use crate::support::*;
use omniverb_control::{Settings, Unwanted};
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_sys::{EventFd, Extent, memfd, seqpacket, unsolicited_fds};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// A client without an answer for so long waits for a close; each of the lingering sockets takes a
/// minute.
const HANGS: Duration = Duration::from_secs(20);

/// A TCP socket that takes a minute to close, and its other end.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let theirs = listener.accept().unwrap().0;
    rustix::net::sockopt::set_socket_linger(&ours, Some(Duration::from_secs(60))).unwrap();
    ours.set_nonblocking(true).unwrap();
    while (&ours).write(&[0; 65536]).is_ok() {}
    (ours.into(), theirs)
}

/// One descriptor of each kind that this user can make.
fn kinds() -> Vec<OwnedFd> {
    use rustix::fs::{Mode, OFlags, open};
    let (read, write) = rustix::pipe::pipe().unwrap();
    let (nest, inside) = seqpacket::pair().unwrap();
    let (slow, _) = seqpacket::pair().unwrap();
    // A socket whose queue holds further descriptors.
    seqpacket::send(inside.as_fd(), b"x", &[read.as_fd(), slow.as_fd()]).unwrap();
    let huge = memfd::create("huge", 64 << 20).unwrap();
    let open = |path: &str, flags| open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap();
    vec![
        read,
        write,
        nest,
        huge,
        open("/", OFlags::PATH),
        open("/tmp", OFlags::RDONLY | OFlags::DIRECTORY),
        open("/dev/null", OFlags::RDWR),
        open("/proc/self/exe", OFlags::RDONLY),
        EventFd::new().unwrap().into(),
        rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap(),
        rustix::process::pidfd_open(
            rustix::process::getpid(),
            rustix::process::PidfdFlags::empty(),
        )
        .unwrap(),
    ]
}

/// Where the descriptors go.
#[derive(Clone, Copy, Debug)]
enum At {
    BeforeHello,
    WithHello,
    AfterHello,
    Events,
    /// With an empty message in front, after which the client ends.
    AndEnd,
}

fn attack(daemon: &Daemon, at: At, files: &[BorrowedFd<'_>]) -> Client {
    let mut client = match at {
        At::BeforeHello | At::WithHello => Client::connect(&daemon.path),
        At::AfterHello | At::Events | At::AndEnd => Client::hello(&daemon.path),
    };
    let to = match at {
        At::Events => client.events.as_ref().unwrap().as_fd(),
        _ => client.calls.as_fd(),
    };
    if matches!(at, At::AndEnd) {
        let _ = seqpacket::send(to, b"", &[]);
    }
    for chunk in files.chunks(4) {
        // Refused where the kernel can, or parted with already.
        let _ = match at {
            At::WithHello => {
                let hello = Hello { role: ROLE_VERBS, resume: 0, name: [0; 16] };
                let mut bytes = [0; omniverb_session::limits::MESSAGE_BYTES_MAX];
                let length = omniverb_session::encode(1, &hello.into(), &mut bytes);
                seqpacket::send(to, &bytes[..length], chunk)
            }
            _ => seqpacket::send(to, b"text", chunk),
        };
    }
    if matches!(at, At::AndEnd) {
        client.calls = seqpacket::pair().unwrap().0;
    }
    client
}

/// Where the last reference is ours, because the sending was refused, this takes long.
fn close_elsewhere(files: impl Send + 'static) {
    std::thread::spawn(move || drop(files));
}

fn answered(client: &mut Client, what: &str) {
    let begun = Instant::now();
    assert!(matches!(client.call(QueryGids { reserved: 0 }.into()), Message::Gids(_)));
    assert!(begun.elapsed() < HANGS, "{what}: {:?}", begun.elapsed());
}

fn check_that_descriptors_hold_up_no_client(unwanted: Unwanted) {
    let settings = || Settings { unwanted, ..Settings::default() };
    let daemon = Daemon::start(settings());
    let mut honest = Client::hello(&daemon.path);
    let mut peers = Vec::new();
    let mut clients = Vec::new();
    for at in [At::BeforeHello, At::WithHello, At::AfterHello, At::Events, At::AndEnd] {
        let (slow, peer) = lingering();
        let kinds = kinds();
        let mut files: Vec<BorrowedFd<'_>> = vec![slow.as_fd()];
        files.extend(kinds.iter().map(AsFd::as_fd));
        clients.push(attack(&daemon, at, &files));
        peers.push(peer);
        close_elsewhere((slow, kinds));
        answered(&mut honest, &format!("{at:?}"));
        Client::hello(&daemon.path);
    }
    let wanted = if unwanted == Unwanted::Refused && has_refusal() { 0 } else { 1 };
    let begun = Instant::now();
    loop {
        answered(&mut honest, "afterwards");
        let status = daemon.status();
        let lost = status["daemon"]["disposers_lost"].as_u64().unwrap();
        if lost >= wanted {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{lost} of {wanted}");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Some that are not accepted when the daemon ends, and some that it has just accepted.
    for _ in 0..20 {
        let client = Client::connect(&daemon.path);
        let (slow, peer) = lingering();
        let _ = seqpacket::send(client.calls.as_fd(), b"x", &[slow.as_fd()]);
        close_elsewhere(slow);
        peers.push(peer);
        clients.push(client);
    }
    let begun = Instant::now();
    let folder = daemon.stop();
    assert!(begun.elapsed() < HANGS, "the daemon took {:?} to end", begun.elapsed());
    let next = Daemon::start_in(folder, settings());
    answered(&mut Client::hello(&next.path), "the next one");
}

fn has_refusal() -> bool {
    unsolicited_fds::refuse(seqpacket::pair().unwrap().0.as_fd()).is_ok()
}

#[test]
fn descriptors_hold_up_no_client_if_the_kernel_refuses_them() {
    check_that_descriptors_hold_up_no_client(Unwanted::Refused);
}

#[test]
fn descriptors_hold_up_no_client_if_the_kernel_passes_them() {
    check_that_descriptors_hold_up_no_client(Unwanted::LookedFor);
}

#[test]
fn a_client_that_sends_descriptors_is_disconnected() {
    let daemon = Daemon::start(Settings { unwanted: Unwanted::LookedFor, ..Settings::default() });
    let null = std::fs::File::open("/dev/null").unwrap();
    for at in [At::BeforeHello, At::WithHello, At::AfterHello, At::Events] {
        let client = attack(&daemon, at, &[null.as_fd()]);
        assert!(client.is_dropped(), "{at:?}");
    }
}

/// The statistics area comes from the daemon, sealed; no client brings one.
#[test]
fn the_statistics_area_comes_with_the_welcome() {
    let daemon = Daemon::start(Settings::default());
    let client = Client::hello(&daemon.path);
    let (file, said) = client.area.as_ref().unwrap();
    assert_eq!(said.length, AREA_BYTES);
    Extent::new(file, said.offset, said.length).verify().unwrap();
}
