//! Answers processes that want a channel to another host, by gateways
//! ([`crate::cross_host_gateways`]).

use crate::arrived_tcp_connections::Match;
use crate::broker_state::Broker;
use crate::channels::Ends;
use crate::client::Client;
use crate::cross_host_gateways::{Answer, OpenRoute, RouteAddresses, Serves, way};
use crate::introduce_channel::{
    Destination, NotIntroduced, Via, answer, find_listener, introduce_channel,
};
use crate::unmatched_offers::Offer;
use omniverb_formats::broker_message::{Failure, Reply, Wanted};
use omniverb_formats::channel_layout::{self, PORT_ALLOWED_FOR};
use omniverb_sys::raw_tcp_socket_proof::is_raw_socket_of;
use omniverb_sys::tcp_connection_state::TcpAddresses;
use omniverb_sys::{clock, lock};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// A process says that it is a gateway; `None`: it is not taken for one.
pub(crate) fn register_gateway(
    broker: &Broker,
    client: &Arc<Client>,
    socket: Option<OwnedFd>,
) -> Option<()> {
    let serves = match &socket {
        Some(socket) if is_raw_socket_of(client.namespace, socket.as_fd()).ok()? => Serves::All,
        _ => Serves::Own,
    };
    // At once.
    drop(socket);
    let token = lock(&broker.gateways).add(client, serves)?;
    client.tell(Reply::GatewayToken { token }).then_some(())
}

/// Where a gateway leads a process that wants to go to another host. It may be told so later.
pub(crate) fn find_route(
    broker: &Broker,
    asks: (&Client, u64),
    way: RouteAddresses,
) -> Result<Destination, NotIntroduced> {
    let found = lock(&broker.gateways).ask(asks, way, clock::now());
    let (client, tag) = asks;
    match found {
        Answer::Route(lead) => Ok(destination(way, lead)),
        Answer::Tell(gateway, wanted) if gateway.tell(Reply::GatewayWanted(wanted)) => {
            client.tell(Reply::AskingGateway { tag });
            Err(NotIntroduced::Pending)
        }
        Answer::Tell(..) | Answer::NoGateway => Err(NotIntroduced::NoListener),
        Answer::Later => {
            client.tell(Reply::AskingGateway { tag });
            Err(NotIntroduced::Pending)
        }
        Answer::Soon => Err(NotIntroduced::ConnectFirst),
    }
}

fn destination(way: RouteAddresses, lead: OpenRoute) -> Destination {
    let (from, to) = way;
    Destination {
        process: lead.process,
        by: Via::Gateway(way),
        ends: Ends::Far([from, to.ip()]),
        way: Some((to.port(), lead.until)),
    }
}

/// Tells a gateway of an offered connection whose other end is not here, if the process has asked
/// to be carried there.
pub(crate) fn connection_offered(broker: &Broker, offer: &Offer) {
    let heard = lock(&broker.gateways).offered(offer, clock::now());
    if let Some((gateway, wanted)) = heard {
        // A gateway that does not read is told no more.
        gateway.tell(Reply::GatewayWanted(wanted));
    }
}

/// Opens a route by a gateway's connection, and answers the client's questions that have waited for
/// it.
pub(crate) fn route_opened(
    broker: &Broker,
    worker: &Client,
    token: u64,
    wanted: Wanted,
) -> Option<()> {
    let client = requester_of(broker, worker, token, &wanted)?;
    let (way, now) = (way(&wanted), clock::now());
    let (tags, lead) = {
        let mut gateways = lock(&broker.gateways);
        let tags = gateways.leads_now(worker, &wanted, now)?;
        (tags, gateways.lead(client.process(), way, now)?)
    };
    for tag in tags {
        answer(broker, (&client, tag), Ok(destination(way, lead)));
    }
    client.seen(way.1);
    Some(())
}

/// Closes a route that a gateway refuses.
pub(crate) fn route_failed(
    broker: &Broker,
    worker: &Client,
    token: u64,
    (wanted, why): (Wanted, Failure),
) -> Option<()> {
    let client = requester_of(broker, worker, token, &wanted)?;
    let tags = lock(&broker.gateways).fails(worker.namespace, (&wanted, why), clock::now());
    for tag in tags {
        client.tell(Reply::NoChannel { tag, is_heard: false, is_coming: false });
    }
    Some(())
}

/// The client whose request this gateway answers, if it is a gateway and serves that client.
fn requester_of(
    broker: &Broker,
    worker: &Client,
    token: u64,
    wanted: &Wanted,
) -> Option<Arc<Client>> {
    let client = lock(&broker.admissions).client(wanted.client)?;
    let gateway = lock(&broker.gateways).of(worker, token)?;
    let may = client.namespace == worker.namespace && gateway.serves(&client);
    may.then_some(client)
}

/// Introduces a gateway's connection to a listener of this host, for a client of another host whose
/// TCP connection is said to have arrived.
pub(crate) fn admit_incoming(
    broker: &Broker,
    (worker, tag): (&Client, u64),
    token: u64,
    names: &channel_layout::Names,
) {
    if try_admit_incoming(broker, (worker, tag), token, names).is_none() {
        worker.tell(Reply::NoChannel { tag, is_heard: false, is_coming: false });
    }
}

fn try_admit_incoming(
    broker: &Broker,
    asks: (&Client, u64),
    token: u64,
    names: &channel_layout::Names,
) -> Option<()> {
    let (worker, _) = asks;
    let gateway = lock(&broker.gateways).of(worker, token)?;
    let [from, to] = names.ends();
    // The process that has accepted it has said so, not long ago.
    let (here, now) = (worker.namespace, clock::now());
    let (arrived, matched) = lock(&broker.gateways).incoming(here, [to, from], now)?;
    let by = arrived.by.upgrade()?;
    // Of several at a time not each was offered; this one is here as well.
    let is_here = || by.has(TcpAddresses { local: to, remote: from }).unwrap_or(false);
    if matched == Match::SameRoute {
        if !is_here() {
            return None;
        }
        // Others may come by what it has proved when it has ended.
        lock(&broker.gateways).add_incoming(here, [to, from], &arrived);
    }
    // Only the process that it was introduced to before, if any: its connections would end
    // otherwise.
    let before = lock(&broker.channels).of(worker.process()).next().map(|(_, _, other, _)| other);
    let (process, listens) = match before {
        Some(number) => ((here, number), lock(&broker.listeners).hears((here, number), to)?),
        None => find_listener(broker, asks, (&by, here), to).ok()?,
    };
    let client = lock(&broker.admissions).client(process.1)?;
    if !gateway.serves(&client) {
        return None;
    }
    let (by, ends) = (Via::Listener(listens), Ends::Far([from.ip(), to.ip()]));
    let way = Some((to.port(), arrived.at.saturating_add(PORT_ALLOWED_FOR)));
    introduce_channel(broker, asks, Destination { process, by, ends, way })
}
