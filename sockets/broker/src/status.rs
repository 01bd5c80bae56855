//! Sends rows of `omniverb status`: each process with its sockets, and why some are not carried.
//!
//! Nothing is kept for this but what there is anyway: links have their positions in their memory,
//! processes have written down which sockets are the kernel's, and the kernel is asked whether
//! these are there still. Each reader is served by a thread of its own, and waits for its own rows
//! only.

use crate::broker_daemon_messages::{Denial, NamespaceAddress};
use crate::broker_state::Broker;
use crate::client::Client;
use crate::limits::{OPERATORS, PATIENCE};
use crate::unmatched_offers::Offer;
use omniverb_formats::socket_status_rows::{Channel, Listener, Reason, Row, Socket, State};
use omniverb_formats::{Direction, channel_layout, link_layout};
use omniverb_sys::tcp_connection_state::{TcpAddresses, TcpConnection};
use omniverb_sys::{Access, Extent, lock, seqpacket};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

static SHOWN: AtomicUsize = AtomicUsize::new(0);

/// An operator is shown everything.
pub(crate) fn to_operator(broker: &Arc<Broker>, operator: OwnedFd) {
    if SHOWN.fetch_add(1, Ordering::Relaxed) >= OPERATORS {
        SHOWN.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let broker = broker.clone();
    let shows = move || {
        show_status(&broker, operator.as_fd(), None);
        SHOWN.fetch_sub(1, Ordering::Relaxed);
    };
    if thread::Builder::new().name("show".into()).spawn(shows).is_err() {
        SHOWN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Lists all sockets in a network namespace, or everywhere. A reader that does not read is sent no
/// more.
pub(crate) fn show_status(broker: &Broker, to: BorrowedFd<'_>, namespace: Option<u64>) {
    _ = show_until(broker, to, namespace, Instant::now() + PATIENCE);
}

/// Lists them until `until`. While a row waits to be read no process's descriptors are held.
fn show_until(
    broker: &Broker,
    to: BorrowedFd<'_>,
    namespace: Option<u64>,
    until: Instant,
) -> io::Result<()> {
    let say = |row: Row| {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        seqpacket::limit_sending_time(to, left)?;
        seqpacket::send(to, &row.encode(), &[])
    };
    let clients = lock(&broker.admissions).clients_in(namespace);
    for client in clients {
        let Some(client) = client.upgrade() else { continue };
        let (process, sockets) = (client.row(), sockets(broker, &client));
        let (listeners, channels) = (listeners(broker, &client), channels(broker, &client));
        drop(client);
        say(Row::Process(process))?;
        for listener in listeners {
            say(Row::Listener(listener))?;
        }
        for channel in channels {
            say(Row::Channel(channel))?;
            for socket in light(broker, &channel) {
                say(Row::Socket(socket))?;
            }
        }
        for socket in sockets {
            say(Row::Socket(socket))?;
        }
    }
    say(Row::End)
}

/// The listeners by which a process is reached. One whose socket was closed without a message is
/// left out; one whose socket several processes share is listed for each.
fn listeners(broker: &Broker, client: &Client) -> Vec<Listener> {
    let all: Vec<_> = lock(&broker.listeners).of(client.process()).collect();
    let all = all.into_iter().map(|(_, listening)| listening.local);
    let is_there = |local: &SocketAddr| client.listener(*local).is_ok_and(|one| one.is_some());
    all.filter(is_there).map(|local| Listener { process: client.number, local }).collect()
}

/// Those that a process has.
fn channels(broker: &Broker, client: &Client) -> Vec<Channel> {
    let channels = lock(&broker.channels);
    let all = channels.of(client.process()).map(|(name, side, peer, is_across)| Channel {
        process: client.number,
        name,
        peer,
        has_asked: side == 0,
        is_across,
    });
    all.collect()
}

/// Connections of a channel, as its processes have written them down: those that one of them has
/// opened, and those of the other one.
fn light(broker: &Broker, channel: &Channel) -> Vec<Socket> {
    let memory = lock(&broker.channels).memory(channel.name);
    let memory = memory.and_then(|memory| {
        let extent = Extent::new(memory, 0, channel_layout::BYTES as u64);
        extent.map_exactly(channel_layout::BYTES, Access::ReadOnly).ok()
    });
    let Some(shown) = memory.map(channel_layout::ConnectionTable::new) else { return Vec::new() };
    let side = usize::from(!channel.has_asked);
    let socket = |id: u32| {
        let (names, sent) = shown.get(id)?;
        let ends = names.ends();
        // The opening side chooses an id of its own half.
        let own = usize::from(id as usize & 1 != side);
        Some(Socket {
            process: channel.process,
            local: ends[own],
            remote: ends[1 - own],
            state: State::Light,
            reason: Reason::None,
            is_across: channel.is_across,
            link: channel.name,
            sent: sent[side],
            received: sent[1 - side],
            unread: [side, 1 - side].map(|from| shown.unread(from, id)),
        })
    };
    (0..channel_layout::SHOWN).filter_map(socket).collect()
}

/// Those of a process, each once.
fn sockets(broker: &Broker, client: &Client) -> Vec<Socket> {
    let kept = client.kept();
    let mut rows = BTreeMap::new();
    for (cookie, kept) in &kept {
        let names = TcpAddresses { local: kept.local, remote: kept.remote };
        let connection =
            TcpConnection { names, cookie: *cookie, namespace: client.namespace, is_bound: false };
        rows.insert(*cookie, row(client, &connection, kept.reason));
    }
    let waiting = lock(&broker.offers).of(client);
    for offer in waiting {
        let shown = row(client, &offer.connection, why_waiting(broker, &offer));
        rows.insert(offer.connection.cookie, shown);
    }
    for link in client.links() {
        for (connection, mut shown) in linked(broker, client, link) {
            if let Some(kept) = kept.get(&connection.cookie) {
                shown.state = State::Left;
                shown.reason = kept.reason;
            }
            rows.insert(connection.cookie, (connection, shown));
        }
    }
    let is_there = |(connection, _): &(TcpConnection, Socket)| {
        client.look(connection).is_ok_and(|traffic| traffic.is_some())
    };
    rows.into_values().filter(is_there).map(|(_, socket)| socket).collect()
}

/// One that is the kernel's.
fn row(client: &Client, connection: &TcpConnection, reason: Reason) -> (TcpConnection, Socket) {
    let TcpAddresses { local, remote } = connection.names;
    let shown = Socket {
        process: client.number,
        local,
        remote,
        state: State::Shadow,
        reason,
        is_across: false,
        link: 0,
        sent: 0,
        received: 0,
        unread: [0; 2],
    };
    (*connection, shown)
}

/// The ends of a link that a process has.
fn linked(broker: &Broker, client: &Client, link: u64) -> Vec<(TcpConnection, Socket)> {
    let (sides, ends, is_across, memory) = {
        let links = lock(&broker.links);
        let Some(given) = links.get(link) else { return Vec::new() };
        let memory = given.memory.as_ref().and_then(|memory| memory.try_clone().ok());
        (given.sides(client.number).collect::<Vec<_>>(), given.ends, given.pair.is_some(), memory)
    };
    let way = |side| {
        let extent = Extent::new(memory.as_ref()?.as_fd(), 0, link_layout::BYTES as u64);
        let memory = extent.map_exactly(link_layout::BYTES, Access::ReadOnly).ok()?;
        Some(Direction::new(memory, side))
    };
    let ways = [way(0), way(1)];
    let sent = |side: usize| ways[side].as_ref().map_or(0, |way| way.head().position());
    // Both words may be anything: a way in which they make no sense has nothing that is not read.
    let unread = |side: usize| {
        let bytes = ways[side].as_ref().and_then(|way| way.head().since(way.place()).ok());
        bytes.and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or(0)
    };
    let is_stopped =
        |way: &Option<Direction<_>>| way.as_ref().is_some_and(|way| way.head().is_stopped());
    let rests = ways.iter().all(is_stopped);
    let shown = sides.into_iter().map(|side| {
        let (state, reason) = match rests {
            true => (State::Shadow, Reason::Rests),
            false => (State::Carried, Reason::None),
        };
        let (connection, mut shown) = row(client, &ends[side], reason);
        shown.state = state;
        (shown.link, shown.is_across) = (link, is_across);
        (shown.sent, shown.received) = (sent(side), sent(1 - side));
        shown.unread = [unread(side), unread(1 - side)];
        (connection, shown)
    });
    shown.collect()
}

/// Why an offer waits.
fn why_waiting(broker: &Broker, offer: &Offer) -> Reason {
    let names = offer.connection.names;
    let others = lock(&broker.offers).elsewhere(&offer.connection);
    let pairs = lock(&broker.pairs);
    let why = |other: &Offer| {
        let place = |offer: &Offer, address| NamespaceAddress {
            namespace: offer.connection.namespace,
            address,
        };
        let (one, other) = (place(offer, names.local.ip()), place(other, names.remote.ip()));
        pairs.denial(one, other)
    };
    match (others.is_empty(), others.iter().find_map(why)) {
        (true, _) => Reason::Alone,
        (false, None) => Reason::Asking,
        (false, Some(why)) => match why {
            Denial::NotServed => Reason::NotServed,
            Denial::NotItsAddress => Reason::NotItsAddress,
            Denial::NotThere => Reason::NotThere,
            Denial::Busy => Reason::Busy,
            Denial::Policy => Reason::Policy,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::holder;
    use omniverb_formats::socket_status_rows::BYTES;
    use std::time::Duration;

    /// Reads a row now and then, and never the last.
    #[test]
    fn a_slow_reader_is_sent_no_more_and_keeps_no_client_alive() {
        let broker = Arc::new(Broker::default());
        let mut gone = Vec::new();
        for _ in 0..300 {
            let (ours, theirs) = seqpacket::pair().unwrap();
            let peer = seqpacket::peer(ours.as_fd()).unwrap();
            let client = Arc::new(Client::new(ours, peer, 5).unwrap());
            let (number, holder) = (client.number, holder("/", number_of(&gone), 5));
            _ = lock(&broker.admissions).admit(number, (&holder, 5), Arc::downgrade(&client));
            gone.push((client, theirs));
        }
        let (ours, theirs) = seqpacket::pair().unwrap();
        seqpacket::limit_sending(ours.as_fd(), 4608).unwrap();
        let shown = broker.clone();
        let until = Instant::now() + Duration::from_millis(300);
        let shows = thread::spawn(move || show_until(&shown, ours.as_fd(), Some(5), until));
        let mut rows = 0;
        while !shows.is_finished() {
            let mode = seqpacket::BlockingMode::NonBlocking;
            let mut bytes = [0; BYTES];
            let row = seqpacket::receive(theirs.as_fd(), &mut bytes, mode);
            rows += usize::from(row.is_ok_and(|(length, _)| length > 0));
            // No client is held but the one that is looked at, for a moment.
            let held = gone.iter().filter(|(client, _)| Arc::strong_count(client) > 1).count();
            assert!(held <= 1, "{held}");
            thread::sleep(Duration::from_millis(20));
        }
        assert!(shows.join().unwrap().is_err() && rows < 200, "{rows}");
    }

    fn number_of<T>(all: &[T]) -> u32 {
        all.len() as u32
    }
}
