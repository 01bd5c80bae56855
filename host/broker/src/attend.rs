//! One process is attended to, by a thread of its own.
//!
//! In: its requests, with descriptors. Out: links, for it and for those at the other ends. Whatever
//! descriptor came is closed before anybody is told anything: nobody's end of a connection is put
//! off by a duplicate that is here.

use crate::client::Client;
use crate::limits::HELLO;
use crate::offers::Offer;
use crate::shared::Broker;
use omniverb_carry::layout;
use omniverb_carry::message::{BYTES, Refusal, Request};
use omniverb_sys::connection::{Connection, Diagnosis};
use omniverb_sys::{lock, memfd, socket};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

static LINKS: AtomicU64 = AtomicU64::new(1);

/// Until it goes, or says something that is none.
pub(crate) fn attend(broker: &Broker, client: &Arc<Client>) {
    _ = converse(broker, client);
    lock(&broker.offers).gone(client);
    socket::shut(client.socket.as_fd());
}

fn converse(broker: &Broker, client: &Arc<Client>) -> Option<()> {
    socket::limit_receiving(client.socket.as_fd(), Some(HELLO)).ok()?;
    let (request, diagnosis) = next(client)?;
    let diagnosis = diagnosis.filter(|_| request == Request::Hello)?;
    let namespace = Diagnosis::by(diagnosis.as_fd())?.namespace().ok()?;
    broker.settles(client, namespace).then_some(())?;
    socket::limit_receiving(client.socket.as_fd(), None).ok()?;
    client.welcome().then_some(())?;
    loop {
        match next(client)? {
            (Request::Offer { tag }, Some(socket)) => {
                if let Err(why) = offered(broker, client, &diagnosis, tag, socket) {
                    client.refuse(tag, why);
                }
            }
            (Request::Ended { link }, None) => client.ended(link),
            _ => return None,
        }
    }
}

/// The next request, with the descriptor that came with it.
fn next(client: &Client) -> Option<(Request, Option<OwnedFd>)> {
    let mut bytes = [0; BYTES];
    let received = socket::receive(client.socket.as_fd(), &mut bytes, socket::Mode::Blocking);
    let (length, mut files) = received.ok()?;
    let file = files.pop();
    let request = Request::decode(bytes.get(..length)?)?;
    files.is_empty().then_some((request, file))
}

/// A socket was offered.
fn offered(
    broker: &Broker,
    client: &Arc<Client>,
    diagnosis: &OwnedFd,
    tag: u64,
    socket: OwnedFd,
) -> Result<(), Refusal> {
    if !client.has_room() {
        return Err(Refusal::TooMany);
    }
    let other = other_end(broker, client, diagnosis, tag, &socket)?;
    // At once.
    drop(socket);
    let Some((other, ours)) = other else {
        client.wait(tag);
        return Ok(());
    };
    introduce(&other, &ours).map_err(|_| Refusal::TooMany)
}

/// Who has the other end of the socket, if he has offered that and still has it; otherwise this
/// offer waits for him. Both being there at one time with these names, while the socket is here,
/// they are the ends of one connection.
fn other_end(
    broker: &Broker,
    client: &Arc<Client>,
    diagnosis: &OwnedFd,
    tag: u64,
    socket: &OwnedFd,
) -> Result<Option<(Offer, Offer)>, Refusal> {
    let found = Connection::of(socket.as_fd()).ok().flatten();
    let connection = found.ok_or(Refusal::NotConnected)?;
    let by = Diagnosis::by(diagnosis.as_fd()).ok_or(Refusal::NotProven)?;
    if by.namespace().ok() != Some(connection.namespace) {
        return Err(Refusal::Elsewhere);
    }
    if connection.is_bound {
        return Err(Refusal::Bound);
    }
    let is_there = |one: &Connection| one.is_there(&by).map_err(|_| Refusal::NotProven);
    if !is_there(&connection)? {
        return Err(Refusal::NotProven);
    }
    let ours = Offer { client: client.clone(), tag, connection };
    loop {
        let other = lock(&broker.offers).other_or_add(&ours);
        let Some(other) = other else { return Ok(None) };
        let is_another = other.connection.cookie != connection.cookie;
        match is_there(&other.connection) {
            Ok(true) if is_another => return Ok(Some((other, ours))),
            // It was offered by who had these names before.
            Ok(_) => other.client.refuse(other.tag, Refusal::NotProven),
            Err(why) => {
                other.client.refuse(other.tag, why);
                return Err(why);
            }
        }
    }
}

/// Gives both the memory of a link.
fn introduce(first: &Offer, second: &Offer) -> io::Result<()> {
    if !first.client.has_room() {
        first.client.refuse(first.tag, Refusal::TooMany);
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let memory = memfd::create("omniverb link", layout::BYTES as u64)?;
    let link = LINKS.fetch_add(1, Ordering::Relaxed);
    // Who has not read his messages for long gets no link, and then the other one needs none.
    if !first.client.give(first.tag, link, 0, memory.as_fd()) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    // For the first it is a link on which nobody ever is, should the second not take it.
    second.client.give(second.tag, link, 1, memory.as_fd());
    Ok(())
}
