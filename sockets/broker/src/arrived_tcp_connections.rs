//! Keeps TCP connections that have come to a network namespace, for gateways to look up.
//!
//! A gateway finds by them that the network brings connections of another host there.

use crate::client::Client;
use crate::limits::INCOMING_OF_NAMESPACE;
use omniverb_formats::channel_layout::PORT_ALLOWED_FOR;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Weak;

/// A connection that has come from another host.
#[derive(Clone, Debug)]
pub(crate) struct IncomingConnection {
    /// When it was accepted.
    pub(crate) at: u64,
    /// The process that has accepted it.
    pub(crate) by: Weak<Client>,
}

/// Whether one that has arrived is the one that was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// It is that one.
    Exact,
    /// It came the same way.
    SameRoute,
}

/// Connections that were seen to come to a network namespace.
#[derive(Debug, Default)]
pub(crate) struct IncomingConnections {
    /// By both ends, this one first.
    all: HashMap<[SocketAddr; 2], IncomingConnection>,
    /// The last to this end from each address: not all of these are offered.
    last: HashMap<(SocketAddr, IpAddr), IncomingConnection>,
    /// When each came, the oldest first.
    ages: VecDeque<([SocketAddr; 2], u64)>,
}

impl IncomingConnections {
    /// One has. The oldest go, if there are too many or they came too long ago.
    pub(crate) fn add(&mut self, ends: [SocketAddr; 2], arrived: IncomingConnection, now: u64) {
        let is_old = |at: u64| now.saturating_sub(at) >= PORT_ALLOWED_FOR;
        while let Some((ends, at)) = self.ages.front().copied()
            && (is_old(at) || self.ages.len() >= INCOMING_OF_NAMESPACE)
        {
            self.ages.pop_front();
            // There may have been another of these ends since.
            if self.all.get(&ends).is_some_and(|one| one.at == at) {
                self.all.remove(&ends);
            }
            let like = (ends[0], ends[1].ip());
            if self.last.get(&like).is_some_and(|one| one.at == at) {
                self.last.remove(&like);
            }
        }
        self.ages.push_back((ends, arrived.at));
        self.last.insert((ends[0], ends[1].ip()), arrived.clone());
        self.all.insert(ends, arrived);
    }

    /// The one of these ends, the local one first. Or the last one like it, from another port.
    pub(crate) fn get(
        &self,
        [local, remote]: [SocketAddr; 2],
        now: u64,
    ) -> Option<(IncomingConnection, Match)> {
        let it = self.all.get(&[local, remote]).map(|one| (one, Match::Exact));
        let like = || self.last.get(&(local, remote.ip())).map(|one| (one, Match::SameRoute));
        let (arrived, matched) = it.or_else(like)?;
        (now.saturating_sub(arrived.at) < PORT_ALLOWED_FOR).then(|| (arrived.clone(), matched))
    }

    /// How many there are, and from how many addresses.
    #[cfg(test)]
    pub(crate) fn count(&self) -> (usize, usize) {
        (self.all.len(), self.last.len())
    }
}
