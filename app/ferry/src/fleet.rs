//! All trunks to other hosts, and who begins them: the broker, for processes of this host, and
//! other ferries.

use crate::broker::Broker;
use crate::crossing::Crossing;
use crate::id::{Id, Listener};
use crate::limits::{AGAIN, CROSSINGS, CROSSINGS_OF, IN_VAIN, STRANGERS};
use crate::part::{Comes, Goes, Part};
use omniverb_carry::message::{Reply, Request, Wanted};
use omniverb_carry::range::Range;
use omniverb_carry::trunk::Names;
use omniverb_sys::{EventFd, clock, lock};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// What a thread is told that brings somebody to another host.
pub(crate) struct Mailbox {
    wanted: Mutex<Option<Wanted>>,
    event: EventFd,
}

impl Mailbox {
    fn new(wanted: Wanted) -> io::Result<Self> {
        Ok(Self { wanted: Mutex::new(Some(wanted)), event: EventFd::new()? })
    }

    /// What is wanted by now; what was before has been in vain.
    fn put(&self, wanted: Wanted) {
        *lock(&self.wanted) = Some(wanted);
        self.event.signal();
    }

    /// The same, once.
    pub(crate) fn take(&self) -> Option<Wanted> {
        self.event.take();
        lock(&self.wanted).take()
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// The addresses of a connection.
pub(crate) fn ends(names: &Names) -> [IpAddr; 2] {
    names.addresses.map(|one| Ipv6Addr::from(one).to_canonical())
}

/// Who wants to go where: a process, between these addresses, to that port.
type Journey = (u64, [IpAddr; 2], u16);

/// See the file's head.
pub(crate) struct Fleet {
    /// To where others may be brought.
    to: Vec<Range>,
    port: u16,
    is_verbose: bool,
    token: AtomicU64,
    /// By which it is said that nobody can be brought somewhere.
    broker: Mutex<Option<Arc<Broker>>>,
    going: Mutex<BTreeMap<Journey, Arc<Mailbox>>>,
    /// How many there are: of each process that goes, and with each address that somebody comes
    /// from.
    of: Counts<u64>,
    with: Counts<IpAddr>,
    strangers: Counts<()>,
    /// On which hosts there was no ferry, and until when nobody tries that.
    in_vain: Mutex<BTreeMap<IpAddr, u64>>,
}

/// How many there are of each.
type Counts<K> = Arc<Mutex<BTreeMap<K, usize>>>;

/// One of those that are counted.
struct Counted<K: Ord>(Counts<K>, K);

impl<K: Ord + Copy> Counted<K> {
    /// `None`: there are enough of that one, or of all.
    fn new(counts: &Counts<K>, key: K, most: usize, of_all: usize) -> Option<Self> {
        let mut all = lock(counts);
        let count = all.get(&key).copied().unwrap_or(0);
        let may = count < most && all.values().sum::<usize>() < of_all;
        may.then(|| {
            all.insert(key, count + 1);
            Self(counts.clone(), key)
        })
    }
}

impl<K: Ord> Drop for Counted<K> {
    fn drop(&mut self) {
        let mut all = lock(&self.0);
        if let Some(count) = all.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.1);
            }
        }
    }
}

/// One that has come, and proved nothing so far.
pub(crate) struct Stranger(#[allow(dead_code, reason = "it is counted")] Counted<()>);

/// One that goes: who wants that finds it. At its end he hears that it was in vain, if it was.
struct Going {
    fleet: Arc<Fleet>,
    mailbox: Arc<Mailbox>,
    _counted: Counted<u64>,
}

impl Drop for Going {
    fn drop(&mut self) {
        self.fleet.leaves(&self.mailbox);
        if let Some(wanted) = self.mailbox.take() {
            self.fleet.fails(wanted);
        }
    }
}

impl Fleet {
    /// None so far.
    pub(crate) fn new(to: Vec<Range>, port: u16, is_verbose: bool) -> Self {
        Self {
            to,
            port,
            is_verbose,
            token: AtomicU64::new(0),
            broker: Mutex::default(),
            going: Mutex::default(),
            of: Counts::default(),
            with: Counts::default(),
            strangers: Counts::default(),
            in_vain: Mutex::default(),
        }
    }

    /// Where ferries listen.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Says what becomes of a connection of TCP, to who wants to know.
    pub(crate) fn tells(&self, names: &Names, what: &str) {
        if self.is_verbose {
            let [from, to] = ends(names);
            let [from, to] = [(from, names.ports[0]), (to, names.ports[1])].map(SocketAddr::from);
            eprintln!("omniverb-ferry: {from} to {to}: {what}");
        }
    }

    /// By which the broker knows our connections.
    pub(crate) fn token(&self) -> u64 {
        self.token.load(Ordering::Relaxed)
    }

    /// Brings others to this host, for good.
    ///
    /// # Errors
    /// There is no device any more.
    pub(crate) fn receive(self: &Arc<Self>, listener: &Listener) -> io::Result<()> {
        loop {
            let Some(id) = listener.next()? else { continue };
            // Who is not let in is refused by the identifier's end.
            self.comes(id);
        }
    }

    fn comes(self: &Arc<Self>, id: Id) -> Option<()> {
        let [_, other] = id.addresses()?;
        let counted = Counted::new(&self.with, other, CROSSINGS_OF, CROSSINGS)?;
        let stranger = Stranger(Counted::new(&self.strangers, (), STRANGERS, STRANGERS)?);
        let fleet = self.clone();
        spawn(move || {
            let part = Part::Comes(Comes::new(fleet, stranger));
            if let Ok(crossing) = Crossing::new(part, id) {
                crossing.run();
            }
            drop(counted);
        });
        Some(())
    }

    /// Hears who wants to go to another host, for good. A broker that is gone is looked for again.
    pub(crate) fn serve(self: &Arc<Self>) {
        loop {
            let was = self.token.swap(0, Ordering::Relaxed);
            let ended = self.serve_one();
            if was != 0 && self.token() == 0 {
                let why = ended.err().map_or_else(String::new, |error| error.to_string());
                eprintln!("omniverb-ferry: the broker does not take this for a ferry: {why}");
            }
            thread::sleep(AGAIN);
        }
    }

    fn serve_one(self: &Arc<Self>) -> io::Result<()> {
        let broker = Arc::new(Broker::new()?);
        broker.ferries()?;
        *lock(&self.broker) = Some(broker.clone());
        loop {
            match broker.hear()? {
                (Reply::Ferries { token }, _) => self.token.store(token, Ordering::Relaxed),
                (Reply::Wanted(wanted), _) if self.goes(wanted).is_none() => self.fails(wanted),
                _ => {}
            }
        }
    }

    /// Nobody can be brought to where that was wanted, or not any more.
    pub(crate) fn fails(&self, wanted: Wanted) {
        self.tells(&wanted.names, "nobody is brought there");
        let broker = lock(&self.broker).clone();
        if let Some(broker) = broker {
            // If it does not hear that, who asks waits for a moment.
            _ = broker.say(Request::Fails { token: self.token(), wanted });
        }
    }

    /// Who wants to go there is not to find this one any more.
    pub(crate) fn leaves(&self, mailbox: &Arc<Mailbox>) {
        lock(&self.going).retain(|_, one| !Arc::ptr_eq(one, mailbox));
    }

    /// Somebody is to be brought to another host. `None`: he is not.
    fn goes(self: &Arc<Self>, wanted: Wanted) -> Option<()> {
        let Wanted { client, names, .. } = wanted;
        let [from, other] = ends(&names);
        let journey: Journey = (client, [from, other], names.ports[1]);
        let is_meant = |range: &Range| range.has(names.addresses[1], names.ports[1]);
        if !self.to.iter().any(is_meant) || self.is_in_vain(other) {
            return None;
        }
        let mut going = lock(&self.going);
        if let Some(mailbox) = going.get(&journey) {
            mailbox.put(wanted);
            return Some(());
        }
        let counted = Counted::new(&self.of, client, CROSSINGS_OF, CROSSINGS)?;
        let mailbox = Arc::new(Mailbox::new(wanted).ok()?);
        going.insert(journey, mailbox.clone());
        drop(going);
        let going = Going { fleet: self.clone(), mailbox, _counted: counted };
        spawn(move || {
            let Going { fleet, mailbox, .. } = &going;
            let to = SocketAddr::new(other, fleet.port);
            let part = Part::Goes(Goes::new(fleet.clone(), mailbox.clone()));
            match Id::to(from, to).and_then(|id| Crossing::new(part, id)) {
                Ok(crossing) => crossing.run(),
                Err(why) => {
                    fleet.tells(&names, &format!("there is no ferry: {why}"));
                    fleet.is_none_at(other);
                }
            }
            drop(going);
        });
        Some(())
    }

    fn is_in_vain(&self, other: IpAddr) -> bool {
        lock(&self.in_vain).get(&other).is_some_and(|until| *until > clock::now())
    }

    /// There is no ferry on that host.
    fn is_none_at(&self, other: IpAddr) {
        let (mut all, now) = (lock(&self.in_vain), clock::now());
        all.retain(|_, until| *until > now);
        all.insert(other, now + IN_VAIN);
    }
}

/// If there is no thread to be had it is as if nobody were there.
fn spawn(run: impl FnOnce() + Send + 'static) {
    _ = thread::Builder::new().name("crossing".into()).spawn(run);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_the_places_of_others() {
        let counts = Counts::default();
        let first: Vec<_> = (0..9).filter_map(|_| Counted::new(&counts, 1, 3, 5)).collect();
        let second: Vec<_> = (0..9).filter_map(|_| Counted::new(&counts, 2, 3, 5)).collect();
        assert_eq!((first.len(), second.len()), (3, 2));
        drop(first);
        assert_eq!((0..9).filter_map(|_| Counted::new(&counts, 2, 3, 5)).count(), 9, "one by one");
        drop(second);
        assert!(lock(&counts).is_empty());
    }
}
