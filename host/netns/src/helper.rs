//! Runs the helper's loop: one thread for each request, since entering a namespace may block in the
//! kernel.

use crate::container_facts;
use crate::helper_protocol::underlay_messages::{
    Presence, UnderlaySocket, WANTED_BYTES_MAX, read_socket_request, read_wanted,
};
use crate::helper_protocol::{self, Enters, Found, Kind, PORT, PSP_PORT, Process};
use crate::namespace_watcher::NamespaceWatcher;
use crate::underlay_address_thread::UnderlayAddressThread;
use omniverb_sys::netns::{self, Namespace};
use omniverb_sys::privileges::{Privilege, keep_only};
use omniverb_sys::udp_socket::{UdpPort, bound_early_to, bound_to};
use omniverb_sys::{local_addresses, pidfd, seqpacket, signal_fds};
use rustix::io::Errno;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Budget: requests under way at the same time; each is a thread. The daemon never has more, see
/// `host/control/src/running_helper_requests.rs`.
pub const WORKERS: usize = 64;

/// The privileges that the helper keeps: to enter namespaces, to look at processes, for buffers and
/// addresses of policies, for the port of PSP, and to hear of new containers.
const NEEDED: [Privilege; 5] = [
    Privilege::Enter,
    Privilege::Look,
    Privilege::NetworkSettings,
    Privilege::LowPorts,
    Privilege::HearAll,
];

/// Gives up what the helper does not need, and then [serves](serve): for a process of its own.
pub fn serve_alone(socket: OwnedFd) {
    ignore_terminals();
    if keep_only(&NEEDED).is_ok() {
        serve(socket);
    }
}

/// SIGINT and SIGTERM of the whole process group are for the daemon: it has something for the
/// helper to do at its end, which is the helper's, too.
pub(crate) fn ignore_terminals() {
    // Without memory for a descriptor they end it as before.
    let _ = signal_fds::termination();
}

/// Serves until the other end of `socket` is closed, with all the privileges that the caller has.
pub fn serve(socket: OwnedFd) {
    let enters = if netns::may_enter_others() { Enters::Others } else { Enters::Own };
    if helper_protocol::send_started(socket.as_fd(), enters).is_err() {
        return;
    }
    let socket = Arc::new(socket);
    let under_way = Arc::new(AtomicUsize::new(0));
    let is_watching = Arc::new(AtomicBool::new(false));
    let mut underlay = UnderlayAddressThread::new(socket.clone());
    let mut bytes = vec![0; WANTED_BYTES_MAX + 1];
    loop {
        let request =
            match seqpacket::receive(socket.as_fd(), &mut bytes, seqpacket::BlockingMode::Blocking)
            {
                Ok((0, _)) => return,
                Ok((length, mut files)) => {
                    let bytes = &bytes[..length];
                    if let Some((file, wanted)) = read_wanted(bytes, &mut files) {
                        if let Ok(namespace) = network_namespace(file) {
                            underlay.want(namespace, wanted);
                        }
                        continue;
                    }
                    match read_socket_request(bytes, &mut files) {
                        Some((id, wanted, file)) => Some((id, Work::Socket(wanted), file)),
                        None => helper_protocol::read_request(bytes, files)
                            .map(|(id, kind, file)| (id, Work::Kind(kind), file)),
                    }
                }
                // Too long, or with too many descriptors: not ours.
                Err(error) if error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error()) => None,
                Err(_) => return,
            };
        let Some((id, work, file)) = request else { continue };
        let kind = work.kind();
        let mut owed = Owed { socket: socket.clone(), id, kind, under_way: None };
        if under_way.fetch_add(1, Ordering::Relaxed) >= WORKERS {
            under_way.fetch_sub(1, Ordering::Relaxed);
            owed.pay(Err(Errno::BUSY.into()));
            continue;
        }
        owed.under_way = Some(under_way.clone());
        // A thread that has entered a namespace never does anything else. If there is no thread to
        // be had, the answer is EIO, as it is when one panics.
        let thread = std::thread::Builder::new().name("namespace".into());
        let (socket, is_watching) = (socket.clone(), is_watching.clone());
        let _ = thread.spawn(move || {
            if kind == Kind::Watch {
                return watch(owed, socket, &is_watching);
            }
            let found = match work {
                Work::Kind(kind) => perform(kind, file),
                Work::Socket(wanted) => open_underlay_socket(wanted, file),
            };
            owed.pay(found);
        });
    }
}

/// An action that a request asks for.
#[derive(Clone, Copy, Debug)]
enum Work {
    Kind(Kind),
    Socket(UnderlaySocket),
}

impl Work {
    fn kind(self) -> Kind {
        match self {
            Work::Kind(kind) => kind,
            Work::Socket(_) => Kind::UnderlaySocket,
        }
    }
}

/// An answer that the daemon waits for.
struct Owed {
    socket: Arc<OwnedFd>,
    id: u64,
    kind: Kind,
    under_way: Option<Arc<AtomicUsize>>,
}

impl Owed {
    fn pay(self, found: io::Result<Found>) {
        // If the daemon is gone the answer is not needed.
        let _ = helper_protocol::send_answer(self.socket.as_fd(), self.id, self.kind, &found);
        self.settle();
        std::mem::forget(self);
    }

    fn settle(&self) {
        if let Some(under_way) = &self.under_way {
            under_way.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        let lost = Err(Errno::IO.into());
        let _ = helper_protocol::send_answer(self.socket.as_fd(), self.id, self.kind, &lost);
        self.settle();
    }
}

/// Watches namespaces, once, until the daemon is gone.
fn watch(owed: Owed, socket: Arc<OwnedFd>, is_watching: &AtomicBool) {
    if is_watching.swap(true, Ordering::Relaxed) {
        return owed.pay(Ok(Found::Watching));
    }
    match NamespaceWatcher::new(socket) {
        Ok(watcher) => {
            owed.pay(Ok(Found::Watching));
            let _ = watcher.run();
        }
        Err(error) => owed.pay(Err(error)),
    }
    is_watching.store(false, Ordering::Relaxed);
}

fn perform(kind: Kind, file: OwnedFd) -> io::Result<Found> {
    match kind {
        Kind::Process => identify(&file).map(Found::Process),
        Kind::Addresses => {
            enter(file)?;
            Ok(Found::Addresses(local_addresses::list()?))
        }
        Kind::Port => {
            enter(file)?;
            Ok(Found::UdpPort(UdpPort::open(PORT)?))
        }
        Kind::PspPort => {
            enter(file)?;
            Ok(Found::UdpPort(UdpPort::open(PSP_PORT)?))
        }
        Kind::Interfaces => {
            let (facts, _) = container_facts::collect(&network_namespace(file)?)?;
            Ok(Found::Interfaces(facts))
        }
        Kind::Watch | Kind::UnderlaySocket => Err(Errno::INVAL.into()),
    }
}

fn open_underlay_socket(wanted: UnderlaySocket, file: OwnedFd) -> io::Result<Found> {
    enter(file)?;
    let open = match wanted.presence {
        Presence::Present => bound_to,
        Presence::Added => bound_early_to,
    };
    open(SocketAddr::new(wanted.ip, PORT)).map(Found::Socket)
}

fn enter(file: OwnedFd) -> io::Result<()> {
    network_namespace(file)?.enter()
}

fn network_namespace(file: OwnedFd) -> io::Result<Namespace> {
    let namespace = Namespace::received(file)?;
    // The kernel would take a pidfd as well.
    if namespace.identity().device != Namespace::current()?.identity().device {
        return Err(Errno::INVAL.into());
    }
    Ok(namespace)
}

/// The process is named by a descriptor only: its pid is what the kernel says that it is, and it
/// is looked at again after everything that was found by that number.
fn identify(process: &OwnedFd) -> io::Result<Process> {
    let pid = pidfd::pid_of(process.as_fd())?;
    let cgroup = pidfd::cgroup_of(pid, helper_protocol::CGROUP_BYTES)?;
    let surroundings = pidfd::surroundings_of(pid);
    let namespace = Namespace::of_process(pid, process.as_fd())?;
    // Where we may not enter, the daemon does not serve it.
    let cookie = namespace.enter().and_then(|()| netns::cookie()).ok();
    Ok(Process { namespace, cookie, pid, surroundings, cgroup })
}
