//! Offers whose other end has not come yet.

use crate::client::Client;
use crate::limits::{OFFERS, OFFERS_OF_ALL, OFFERS_OF_NAMESPACE};
use omniverb_sys::connection::{Connection, Names};
use std::collections::{BTreeMap, HashMap};
use std::ops::RangeBounds;
use std::sync::Arc;

/// A socket that somebody had when he sent it.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) client: Arc<Client>,
    pub(crate) tag: u64,
    pub(crate) connection: Connection,
}

type Place = (u64, Names);

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
    last: u64,
}

impl Offers {
    /// Takes out what was offered by who has the other end, as far as names say that.
    fn other(&mut self, connection: &Connection) -> Option<Offer> {
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
        self.remove(&place);
        self.last += 1;
        let who = process(&offer.client);
        self.of.entry(who).or_default().insert(self.last, place);
        self.all.insert(place, (self.last, offer));
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
        if let Some(own) = self.of.get_mut(&process(&offer.client)) {
            own.remove(&number);
        }
        Some(offer)
    }

    /// A process has gone.
    pub(crate) fn gone(&mut self, client: &Client) {
        for place in self.of.remove(&process(client)).unwrap_or_default().into_values() {
            self.all.remove(&place);
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.all.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_sys::socket;

    fn client(namespace: u64) -> Arc<Client> {
        Arc::new(Client::new(socket::pair().unwrap().0, namespace).unwrap())
    }

    fn connection(port: u16) -> Connection {
        let of = |port| ([127, 0, 0, 1], port).into();
        let names = Names { local: of(port), remote: of(80) };
        Connection { names, cookie: u64::from(port), namespace: 5, is_bound: false }
    }

    #[test]
    fn offers_are_found_by_the_other_end_and_go_with_their_process() {
        let [one, two] = [5, 5].map(client);
        let mut offers = Offers::default();
        for port in 1..=OFFERS as u16 + 10 {
            offers.add(Offer { client: one.clone(), tag: 7, connection: connection(port) });
        }
        offers.add(Offer { client: two.clone(), tag: 8, connection: connection(40000) });
        assert_eq!(offers.len(), OFFERS + 1, "the oldest are given up");
        let far = |port: u16| {
            let one = connection(port);
            Connection { names: one.names.swapped(), ..one }
        };
        assert!(offers.other(&far(10)).is_none());
        assert_eq!(offers.other(&far(11)).unwrap().connection.cookie, 11);
        assert!(offers.other(&far(11)).is_none());
        assert!(offers.other(&Connection { namespace: 6, ..far(12) }).is_none());
        offers.gone(&one);
        assert_eq!(offers.len(), 1);
        assert_eq!(offers.other(&far(40000)).unwrap().tag, 8);
    }

    #[test]
    fn who_has_the_most_gives_up_his_oldest() {
        let mut offers = Offers::default();
        let mut offer = |client: &Arc<Client>, port| {
            let connection = Connection { namespace: client.namespace, ..connection(port) };
            offers.add(Offer { client: client.clone(), tag: 7, connection });
            offers.len()
        };
        let few = client(5);
        offer(&few, 60_000);
        let many: Vec<_> = (0..20).map(|_| client(5)).collect();
        let ports = 1..=OFFERS as u16;
        for (number, one) in many.iter().enumerate() {
            let from = number as u16 * OFFERS as u16;
            ports.clone().for_each(|port| _ = offer(one, from + port));
        }
        let elsewhere = client(6);
        assert_eq!(offer(&elsewhere, 1), OFFERS_OF_NAMESPACE + 1);
        let names = connection(60_000).names.swapped();
        let other = Connection { names, ..connection(60_000) };
        assert!(offers.other(&other).is_some(), "who has few keeps them");
        assert!(many.iter().all(|one| offers.of[&process(one)].len() > OFFERS / 2));
    }
}
