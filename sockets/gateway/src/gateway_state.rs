//! Holds what all threads share: counts of channels, routes that failed, and outgoing channels.

use crate::broker_connection::BrokerConnection;
use crate::limits::FAILED_HOST_KEPT;
use crate::unproven_peers::UnprovenPeers;
use omniverb_formats::address_range::Range;
use omniverb_formats::broker_message::{Failure, Request, Wanted};
use omniverb_formats::channel_layout::Names;
use omniverb_sys::{EventFd, clock, lock};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What the broker last asked of the thread of an outgoing channel.
pub(crate) struct Mailbox {
    wanted: Mutex<Option<Wanted>>,
    event: EventFd,
}

impl Mailbox {
    pub(crate) fn new(wanted: Wanted) -> io::Result<Self> {
        Ok(Self { wanted: Mutex::new(Some(wanted)), event: EventFd::new()? })
    }

    /// What is wanted by now; what was before has been in vain.
    pub(crate) fn put(&self, wanted: Wanted) {
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
    names.ends().map(|end| end.ip())
}

/// A process, the addresses of both ends, and the port that it wants.
pub(crate) type RouteKey = (u64, [IpAddr; 2], u16);

/// What is logged of each channel, on standard error.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verbosity {
    /// Only what goes wrong for all.
    Quiet,
    /// Each channel, and what becomes of it.
    Verbose,
}

/// See the file's head.
pub(crate) struct GatewayState {
    /// The addresses that the gateway serves.
    pub(crate) to: Vec<Range>,
    /// Where gateways listen.
    pub(crate) port: u16,
    verbosity: Verbosity,
    pub(crate) token: AtomicU64,
    /// Reports to the broker that an address cannot be reached.
    pub(crate) broker: Mutex<Option<Arc<BrokerConnection>>>,
    pub(crate) outgoing: Mutex<BTreeMap<RouteKey, Arc<Mailbox>>>,
    /// How many there are: of each process that goes out, and of each address that peers come from.
    pub(crate) per_client: Counts<u64>,
    pub(crate) per_address: Counts<IpAddr>,
    pub(crate) unproven: Arc<UnprovenPeers>,
    /// Hosts that had no gateway, and until when they are not tried.
    failed_hosts: Mutex<BTreeMap<IpAddr, u64>>,
}

/// How many there are of each.
pub(crate) type Counts<K> = Arc<Mutex<BTreeMap<K, usize>>>;

/// One of those that are counted.
pub(crate) struct CountGuard<K: Ord>(Counts<K>, K);

impl<K: Ord + Copy> CountGuard<K> {
    /// `None`: there are enough of that one, or of all.
    pub(crate) fn new(counts: &Counts<K>, key: K, most: usize, of_all: usize) -> Option<Self> {
        let mut all = lock(counts);
        let count = all.get(&key).copied().unwrap_or(0);
        let may = count < most && all.values().sum::<usize>() < of_all;
        may.then(|| {
            all.insert(key, count + 1);
            Self(counts.clone(), key)
        })
    }
}

impl<K: Ord> Drop for CountGuard<K> {
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

impl GatewayState {
    /// None so far.
    pub(crate) fn new(to: Vec<Range>, port: u16, verbosity: Verbosity) -> Self {
        Self {
            to,
            port,
            verbosity,
            token: AtomicU64::new(0),
            broker: Mutex::default(),
            outgoing: Mutex::default(),
            per_client: Counts::default(),
            per_address: Counts::default(),
            unproven: Arc::default(),
            failed_hosts: Mutex::default(),
        }
    }

    /// Logs what becomes of a connection of TCP, if that was asked for.
    pub(crate) fn log(&self, names: &Names, what: &str) {
        if self.verbosity == Verbosity::Verbose {
            let [from, to] = names.ends();
            eprintln!("omniverb-gateway: {from} to {to}: {what}");
        }
    }

    /// By which the broker knows our connections.
    pub(crate) fn token(&self) -> u64 {
        self.token.load(Ordering::Relaxed)
    }

    /// Tells the broker that an address cannot be reached, or not any more.
    pub(crate) fn report_failure(&self, wanted: Wanted, why: Failure) {
        self.log(&wanted.names, "no channel leads there");
        let broker = lock(&self.broker).clone();
        if let Some(broker) = broker {
            // If the broker does not hear that, the asking process waits for a moment.
            _ = broker.send(Request::GatewayRefuses { token: self.token(), wanted, why });
        }
    }

    /// Removes an outgoing channel: the next request makes another one.
    pub(crate) fn remove_outgoing(&self, mailbox: &Arc<Mailbox>) {
        lock(&self.outgoing).retain(|_, one| !Arc::ptr_eq(one, mailbox));
    }

    /// Whether there was no gateway on that host a short time ago.
    pub(crate) fn has_failed_lately(&self, other: IpAddr) -> bool {
        lock(&self.failed_hosts).get(&other).is_some_and(|until| *until > clock::now())
    }

    /// Remembers for a while that there is no gateway on that host.
    pub(crate) fn mark_failed(&self, other: IpAddr) {
        let (mut all, now) = (lock(&self.failed_hosts), clock::now());
        all.retain(|_, until| *until > now);
        all.insert(other, now + FAILED_HOST_KEPT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_for_each_client() {
        let counts = Counts::default();
        let first: Vec<_> = (0..9).filter_map(|_| CountGuard::new(&counts, 1, 3, 5)).collect();
        let second: Vec<_> = (0..9).filter_map(|_| CountGuard::new(&counts, 2, 3, 5)).collect();
        assert_eq!((first.len(), second.len()), (3, 2));
        drop(first);
        assert_eq!(
            (0..9).filter_map(|_| CountGuard::new(&counts, 2, 3, 5)).count(),
            9,
            "one by one"
        );
        drop(second);
        assert!(lock(&counts).is_empty());
    }
}
