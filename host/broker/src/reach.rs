//! A process is brought to another one of its network namespace, by a trunk.
//!
//! Who listens has shown a listening socket, as proof; its duplicate is closed at once. Who reaches
//! for an address is brought to the process whose socket the kernel would have brought him to: it
//! is asked at that moment, by the socket of who asks, who has nothing of it if he meddles.

use crate::client::Client;
use crate::introduce::next_name;
use crate::shared::Broker;
use crate::trunks::Room;
use omniverb_carry::message::Refusal;
use omniverb_carry::trunk;
use omniverb_sys::listening::Listening;
use omniverb_sys::{lock, memfd, socket};
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

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

/// A process wants to be brought to who listens at an address.
pub(crate) fn reaches(broker: &Broker, client: &Client, tag: u64, to: ([u8; 16], u16)) {
    let (address, port) = to;
    let to = SocketAddr::new(Ipv6Addr::from(address).to_canonical(), port);
    if bring(broker, client, tag, to).is_none() {
        client.nobody(tag);
    }
}

/// Both are told, or there is nobody, and nobody is told.
fn bring(broker: &Broker, client: &Client, tag: u64, to: SocketAddr) -> Option<()> {
    let cookie = client.listener(to).ok()??;
    let (number, listens) = lock(&broker.listeners).next(client.process(), cookie)?;
    let other = lock(&broker.seats).client(number)?;
    // Before there is something to give: that costs more.
    match lock(&broker.trunks).room(client.process(), number) {
        Room::Known(name) => return client.known(tag, name).then_some(()),
        Room::None => return None,
        Room::Free => {}
    }
    let given = Given::new()?;
    let (asks, listens) = ((client, tag), (&other, listens));
    let is_brought = give(broker, asks, listens, &given);
    // Last of all, and holding nothing: the two may have sent each other something by now.
    drop(given);
    is_brought
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
    (client, tag): (&Client, u64),
    (other, listens): (&Arc<Client>, u64),
    given: &Given,
) -> Option<()> {
    let mut trunks = lock(&broker.trunks);
    match trunks.room(client.process(), other.number) {
        // Both have asked at a time.
        Room::Known(name) => return client.known(tag, name).then_some(()),
        Room::None => return None,
        Room::Free => {}
    }
    // Who has gone has been taken out of what is kept.
    if other.is_gone() {
        return None;
    }
    let (name, memory) = (next_name(), given.memory.as_fd());
    other.trunk(listens, (name, 1), [memory, given.ends.1.as_fd()]).then_some(())?;
    // If he does not take it who listens finds the other end closed.
    client.trunk(tag, (name, 0), [memory, given.ends.0.as_fd()]).then_some(())?;
    trunks.add(name, client.process(), other.number);
    Some(())
}

/// A process has no use for a trunk any more.
pub(crate) fn ended(broker: &Broker, client: &Client, name: u64) {
    lock(&broker.trunks).end(name, client.process());
}

/// A process has gone, and has said so before.
pub(crate) fn gone(broker: &Broker, client: &Client) {
    lock(&broker.trunks).gone(client.process());
    lock(&broker.listeners).gone(client.process());
}
