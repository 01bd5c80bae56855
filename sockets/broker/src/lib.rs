//! Introduces the two ends of a connection to each other: a helper process of the daemon
//! (docs/decisions/0046).
//!
//! A process that has a connected socket of TCP sends a duplicate of it, as proof. If the process
//! at the other end does so, too, both are given the memory of a link, and go on without the
//! broker.
//!
//! Or a process sends a duplicate of a listening socket. A process that asks for that address is
//! given, as the listening one is, the memory of a channel, by which their connections need no
//! socket of the kernel's ([`channel_requests`]).
//!
//! Processes send descriptors of any kind, and closing one can take as long as its sender likes
//! (docs/decisions/0019). So the broker is a process of its own, which holds nothing else, and each
//! process that connects has a thread here: it can delay that thread, and no other. Nothing waits
//! for a process: a message that it does not take is not sent. The thread that admits processes
//! closes nothing in which descriptors wait: a refused socket is left to a disposer.
#![forbid(unsafe_code)]

mod admission;
mod arrived_tcp_connections;
mod broker_state;
mod channel_requests;
mod channels;
mod client;
mod client_thread;
mod cross_host_gateways;
mod cross_namespace_matching;
mod cross_namespace_permissions;
mod daemon_queries;
mod inherited_channels;
mod introduce_channel;
mod introduce_link;
mod limits;
mod links;
mod listeners;
mod observed_routes;
mod remote_channel_requests;
mod startup_parameters;
mod status;
mod traffic_match;
mod unmatched_offers;

pub use omniverb_formats::address_range::Range;
pub use startup_parameters::StartupParameters;

use crate::admission::Admission;
use crate::broker_daemon_messages::{FromDaemon, ToDaemon};
use crate::broker_state::Broker;
use crate::client::Client;
pub use omniverb_formats::broker_daemon_messages;
use omniverb_sys::deferred_close::DeferredClose;
use omniverb_sys::user_and_group_check::UsersAndGroups;
use omniverb_sys::{EventFd, Poller, clock, lock, pidfd, seqpacket, tcp_connection_state};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// What it is called as a helper.
pub const BROKER: &str = "broker";
/// Bytes of the stack of a thread.
const STACK: usize = 128 << 10;
/// How often it is looked whether something is of no use any more, while there is such.
const TIDY: Duration = Duration::from_secs(1);
/// When is tried again to say what there was no room for.
const SOON: Duration = Duration::from_millis(50);
/// What is heard of the daemon before others get their turn.
const PER_TURN: usize = 1024;
/// How long no process is admitted when there is no room for another.
const PAUSE: Duration = Duration::from_millis(100);

/// The helper's own life: it is sent an [`StartupParameters`] and the socket to listen at, and ends
/// with `order`.
pub fn serve(order: OwnedFd) {
    let mut bytes = vec![0; startup_parameters::BYTES];
    let received = seqpacket::receive(order.as_fd(), &mut bytes, seqpacket::BlockingMode::Blocking);
    let Ok((length, mut files)) = received else { return };
    let (Some(listener), Some(said)) = (files.pop(), StartupParameters::decode(&bytes[..length]))
    else {
        return;
    };
    let Ok(daemon) = order.try_clone() else { return };
    introduce_link::begin();
    let light = said.light.clone();
    let broker = Arc::new(Broker {
        daemon: Some(daemon),
        light,
        later: EventFd::new().ok(),
        ..Broker::default()
    });
    _ = listen(&order, &listener, said, &broker);
    // A client's thread ends with its connection.
    let clients = lock(&broker.admissions).clients();
    clients.iter().for_each(|client| seqpacket::shut(client.socket.as_fd()));
}

fn listen(
    order: &OwnedFd,
    listener: &OwnedFd,
    said: StartupParameters,
    broker: &Arc<Broker>,
) -> io::Result<()> {
    const ORDER: u64 = 0;
    const CONNECTION: u64 = 1;
    const DISPOSAL: u64 = 2;
    const LATER: u64 = 3;
    let mut disposal = DeferredClose::new(said.helpers)?;
    let poller = Poller::new()?;
    poller.add(order.as_fd(), ORDER)?;
    poller.add(listener.as_fd(), CONNECTION)?;
    poller.add(disposal.ready(), DISPOSAL)?;
    if let Some(later) = &broker.later {
        poller.add(later.as_fd(), LATER)?;
    }
    let mut ready = Vec::new();
    loop {
        let until = disposal.next_deadline();
        let time = until.map(|at| Duration::from_nanos(at.saturating_sub(clock::now())));
        let time = time.into_iter().chain(tidy(broker)).min();
        poller.wait(time, &mut ready)?;
        if ready.contains(&LATER) {
            _ = broker.later.as_ref().and_then(EventFd::take);
        }
        if ready.contains(&ORDER) {
            hear(order, broker)?;
        }
        match seqpacket::accept(listener.as_fd()) {
            Ok(Some(calls)) => {
                if let Err(refused) = admit(calls, said.allowed.as_ref(), broker) {
                    disposal.close_socket(refused);
                }
            }
            Ok(None) => {}
            Err(_) => thread::sleep(PAUSE),
        }
        _ = disposal.turn();
    }
}

/// Forgets what is of no use any more, and says what is still to be said. When that is to be done
/// again, if something is left.
fn tidy(broker: &Broker) -> Option<Duration> {
    cross_namespace_matching::retry_denied(broker);
    let has_inherited = channel_requests::ask_about_inherited(broker);
    let mut pairs = lock(&broker.pairs);
    pairs.sweep(clock::now());
    let is_said = pairs.announce_unneeded(|number| {
        let message = ToDaemon::Release { number }.encode();
        let daemon = broker.daemon.as_ref();
        daemon.is_none_or(|daemon| seqpacket::try_send(daemon.as_fd(), &message, &[]).is_ok())
    });
    let mut is_empty = pairs.is_empty() && !has_inherited;
    drop(pairs);
    let mut observed = lock(&broker.observed);
    observed.sweep(clock::now());
    is_empty &= observed.is_empty();
    drop(observed);
    let mut links = lock(&broker.links);
    links.tell_all(clock::now());
    match () {
        () if !is_said || !links.are_told() => Some(SOON),
        () if !is_empty => Some(TIDY),
        () => None,
    }
}

/// What the daemon says.
///
/// # Errors
/// If there is none any more.
fn hear(order: &OwnedFd, broker: &Arc<Broker>) -> io::Result<()> {
    let mut over = BTreeSet::new();
    let heard = hear_all(order, broker, &mut over);
    if !over.is_empty() {
        channel_requests::end_channels(broker, &over);
        lock(&broker.links).part(over);
    }
    heard
}

/// The same; links that are `over` then.
fn hear_all(order: &OwnedFd, broker: &Arc<Broker>, over: &mut BTreeSet<u64>) -> io::Result<()> {
    for _ in 0..PER_TURN {
        let mut bytes = [0; broker_daemon_messages::BYTES];
        match seqpacket::receive(order.as_fd(), &mut bytes, seqpacket::BlockingMode::NonBlocking) {
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((length, mut files)) => match FromDaemon::decode(&bytes[..length]) {
                Some(FromDaemon::Allowed { number }) => {
                    cross_namespace_matching::pair_allowed(broker, number)
                }
                Some(FromDaemon::Denied { number, why }) => {
                    over.extend(lock(&broker.pairs).deny(number, why, clock::now()));
                }
                Some(FromDaemon::Operator) => {
                    if let Some(operator) = files.pop() {
                        status::to_operator(broker, operator);
                    }
                }
                Some(FromDaemon::AskIdle) => {
                    let time = lock(&broker.admissions).idle_time(clock::now());
                    // If there is no room it asks again.
                    _ = seqpacket::try_send(order.as_fd(), &ToDaemon::Idle { time }.encode(), &[]);
                }
                None => {}
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            // There is no descriptor left for an operator's socket.
            Err(error) if seqpacket::is_lost(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The cgroup of a connected process, as seen from here. If the process is gone or cannot be seen:
/// the root cgroup.
fn cgroup(calls: &OwnedFd) -> String {
    let found = || {
        let process = pidfd::of_peer(calls.as_fd())?;
        let cgroup = pidfd::cgroup_of(pidfd::pid_of(process.as_fd())?, limits::CGROUP_BYTES)?;
        // Otherwise that may be another one's that has its number.
        if pidfd::is_alive(process.as_fd()) {
            Ok(cgroup)
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    };
    found().unwrap_or_else(|_: io::Error| "/".to_owned())
}

/// Admits a process that has connected. Returns its socket if it is not admitted: it may have sent
/// something.
fn admit(
    calls: OwnedFd,
    allowed: Option<&UsersAndGroups>,
    broker: &Arc<Broker>,
) -> Result<(), OwnedFd> {
    let Ok(peer) = seqpacket::peer(calls.as_fd()) else { return Err(calls) };
    let Ok(namespace) = tcp_connection_state::namespace(calls.as_fd()) else { return Err(calls) };
    if allowed.is_some_and(|people| !people.have(&peer, calls.as_fd())) {
        return Err(calls);
    }
    let cgroup = cgroup(&calls);
    let holder = admission::holder(&cgroup, peer.uid, namespace);
    let client = Arc::new(Client::new(calls, peer, namespace)?);
    let number = client.number;
    let admission =
        lock(&broker.admissions).admit(number, (&holder, namespace), Arc::downgrade(&client));
    if let Admission::Replaces(other) = &admission
        && let Some(other) = other.upgrade()
    {
        // Its thread lets go of what it was sent before it leaves.
        seqpacket::shut(other.socket.as_fd());
    }
    if !matches!(admission, Admission::Refused) {
        let (broker, client) = (broker.clone(), client.clone());
        let thread = thread::Builder::new().name("attend".into()).stack_size(STACK);
        let serve = move || client_thread::serve_client(&broker, client);
        if thread.spawn(serve).is_ok() {
            return Ok(());
        }
    }
    // No other thread has it.
    lock(&broker.admissions).release(number);
    Arc::into_inner(client).map_or(Ok(()), |client| Err(client.socket))
}
