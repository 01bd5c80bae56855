//! Offers whose other end has not come yet.

use crate::client::Client;
use crate::limits::OFFERS;
use omniverb_sys::connection::{Connection, Names};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A socket that somebody had when he sent it.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) client: Arc<Client>,
    pub(crate) tag: u64,
    pub(crate) connection: Connection,
}

type Place = (u64, Names);

/// All of them: by network namespace and names; and each process's, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    all: HashMap<Place, (u64, Offer)>,
    of: HashMap<u64, BTreeMap<u64, Place>>,
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
        let own = self.of.entry(offer.client.number).or_default();
        own.insert(self.last, place);
        let oldest = if own.len() > OFFERS { own.first_key_value() } else { None };
        let oldest = oldest.map(|(_, place)| *place);
        self.all.insert(place, (self.last, offer));
        if let Some(oldest) = oldest {
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, place: &Place) -> Option<Offer> {
        let (number, offer) = self.all.remove(place)?;
        if let Some(own) = self.of.get_mut(&offer.client.number) {
            own.remove(&number);
        }
        Some(offer)
    }

    /// A process has gone.
    pub(crate) fn gone(&mut self, client: &Client) {
        for place in self.of.remove(&client.number).unwrap_or_default().into_values() {
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

    fn connection(port: u16) -> Connection {
        let of = |port| ([127, 0, 0, 1], port).into();
        let names = Names { local: of(port), remote: of(80) };
        Connection { names, cookie: u64::from(port), namespace: 5, is_bound: false }
    }

    #[test]
    fn offers_are_found_by_the_other_end_and_go_with_their_process() {
        let client = |_| Arc::new(Client::new(socket::pair().unwrap().0, 0).unwrap());
        let [one, two] = [0, 1].map(client);
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
}
