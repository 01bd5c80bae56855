//! Matches the ends of connections between two network namespaces, if the daemon allows it.
//!
//! Names prove nothing there: a process may have given itself another's address, or stand between
//! the two. So three things have to agree: the network brings what is sent to each end there, which
//! the daemon finds out as for verbs; both sockets exist at this moment, by their cookies; and what
//! the kernel has counted at one fits the other ([`crate::traffic_match`]).

use crate::broker_daemon_messages::NamespaceAddress;
use crate::broker_state::Broker;
use crate::channel_requests;
use crate::cross_namespace_permissions::PairDecision;
use crate::daemon_queries::ask_daemon;
use crate::introduce_link::introduce_link;
use crate::limits::ELSEWHERE;
use crate::traffic_match;
use crate::unmatched_offers::Offer;
use omniverb_formats::broker_message::Refusal;
use omniverb_sys::tcp_connection_state::TcpAddresses;
use omniverb_sys::{clock, lock};
use std::net::IpAddr;

/// An offer waits: its other end may have been offered in another namespace.
pub(crate) fn match_offer(broker: &Broker, ours: &Offer) {
    let names = ours.connection.names;
    if is_namespace_local(names.local.ip()) || is_namespace_local(names.remote.ip()) {
        return;
    }
    let others = {
        let (offers, pairs) = (lock(&broker.offers), lock(&broker.pairs));
        // A denied place does not come before others.
        let is_denied = |namespace| {
            let other = NamespaceAddress { namespace, address: names.remote.ip() };
            pairs.denial(ours.address(), other).is_some()
        };
        let mut others = offers.elsewhere_where(&ours.connection, |one| !is_denied(one));
        others.extend(offers.elsewhere_where(&ours.connection, is_denied));
        others.truncate(ELSEWHERE);
        others
    };
    for other in others {
        let places = [ours.address(), other.address()];
        let known = lock(&broker.pairs).decide(places[0], places[1], clock::now());
        match known {
            PairDecision::Allowed => introduce_pair(broker, names, places),
            PairDecision::Wait => {}
            PairDecision::Ask(number) => {
                ask_daemon(broker, number, places, [&ours.client, &other.client])
            }
        }
    }
}

/// Asks again about denied pairs for which offers still wait: the denial may have been for a moment
/// only.
pub(crate) fn retry_denied(broker: &Broker) {
    let now = clock::now();
    let denied = lock(&broker.pairs).due_denials(now);
    for places in denied {
        let waiting = lock(&broker.offers).clients_between(places);
        let Some([one, other]) = waiting else {
            lock(&broker.pairs).forget(places);
            continue;
        };
        let known = lock(&broker.pairs).ask_again(places, now);
        if let PairDecision::Ask(number) = known {
            ask_daemon(broker, number, places, [&one, &other]);
        }
    }
}

/// An address that each namespace has for itself.
fn is_namespace_local(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    // The same of the link on two interfaces are two connections.
    address.is_loopback() || is_link_local
}

/// Introduces the offers of a pair of places that the daemon has allowed.
pub(crate) fn pair_allowed(broker: &Broker, number: u64) {
    let Some(places) = lock(&broker.pairs).allow(number) else { return };
    let waiting = lock(&broker.offers).between(places);
    for names in waiting {
        introduce_pair(broker, names, places);
    }
}

/// Gives a link to the two processes that offer both ends of a connection, if it is one.
fn introduce_pair(broker: &Broker, names: TcpAddresses, places: [NamespaceAddress; 2]) {
    let namespaces = places.map(|place| place.namespace);
    let Some(both) = lock(&broker.offers).both(names, namespaces) else { return };
    let [one, other] = &both;
    let seen = [one, other, one].map(|offer| offer.client.look(&offer.connection).ok().flatten());
    let [Some(before), Some(between), Some(after)] = seen else {
        // A process that is still there may have another socket by now.
        let is_there = [seen[0].is_some() && seen[2].is_some(), seen[1].is_some()];
        for (offer, is_there) in both.into_iter().zip(is_there) {
            match is_there {
                true => lock(&broker.offers).put_back(offer),
                false => offer.client.refuse(offer.tag, Refusal::NotProven),
            }
        }
        return;
    };
    if !traffic_match::is_same_connection([&before, &after], &between) {
        both.iter().for_each(|offer| offer.client.refuse(offer.tag, Refusal::NotOne));
        return;
    }
    channel_requests::connection_observed(broker, &both);
    if introduce_link(broker, one, other, Some(places)).is_err() {
        other.client.refuse(other.tag, Refusal::TooMany);
    }
}
