//! Holds the tenants' listener, and its connections until the helper has identified their
//! processes.
//!
//! Bounded; over the bound the holder with the most of them loses the oldest.

use crate::allowed_processes::Admission;
use crate::daemon_log::Journal;
use crate::listener::Listener;
use omniverb_fairness::{Holder, Holders};
use omniverb_sys::pidfd::Peer;
use omniverb_tenancy::{PtraceDomain, SessionId};
use omniverb_terms::Errno;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Budget: connections whose process is being identified: two descriptors each, for less than a
/// millisecond in peace.
const ARRIVALS: usize = 1024;

/// A connection whose process is being identified.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) calls: OwnedFd,
    pub(crate) peer: Peer,
    pub(crate) pidfd: Option<Arc<OwnedFd>>,
    /// The ptrace domain of its process, once the helper has reported it; `None`: not known.
    pub(crate) circle: Option<PtraceDomain>,
    /// The holder that it counts for: at first its process and user, then its cgroup and user.
    pub(crate) holder: Holder,
}

/// All connections with their holders, and the admission rules.
#[derive(Debug)]
pub(crate) struct Arrivals {
    listener: Listener,
    admission: Admission,
    waiting: BTreeMap<SessionId, Arrival>,
    of: Holders<SessionId>,
}

impl Arrivals {
    pub(crate) fn new(listener: Listener, admission: Admission) -> Arrivals {
        Arrivals { listener, admission, waiting: BTreeMap::new(), of: Holders::default() }
    }

    /// The admission rules.
    pub(crate) fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Where they come in.
    pub(crate) fn listener(&self) -> &Listener {
        &self.listener
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether one may use the socket, before (`cgroup`: `None`) and after the helper has looked
    /// into which cgroup it comes from.
    pub(crate) fn admits(
        &mut self,
        arrival: &Arrival,
        cgroup: Option<&str>,
        journal: &mut Journal,
    ) -> Result<(), Errno> {
        let (peer, calls) = (&arrival.peer, &arrival.calls);
        match cgroup {
            None => self.admission.admits(peer, calls, journal),
            Some(cgroup) => self.admission.admits_from(peer, calls, cgroup, journal),
        }
    }

    pub(crate) fn has(&self, id: SessionId) -> bool {
        self.waiting.contains_key(&id)
    }

    /// Adds a connection; returns the one that has to make room for it, which may be itself.
    pub(crate) fn add(&mut self, id: SessionId, arrival: Arrival) -> Option<SessionId> {
        self.of.add(&arrival.holder, id);
        self.waiting.insert(id, arrival);
        let full = self.waiting.len() > ARRIVALS;
        full.then(|| self.of.yields().copied()).flatten()
    }

    /// Takes one out.
    pub(crate) fn take(&mut self, id: SessionId) -> Option<Arrival> {
        self.of.remove(&id);
        self.waiting.remove(&id)
    }

    /// Closes the listener; the sockets of all connections.
    pub(crate) fn close(&mut self) -> Vec<OwnedFd> {
        self.listener.close();
        let left = std::iter::from_fn(|| self.listener.next_left());
        std::mem::take(&mut self.waiting).into_values().map(|a| a.calls).chain(left).collect()
    }
}
