//! Answers processes that listen, and processes that ask for a channel to a listening socket.
//!
//! A process that listens shows its socket as proof; the duplicate is closed at once. A process
//! that asks for an address is introduced to the process whose socket the kernel would choose: the
//! kernel is asked at that moment. Within a network namespace this goes by the diagnosis socket of
//! the asking process, which gains nothing if it meddles. To another namespace it goes where the
//! network was seen to bring a connection of TCP from the same address to the same port
//! ([`crate::observed_routes`]), by the diagnosis socket of the process that accepted that; and
//! only as long as the daemon allows the two addresses. To another host it goes by a gateway
//! ([`crate::remote_channel_requests`]).

use crate::broker_daemon_messages::{Denial, NamespaceAddress};
use crate::broker_state::Broker;
use crate::channels::{Ends, ProcessPair};
use crate::client::Client;
use crate::cross_namespace_permissions::PairDecision;
use crate::daemon_queries::ask_daemon;
use crate::inherited_channels::{Claim, ClaimOutcome};
use crate::introduce_channel::{
    Destination, NotIntroduced, Via, answer, find_listener, release_channel,
};
use crate::remote_channel_requests;
use crate::unmatched_offers::Offer;
use omniverb_formats::broker_message::{Refusal, Reply};
use omniverb_sys::tcp_listener_state::TcpListenerInfo;
use omniverb_sys::{clock, lock};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// A process says that it listens.
pub(crate) fn add_listener(broker: &Broker, client: &Client, tag: u64, socket: OwnedFd) {
    let said = inspect_listener(client, &socket);
    // At once.
    drop(socket);
    if let Ok(listening) = said {
        lock(&broker.listeners).add(client.process(), tag, listening);
    }
    client.tell(Reply::Listening { tag, why: said.err() });
}

fn inspect_listener(client: &Client, socket: &OwnedFd) -> Result<TcpListenerInfo, Refusal> {
    let found = TcpListenerInfo::of(socket.as_fd()).ok().flatten();
    let listening = found.ok_or(Refusal::NotConnected)?;
    match () {
        () if listening.namespace != client.namespace => Err(Refusal::Elsewhere),
        () if listening.is_bound => Err(Refusal::Bound),
        () => Ok(listening),
    }
}

/// Notes that both ends of a connection between two network namespaces are here. If a listener that
/// is registered here has just accepted one of them, further connections may come there likewise.
///
/// Whether it was just accepted is the word of its own process. A false word opens a way only to
/// that process itself. Without it the connection may be an old one, from a time when the network
/// had other routes.
pub(crate) fn connection_observed(broker: &Broker, [one, other]: &[Offer; 2]) {
    for (from, to) in [(one, other), (other, one)] {
        let Some(at) = to.accepted else { continue };
        let local = to.connection.names.local;
        let Ok(Some(cookie)) = to.client.listener(local) else { continue };
        if lock(&broker.listeners).have((to.connection.namespace, cookie)) {
            let there = (to.address(), local.port());
            lock(&broker.observed).add(from.address(), there, &to.client, at);
            from.client.seen(local);
        }
    }
}

/// Removes a listener. A client that is being introduced to it at this moment is introduced before
/// the process hears of the removal.
pub(crate) fn remove_listener(broker: &Broker, client: &Client, tag: u64) {
    lock(&broker.listeners).remove(client.process(), tag);
    drop(lock(&broker.channels));
    client.tell(Reply::Unlistened { tag });
}

/// Serves a client that asks for a channel to the listener at an address. `from` is its own
/// address, if that one is in another network namespace.
pub(crate) fn request_channel(
    broker: &Broker,
    client: &Client,
    tag: u64,
    (address, port): ([u8; 16], u16),
    from: [u8; 16],
) {
    let to = SocketAddr::new(Ipv6Addr::from(address).to_canonical(), port);
    let found = match Ipv6Addr::from(from).to_canonical() {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => find_within(broker, (client, tag), to),
        from => find_across(broker, (client, tag), from, to),
    };
    answer(broker, (client, tag), found);
}

fn find_within(
    broker: &Broker,
    asks: (&Client, u64),
    to: SocketAddr,
) -> Result<Destination, NotIntroduced> {
    let namespace = asks.0.namespace;
    let (process, listens) = find_listener(broker, asks, (asks.0, namespace), to)?;
    Ok(Destination { process, by: Via::Listener(listens), ends: Ends::Within, way: None })
}

fn find_across(
    broker: &Broker,
    asks: (&Client, u64),
    from: IpAddr,
    to: SocketAddr,
) -> Result<Destination, NotIntroduced> {
    let place = NamespaceAddress { namespace: asks.0.namespace, address: from };
    let route = lock(&broker.observed).get(place, to, clock::now());
    let Some(route) = route else {
        return remote_channel_requests::find_route(broker, asks, (from, to));
    };
    if !lock(&broker.pairs).is_allowed(place, route.to) {
        return Err(NotIntroduced::NoListener);
    }
    let by = route.by().ok_or(NotIntroduced::NoListener)?;
    let (process, listens) = find_listener(broker, asks, (&by, route.to.namespace), to)?;
    let (by, ends) = (Via::Listener(listens), Ends::Across([place, route.to]));
    Ok(Destination { process, by, ends, way: Some((to.port(), route.until)) })
}

/// Ends the channels that the daemon has ended, and tells their processes. The names may be links,
/// too.
pub(crate) fn end_channels(broker: &Broker, names: &BTreeSet<u64>) {
    for name in names {
        let holders = lock(&broker.channels).remove(*name);
        for (_, number) in holders.into_iter().flatten() {
            let client = lock(&broker.admissions).client(number);
            if let Some(client) = client {
                lock(&broker.links).part_with_channel(&client, *name);
            }
        }
    }
}

/// A process has a channel that a broker before this one has given.
pub(crate) fn claim_inherited(
    broker: &Broker,
    client: &Arc<Client>,
    name: u64,
    ends: [[u8; 16]; 2],
) {
    let ends = ends.map(|end| Ipv6Addr::from(end).to_canonical());
    let claim = Claim::new(client, ends, clock::now());
    let has = lock(&broker.channels).has(name, client.process());
    let said = match has {
        None => lock(&broker.inherited).add(name, claim),
        // Once more.
        Some(true) => ClaimOutcome::Waiting,
        Some(false) => ClaimOutcome::Refused,
    };
    let is_one = match said {
        ClaimOutcome::Waiting => true,
        ClaimOutcome::Confirmed(two) => adopt(broker, name, two),
        ClaimOutcome::Refused => false,
    };
    if !is_one {
        // A client that does not read is told no more.
        client.tell(Reply::Ended { link: name });
    }
    broker.wake();
}

/// Both have said so: it is one of theirs from now on, and the daemon is asked.
fn adopt(broker: &Broker, name: u64, two: ProcessPair) -> bool {
    let clients = two.processes.map(|(_, number)| lock(&broker.admissions).client(number));
    let is_adopted = {
        let mut channels = lock(&broker.channels);
        // A client that is gone has been taken out of the tables.
        let are_there = clients.iter().all(|one| one.as_ref().is_some_and(|one| !one.is_gone()));
        let is_new = are_there && channels.has(name, two.processes[0]).is_none();
        let may = is_new && channels.has_places(two);
        if may {
            channels.add(name, two, None);
            lock(&broker.inherited).queue_question(name, two, clock::now());
        }
        may
    };
    if is_adopted {
        ask_about_channel(broker, name);
    } else if let [Some(first), _] = &clients {
        first.tell(Reply::Ended { link: name });
    }
    is_adopted
}

/// Asks the daemon about channels of an earlier broker that both processes have claimed. Ends those
/// that only one has claimed for long. Whether any are left.
pub(crate) fn ask_about_inherited(broker: &Broker) -> bool {
    if lock(&broker.inherited).is_empty() {
        return false;
    }
    let late = lock(&broker.inherited).sweep(clock::now());
    for (name, claim) in late {
        if let Some(client) = claim.client.upgrade() {
            lock(&broker.links).part_with_channel(&client, name);
        }
    }
    let some = lock(&broker.inherited).next_batch();
    some.into_iter().for_each(|name| ask_about_channel(broker, name));
    !lock(&broker.inherited).is_empty()
}

/// Asks about one, until that is answered: a policy is at once, what else the daemon says may be
/// for a moment only.
fn ask_about_channel(broker: &Broker, name: u64) {
    let now = clock::now();
    let Some((two, until)) = lock(&broker.inherited).question(name) else { return };
    let Some([one, other]) = two.ends.places() else { return };
    if lock(&broker.channels).has(name, two.processes[0]).is_none() {
        // Both have ended it meanwhile.
        return lock(&broker.inherited).resolve(name);
    }
    if let [Some(first), Some(second)] =
        two.processes.map(|(_, number)| lock(&broker.admissions).client(number))
    {
        let known = lock(&broker.pairs).decide(one, other, now);
        if let PairDecision::Ask(number) = known {
            ask_daemon(broker, number, [one, other], [&first, &second]);
        }
    }
    let (is_well, is_over) = {
        let mut pairs = lock(&broker.pairs);
        let is_well = pairs.has_link(one, other, name) || pairs.add_link(one, other, name);
        let is_late = until <= now && !pairs.is_asked(one, other);
        (is_well, is_late || pairs.denial(one, other) == Some(Denial::Policy))
    };
    if is_well || is_over {
        lock(&broker.inherited).resolve(name);
    }
    if is_over && !is_well {
        end_channels(broker, &BTreeSet::from([name]));
    } else if is_well && lock(&broker.channels).has(name, two.processes[0]).is_none() {
        // It has ended since.
        release_channel(broker, name, two);
    }
}

/// A process has no use for a channel any more.
pub(crate) fn end_channel(broker: &Broker, client: &Client, name: u64) {
    let two = lock(&broker.channels).end(name, client.process());
    if let Some(two) = two {
        release_channel(broker, name, two);
    }
    lock(&broker.inherited).withdraw(name, client.process());
}

/// A process has gone, and has said so before.
pub(crate) fn forget_client(broker: &Broker, client: &Client) {
    let gone = lock(&broker.channels).gone(client.process());
    gone.into_iter().for_each(|(name, two)| release_channel(broker, name, two));
    lock(&broker.inherited).forget_process(client.process());
    lock(&broker.listeners).gone(client.process());
    lock(&broker.gateways).gone(client.process());
}
