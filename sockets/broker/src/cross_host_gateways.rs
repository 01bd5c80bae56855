//! Keeps gateways, which serve processes of their network namespace to other hosts
//! (docs/decisions/0063).
//!
//! A gateway is the other side of a channel for a process of its own host, and keeps that channel
//! alike with the one of a gateway on another host. A process that wants a channel to an address
//! that is not found within this host connects by TCP, and offers that connection as any other; so
//! the gateway hears of it. If the other host's gateway finds that the connection has arrived, this
//! one has a route there for a while.
//!
//! A gateway reads and writes what its clients send. So it serves its own user only, unless it may
//! read what all in the network namespace send anyway, and has shown so by a raw socket.

use crate::arrived_tcp_connections::{IncomingConnection, IncomingConnections, Match};
use crate::client::Client;
use crate::limits::{
    GATEWAYS_FOR_ALL, GATEWAYS_OF_NAMESPACE, GATEWAYS_OF_USER, LEADS_OF_NAMESPACE, WANTS_OF_PROCESS,
};
use crate::listeners::Process;
use crate::unmatched_offers::Offer;
use omniverb_formats::broker_message::{Failure, Wanted};
use omniverb_formats::channel_layout::{Names, PORT_ALLOWED_FOR};
use omniverb_sys::random;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::{Arc, Weak};

/// How long a client may take from asking to connecting, in nanoseconds.
const FRESH: u64 = 5_000_000_000;
/// How long a gateway may take to answer, in nanoseconds, before further clients are told not to
/// wait for it.
const MOMENT: u64 = 20_000_000;
/// How long a route that has failed is not tried again, in nanoseconds.
const IN_VAIN: u64 = 1_000_000_000;

/// From which address to where.
pub(crate) type RouteAddresses = (IpAddr, SocketAddr);

/// The clients that a gateway serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serves {
    /// Processes of its own user.
    Own,
    /// All clients in the network namespace.
    All,
}

/// One of them.
#[derive(Clone, Debug)]
pub(crate) struct Gateway {
    client: Weak<Client>,
    token: u64,
    user: u32,
    whom: Serves,
}

impl Gateway {
    /// It may have what that process sends.
    pub(crate) fn serves(&self, client: &Client) -> bool {
        self.whom == Serves::All || self.user == client.peer.uid
    }
}

/// Where one of a gateway's connections to the broker leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenRoute {
    /// That connection, which is a process like others here.
    pub(crate) process: Process,
    /// Until when the client may use it.
    pub(crate) until: u64,
}

/// What a process wants that has asked for a way.
#[derive(Debug)]
struct Want {
    at: u64,
    /// When a gateway heard of it; and the questions that wait for that.
    told: Option<u64>,
    tags: Vec<u64>,
}

/// What becomes of a question.
#[derive(Debug)]
pub(crate) enum Answer {
    /// A gateway has opened a route there.
    Route(OpenRoute),
    /// This one is to hear of it. The answer comes later.
    Tell(Arc<Client>, Wanted),
    /// One has; the answer comes later.
    Later,
    /// One may lead there when a connection by TCP was offered.
    Soon,
    /// No gateway does, or will.
    NoGateway,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Gateways {
    /// Of each network namespace, the oldest first.
    all: BTreeMap<u64, Vec<Gateway>>,
    wants: BTreeMap<Process, BTreeMap<RouteAddresses, Want>>,
    /// The routes that were opened for clients.
    leads: BTreeMap<(Process, RouteAddresses), OpenRoute>,
    /// Ways that connections were seen to go, from a network namespace: the last, and when.
    observed: BTreeMap<(u64, RouteAddresses), (Names, u64)>,
    /// Ways that a gateway could not lead a process, and when that was.
    failed: BTreeMap<(Process, RouteAddresses), u64>,
    /// Connections that were seen to come, to each network namespace.
    incoming: BTreeMap<u64, IncomingConnections>,
}

impl Gateways {
    /// A process is one from now on: what its other connections are known by. `None`: there are
    /// enough.
    pub(crate) fn add(&mut self, client: &Arc<Client>, whom: Serves) -> Option<u64> {
        let here = self.all.entry(client.namespace).or_default();
        let user = client.peer.uid;
        let is_like =
            |one: &&Gateway| one.whom == whom && (whom == Serves::All || one.user == user);
        let most = if whom == Serves::All { GATEWAYS_FOR_ALL } else { GATEWAYS_OF_USER };
        let is_one = |one: &Gateway| one.client.ptr_eq(&Arc::downgrade(client));
        if here.iter().filter(is_like).count() >= most
            || here.len() >= GATEWAYS_OF_NAMESPACE && whom == Serves::Own
            || here.iter().any(is_one)
        {
            return None;
        }
        let token = random::number();
        here.push(Gateway { client: Arc::downgrade(client), token, user, whom });
        Some(token)
    }

    /// The one of a connection that has this token.
    pub(crate) fn of(&self, client: &Client, token: u64) -> Option<Gateway> {
        let here = self.all.get(&client.namespace)?;
        here.iter().find(|one| one.token == token && one.client.strong_count() > 0).cloned()
    }

    fn serving(&self, client: &Client) -> Option<Arc<Client>> {
        let mut here = self.all.get(&client.namespace)?.iter();
        here.find_map(|one| one.client.upgrade().filter(|_| one.serves(client)))
    }

    /// A process asks for a way. It may be about to connect by TCP.
    pub(crate) fn ask(
        &mut self,
        (client, tag): (&Client, u64),
        way: RouteAddresses,
        now: u64,
    ) -> Answer {
        let Some(gateway) = self.serving(client) else { return Answer::NoGateway };
        let lead = self.lead(client.process(), way, now);
        let is_in_vain = |at: &u64| now.saturating_sub(*at) < IN_VAIN;
        if lead.is_none() && self.failed.get(&(client.process(), way)).is_some_and(is_in_vain) {
            return Answer::NoGateway;
        }
        let wants = self.wants.entry(client.process()).or_default();
        wants.retain(|_, want| now.saturating_sub(want.at) < FRESH);
        let has_room = wants.len() < WANTS_OF_PROCESS;
        match (wants.get_mut(&way), lead) {
            (Some(Want { told: Some(told), tags, .. }), None) => {
                // The gateway has been told, and once is enough. No client waits for it for long.
                if now.saturating_sub(*told) >= MOMENT || tags.len() >= WANTS_OF_PROCESS {
                    return Answer::NoGateway;
                }
                tags.push(tag);
                return Answer::Later;
            }
            (Some(Want { told: Some(_), .. }), Some(lead)) => return Answer::Route(lead),
            (None, _) if !has_room => return lead.map_or(Answer::NoGateway, Answer::Route),
            _ => {}
        }
        let proof = self.observed.get(&(client.namespace, way));
        let proof = proof.filter(|(_, at)| now.saturating_sub(*at) < PORT_ALLOWED_FOR / 2);
        match (lead, proof) {
            (None, Some((names, at))) => {
                wants.insert(way, Want { at: now, told: Some(now), tags: vec![tag] });
                Answer::Tell(gateway, Wanted { client: client.number, at: *at, names: *names })
            }
            _ => {
                wants.insert(way, Want { at: now, told: None, tags: Vec::new() });
                lead.map_or(Answer::Soon, Answer::Route)
            }
        }
    }

    /// Where a gateway leads a process.
    pub(crate) fn lead(
        &self,
        process: Process,
        way: RouteAddresses,
        now: u64,
    ) -> Option<OpenRoute> {
        self.leads.get(&(process, way)).copied().filter(|lead| lead.until > now)
    }

    /// It leads there still.
    pub(crate) fn leads(&self, client: &Client, way: RouteAddresses, process: Process) -> bool {
        self.leads.get(&(client.process(), way)).is_some_and(|lead| lead.process == process)
    }

    /// A connection was offered: which gateway is to hear what of it.
    pub(crate) fn offered(&mut self, offer: &Offer, now: u64) -> Option<(Arc<Client>, Wanted)> {
        let (client, ends) = (&offer.client, offer.connection.names);
        if let Some(at) = offer.accepted
            && self.all.contains_key(&client.namespace)
        {
            let (by, ends) = (Arc::downgrade(client), [ends.local, ends.remote]);
            let here = self.incoming.entry(client.namespace).or_default();
            here.add(ends, IncomingConnection { at, by }, now);
        }
        let gateway = self.serving(client)?;
        let wants = self.wants.get_mut(&client.process())?;
        let want = wants.get_mut(&(ends.local.ip(), ends.remote))?;
        if want.told.is_some() || now.saturating_sub(want.at) >= FRESH {
            return None;
        }
        (want.at, want.told) = (now, Some(now));
        let names = Names::between([ends.local, ends.remote]);
        Some((gateway, Wanted { client: client.number, at: now, names }))
    }

    /// The connection of these ends, the local one first, that was accepted here not long ago. Or
    /// the last one like it, from another port: then it is to be asked whether there is this one.
    pub(crate) fn incoming(
        &self,
        namespace: u64,
        ends: [SocketAddr; 2],
        now: u64,
    ) -> Option<(IncomingConnection, Match)> {
        self.incoming.get(&namespace)?.get(ends, now)
    }

    /// That one was like this, which was there, too.
    pub(crate) fn add_incoming(
        &mut self,
        namespace: u64,
        ends: [SocketAddr; 2],
        one: &IncomingConnection,
    ) {
        if let Some(here) = self.incoming.get_mut(&namespace) {
            here.add(ends, one.clone(), one.at);
        }
    }

    /// One of a gateway's connections leads to where that was wanted, for a while from then on: the
    /// questions that wait for that. `None`: it is too late, or there are enough.
    pub(crate) fn leads_now(
        &mut self,
        worker: &Client,
        wanted: &Wanted,
        now: u64,
    ) -> Option<Vec<u64>> {
        let process = (worker.namespace, wanted.client);
        let (way, at) = (way(wanted), wanted.at.min(now));
        let until = at.saturating_add(PORT_ALLOWED_FOR);
        self.leads.retain(|_, lead| lead.until > now);
        let here = ((worker.namespace, 0), FIRST)..=((worker.namespace, u64::MAX), LAST);
        if until <= now || !has_room(&mut self.leads, (process, way), here, |_| true) {
            return None;
        }
        self.leads.insert((process, way), OpenRoute { process: worker.process(), until });
        self.proves((worker.namespace, way), (wanted.names, at), now);
        self.failed.remove(&(process, way));
        Some(self.told(process, way))
    }

    fn proves(&mut self, key: (u64, RouteAddresses), proof: (Names, u64), now: u64) {
        let here = (key.0, FIRST)..=(key.0, LAST);
        let is_newer = self.observed.get(&key).is_none_or(|(_, at)| *at < proof.1);
        if is_newer
            && has_room(&mut self.observed, key, here, |(_, at)| {
                now.saturating_sub(*at) < PORT_ALLOWED_FOR
            })
        {
            self.observed.insert(key, proof);
        }
    }

    /// A gateway has said what becomes of what it was told: the questions that wait for that.
    fn told(&mut self, process: Process, way: RouteAddresses) -> Vec<u64> {
        let want = self.wants.get_mut(&process).and_then(|wants| wants.remove(&way));
        want.map_or_else(Vec::new, |want| want.tags)
    }

    /// Closes a route that a gateway refuses. Returns the questions that wait for it. A route that
    /// was observed there is void, too.
    pub(crate) fn fails(
        &mut self,
        namespace: u64,
        (wanted, why): (&Wanted, Failure),
        now: u64,
    ) -> Vec<u64> {
        let (process, way) = ((namespace, wanted.client), way(wanted));
        // Another proof may be had where there was one.
        let is_there = why == Failure::NotBrought;
        let was_proven = !is_there && self.observed.remove(&(namespace, way)).is_some();
        let was_led = self.leads.remove(&(process, way)).is_some();
        let is_new = |at: &u64| now.saturating_sub(*at) < IN_VAIN;
        let here = ((namespace, 0), FIRST)..=((namespace, u64::MAX), LAST);
        if !was_led && !was_proven && has_room(&mut self.failed, (process, way), here, is_new) {
            self.failed.insert((process, way), now);
        }
        self.told(process, way)
    }

    /// A process has gone.
    pub(crate) fn gone(&mut self, process: Process) {
        self.wants.remove(&process);
        self.failed.retain(|(asked, _), _| *asked != process);
        self.leads.retain(|(asks, _), lead| *asks != process && lead.process != process);
        let Some(here) = self.all.get_mut(&process.0) else { return };
        here.retain(|one| one.client.upgrade().is_some_and(|one| one.process() != process));
        if here.is_empty() {
            self.all.remove(&process.0);
            self.observed.retain(|(namespace, _), _| *namespace != process.0);
            self.incoming.remove(&process.0);
        }
    }
}

const FIRST: RouteAddresses = (IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), ANY);
const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);
const LAST: RouteAddresses = (IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)), END);
const END: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)), u16::MAX);

/// Another one may be kept of what a network namespace has: what is not to be kept any more goes,
/// if there are many.
fn has_room<K: Ord + Copy, T>(
    all: &mut BTreeMap<K, T>,
    key: K,
    here: RangeInclusive<K>,
    keeps: impl Fn(&T) -> bool,
) -> bool {
    if all.contains_key(&key) || all.range(here.clone()).count() < LEADS_OF_NAMESPACE {
        return true;
    }
    let old = all.range(here.clone()).filter(|(_, one)| !keeps(one)).map(|(key, _)| *key);
    for key in old.collect::<Vec<_>>() {
        all.remove(&key);
    }
    all.range(here).count() < LEADS_OF_NAMESPACE
}

/// From where to where that was wanted.
pub(crate) fn way(wanted: &Wanted) -> RouteAddresses {
    let [from, to] = wanted.names.ends();
    (from.ip(), to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::INCOMING_OF_NAMESPACE;
    use omniverb_sys::tcp_connection_state::{self, TcpConnection};

    fn way_to(last: u8) -> RouteAddresses {
        ([10, 0, 0, 1].into(), ([10, 0, 0, last], 80).into())
    }

    fn offer(client: &Arc<Client>, (from, remote): RouteAddresses) -> Offer {
        let names = tcp_connection_state::TcpAddresses { local: (from, 4000).into(), remote };
        let namespace = client.namespace;
        let connection = TcpConnection { names, cookie: 1, namespace, is_bound: false };
        Offer { client: client.clone(), tag: 1, connection, accepted: None }
    }

    fn ask(all: &mut Gateways, client: &Client, way: RouteAddresses, now: u64) -> Answer {
        all.ask((client, now), way, now)
    }

    fn lead(
        all: &mut Gateways,
        client: &Client,
        way: RouteAddresses,
        now: u64,
    ) -> Option<OpenRoute> {
        if let Answer::Route(lead) = ask(all, client, way, now) { Some(lead) } else { None }
    }

    #[test]
    fn a_client_that_asks_and_connects_has_a_route_for_a_while() {
        let [gateway, worker, asks, stranger] = [5, 5, 5, 6].map(Client::alone);
        let mut all = Gateways::default();
        let way = way_to(2);
        assert!(matches!(ask(&mut all, &asks, way, 5), Answer::NoGateway));
        assert!(all.offered(&offer(&asks, way), 5).is_none(), "there was no gateway");
        let token = all.add(&gateway, Serves::Own).unwrap();
        assert!(all.of(&worker, token).is_some() && all.of(&worker, token ^ 1).is_none());
        assert!(all.of(&stranger, token).is_none(), "of another network namespace");
        assert!(matches!(ask(&mut all, &asks, way, 5), Answer::Soon));
        assert!(matches!(ask(&mut all, &stranger, way, 5), Answer::NoGateway));
        assert!(all.offered(&offer(&stranger, way), 6).is_none());
        assert!(all.offered(&offer(&asks, way_to(3)), 6).is_none(), "not there");
        let (told, wanted) = all.offered(&offer(&asks, way), 7).unwrap();
        assert!(Arc::ptr_eq(&told, &gateway));
        assert_eq!((wanted.client, wanted.at, super::way(&wanted)), (asks.number, 7, way));
        assert!(all.offered(&offer(&asks, way), 7).is_none(), "one for each question");
        assert!(matches!(ask(&mut all, &asks, way, 8), Answer::Later));
        assert_eq!(all.leads_now(&worker, &wanted, 9), Some(vec![8]));
        let found = OpenRoute { process: worker.process(), until: 7 + PORT_ALLOWED_FOR };
        assert_eq!(lead(&mut all, &asks, way, 10), Some(found));
        assert!(all.leads(&asks, way, worker.process()));
        assert_eq!(lead(&mut all, &asks, way_to(3), 10), None);
        assert_eq!(lead(&mut all, &asks, way, 7 + PORT_ALLOWED_FOR), None);
        assert_eq!(all.leads_now(&worker, &wanted, 7 + PORT_ALLOWED_FOR), None, "too late");
        let later = Wanted { at: u64::MAX, ..wanted };
        assert!(all.leads_now(&worker, &later, 10).is_some(), "no clock is ahead of ours");
        assert_eq!(lead(&mut all, &asks, way, 11).unwrap().until, 10 + PORT_ALLOWED_FOR);
        all.gone(worker.process());
        assert_eq!(lead(&mut all, &asks, way, 12), None);
        assert!(all.offered(&offer(&asks, way), 12 + FRESH).is_none(), "too late");
        all.gone(asks.process());
        all.gone(gateway.process());
        assert!(all.of(&worker, token).is_none());
        assert!(all.all.is_empty() && all.wants.is_empty() && all.leads.is_empty());
        assert!(all.observed.is_empty() && all.failed.is_empty() && all.incoming.is_empty());
    }

    #[test]
    fn what_one_has_proved_others_need_not() {
        let [gateway, worker, first, second] = [5; 4].map(Client::alone);
        let mut all = Gateways::default();
        all.add(&gateway, Serves::Own).unwrap();
        let way = way_to(2);
        ask(&mut all, &first, way, 5);
        let (_, wanted) = all.offered(&offer(&first, way), 5).unwrap();
        all.leads_now(&worker, &wanted, 6).unwrap();
        let Answer::Tell(told, again) = ask(&mut all, &second, way, 7) else { panic!() };
        assert!(Arc::ptr_eq(&told, &gateway));
        assert_eq!(again, Wanted { client: second.number, ..wanted });
        assert!(matches!(ask(&mut all, &second, way, 8), Answer::Later));
        assert_eq!(all.fails(5, (&again, Failure::NotThere), 9), [7, 8]);
        let late = Wanted { client: second.number, ..again };
        assert!(matches!(ask(&mut all, &second, way, 9), Answer::Soon), "by a proof of his own");
        assert_eq!(all.fails(5, (&late, Failure::NotThere), 9), []);
        assert!(matches!(ask(&mut all, &second, way, 9), Answer::NoGateway), "in vain");
        assert!(matches!(ask(&mut all, &first, way, 9), Answer::Route(_)), "it leads him");
        let other = Client::alone(5);
        assert!(
            matches!(ask(&mut all, &other, way, 9), Answer::Soon),
            "it was not in vain for him"
        );
        assert!(matches!(ask(&mut all, &second, way, 9 + IN_VAIN), Answer::Soon), "no more");
        all.leads_now(&worker, &wanted, 10).unwrap();
        assert!(matches!(ask(&mut all, &second, way_to(3), 10), Answer::Soon), "elsewhere");
        let late = 6 + PORT_ALLOWED_FOR / 2;
        assert!(matches!(ask(&mut all, &Client::alone(5), way, late), Answer::Soon));
        // A client for which there is no room takes nothing from others.
        let full = Wanted { client: 77, ..wanted };
        assert_eq!(all.fails(5, (&full, Failure::NotBrought), 10), []);
        // No client waits for a gateway that says nothing.
        let third = Client::alone(5);
        let Answer::Tell(..) = ask(&mut all, &third, way, 11) else { panic!() };
        assert!(matches!(ask(&mut all, &third, way, 11 + MOMENT), Answer::NoGateway));
        let Answer::Tell(..) = ask(&mut all, &first, way_to(2), 12 + PORT_ALLOWED_FOR) else {
            return;
        };
        panic!("long ago");
    }

    #[test]
    fn what_has_come_is_known_for_a_while() {
        let [gateway, server, elsewhere] = [5, 5, 6].map(Client::alone);
        let mut all = Gateways::default();
        let came = |client: &Arc<Client>| Offer { accepted: Some(9), ..offer(client, way_to(2)) };
        let names = came(&server).connection.names;
        let ends = [names.local, names.remote];
        all.offered(&came(&server), 9);
        assert!(all.incoming(5, ends, 9).is_none(), "there was no gateway");
        all.add(&gateway, Serves::Own).unwrap();
        all.offered(&offer(&server, way_to(2)), 9);
        assert!(all.incoming(5, ends, 9).is_none(), "it was not accepted");
        all.offered(&came(&server), 9);
        all.offered(&came(&elsewhere), 9);
        let (found, matched) = all.incoming(5, ends, 10).unwrap();
        assert!(found.at == 9 && Arc::ptr_eq(&found.by.upgrade().unwrap(), &server));
        assert_eq!(matched, Match::Exact);
        let like = SocketAddr::new(ends[1].ip(), 7);
        assert_eq!(all.incoming(5, [ends[0], like], 10).unwrap().1, Match::SameRoute);
        let elsewhere_from = SocketAddr::new([10, 0, 0, 9].into(), ends[1].port());
        assert!(all.incoming(5, [ends[0], elsewhere_from], 10).is_none());
        assert!(all.incoming(5, [like, ends[1]], 10).is_none());
        assert!(all.incoming(6, ends, 10).is_none());
        assert!(all.incoming(5, [ends[1], ends[0]], 10).is_none());
        assert!(all.incoming(5, ends, 9 + PORT_ALLOWED_FOR).is_none());
    }

    #[test]
    fn a_gateway_serves_its_user_unless_it_may_read_all() {
        let gateway = Client::alone(5);
        let mut other = Arc::into_inner(Client::alone(5)).unwrap();
        other.peer.uid = gateway.peer.uid + 1;
        let other = Arc::new(other);
        let mut all = Gateways::default();
        let token = all.add(&gateway, Serves::Own).unwrap();
        assert!(!all.of(&gateway, token).unwrap().serves(&other));
        assert!(matches!(ask(&mut all, &other, way_to(2), 1), Answer::NoGateway));
        let reader = Client::alone(5);
        all.add(&reader, Serves::All).unwrap();
        assert!(matches!(ask(&mut all, &other, way_to(2), 1), Answer::Soon));
        let (told, _) = all.offered(&offer(&other, way_to(2)), 2).unwrap();
        assert!(Arc::ptr_eq(&told, &reader));
    }

    #[test]
    fn one_that_listens_there_no_more_is_not_led_to() {
        let [gateway, worker, asks] = [5; 3].map(Client::alone);
        let mut all = Gateways::default();
        all.add(&gateway, Serves::Own).unwrap();
        ask(&mut all, &asks, way_to(2), 5);
        let (_, wanted) = all.offered(&offer(&asks, way_to(2)), 5).unwrap();
        all.leads_now(&worker, &wanted, 6).unwrap();
        assert!(lead(&mut all, &asks, way_to(2), 7).is_some());
        assert_eq!(all.fails(5, (&wanted, Failure::NotThere), 8), []);
        assert!(!all.leads(&asks, way_to(2), worker.process()));
        assert!(matches!(ask(&mut all, &asks, way_to(2), 8), Answer::Soon), "another may");
    }

    #[test]
    fn a_user_does_not_take_the_places_of_others() {
        let mut all = Gateways::default();
        let many: Vec<_> = (0..GATEWAYS_OF_NAMESPACE + 9).map(|_| Client::alone(5)).collect();
        let taken = many.iter().filter(|one| all.add(one, Serves::Own).is_some()).count();
        assert_eq!(taken, GATEWAYS_OF_USER);
        assert!(all.add(&many[0], Serves::All).is_none(), "once each");
        let taken = many[20..].iter().chain(&many[9..16]).map(|one| all.add(one, Serves::All));
        assert_eq!(taken.flatten().count(), GATEWAYS_FOR_ALL);
        for user in 0..GATEWAYS_OF_NAMESPACE as u32 * 2 {
            let mut one = Arc::into_inner(Client::alone(5)).unwrap();
            one.peer.uid = 70_000 + user;
            let one = Arc::new(one);
            all.add(&one, Serves::Own);
            std::mem::forget(one);
        }
        assert_eq!(all.all[&5].len(), GATEWAYS_OF_NAMESPACE);
    }

    #[test]
    fn each_client_has_a_bounded_number_of_routes() {
        let [gateway, asks] = [5, 5].map(Client::alone);
        let mut all = Gateways::default();
        all.add(&gateway, Serves::Own).unwrap();
        let to = |port: usize| (way_to(2).0, ([10, 0, 0, 2], port as u16).into());
        for port in 0..WANTS_OF_PROCESS + 9 {
            ask(&mut all, &asks, to(port), 1);
        }
        assert_eq!(all.wants[&asks.process()].len(), WANTS_OF_PROCESS);
        ask(&mut all, &asks, way_to(3), 1 + FRESH);
        assert_eq!(all.wants[&asks.process()].len(), 1);
        let wanted = |port| {
            let names = Names { addresses: [[0; 16]; 2], ports: [1, port] };
            Wanted { client: 1, at: 5, names }
        };
        let many = 0..LEADS_OF_NAMESPACE as u16 + 9;
        let kept = many.clone().filter(|port| all.leads_now(&gateway, &wanted(*port), 6).is_some());
        assert_eq!(kept.count(), LEADS_OF_NAMESPACE);
        assert_eq!(all.observed.len(), LEADS_OF_NAMESPACE);
        assert!(all.leads_now(&gateway, &wanted(3), 6).is_some(), "one that is known");
        let other = |port| Wanted { client: 2, ..wanted(port) };
        // What was proved is not any more, and then it is in vain.
        many.clone()
            .chain(many)
            .for_each(|port| _ = all.fails(5, (&other(port), Failure::NotThere), 6));
        assert_eq!(all.failed.len(), LEADS_OF_NAMESPACE);
        all.fails(5, (&other(u16::MAX), Failure::NotThere), 6 + IN_VAIN);
        assert_eq!(all.failed.len(), 1, "those are over");
        for port in 0..INCOMING_OF_NAMESPACE as u16 + 9 {
            let connection = offer(&asks, to(port.into()));
            all.offered(&Offer { accepted: Some(5), ..connection }, 6);
        }
        let arrived = |all: &Gateways, port: u16, now| {
            let names = offer(&asks, to(port.into())).connection.names;
            let found = all.incoming(5, [names.local, names.remote], now);
            found.is_some_and(|(_, matched)| matched == Match::Exact)
        };
        assert_eq!(all.incoming[&5].count().0, INCOMING_OF_NAMESPACE);
        assert!(!arrived(&all, 8, 6) && arrived(&all, 9, 6), "the oldest go");
        let as_well = [([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 2).into()];
        let one = IncomingConnection { at: 5, by: Arc::downgrade(&asks) };
        all.add_incoming(5, as_well, &one);
        assert_eq!(all.incoming(5, as_well, 6).map(|(_, matched)| matched), Some(Match::Exact));
        all.offered(
            &Offer { accepted: Some(5 + PORT_ALLOWED_FOR), ..offer(&asks, to(1)) },
            5 + PORT_ALLOWED_FOR,
        );
        assert_eq!(all.incoming[&5].count(), (1, 1), "those are old");
    }
}
