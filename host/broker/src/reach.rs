//! A process is brought to another one, by a trunk.
//!
//! Who listens has shown a listening socket, as proof; its duplicate is closed at once. Who reaches
//! for an address is brought to the process whose socket the kernel would have brought him to: it
//! is asked at that moment. Within a network namespace by the socket of who asks, who has nothing
//! of it if he meddles. To another one where the network was seen to bring a connection of TCP from
//! the same address to the same port ([`crate::proofs`]), by the socket of who has accepted that;
//! and only as long as the daemon says that the two addresses may be brought together. To another
//! host by a ferry ([`crate::far`]).

use crate::asking::ask;
use crate::client::Client;
use crate::daemon::{Place, WhyApart};
use crate::far;
use crate::ferries::Way;
use crate::offers::Offer;
use crate::relations::Known;
use crate::shared::Broker;
use crate::stills::{Claim, Said};
use crate::trunks::{Between, Ends, Room, Trunks};
use omniverb_carry::message::Refusal;
use omniverb_carry::trunk;
use omniverb_sys::listening::Listening;
use omniverb_sys::{clock, lock, memfd, random, socket};
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, LazyLock};

/// A process says that it listens.
pub(crate) fn listens(broker: &Broker, client: &Client, tag: u64, socket: OwnedFd) {
    let said = listening(client, &socket);
    // At once.
    drop(socket);
    if let Ok(listening) = said {
        lock(&broker.listeners).add(client.process(), tag, listening);
    }
    client.listens(tag, said.err());
}

fn listening(client: &Client, socket: &OwnedFd) -> Result<Listening, Refusal> {
    let found = Listening::of(socket.as_fd()).ok().flatten();
    let listening = found.ok_or(Refusal::NotConnected)?;
    match () {
        () if listening.namespace != client.namespace => Err(Refusal::Elsewhere),
        () if listening.is_bound => Err(Refusal::Bound),
        () => Ok(listening),
    }
}

/// The two ends of a connection between two network namespaces are here. If one of them was just
/// accepted by a socket that listens, and was shown to us, others may come there in the same way.
///
/// That it was just accepted its own process says, which nobody can come to but by what it says
/// there; the connection may be old otherwise, from a time when the network brought more there.
pub(crate) fn seen(broker: &Broker, [one, other]: &[Offer; 2]) {
    for (from, to) in [(one, other), (other, one)] {
        let Some(at) = to.accepted else { continue };
        let local = to.connection.names.local;
        let Ok(Some(cookie)) = to.client.listener(local) else { continue };
        if lock(&broker.listeners).have((to.connection.namespace, cookie)) {
            let there = (to.address(), local.port());
            lock(&broker.proofs).add(from.address(), there, &to.client, at);
            from.client.seen(local);
        }
    }
}

/// A process listens somewhere no more. Whoever is being brought there just now has been, before it
/// hears that nobody is.
pub(crate) fn unlistens(broker: &Broker, client: &Client, tag: u64) {
    lock(&broker.listeners).remove(client.process(), tag);
    drop(lock(&broker.trunks));
    client.unheard(tag);
}

/// A process wants to be brought to who listens at an address; from one of its own, if that one is
/// another network namespace's.
pub(crate) fn reaches(
    broker: &Broker,
    client: &Client,
    tag: u64,
    (address, port): ([u8; 16], u16),
    from: [u8; 16],
) {
    let to = SocketAddr::new(Ipv6Addr::from(address).to_canonical(), port);
    let found = match Ipv6Addr::from(from).to_canonical() {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => within(broker, (client, tag), to),
        from => across(broker, (client, tag), from, to),
    };
    answer(broker, (client, tag), found);
}

/// Somebody is brought there, or told that he is not.
pub(crate) fn answer(
    broker: &Broker,
    (client, tag): (&Client, u64),
    found: Result<There, Nowhere>,
) {
    // Where he cannot be brought to one process others may have the socket.
    let is_brought =
        found.and_then(|there| bring(broker, (client, tag), there).ok_or(Nowhere::Unsaid));
    match is_brought {
        Ok(()) | Err(Nowhere::Later) => {}
        Err(Nowhere::Unsaid) => client.nobody_yet(tag),
        Err(Nowhere::Unheard) => client.nobody(tag),
        Err(Nowhere::Soon) => client.nobody_so_far(tag),
    }
}

/// Why somebody is brought nowhere.
pub(crate) enum Nowhere {
    /// No socket listens there, or none that he may be brought to.
    Unheard,
    /// One does, and no other process has said that it does so by it.
    Unsaid,
    /// It is on another host, to which he may be brought when he has connected once by TCP.
    Soon,
    /// The same, and he has: he is told.
    Later,
}

/// What a socket is called where nobody is to learn how many there are.
fn name_of(cookie: u64) -> u64 {
    static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    SECRET.hash_one(cookie).max(1)
}

/// Where somebody is to be brought.
pub(crate) struct There {
    pub(crate) process: (u64, u64),
    /// By what; a ferry's process leads there by itself.
    pub(crate) by: By,
    pub(crate) ends: Ends,
    /// Unless that is always so: to which port one may go there, and until when.
    pub(crate) way: Option<(u16, u64)>,
}

/// Why somebody is brought to a process.
#[derive(Clone, Copy)]
pub(crate) enum By {
    /// It listens, and calls it that.
    Listening(u64),
    /// It is a ferry's, and leads this way.
    Ferry(Way),
}

fn within(broker: &Broker, asks: (&Client, u64), to: SocketAddr) -> Result<There, Nowhere> {
    let namespace = asks.0.namespace;
    let (process, listens) = who_listens(broker, asks, (asks.0, namespace), to)?;
    Ok(There { process, by: By::Listening(listens), ends: Ends::Within, way: None })
}

fn across(
    broker: &Broker,
    asks: (&Client, u64),
    from: IpAddr,
    to: SocketAddr,
) -> Result<There, Nowhere> {
    let place = Place { namespace: asks.0.namespace, address: from };
    let proof = lock(&broker.proofs).get(place, to, clock::now());
    let Some(proof) = proof else {
        return far::from_here(broker, asks, (from, to));
    };
    if !lock(&broker.relations).are_together(place, proof.to) {
        return Err(Nowhere::Unheard);
    }
    let by = proof.by().ok_or(Nowhere::Unheard)?;
    let (process, listens) = who_listens(broker, asks, (&by, proof.to.namespace), to)?;
    let (by, ends) = (By::Listening(listens), Ends::Across([place, proof.to]));
    Ok(There { process, by, ends, way: Some((to.port(), proof.until)) })
}

/// Which process, and what it calls that, as the kernel says whom `by` asks; who wants to be
/// brought there is told which socket it is.
pub(crate) fn who_listens(
    broker: &Broker,
    (client, tag): (&Client, u64),
    (by, namespace): (&Client, u64),
    to: SocketAddr,
) -> Result<((u64, u64), u64), Nowhere> {
    let cookie = by.listener(to).ok().flatten().ok_or(Nowhere::Unheard)?;
    client.by(tag, name_of(cookie));
    let next = lock(&broker.listeners).next((namespace, cookie), client.number);
    next.map(|(number, listens)| ((namespace, number), listens)).ok_or(Nowhere::Unsaid)
}

/// Both are told, or there is nobody, and nobody is told.
pub(crate) fn bring(broker: &Broker, asks: (&Client, u64), there: There) -> Option<()> {
    let other = lock(&broker.seats).client(there.process.1)?;
    let two = Between { processes: [asks.0.process(), there.process], ends: there.ends };
    // Before there is something to give: that costs more.
    let mut trunks = lock(&broker.trunks);
    if !is_there_still(broker, asks.0, &there) {
        return None;
    }
    match trunks.room(two) {
        Room::Known(name) => return known(&mut trunks, asks, &other, &there, name),
        Room::None => return None,
        Room::Free => drop(trunks),
    }
    let given = Given::new()?;
    let is_brought = give(broker, asks, (&other, &there), two, &given);
    // Last of all, and holding nothing: the two may have sent each other something by now.
    drop(given);
    is_brought
}

/// Who has said that he listens there no more was told that nobody is brought there:
/// [`unlistens`].
fn is_there_still(broker: &Broker, asks: &Client, there: &There) -> bool {
    match there.by {
        By::Listening(tag) => lock(&broker.listeners).has(there.process, tag),
        By::Ferry(way) => lock(&broker.ferries).leads(asks, way, there.process),
    }
}

/// They have one. Who listens is told first that somebody may come.
fn known(
    trunks: &mut Trunks,
    (client, tag): (&Client, u64),
    other: &Client,
    there: &There,
    name: u64,
) -> Option<()> {
    let Some((port, until)) = there.way else {
        return client.known(tag, name, 0).then_some(());
    };
    let tell = || other.way(name, (port, until));
    let may = trunks.may_come(name, (there.process, port, until), clock::now(), tell);
    (may && client.known(tag, name, until)).then_some(())
}

/// What two processes get.
struct Given {
    memory: OwnedFd,
    ends: (OwnedFd, OwnedFd),
}

impl Given {
    fn new() -> Option<Given> {
        let memory = memfd::create("omniverb trunk", trunk::BYTES as u64).ok()?;
        Some(Given { memory, ends: socket::stream_pair().ok()? })
    }
}

/// Who listens is told first, so that he knows of a trunk before anything comes by it. All of it
/// with the lock of all trunks: nobody hears of one as known before he is given it. Nothing of this
/// waits.
fn give(
    broker: &Broker,
    asks: (&Client, u64),
    (other, there): (&Arc<Client>, &There),
    two: Between,
    given: &Given,
) -> Option<()> {
    let (client, tag) = asks;
    let mut trunks = lock(&broker.trunks);
    match trunks.room(two) {
        // Both have asked at a time.
        Room::Known(name) => return known(&mut trunks, asks, other, there, name),
        Room::None => return None,
        Room::Free => {}
    }
    // Who has gone has been taken out of what is kept.
    if other.is_gone() || !is_there_still(broker, client, there) {
        return None;
    }
    // What a process says of one later proves nothing: nobody is to guess others'.
    let (name, memory) = (random::number(), given.memory.as_fd());
    // From now on the daemon's word that it is over is heard of.
    let places = two.ends.places();
    let may = places.is_none_or(|[one, to]| lock(&broker.relations).join(one, to, name));
    let listens = if let By::Listening(tag) = there.by { tag } else { 0 };
    let [own, others] = [two.ends, two.ends.swapped()].map(Ends::addresses);
    let is_told = may
        && other.trunk((listens, name, 1), others, [memory, given.ends.1.as_fd()])
        // If he does not take it who listens finds the other end closed.
        && client.trunk((tag, name, 0), own, [memory, given.ends.0.as_fd()]);
    if !is_told {
        leave(broker, name, two);
        return None;
    }
    let may_keep = lock(&broker.links).may_keep_file(trunks.count());
    let memory = if may_keep { given.memory.try_clone().ok() } else { None };
    trunks.add(name, two, memory);
    there.way.map_or(Some(()), |_| known(&mut trunks, asks, other, there, name))
}

/// A trunk does not live by what the daemon says any more.
fn leave(broker: &Broker, name: u64, two: Between) {
    if let Some([one, other]) = two.ends.places() {
        lock(&broker.relations).leave(one, other, name, clock::now());
    }
}

/// The daemon says that these are over, links and trunks: who has trunks of them is told.
pub(crate) fn over(broker: &Broker, names: &BTreeSet<u64>) {
    for name in names {
        let holders = lock(&broker.trunks).remove(*name);
        for (_, number) in holders.into_iter().flatten() {
            let client = lock(&broker.seats).client(number);
            if let Some(client) = client {
                lock(&broker.links).part_with_trunk(&client, *name);
            }
        }
    }
}

/// A process has a trunk that a broker before this one has given.
pub(crate) fn still(broker: &Broker, client: &Arc<Client>, name: u64, ends: [[u8; 16]; 2]) {
    let ends = ends.map(|end| Ipv6Addr::from(end).to_canonical());
    let claim = Claim::new(client, ends, clock::now());
    let has = lock(&broker.trunks).has(name, client.process());
    let said = match has {
        None => lock(&broker.stills).add(name, claim),
        // Once more.
        Some(true) => Said::Waits,
        Some(false) => Said::Wrong,
    };
    let is_one = match said {
        Said::Waits => true,
        Said::Both(two) => adopt(broker, name, two),
        Said::Wrong => false,
    };
    if !is_one {
        // Who does not read is told no more.
        client.part(name);
    }
    broker.wake();
}

/// Both have said so: it is one of theirs from now on, and the daemon is asked.
fn adopt(broker: &Broker, name: u64, two: Between) -> bool {
    let clients = two.processes.map(|(_, number)| lock(&broker.seats).client(number));
    let is_adopted = {
        let mut trunks = lock(&broker.trunks);
        // Who has gone has been taken out of what is kept.
        let are_there = clients.iter().all(|one| one.as_ref().is_some_and(|one| !one.is_gone()));
        let is_new = are_there && trunks.has(name, two.processes[0]).is_none();
        let may = is_new && trunks.has_places(two);
        if may {
            trunks.add(name, two, None);
            lock(&broker.stills).asks(name, two, clock::now());
        }
        may
    };
    if is_adopted {
        seek_still(broker, name);
    } else if let [Some(first), _] = &clients {
        first.part(name);
    }
    is_adopted
}

/// The daemon is asked about trunks of an earlier broker whose processes have both said so; what
/// one has said alone for long is over. Whether there are any left.
pub(crate) fn seek_stills(broker: &Broker) -> bool {
    if lock(&broker.stills).is_empty() {
        return false;
    }
    let late = lock(&broker.stills).sweep(clock::now());
    for (name, claim) in late {
        if let Some(client) = claim.client.upgrade() {
            lock(&broker.links).part_with_trunk(&client, name);
        }
    }
    let some = lock(&broker.stills).next_ones();
    some.into_iter().for_each(|name| seek_still(broker, name));
    !lock(&broker.stills).is_empty()
}

/// Asks about one, until that is answered: a policy is at once, what else the daemon says may be
/// for a moment only.
fn seek_still(broker: &Broker, name: u64) {
    let now = clock::now();
    let Some((two, until)) = lock(&broker.stills).asked(name) else { return };
    let Some([one, other]) = two.ends.places() else { return };
    if lock(&broker.trunks).has(name, two.processes[0]).is_none() {
        // Both have ended it meanwhile.
        return lock(&broker.stills).is_known(name);
    }
    if let [Some(first), Some(second)] =
        two.processes.map(|(_, number)| lock(&broker.seats).client(number))
    {
        let known = lock(&broker.relations).of(one, other, now);
        if let Known::Ask(number) = known {
            ask(broker, number, [one, other], [&first, &second]);
        }
    }
    let (is_well, is_over) = {
        let mut relations = lock(&broker.relations);
        let is_well = relations.has(one, other, name) || relations.join(one, other, name);
        let is_late = until <= now && !relations.is_asked(one, other);
        (is_well, is_late || relations.why(one, other) == Some(WhyApart::Policy))
    };
    if is_well || is_over {
        lock(&broker.stills).is_known(name);
    }
    if is_over && !is_well {
        over(broker, &BTreeSet::from([name]));
    } else if is_well && lock(&broker.trunks).has(name, two.processes[0]).is_none() {
        // It has ended since.
        leave(broker, name, two);
    }
}

/// A process has no use for a trunk any more.
pub(crate) fn ended(broker: &Broker, client: &Client, name: u64) {
    let two = lock(&broker.trunks).end(name, client.process());
    if let Some(two) = two {
        leave(broker, name, two);
    }
    lock(&broker.stills).end(name, client.process());
}

/// A process has gone, and has said so before.
pub(crate) fn gone(broker: &Broker, client: &Client) {
    let gone = lock(&broker.trunks).gone(client.process());
    gone.into_iter().for_each(|(name, two)| leave(broker, name, two));
    lock(&broker.stills).gone(client.process());
    lock(&broker.listeners).gone(client.process());
    lock(&broker.ferries).gone(client.process());
}
