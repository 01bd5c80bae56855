//! Ferries: processes that bring those of their network namespace to other hosts
//! (docs/decisions/0063).
//!
//! A ferry is the other side of a trunk for a process of its own host, and keeps that alike with
//! the trunk of a ferry on another one. Who wants to be brought somewhere by a trunk, and is not
//! found to be brought within this host, connects by TCP; that connection he offers, as any; and
//! the ferry hears of it. If the ferry over there finds that the connection has arrived, this one
//! leads there for a while.
//!
//! A ferry reads and writes what those who go by it send. So it serves its own user only, unless it
//! may read what everybody in the network namespace sends anyway, and has shown so by a raw socket.

use crate::client::Client;
use crate::limits::{FERRIES_OF_NAMESPACE, LEADS_OF_NAMESPACE, WANTS_OF_PROCESS};
use crate::listeners::Process;
use crate::offers::Offer;
use omniverb_carry::message::Wanted;
use omniverb_carry::trunk::WAY_KEPT;
use omniverb_sys::random;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Weak};

/// How long somebody may take from asking to connecting, or from connecting until the ferry over
/// there asks whether he has arrived, in nanoseconds.
pub(crate) const FRESH: u64 = 5_000_000_000;

/// From which address to where.
pub(crate) type Way = (IpAddr, SocketAddr);

/// One of them.
#[derive(Clone, Debug)]
pub(crate) struct Ferry {
    client: Weak<Client>,
    token: u64,
    user: u32,
    is_for_all: bool,
}

impl Ferry {
    /// It may have what that process sends.
    pub(crate) fn serves(&self, client: &Client) -> bool {
        self.is_for_all || self.user == client.peer.uid
    }
}

/// Where one of a ferry's connections to the broker leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lead {
    /// That connection, which is a process like others here.
    pub(crate) process: Process,
    /// Until when somebody may go there.
    pub(crate) until: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Ferries {
    /// Of each network namespace, the oldest first.
    all: BTreeMap<u64, Vec<Ferry>>,
    /// Who has asked for a way, and when.
    wants: BTreeMap<Process, BTreeMap<Way, u64>>,
    /// Where who has asked is brought to.
    leads: BTreeMap<(Process, Way), Lead>,
}

impl Ferries {
    /// A process is one from now on: what its other connections are known by. `None`: there are
    /// enough.
    pub(crate) fn add(&mut self, client: &Arc<Client>, is_for_all: bool) -> Option<u64> {
        let here = self.all.entry(client.namespace).or_default();
        here.retain(|one| one.client.strong_count() > 0);
        if here.len() >= FERRIES_OF_NAMESPACE {
            return None;
        }
        let (token, user) = (random::number(), client.peer.uid);
        here.push(Ferry { client: Arc::downgrade(client), token, user, is_for_all });
        Some(token)
    }

    /// The one of a connection that has this token.
    pub(crate) fn of(&self, client: &Client, token: u64) -> Option<Ferry> {
        let here = self.all.get(&client.namespace)?;
        here.iter().find(|one| one.token == token && one.client.strong_count() > 0).cloned()
    }

    fn serving(&self, client: &Client) -> Option<Arc<Client>> {
        let mut here = self.all.get(&client.namespace)?.iter();
        here.find_map(|one| one.client.upgrade().filter(|_| one.serves(client)))
    }

    /// A process has asked for a way: where a ferry leads it, if one does. It may be about to
    /// connect by TCP.
    pub(crate) fn lead(&mut self, client: &Client, way: Way, now: u64) -> Option<Lead> {
        self.serving(client)?;
        let wants = self.wants.entry(client.process()).or_default();
        wants.retain(|_, at| now.saturating_sub(*at) < FRESH);
        if wants.len() < WANTS_OF_PROCESS || wants.contains_key(&way) {
            wants.insert(way, now);
        }
        let lead = self.leads.get(&(client.process(), way))?;
        (lead.until > now).then_some(*lead)
    }

    /// It leads there still.
    pub(crate) fn leads(&self, client: &Client, way: Way, process: Process) -> bool {
        self.leads.get(&(client.process(), way)).is_some_and(|lead| lead.process == process)
    }

    /// A connection was offered: which ferry is to hear what of it.
    pub(crate) fn offered(&mut self, offer: &Offer, now: u64) -> Option<(Arc<Client>, Wanted)> {
        let (client, names) = (&offer.client, offer.connection.names);
        let wants = self.wants.get_mut(&client.process())?;
        let at = wants.remove(&(names.local.ip(), names.remote))?;
        if now.saturating_sub(at) >= FRESH {
            return None;
        }
        let names = omniverb_carry::trunk::Names {
            addresses: [names.local.ip(), names.remote.ip()].map(bytes),
            ports: [names.local.port(), names.remote.port()],
        };
        Some((self.serving(client)?, Wanted { client: client.number, at: now, names }))
    }

    /// One of a ferry's connections leads to where that was wanted, for a while from then on.
    pub(crate) fn leads_now(&mut self, worker: &Client, wanted: &Wanted, now: u64) -> bool {
        let process = (worker.namespace, wanted.client);
        let here = ((worker.namespace, 0), FIRST)..=((worker.namespace, u64::MAX), LAST);
        self.leads.retain(|_, lead| lead.until > now);
        let (way, until) = (way(wanted), wanted.at.min(now).saturating_add(WAY_KEPT));
        let has_room = self.leads.range(here).count() < LEADS_OF_NAMESPACE;
        let may = until > now && (has_room || self.leads.contains_key(&(process, way)));
        if may {
            self.leads.insert((process, way), Lead { process: worker.process(), until });
        }
        may
    }

    /// A process has gone.
    pub(crate) fn gone(&mut self, process: Process) {
        self.wants.remove(&process);
        self.leads.retain(|(asks, _), lead| *asks != process && lead.process != process);
        if let Some(here) = self.all.get_mut(&process.0) {
            here.retain(|one| one.client.upgrade().is_some_and(|one| one.process() != process));
            if here.is_empty() {
                self.all.remove(&process.0);
            }
        }
    }
}

const FIRST: Way = (IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), ANY);
const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);
const LAST: Way = (IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)), END);
const END: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)), u16::MAX);

/// From where to where that was wanted.
pub(crate) fn way(wanted: &Wanted) -> Way {
    let [from, to] = ends(&wanted.names);
    (from.ip(), to)
}

/// Both ends of a connection, of names that somebody has said.
pub(crate) fn ends(names: &omniverb_carry::trunk::Names) -> [SocketAddr; 2] {
    let of = |end: usize| {
        let address = Ipv6Addr::from(names.addresses[end]).to_canonical();
        SocketAddr::new(address, names.ports[end])
    };
    [of(0), of(1)]
}

fn bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_sys::connection::{Connection, Names};

    fn way_to(last: u8) -> Way {
        ([10, 0, 0, 1].into(), ([10, 0, 0, last], 80).into())
    }

    fn offer(client: &Arc<Client>, (from, remote): Way) -> Offer {
        let names = Names { local: (from, 4000).into(), remote };
        let namespace = client.namespace;
        let connection = Connection { names, cookie: 1, namespace, is_bound: false };
        Offer { client: client.clone(), tag: 1, connection, accepted: None }
    }

    #[test]
    fn who_asks_and_then_connects_is_led_for_a_while() {
        let [ferry, worker, asks, stranger] = [5, 5, 5, 6].map(Client::alone);
        let mut all = Ferries::default();
        let way = way_to(2);
        assert_eq!(all.lead(&asks, way, 5), None);
        assert!(all.offered(&offer(&asks, way), 5).is_none(), "there was no ferry");
        let token = all.add(&ferry, false).unwrap();
        assert!(all.of(&worker, token).is_some() && all.of(&worker, token + 1).is_none());
        assert!(all.of(&stranger, token).is_none(), "of another network namespace");
        assert_eq!((all.lead(&asks, way, 5), all.lead(&stranger, way, 5)), (None, None));
        assert!(all.offered(&offer(&stranger, way), 6).is_none());
        assert!(all.offered(&offer(&asks, way_to(3)), 6).is_none(), "not there");
        let (told, wanted) = all.offered(&offer(&asks, way), 7).unwrap();
        assert!(Arc::ptr_eq(&told, &ferry));
        assert_eq!((wanted.client, wanted.at, super::way(&wanted)), (asks.number, 7, way));
        assert!(all.offered(&offer(&asks, way), 7).is_none(), "one for each question");
        assert!(all.leads_now(&worker, &wanted, 9));
        let lead = Lead { process: worker.process(), until: 7 + WAY_KEPT };
        assert_eq!(all.lead(&asks, way, 10), Some(lead));
        assert!(all.leads(&asks, way, worker.process()));
        assert_eq!(all.lead(&asks, way_to(3), 10), None);
        assert_eq!(all.lead(&worker, way, 10), None, "only who has asked");
        assert_eq!(all.lead(&asks, way, 7 + WAY_KEPT), None);
        assert!(!all.leads_now(&worker, &wanted, 7 + WAY_KEPT), "too late");
        let later = Wanted { at: u64::MAX, ..wanted };
        assert!(all.leads_now(&worker, &later, 10), "no clock is ahead of ours");
        assert_eq!(all.lead(&asks, way, 11).unwrap().until, 10 + WAY_KEPT);
        all.gone(worker.process());
        assert_eq!(all.lead(&asks, way, 12), None);
        assert!(all.offered(&offer(&asks, way), 12 + FRESH).is_none(), "too late");
        all.gone(ferry.process());
        all.gone(asks.process());
        assert!(all.of(&worker, token).is_none());
        assert!(all.all.is_empty() && all.wants.is_empty() && all.leads.is_empty());
    }

    #[test]
    fn a_ferry_serves_its_user_unless_it_may_read_all() {
        let ferry = Client::alone(5);
        let mut other = Arc::into_inner(Client::alone(5)).unwrap();
        other.peer.uid = ferry.peer.uid + 1;
        let other = Arc::new(other);
        let mut all = Ferries::default();
        let token = all.add(&ferry, false).unwrap();
        assert!(!all.of(&ferry, token).unwrap().serves(&other));
        all.lead(&other, way_to(2), 1);
        assert!(all.offered(&offer(&other, way_to(2)), 2).is_none());
        let reader = Client::alone(5);
        all.add(&reader, true).unwrap();
        all.lead(&other, way_to(2), 1);
        let (told, _) = all.offered(&offer(&other, way_to(2)), 2).unwrap();
        assert!(Arc::ptr_eq(&told, &reader));
    }

    #[test]
    fn nobody_has_more_kept_than_so_much() {
        let [ferry, asks] = [5, 5].map(Client::alone);
        let mut all = Ferries::default();
        let more: Vec<_> = (0..FERRIES_OF_NAMESPACE).map(|_| Client::alone(5)).collect();
        assert!(all.add(&ferry, false).is_some());
        assert_eq!(more.iter().filter(|one| all.add(one, false).is_some()).count() + 1, more.len());
        let ways =
            |count: usize| (0..count).map(|port| (way_to(2).0, ([10, 0, 0, 2], port as u16)));
        for (from, to) in ways(WANTS_OF_PROCESS + 9) {
            all.lead(&asks, (from, to.into()), 1);
        }
        assert_eq!(all.wants[&asks.process()].len(), WANTS_OF_PROCESS);
        all.lead(&asks, way_to(3), 1 + FRESH);
        assert_eq!(all.wants[&asks.process()].len(), 1);
        let wanted = |port| {
            let names = omniverb_carry::trunk::Names { addresses: [[0; 16]; 2], ports: [1, port] };
            Wanted { client: 1, at: 5, names }
        };
        let many = 0..LEADS_OF_NAMESPACE as u16 + 9;
        let kept = many.filter(|port| all.leads_now(&ferry, &wanted(*port), 6)).count();
        assert_eq!(kept, LEADS_OF_NAMESPACE);
        assert!(all.leads_now(&ferry, &wanted(3), 6), "one that is known");
    }
}
