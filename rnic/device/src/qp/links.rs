//! The links of a queue pair: one if it is connected, one for each destination if it is not.
//!
//! The index of a link is handed out: to polls, to bells, to requests under way. So a link that has
//! ended keeps its place until another one takes that, and who still has the index looks at the new
//! one for nothing.

use super::{Hanging, Peer};
use crate::limits;
use crate::requester::Sources;
use crate::responder::Incoming;
use crate::work::Destination;
use omniverb_link::Endpoint;
use omniverb_link::wire::Route;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

/// A link of this QP and what is in flight on it.
pub(crate) struct LinkEnd {
    pub(crate) endpoint: Endpoint,
    pub(crate) peer: Peer,
    pub(crate) incoming: Incoming,
    /// Bytes that are out of a READ that came between two parts of a message.
    pub(crate) interjected: Option<u64>,
    /// The request at the head waits for a receive, since this time (UC, UD).
    pub(crate) starved: Option<u64>,
    /// Receives posted since the link is there, those before included.
    credits: u32,
    pub(crate) looks: Looks,
    /// A datagram or UC message was dropped for want of room; drop at once until there is room.
    pub(crate) lossy: bool,
    /// How packets to the peer are to travel, as it was published last.
    route: Route,
    /// What happens on it is traced for whoever captures packets.
    pub(crate) traced: bool,
    /// What was sent on it from where it is.
    pub(crate) sources: Sources,
    _hanging: Hanging,
}

/// How polls look at a link.
#[derive(Default)]
pub(crate) struct Looks {
    /// In a row without news.
    idle: u32,
    /// Poll lists that look at it by themselves.
    watchers: u8,
}

impl Looks {
    /// There was news.
    #[inline(always)]
    pub(crate) fn found(&mut self) {
        self.idle = 0;
    }

    /// There was none; for so many looks in a row.
    #[inline(always)]
    pub(crate) fn found_nothing(&mut self) -> u32 {
        self.idle = self.idle.saturating_add(1);
        self.idle
    }

    /// Whether polls look at it by themselves.
    #[inline(always)]
    pub(crate) fn are_made(&self) -> bool {
        self.watchers > 0
    }

    /// One more poll list does.
    pub(crate) fn begin(&mut self) {
        self.watchers += 1;
        self.idle = 0;
    }

    /// One does no longer. True: none does.
    pub(crate) fn end(&mut self) -> bool {
        self.watchers = self.watchers.saturating_sub(1);
        self.watchers == 0
    }
}

impl LinkEnd {
    /// A link on which nothing has happened. `credits`: receives that are posted, unless they
    /// cannot be promised.
    pub(super) fn new(endpoint: Endpoint, peer: Peer, credits: u32, hanging: Hanging) -> LinkEnd {
        LinkEnd {
            endpoint,
            peer,
            incoming: Incoming::Idle,
            interjected: None,
            starved: None,
            credits,
            looks: Looks::default(),
            lossy: false,
            route: Route::default(),
            traced: false,
            sources: Sources::default(),
            _hanging: hanging,
        }
    }

    /// A receive was posted; all of them take `floor` bytes.
    #[inline(always)]
    pub(super) fn credit(&mut self, floor: u32) {
        self.credits = self.credits.wrapping_add(1);
        self.endpoint.publish_credits(self.credits, floor);
    }

    /// Whether nothing can come over it any more.
    pub(crate) fn is_deaf(&self) -> bool {
        matches!(self.incoming, Incoming::Deaf)
    }

    /// Packets to the peer travel so from now on, says the link when it opens.
    pub(super) fn publish_route(&mut self, route: Route) {
        self.route = route;
        self.endpoint.publish_route(&route);
    }

    /// The datagrams from here on travel so. Who changes routes within one destination may find a
    /// few datagrams on the new one that were posted for the old.
    #[inline(always)]
    pub(crate) fn take_route(&mut self, route: Route) {
        if self.route != route {
            self.publish_route(route);
        }
    }

    /// How packets to the peer travel.
    pub(super) fn route(&self) -> Route {
        self.route
    }
}

/// All links of a QP, by their indices.
#[derive(Default)]
pub(crate) struct Links {
    list: Vec<LinkEnd>,
    /// Those of datagrams that have not ended.
    by_destination: HashMap<Destination, usize>,
}

impl Deref for Links {
    type Target = [LinkEnd];

    #[inline(always)]
    fn deref(&self) -> &[LinkEnd] {
        &self.list
    }
}

impl DerefMut for Links {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [LinkEnd] {
        &mut self.list
    }
}

impl Links {
    /// Whether another one may be added.
    pub(super) fn has_room(&self) -> bool {
        self.list.len() < limits::DATAGRAM_LINKS_MAX || self.list.iter().any(LinkEnd::is_deaf)
    }

    /// The index of the link to a destination.
    #[inline(always)]
    pub(crate) fn to(&self, destination: &Destination) -> Option<usize> {
        self.by_destination.get(destination).copied()
    }

    /// Adds a link: where one was that has ended, or behind the others.
    pub(super) fn add(&mut self, link: LinkEnd) -> usize {
        let Peer { qpn, dgid, sgid, .. } = link.peer;
        let index = match self.list.iter().position(LinkEnd::is_deaf) {
            Some(index) => {
                self.list[index] = link;
                index
            }
            None => {
                self.list.push(link);
                self.list.len() - 1
            }
        };
        self.by_destination.entry(Destination { dgid, sgid, qpn }).or_insert(index);
        index
    }

    /// Ends the links to these peers; nobody finds them any more.
    pub(super) fn forget(&mut self, gone: impl Fn(&Peer) -> bool) {
        for link in self.list.iter_mut().filter(|link| gone(&link.peer)) {
            link.endpoint.close();
            link.incoming = Incoming::Deaf;
            link.starved = None;
        }
        let list = &self.list;
        self.by_destination.retain(|_, index| !gone(&list[*index].peer));
    }

    /// Forgets all, which have ended.
    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.by_destination.clear();
    }
}
