//! Introduces two processes by a channel: both are given its memory and an end of two sockets.

use crate::broker_state::Broker;
use crate::channels::{Channels, Ends, ProcessPair, Room};
use crate::client::Client;
use crate::cross_host_gateways::RouteAddresses;
use crate::listeners::Port;
use omniverb_formats::broker_message::{Reply, Side};
use omniverb_formats::channel_layout;
use omniverb_sys::{clock, lock, memfd, random, seqpacket};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, LazyLock};

/// The reason for which a client is not introduced.
pub(crate) enum NotIntroduced {
    /// No socket listens there, or none that the client may be brought to.
    NoListener,
    /// One does, and no other process has said that it does so by it.
    NotAnnounced,
    /// The listener is on another host. A gateway can carry the client once it has connected by
    /// TCP.
    ConnectFirst,
    /// The listener is on another host, the client has connected, and a gateway has been asked.
    Pending,
}

/// The process that a client is to be introduced to.
pub(crate) struct Destination {
    pub(crate) process: (u64, u64),
    /// By what; a gateway's process leads there by itself.
    pub(crate) by: Via,
    pub(crate) ends: Ends,
    /// Unless that is always so: to which port one may go there, and until when.
    pub(crate) way: Option<(u16, u64)>,
}

/// What allows an introduction.
#[derive(Clone, Copy)]
pub(crate) enum Via {
    /// It listens, and calls it that.
    Listener(u64),
    /// It is a gateway's, and leads this way.
    Gateway(RouteAddresses),
}

/// Introduces a client to what was found, or tells it the reason against it.
pub(crate) fn answer(
    broker: &Broker,
    (client, tag): (&Client, u64),
    found: Result<Destination, NotIntroduced>,
) {
    // If one process cannot be introduced another one may share the socket.
    let is_introduced = found.and_then(|there| {
        introduce_channel(broker, (client, tag), there).ok_or(NotIntroduced::NotAnnounced)
    });
    match is_introduced {
        Ok(()) | Err(NotIntroduced::Pending) => {}
        Err(why) => {
            let is_heard = matches!(why, NotIntroduced::NotAnnounced);
            let is_coming = matches!(why, NotIntroduced::ConnectFirst);
            client.tell(Reply::NoChannel { tag, is_heard, is_coming });
        }
    }
}

/// A socket's name for clients, from which they cannot tell how many sockets there are.
fn socket_name(cookie: u64) -> u64 {
    static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    SECRET.hash_one(cookie).max(1)
}

/// Finds the listener that the kernel would choose for `by`, and tells the client which socket it
/// is.
pub(crate) fn find_listener(
    broker: &Broker,
    (client, tag): (&Client, u64),
    (by, namespace): (&Client, u64),
    to: SocketAddr,
) -> Result<((u64, u64), u64), NotIntroduced> {
    let cookie = by.listener(to).ok().flatten().ok_or(NotIntroduced::NoListener)?;
    let port = lock(&broker.listeners).port((namespace, cookie));
    let (socket, is_shared) = (socket_name(cookie), port == Port::Shared);
    client.tell(Reply::ListenerIs { tag, socket, is_shared });
    let next = lock(&broker.listeners).next((namespace, cookie), client.number);
    next.map(|(number, listens)| ((namespace, number), listens)).ok_or(NotIntroduced::NotAnnounced)
}

/// Gives a new channel, or the one that there is, to both processes, or to neither.
pub(crate) fn introduce_channel(
    broker: &Broker,
    asks: (&Client, u64),
    there: Destination,
) -> Option<()> {
    let other = lock(&broker.admissions).client(there.process.1)?;
    let two = ProcessPair { processes: [asks.0.process(), there.process], ends: there.ends };
    // Before there is something to give: that costs more.
    let mut channels = lock(&broker.channels);
    if !is_still_reachable(broker, asks.0, &there) {
        return None;
    }
    match channels.room(two) {
        Room::Known(name) => return reuse_channel(&mut channels, asks, &other, &there, name),
        Room::None => return None,
        Room::Free => drop(channels),
    }
    let given = ChannelFiles::new()?;
    let is_introduced = give_channel(broker, asks, (&other, &there), two, &given);
    // Last of all, and holding nothing: the two may have sent each other something by now.
    drop(given);
    is_introduced
}

/// Whether the listener is still registered. If it was removed, its process has been told that no
/// client comes there: [`crate::channel_requests::remove_listener`].
fn is_still_reachable(broker: &Broker, asks: &Client, there: &Destination) -> bool {
    match there.by {
        Via::Listener(tag) => lock(&broker.listeners).has(there.process, tag),
        Via::Gateway(way) => lock(&broker.gateways).leads(asks, way, there.process),
    }
}

/// Has both use the channel that they have. The listener is told first that connections may come.
fn reuse_channel(
    channels: &mut Channels,
    (client, tag): (&Client, u64),
    other: &Client,
    there: &Destination,
    name: u64,
) -> Option<()> {
    let Some((port, until)) = there.way else {
        return client.tell(Reply::ChannelKnown { tag, name, until: 0 }).then_some(());
    };
    let tell = || other.tell(Reply::PortAllowed { name, port, until });
    let may = channels.may_come(name, (there.process, port, until), clock::now(), tell);
    (may && client.tell(Reply::ChannelKnown { tag, name, until })).then_some(())
}

/// What two processes get.
struct ChannelFiles {
    memory: OwnedFd,
    ends: (OwnedFd, OwnedFd),
}

impl ChannelFiles {
    fn new() -> Option<ChannelFiles> {
        let memory = memfd::create("omniverb channel", channel_layout::BYTES as u64).ok()?;
        Some(ChannelFiles { memory, ends: seqpacket::stream_pair().ok()? })
    }
}

/// Gives a new channel to both. The listener is told first, so that it knows the channel before any
/// connection comes by it. The lock of all channels is held: no client hears of a channel as known
/// before it is given it. Nothing of this waits.
fn give_channel(
    broker: &Broker,
    asks: (&Client, u64),
    (other, there): (&Arc<Client>, &Destination),
    two: ProcessPair,
    given: &ChannelFiles,
) -> Option<()> {
    let (client, tag) = asks;
    let mut channels = lock(&broker.channels);
    match channels.room(two) {
        // Both have asked at a time.
        Room::Known(name) => return reuse_channel(&mut channels, asks, other, there, name),
        Room::None => return None,
        Room::Free => {}
    }
    // A client that is gone has been taken out of the tables.
    if other.is_gone() || !is_still_reachable(broker, client, there) {
        return None;
    }
    // A later message that names a channel proves nothing: names must not be guessed.
    let (name, memory) = (random::number(), given.memory.as_fd());
    // From now on the daemon's word that it is over is heard of.
    let places = two.ends.places();
    let may = places.is_none_or(|[one, to]| lock(&broker.pairs).add_link(one, to, name));
    let listens = if let Via::Listener(tag) = there.by { tag } else { 0 };
    let [own, others] = [two.ends, two.ends.swapped()].map(Ends::addresses);
    let is_told = may
        && other.channel((listens, name, Side::Second), others, [memory, given.ends.1.as_fd()])
        // If the client does not take it the listener finds the other end closed.
        && client.channel((tag, name, Side::First), own, [memory, given.ends.0.as_fd()]);
    if !is_told {
        release_channel(broker, name, two);
        return None;
    }
    let may_keep = lock(&broker.links).may_keep_file(channels.count());
    let memory = if may_keep { given.memory.try_clone().ok() } else { None };
    channels.add(name, two, memory);
    there.way.map_or(Some(()), |_| reuse_channel(&mut channels, asks, other, there, name))
}

/// A channel does not live by what the daemon says any more.
pub(crate) fn release_channel(broker: &Broker, name: u64, two: ProcessPair) {
    if let Some([one, other]) = two.ends.places() {
        lock(&broker.pairs).remove_link(one, other, name, clock::now());
    }
}
