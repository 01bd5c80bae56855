//! Keeps the links of a queue pair: one if it is connected, one for each destination if it is not.
//!
//! The index of a link is handed out: to polls, to doorbells, to requests under way. So a link that
//! has ended keeps its place until another one takes that, and a holder of the old index looks at
//! the new one for nothing.

use super::cq_link_registration::CqLinkRegistration;
use super::requester::PathSelection;
use super::requester::payload_source::{PayloadOrigin, Sources};
use super::responder::{InboundState, Outcome};
use crate::limits;
use crate::link_peer::Peer;
use crate::send_work_request::Destination;
use omniverb_link::qp_attributes_for_engine::GlobalRoute;
use omniverb_link::record::LAST;
use omniverb_link::{Broken, Endpoint, Request, Source, Tracer};
use omniverb_ring::UserMemory;
use omniverb_terms::{Operations, Service};
use std::cell::Cell;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A link of this QP and what is in flight on it.
pub(crate) struct LinkEnd {
    pub(super) endpoint: Endpoint,
    pub(super) peer: Peer,
    /// The daemon that made it.
    pub(super) daemon: u32,
    pub(super) incoming: InboundState,
    pub(super) looks: PollWatch,
    /// Bytes that are out of a READ that came between two parts of a message.
    interjected: Option<u64>,
    /// The request at the head waits for a receive, since this time of the host's clock in
    /// nanoseconds (UC, UD; 0 for RC, where the requester's timer runs).
    starved: Option<u64>,
    /// Receives posted since the link is there, those before included.
    credits: u32,
    /// A datagram or UC message was dropped for want of room; drop at once until there is room.
    lossy: bool,
    /// What the peer may not ask of us, whatever the queue pair's access flags say.
    refused: Operations,
    /// Receives are promised to the peer: SENDs into them complete when they are in the ring.
    promises: bool,
    /// How packets to the peer are to travel, as it was published last.
    route: GlobalRoute,
    /// What happens on it is traced for a capture of packets.
    traced: bool,
    /// What was sent on it from where it is.
    sources: Sources,
    _cq_links: CqLinkRegistration,
}

/// How polls look at a link.
#[derive(Default)]
pub(super) struct PollWatch {
    /// In a row without news.
    idle: u32,
    /// Poll lists that look at it by themselves.
    watchers: u8,
}

impl PollWatch {
    /// A look found news.
    #[inline(always)]
    pub(super) fn found(&mut self) {
        self.idle = 0;
    }

    /// There was none; for so many looks in a row.
    #[inline(always)]
    pub(super) fn found_nothing(&mut self) -> u32 {
        self.idle = self.idle.saturating_add(1);
        self.idle
    }

    /// Whether polls look at it by themselves.
    #[inline(always)]
    pub(super) fn are_made(&self) -> bool {
        self.watchers > 0
    }

    /// One more poll list does.
    pub(super) fn begin(&mut self) {
        self.watchers += 1;
        self.idle = 0;
    }

    /// One does no longer.
    pub(super) fn end(&mut self) {
        self.watchers = self.watchers.saturating_sub(1);
    }
}

impl LinkEnd {
    /// A link on which nothing has happened, made by this daemon. `credits`: receives that are
    /// posted, unless they cannot be promised.
    pub(super) fn new(
        endpoint: Endpoint,
        (peer, daemon): (Peer, u32),
        credits: u32,
        cq_links: CqLinkRegistration,
    ) -> LinkEnd {
        LinkEnd {
            endpoint,
            peer,
            daemon,
            incoming: InboundState::Idle,
            interjected: None,
            starved: None,
            credits,
            looks: PollWatch::default(),
            lossy: false,
            refused: Operations::NONE,
            promises: true,
            route: GlobalRoute::default(),
            traced: false,
            sources: Sources::default(),
            _cq_links: cq_links,
        }
    }

    /// A receive was posted; all of them take `floor` bytes.
    #[inline(always)]
    pub(super) fn credit(&mut self, floor: u32) {
        if !self.promises {
            return;
        }
        self.credits = self.credits.wrapping_add(1);
        self.endpoint.publish_credits(self.credits, floor);
    }

    /// The receives that are posted take nothing for sure.
    pub(super) fn promise_nothing(&mut self) {
        if self.promises {
            self.endpoint.publish_credits(self.credits, 0);
        }
    }

    /// The peer may not ask for these from now on, and for all others again.
    pub(super) fn refuse(&mut self, refused: Operations) {
        self.refused = refused;
        if refused.contains(Operations::SEND) && self.promises {
            // What is refused must not complete before it was looked at.
            self.promises = false;
            self.endpoint.publish_no_credits();
        }
    }

    /// Whether the peer may not ask for this.
    #[inline(always)]
    pub(super) fn refuses(&self, operation: Operations) -> bool {
        !operation.is_empty() && self.refused.contains(operation)
    }

    /// Whether there is a peer that may take requests. That a peer has died counts for requests
    /// that are acknowledged: the others leave, and what becomes of them is not known.
    #[inline(always)]
    pub(super) fn takes_requests(&self, service: Service) -> bool {
        self.endpoint.peer_is_open() && !(service.is_reliable() && self.endpoint.peer_has_died())
    }

    /// Whether nothing can come over it any more.
    pub(super) fn is_deaf(&self) -> bool {
        matches!(self.incoming, InboundState::Deaf)
    }

    /// Nothing comes over it any more; what came last.
    pub(super) fn deafen(&mut self) -> InboundState {
        std::mem::replace(&mut self.incoming, InboundState::Deaf)
    }

    /// Drops this record of a UC message, and the rest of it.
    #[cold]
    pub(super) fn skip(&mut self, flags: u32) -> Outcome {
        let ended = flags & LAST != 0;
        self.incoming = if ended { InboundState::Idle } else { InboundState::Skip };
        Outcome::Passed
    }

    /// Whether the request at the head waits for a receive.
    #[inline(always)]
    pub(super) fn is_starved(&self) -> bool {
        self.starved.is_some()
    }

    /// Until when it does, in nanoseconds of the host's clock; for UC and UD.
    pub(super) fn starves_until(&self) -> Option<u64> {
        self.starved.map(|since| since + limits::RECEIVER_AWAY)
    }

    /// The request at the head waits for a receive, now or for longer; since when.
    pub(super) fn starve(&mut self, now: u64) -> u64 {
        *self.starved.get_or_insert(now)
    }

    /// No request waits for a receive any more.
    #[inline(always)]
    pub(super) fn end_starving(&mut self) {
        self.starved = None;
    }

    /// How many bytes of the READ at the head are out. `None`: it has not begun.
    pub(super) fn read_sent(&self) -> Option<u64> {
        match self.incoming {
            InboundState::Read { sent } => Some(sent),
            _ if self.incoming.is_inside_message() => self.interjected,
            _ => None,
        }
    }

    /// So many bytes of the READ at the head are out; the rest waits for room.
    pub(super) fn suspend_read(&mut self, sent: u64) {
        match self.incoming.is_inside_message() {
            true => self.interjected = Some(sent),
            false => self.incoming = InboundState::Read { sent },
        }
    }

    /// All of it is.
    pub(super) fn end_read(&mut self) {
        match self.incoming.is_inside_message() {
            true => self.interjected = None,
            false => self.incoming = InboundState::Idle,
        }
    }

    /// Whether an answer of ours waits for room.
    #[inline(always)]
    pub(super) fn is_answering(&self) -> bool {
        matches!(self.incoming, InboundState::Read { .. } | InboundState::Answer { .. })
            || self.interjected.is_some()
    }

    /// Whether a message that finds no room is lost at once, because one was before.
    pub(super) fn is_lossy(&self) -> bool {
        self.lossy
    }

    /// A message was lost for want of room.
    pub(super) fn lose_for_room(&mut self) {
        self.lossy = true;
    }

    /// There is room again.
    #[inline(always)]
    pub(super) fn end_losing(&mut self) {
        self.lossy = false;
    }

    /// Whether what happens on it is traced.
    pub(super) fn is_traced(&self) -> bool {
        self.traced
    }

    /// Traces it, if there is something to trace: what leads to the engine, the engine sees.
    pub(super) fn trace(&mut self, tracer: &Arc<Tracer>, path: &mut PathSelection) {
        self.traced = !self.peer.is_beyond_engine();
        if self.traced {
            path.trace(tracer);
        }
    }

    /// Traces it no longer.
    pub(super) fn end_trace(&mut self) {
        self.traced = false;
    }

    /// Packets to the peer travel so from now on, says the link when it opens.
    pub(super) fn publish_route(&mut self, route: GlobalRoute) {
        self.route = route;
        self.endpoint.publish_global_route(&route);
    }

    /// The datagrams from here on travel so. A program that changes routes within one destination
    /// may find a few datagrams on the new one that were posted for the old.
    #[inline(always)]
    pub(super) fn take_route(&mut self, route: GlobalRoute) {
        if self.route != route {
            self.publish_route(route);
        }
    }

    /// How packets to the peer travel.
    pub(super) fn route(&self) -> GlobalRoute {
        self.route
    }

    /// One record whose payload stays where it is. False: there is no room.
    #[inline(never)]
    pub(super) fn send_from(
        &mut self,
        request: &Request,
        source: Source,
        payload: UserMemory,
    ) -> Result<bool, Broken> {
        let source = Source { address: payload.address() as u64, ..source };
        match self.endpoint.send_request_from(request, payload.len(), source)? {
            Some(record) => {
                self.sources.note(&mut self.endpoint, record, payload)?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// So many bytes of a payload were copied that might have stayed.
    pub(super) fn note_copied(&mut self, origin: &PayloadOrigin, bytes: u64) {
        self.sources.note_copied(&mut self.endpoint, origin, bytes);
    }

    /// Puts into the ring what the engine wants there.
    #[inline]
    pub(super) fn fill_if_wanted(&mut self) {
        self.sources.fill_if_wanted(&mut self.endpoint);
    }

    /// Forgets what was sent from where it is: no peer takes it any more.
    pub(super) fn forget_sources(&mut self) {
        self.sources = Sources::default();
    }

    /// Voids the grants that the peer holds on our regions; nothing depends on them afterwards.
    pub(super) fn revoke(&mut self) {
        self.sources.revoke(&mut self.endpoint);
        self.endpoint.advance_epoch();
    }
}

/// All links of a QP, by their indices.
#[derive(Default)]
pub(crate) struct Links {
    list: Vec<LinkEnd>,
    /// Those of datagrams that have not ended.
    by_destination: HashMap<Destination, usize>,
    /// What was found there last: a sender of datagrams sends many to one, or to few in turn, and a
    /// hash costs more than the ring. Nothing when links come or go.
    last: Cell<Option<(Destination, usize)>>,
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
    /// Whether a UC or UD message waits for a receive, and is lost if none comes.
    pub(super) fn is_starved(&self, service: Service) -> bool {
        !service.is_reliable() && self.list.iter().any(LinkEnd::is_starved)
    }

    /// When the first of those is lost, in nanoseconds of the host's clock.
    pub(super) fn starves_until(&self, service: Service) -> Option<u64> {
        let starved = self.list.iter().filter_map(LinkEnd::starves_until);
        starved.filter(|_| !service.is_reliable()).min()
    }

    /// Whether a request goes to a network: one for this destination, or for the peer. There it
    /// waits for its turn to leave, as at any NIC, and is not lost for that.
    pub(super) fn lead_to_engine(&self, destination: Option<Destination>) -> bool {
        let link = match destination {
            Some(to) => self.to(&to).and_then(|index| self.list.get(index)),
            None => self.list.first(),
        };
        link.is_some_and(|link| link.peer.is_beyond_engine())
    }

    /// Whether what is on its way to the peer waits for a receive. A broken link others find.
    pub(super) fn peer_lacks_receive(&mut self) -> bool {
        let link = self.list.first_mut();
        link.is_some_and(|link| link.endpoint.peer_lacks_receive().unwrap_or(false))
    }

    /// Whether another one may be added.
    pub(super) fn has_room(&self) -> bool {
        self.list.len() < limits::DATAGRAM_LINKS_MAX || self.list.iter().any(LinkEnd::is_deaf)
    }

    /// The index of the link to a destination.
    #[inline(always)]
    pub(super) fn to(&self, destination: &Destination) -> Option<usize> {
        match self.last.get() {
            Some((last, index)) if last == *destination => Some(index),
            _ => self.find(destination),
        }
    }

    fn find(&self, destination: &Destination) -> Option<usize> {
        let index = *self.by_destination.get(destination)?;
        self.last.set(Some((*destination, index)));
        Some(index)
    }

    /// Adds a link: where one was that has ended, or behind the others.
    pub(super) fn add(&mut self, link: LinkEnd) -> usize {
        self.last.set(None);
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

    /// Ends the links to these peers; they are not found any more.
    pub(super) fn forget(&mut self, gone: impl Fn(&Peer) -> bool) {
        self.last.set(None);
        for link in self.list.iter_mut().filter(|link| gone(&link.peer)) {
            link.endpoint.close();
            link.incoming = InboundState::Deaf;
            link.starved = None;
        }
        let list = &self.list;
        self.by_destination.retain(|_, index| !gone(&list[*index].peer));
    }

    /// Forgets all, which have ended.
    pub(super) fn clear(&mut self) {
        self.last.set(None);
        self.list.clear();
        self.by_destination.clear();
    }
}
