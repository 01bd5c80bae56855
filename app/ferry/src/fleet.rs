//! All trunks to other hosts, and who begins them: the broker, for processes of this host, and
//! other ferries.

use crate::broker::Broker;
use crate::crossing::{Crossing, Part, ends};
use crate::id::{Id, Listener};
use crate::limits::{AGAIN, CROSSINGS, CROSSINGS_WITH};
use omniverb_carry::message::{Reply, Request, Wanted};
use omniverb_carry::range::Range;
use omniverb_sys::{EventFd, lock};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
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

/// Who wants to go where: a process, between these addresses, to that port.
type Journey = (u64, [IpAddr; 2], u16);

fn journey(wanted: &Wanted) -> Journey {
    (wanted.client, ends(&wanted.names), wanted.names.ports[1])
}

/// See the file's head.
pub(crate) struct Fleet {
    /// To where others may be brought.
    to: Vec<Range>,
    port: u16,
    token: AtomicU64,
    /// By which it is said that nobody can be brought somewhere.
    broker: Mutex<Option<Arc<Broker>>>,
    going: Mutex<BTreeMap<Journey, Arc<Mailbox>>>,
    /// How many there are with each other address.
    with: Mutex<BTreeMap<IpAddr, usize>>,
}

/// A place among all.
struct Place(Arc<Fleet>, IpAddr);

impl Place {
    fn take(fleet: &Arc<Fleet>, with: IpAddr) -> Option<Self> {
        let mut all = lock(&fleet.with);
        let count = all.get(&with).copied().unwrap_or(0);
        let may = all.values().sum::<usize>() < CROSSINGS && count < CROSSINGS_WITH;
        may.then(|| {
            all.insert(with, count + 1);
            Self(fleet.clone(), with)
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = lock(&self.0.with);
        if let Some(count) = all.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.1);
            }
        }
    }
}

impl Fleet {
    /// None so far.
    pub(crate) fn new(to: Vec<Range>, port: u16) -> Self {
        let (going, with, broker) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { to, port, token: AtomicU64::new(0), broker, going, with }
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
            let Some([_, other]) = id.addresses() else { continue };
            // Who is not let in is refused by the identifier's end.
            if let Some(place) = Place::take(self, other) {
                let fleet = self.clone();
                spawn(move || {
                    if let Ok(crossing) = Crossing::new(fleet, Part::Comes, id) {
                        crossing.run();
                    }
                    drop(place);
                });
            }
        }
    }

    /// Hears who wants to go to another host, for good. A broker that is gone is looked for again.
    pub(crate) fn serve(self: &Arc<Self>) {
        loop {
            _ = self.serve_one();
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
                (Reply::Wanted(wanted), _) => self.wanted(wanted),
                _ => {}
            }
        }
    }

    /// Nobody can be brought to where that was wanted.
    pub(crate) fn fails(&self, wanted: Wanted) {
        let broker = lock(&self.broker).clone();
        if let Some(broker) = broker {
            // If it does not hear that, who asks waits for a moment.
            _ = broker.say(Request::Fails { token: self.token(), wanted });
        }
    }

    fn wanted(self: &Arc<Self>, wanted: Wanted) {
        let names = wanted.names;
        if !self.to.iter().any(|range| range.has(names.addresses[1], names.ports[1])) {
            return self.fails(wanted);
        }
        let (journey, mut going) = (journey(&wanted), lock(&self.going));
        if let Some(mailbox) = going.get(&journey) {
            return mailbox.put(wanted);
        }
        let (_, [from, other], _) = journey;
        let (Some(place), Ok(mailbox)) = (Place::take(self, other), Mailbox::new(wanted)) else {
            return self.fails(wanted);
        };
        let (fleet, mailbox) = (self.clone(), Arc::new(mailbox));
        going.insert(journey, mailbox.clone());
        spawn(move || {
            let to = SocketAddr::new(other, fleet.port);
            let part = Part::Goes(mailbox.clone());
            let crossing = Id::to(from, to).and_then(|id| Crossing::new(fleet.clone(), part, id));
            if let Ok(crossing) = crossing {
                crossing.run();
            }
            lock(&fleet.going).remove(&journey);
            if let Some(wanted) = mailbox.take() {
                fleet.fails(wanted);
            }
            drop(place);
        });
    }
}

/// If there is no thread to be had it is as if nobody were there.
fn spawn(run: impl FnOnce() + Send + 'static) {
    _ = thread::Builder::new().name("crossing".into()).spawn(run);
}
