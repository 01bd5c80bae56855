//! Keeps offered sockets whose other end has not been offered yet.

use crate::broker_daemon_messages::NamespaceAddress as Address;
use crate::client::Client;
use crate::limits::{ELSEWHERE, OFFERS, OFFERS_OF_ALL, OFFERS_OF_NAMESPACE};
use omniverb_sys::tcp_connection_state::{TcpAddresses, TcpConnection};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeBounds;
use std::sync::Arc;

/// A connected socket that a process has offered.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) client: Arc<Client>,
    pub(crate) tag: u64,
    pub(crate) connection: TcpConnection,
    /// When it was offered, in nanoseconds, if its process says that it was accepted just then.
    pub(crate) accepted: Option<u64>,
}

impl Offer {
    /// The namespace that it is from, and its address there.
    pub(crate) fn address(&self) -> Address {
        Address { namespace: self.connection.namespace, address: self.connection.names.local.ip() }
    }
}

type Place = (u64, TcpAddresses);

/// A process: its network namespace and its number.
type Process = (u64, u64);

fn process(client: &Client) -> Process {
    (client.namespace, client.number)
}

/// All of them: by network namespace and names; and each process's, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    all: HashMap<Place, (u64, Offer)>,
    of: BTreeMap<Process, BTreeMap<u64, Place>>,
    /// In which network namespaces these names were offered.
    named: HashMap<TcpAddresses, BTreeSet<u64>>,
    last: u64,
}

impl Offers {
    /// Takes out the offer of the other end, as far as names tell.
    fn other(&mut self, connection: &TcpConnection) -> Option<Offer> {
        self.remove(&(connection.namespace, connection.names.swapped()))
    }

    /// The same; keeps this one if there is none.
    pub(crate) fn other_or_add(&mut self, offer: &Offer) -> Option<Offer> {
        let other = self.other(&offer.connection);
        if other.is_none() {
            self.add(offer.clone());
        }
        other
    }

    /// Keeps one. What has the same names is no more: it was another connection, or is the same.
    fn add(&mut self, offer: Offer) {
        let place = (offer.connection.namespace, offer.connection.names);
        if offer.client.is_gone() {
            // The process ended while another thread handled the offer: it would never be taken
            // out.
            return;
        }
        self.remove(&place);
        self.last += 1;
        let who = process(&offer.client);
        self.of.entry(who).or_default().insert(self.last, place);
        self.all.insert(place, (self.last, offer));
        self.named.entry(place.1).or_default().insert(place.0);
        let here = (who.0, 0)..=(who.0, u64::MAX);
        self.limit(who..=who, OFFERS);
        self.limit(here, OFFERS_OF_NAMESPACE);
        if self.all.len() > OFFERS_OF_ALL {
            self.limit(.., OFFERS_OF_ALL);
        }
    }

    /// Of so many processes the one with the most offers gives up its oldest if all have more than
    /// that.
    fn limit(&mut self, processes: impl RangeBounds<Process>, most: usize) {
        let mut count = 0;
        let of = self.of.range(processes).map(|(_, own)| own);
        let largest = of.inspect(|own| count += own.len()).max_by_key(|own| own.len());
        let oldest = largest.and_then(|own| own.values().next().copied());
        if let Some(oldest) = oldest.filter(|_| count > most) {
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, place: &Place) -> Option<Offer> {
        let (number, offer) = self.all.remove(place)?;
        self.unname(place);
        if let Some(own) = self.of.get_mut(&process(&offer.client)) {
            own.remove(&number);
        }
        Some(offer)
    }

    /// Removes the offers of a process that is gone. Those that a thread handles do not come back.
    pub(crate) fn gone(&mut self, client: &Client) {
        client.go();
        for place in self.of.remove(&process(client)).unwrap_or_default().into_values() {
            self.all.remove(&place);
            self.unname(&place);
        }
    }

    fn unname(&mut self, (namespace, names): &Place) {
        if let Some(namespaces) = self.named.get_mut(names) {
            namespaces.remove(namespace);
            if namespaces.is_empty() {
                self.named.remove(names);
            }
        }
    }

    /// Offers from other network namespaces that may be the other end, as far as names tell: a few
    /// of them.
    pub(crate) fn elsewhere(&self, connection: &TcpConnection) -> Vec<Offer> {
        self.elsewhere_where(connection, |_| true)
    }

    /// The same, in those namespaces only that `may`.
    pub(crate) fn elsewhere_where(
        &self,
        connection: &TcpConnection,
        may: impl Fn(u64) -> bool,
    ) -> Vec<Offer> {
        let names = connection.names.swapped();
        let namespaces = self.named.get(&names).into_iter().flatten().copied();
        let others = namespaces.filter(|namespace| *namespace != connection.namespace);
        let others = others.filter(|namespace| may(*namespace));
        let found = others.filter_map(|namespace| self.all.get(&(namespace, names)));
        found.map(|(_, offer)| offer.clone()).take(ELSEWHERE).collect()
    }

    /// Names of connections that both ends of a pair have offered, as the first has them.
    pub(crate) fn between(&self, [one, other]: [Address; 2]) -> Vec<TcpAddresses> {
        let processes = (one.namespace, 0)..=(one.namespace, u64::MAX);
        let places = self.of.range(processes).flat_map(|(_, own)| own.values());
        let names = places.map(|(_, names)| *names).filter(|names| {
            names.local.ip() == one.address
                && names.remote.ip() == other.address
                && self.all.contains_key(&(other.namespace, names.swapped()))
        });
        names.collect()
    }

    /// The two processes that have offered both ends of a connection between these places, if any.
    pub(crate) fn clients_between(&self, places: [Address; 2]) -> Option<[Arc<Client>; 2]> {
        let names = self.between(places).first().copied()?;
        let [one, other] = places.map(|place| place.namespace);
        let client = |place| Some(self.all.get(&place)?.1.client.clone());
        Some([client((one, names))?, client((other, names.swapped()))?])
    }

    /// Takes out both ends of a connection between two network namespaces, as the first has its
    /// names; neither if one is not there.
    pub(crate) fn both(&mut self, names: TcpAddresses, namespaces: [u64; 2]) -> Option<[Offer; 2]> {
        let [one, other] = namespaces;
        let places = [(one, names), (other, names.swapped())];
        if !places.iter().all(|place| self.all.contains_key(place)) {
            return None;
        }
        let [one, other] = places.map(|place| self.remove(&place));
        Some([one?, other?])
    }

    /// One that was taken out waits again, unless there is another of its names.
    pub(crate) fn put_back(&mut self, offer: Offer) {
        let place = (offer.connection.namespace, offer.connection.names);
        if !self.all.contains_key(&place) {
            self.add(offer);
        }
    }

    /// What waits of a process.
    pub(crate) fn of(&self, client: &Client) -> Vec<Offer> {
        let places = self.of.get(&process(client)).into_iter().flat_map(|own| own.values());
        places.filter_map(|place| self.all.get(place)).map(|(_, offer)| offer.clone()).collect()
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.all.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(port: u16) -> TcpConnection {
        let of = |port| ([127, 0, 0, 1], port).into();
        let names = TcpAddresses { local: of(port), remote: of(80) };
        TcpConnection { names, cookie: u64::from(port), namespace: 5, is_bound: false }
    }

    #[test]
    fn offers_are_found_by_the_other_end_and_go_with_their_process() {
        let [one, two] = [5, 5].map(Client::alone);
        let mut offers = Offers::default();
        for port in 1..=OFFERS as u16 + 10 {
            offers.add(Offer {
                client: one.clone(),
                tag: 7,
                connection: connection(port),
                accepted: None,
            });
        }
        offers.add(Offer {
            client: two.clone(),
            tag: 8,
            connection: connection(40000),
            accepted: None,
        });
        assert_eq!(offers.len(), OFFERS + 1, "the oldest are given up");
        let far = |port: u16| {
            let one = connection(port);
            TcpConnection { names: one.names.swapped(), ..one }
        };
        assert!(offers.other(&far(10)).is_none());
        assert_eq!(offers.other(&far(11)).unwrap().connection.cookie, 11);
        assert!(offers.other(&far(11)).is_none());
        assert!(offers.other(&TcpConnection { namespace: 6, ..far(12) }).is_none());
        offers.gone(&one);
        assert_eq!((offers.len(), offers.named.len()), (1, 1));
        assert_eq!(offers.other(&far(40000)).unwrap().tag, 8);
    }

    #[test]
    fn the_other_end_may_be_in_another_namespace() {
        let [one, two, three] = [5, 6, 7].map(Client::alone);
        let mut offers = Offers::default();
        let names = connection(9).names;
        let offer = |client: &Arc<Client>, names| {
            let connection = TcpConnection { namespace: client.namespace, names, ..connection(9) };
            Offer { client: client.clone(), tag: client.namespace, connection, accepted: None }
        };
        for client in [&two, &three] {
            offers.add(offer(client, names.swapped()));
        }
        let ours = offer(&one, names);
        assert!(offers.other_or_add(&ours).is_none(), "in its own there is none");
        let found: Vec<u64> =
            offers.elsewhere(&ours.connection).iter().map(|other| other.tag).collect();
        assert_eq!(found, [6, 7]);
        let found = offers.elsewhere_where(&ours.connection, |namespace| namespace != 6);
        assert_eq!(found.len(), 1, "who was denied takes nobody's place");
        let address = |namespace| Address { namespace, address: [127, 0, 0, 1].into() };
        assert_eq!(offers.between([address(5), address(7)]), [names]);
        assert_eq!(offers.between([address(5), address(8)]), []);
        let clients = offers.clients_between([address(5), address(7)]).unwrap();
        assert_eq!(clients.map(|client| client.namespace), [5, 7]);
        assert!(offers.clients_between([address(5), address(8)]).is_none());
        let [first, second] = offers.both(names, [5, 7]).unwrap();
        assert_eq!((first.tag, second.tag), (5, 7));
        assert!(offers.both(names, [5, 6]).is_none() && offers.len() == 1);
        offers.put_back(first);
        let [first, second] = offers.both(names, [5, 6]).unwrap();
        assert!(offers.elsewhere(&ours.connection).is_empty() && offers.named.is_empty());
        // One of them ends meanwhile.
        offers.gone(&one);
        offers.put_back(first);
        offers.put_back(second);
        assert_eq!(offers.len(), 1);
        assert!(!offers.of.contains_key(&process(&one)));
        assert_eq!(Arc::strong_count(&one), 2, "this and what was looked for");
    }

    #[test]
    fn the_largest_holder_gives_up_its_oldest() {
        let mut offers = Offers::default();
        let mut offer = |client: &Arc<Client>, port| {
            let connection = TcpConnection { namespace: client.namespace, ..connection(port) };
            offers.add(Offer { client: client.clone(), tag: 7, connection, accepted: None });
            offers.len()
        };
        let few = Client::alone(5);
        offer(&few, 60_000);
        let many: Vec<_> = (0..20).map(|_| Client::alone(5)).collect();
        let ports = 1..=OFFERS as u16;
        for (number, one) in many.iter().enumerate() {
            let from = number as u16 * OFFERS as u16;
            ports.clone().for_each(|port| _ = offer(one, from + port));
        }
        let elsewhere = Client::alone(6);
        assert_eq!(offer(&elsewhere, 1), OFFERS_OF_NAMESPACE + 1);
        let names = connection(60_000).names.swapped();
        let other = TcpConnection { names, ..connection(60_000) };
        assert!(offers.other(&other).is_some(), "who has few keeps them");
        assert!(many.iter().all(|one| offers.of[&process(one)].len() > OFFERS / 2));
    }
}
