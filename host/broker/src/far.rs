//! A process is brought to one of another host, by ferries ([`crate::ferries`]).

use crate::client::Client;
use crate::ferries::{FRESH, Way, ends, way};
use crate::offers::Offer;
use crate::reach::{By, There, bring, who_listens};
use crate::shared::Broker;
use crate::trunks::Ends;
use omniverb_carry::message::Wanted;
use omniverb_carry::trunk::{self, WAY_KEPT};
use omniverb_sys::connection::Names;
use omniverb_sys::raw::is_raw_socket_of;
use omniverb_sys::{clock, lock};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// A process says that it is a ferry; `None`: it is not taken for one.
pub(crate) fn is_ferry(
    broker: &Broker,
    client: &Arc<Client>,
    socket: Option<OwnedFd>,
) -> Option<()> {
    let is_for_all = match &socket {
        None => false,
        Some(socket) => is_raw_socket_of(client.namespace, socket.as_fd()).ok()?,
    };
    // At once.
    drop(socket);
    let token = lock(&broker.ferries).add(client, is_for_all)?;
    client.is_ferry(token).then_some(())
}

/// Where a ferry leads a process that wants to go to another host.
pub(crate) fn from_here(broker: &Broker, client: &Client, way: Way) -> Option<There> {
    let lead = lock(&broker.ferries).lead(client, way, clock::now())?;
    let (from, to) = way;
    Some(There {
        process: lead.process,
        by: By::Ferry(way),
        ends: Ends::Far([from, to.ip()]),
        way: Some((to.port(), lead.until)),
    })
}

/// A connection was offered whose other end is not here: a ferry hears of it, if its process has
/// wanted to be brought there.
pub(crate) fn offered(broker: &Broker, offer: &Offer) {
    let heard = lock(&broker.ferries).offered(offer, clock::now());
    if let Some((ferry, wanted)) = heard {
        // Who does not read is told no more.
        ferry.is_wanted(wanted);
    }
}

/// A ferry's connection leads to where somebody wanted to go.
pub(crate) fn leads(broker: &Broker, worker: &Client, token: u64, wanted: Wanted) -> Option<()> {
    let client = lock(&broker.seats).client(wanted.client)?;
    let is_its = client.namespace == worker.namespace;
    let is_led = {
        let mut ferries = lock(&broker.ferries);
        let ferry = ferries.of(worker, token).filter(|ferry| is_its && ferry.serves(&client))?;
        drop(ferry);
        ferries.leads_now(worker, &wanted, clock::now())
    };
    if is_led {
        client.seen(way(&wanted).1);
    }
    Some(())
}

/// A ferry's connection wants to be brought to who listens here, for somebody of another host, whose
/// connection by TCP is said to have arrived.
pub(crate) fn comes(
    broker: &Broker,
    (worker, tag): (&Client, u64),
    token: u64,
    names: &trunk::Names,
) {
    if come(broker, (worker, tag), token, names).is_none() {
        worker.nobody(tag);
    }
}

fn come(broker: &Broker, asks: (&Client, u64), token: u64, names: &trunk::Names) -> Option<()> {
    let (worker, _) = asks;
    let ferry = lock(&broker.ferries).of(worker, token)?;
    let [from, to] = ends(names);
    let names = Names { local: to, remote: from };
    // Who has accepted it has said so just now, and has it still.
    let offer = lock(&broker.offers).named(worker.namespace, names)?;
    let at = offer.accepted.filter(|at| clock::now().saturating_sub(*at) < FRESH)?;
    offer.client.look(&offer.connection).ok().flatten()?;
    // To whom it was brought before, if he listens there still.
    let before = lock(&broker.trunks).of(worker.process()).next().map(|(_, _, other, _)| other);
    let before = before.map(|number| (worker.namespace, number));
    let known = before.and_then(|one| Some((one, lock(&broker.listeners).hears(one, to)?)));
    let (process, listens) = match known {
        Some(known) => known,
        None => who_listens(broker, asks, (&offer.client, worker.namespace), to).ok()?,
    };
    let client = lock(&broker.seats).client(process.1)?;
    if !ferry.serves(&client) {
        return None;
    }
    let (by, ends) = (By::Listening(listens), Ends::Far([from.ip(), to.ip()]));
    let way = Some((to.port(), at.saturating_add(WAY_KEPT)));
    bring(broker, asks, There { process, by, ends, way })
}
