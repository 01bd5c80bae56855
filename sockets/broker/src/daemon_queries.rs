//! Asks the daemon whether two addresses in two network namespaces may be joined.

use crate::broker_daemon_messages::{Denial, NamespaceAddress, ToDaemon};
use crate::broker_state::Broker;
use crate::client::Client;
use omniverb_sys::{clock, lock, pidfd, seqpacket};
use std::io;
use std::os::fd::AsFd;

/// Asks the daemon; if it does not listen now, a while later.
pub(crate) fn ask_daemon(
    broker: &Broker,
    number: u64,
    places: [NamespaceAddress; 2],
    clients: [&Client; 2],
) {
    if try_ask(broker, number, places, clients).is_err() {
        // It was never told yes: there are no links.
        lock(&broker.pairs).deny(number, Denial::Busy, clock::now());
    }
}

fn try_ask(
    broker: &Broker,
    number: u64,
    places: [NamespaceAddress; 2],
    clients: [&Client; 2],
) -> io::Result<()> {
    let daemon = broker.daemon.as_ref().ok_or(io::ErrorKind::NotConnected)?;
    let users = clients.map(|client| client.peer.uid);
    let [one, other] = clients.map(|client| pidfd::of_peer(client.socket.as_fd()));
    let (one, other) = (one?, other?);
    let question = ToDaemon::Ask { number, places, users }.encode();
    seqpacket::try_send(daemon.as_fd(), &question, &[one.as_fd(), other.as_fd()])
}
