//! Keeps routes on which the network was seen to bring a TCP connection to another namespace.
//!
//! Whatever filters, translates or refuses between the two has been asked by that connection, as
//! the kernel asks it for each: so channels ([`crate::channel_requests`]) may go the same way for a
//! while. Then the network is asked again, by the next connection of TCP.

use crate::broker_daemon_messages::NamespaceAddress;
use crate::client::Client;
use crate::limits::OBSERVED_ROUTES_OF_NAMESPACE;
use omniverb_formats::channel_layout::PORT_ALLOWED_FOR;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};

/// From where, to which address and port of another namespace's.
type RouteKey = (NamespaceAddress, IpAddr, u16);

/// A connection that was seen.
#[derive(Clone, Debug)]
pub(crate) struct ObservedRoute {
    /// Where it went.
    pub(crate) to: NamespaceAddress,
    /// The process at that end: its netlink socket asks the kernel there.
    by: Weak<Client>,
    /// Until when the like may go there, in nanoseconds.
    pub(crate) until: u64,
}

impl ObservedRoute {
    /// The process at that end, if it is still there.
    pub(crate) fn by(&self) -> Option<Arc<Client>> {
        self.by.upgrade()
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct ObservedRoutes {
    all: BTreeMap<RouteKey, ObservedRoute>,
}

impl ObservedRoutes {
    /// Adds a connection that was observed from one place to an address of another one, at whose
    /// end this client was. It replaces an earlier one. A place with too many routes gets no more.
    pub(crate) fn add(
        &mut self,
        from: NamespaceAddress,
        to: (NamespaceAddress, u16),
        by: &Arc<Client>,
        at: u64,
    ) {
        let (to, port) = to;
        let way = (from, to.address, port);
        let first = NamespaceAddress { namespace: from.namespace, address: IpAddr::from([0; 4]) };
        let of = self.all.range((first, first.address, 0)..);
        let count = of.take_while(|((place, ..), _)| place.namespace == from.namespace).count();
        // One that came earlier may have been found to be one later.
        let is_newer =
            |one: &ObservedRoute| one.to != to || one.until < at.saturating_add(PORT_ALLOWED_FOR);
        let may = match self.all.get(&way) {
            Some(one) => is_newer(one),
            None => count < OBSERVED_ROUTES_OF_NAMESPACE,
        };
        if may {
            let (by, until) = (Arc::downgrade(by), at.saturating_add(PORT_ALLOWED_FOR));
            self.all.insert(way, ObservedRoute { to, by, until });
        }
    }

    /// What was seen to go there.
    pub(crate) fn get(
        &self,
        from: NamespaceAddress,
        to: SocketAddr,
        now: u64,
    ) -> Option<ObservedRoute> {
        let route = self.all.get(&(from, to.ip(), to.port()))?;
        (route.until > now).then(|| route.clone())
    }

    /// What was seen too long ago goes.
    pub(crate) fn sweep(&mut self, now: u64) {
        self.all.retain(|_, route| route.until > now);
    }

    /// There is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(namespace: u64, last: u8) -> NamespaceAddress {
        NamespaceAddress { namespace, address: [10, 0, 0, last].into() }
    }

    #[test]
    fn what_was_seen_holds_for_this_way_alone_and_for_a_while() {
        let (mut all, by) = (ObservedRoutes::default(), Client::alone(5));
        let (one, other) = (place(1, 1), place(2, 2));
        all.add(one, (other, 80), &by, 5);
        let to = |last: u8, port: u16| SocketAddr::from(([10, 0, 0, last], port));
        let found = all.get(one, to(2, 80), 5).unwrap();
        assert_eq!((found.to, found.until), (other, 5 + PORT_ALLOWED_FOR));
        assert!(Arc::ptr_eq(&found.by().unwrap(), &by));
        for (from, to) in [
            (one, to(2, 81)),
            (one, to(3, 80)),
            (place(1, 3), to(2, 80)),
            (place(3, 1), to(2, 80)),
            (other, to(1, 80)),
        ] {
            assert!(all.get(from, to, 5).is_none(), "{from:?} {to}");
        }
        assert!(all.get(one, to(2, 80), 5 + PORT_ALLOWED_FOR).is_none());
        // One that is older has come later.
        all.add(one, (other, 80), &by, 4);
        assert_eq!(all.get(one, to(2, 80), 5).unwrap().until, 5 + PORT_ALLOWED_FOR);
        // The address is another's now.
        all.add(one, (place(7, 2), 80), &by, 6);
        assert_eq!(all.get(one, to(2, 80), 6).unwrap().to, place(7, 2));
        all.sweep(6 + PORT_ALLOWED_FOR);
        assert!(all.is_empty());
    }

    #[test]
    fn many_routes_take_no_room_of_others() {
        let (mut all, by) = (ObservedRoutes::default(), Client::alone(5));
        for port in 1..3 * OBSERVED_ROUTES_OF_NAMESPACE as u16 {
            all.add(place(1, 1), (place(2, 2), port), &by, 5);
            let six = NamespaceAddress { address: [port; 8].into(), ..place(1, 1) };
            all.add(six, (place(2, 2), port), &by, 5);
        }
        assert_eq!(all.all.len(), OBSERVED_ROUTES_OF_NAMESPACE);
        all.add(place(0, 1), (place(2, 2), 80), &by, 5);
        all.add(place(3, 1), (place(2, 2), 80), &by, 5);
        assert_eq!(all.all.len(), OBSERVED_ROUTES_OF_NAMESPACE + 2);
        all.add(place(1, 1), (place(2, 2), 1), &by, 7);
        let again = all.get(place(1, 1), ([10, 0, 0, 2], 1).into(), 7).unwrap();
        assert_eq!(again.until, 7 + PORT_ALLOWED_FOR);
        drop(by);
        assert!(again.by().is_none());
    }
}
