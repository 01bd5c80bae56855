//! Keeps the connected processes, and disconnects those that break the protocol or do not read.
//!
//! Connections that say nothing are bounded, for a vNIC and for all; over the bound the holder with
//! the most of them loses the oldest. So are descriptors that wait to be taken. No client is waited
//! for: messages that do not fit its socket stay here, and a client that lets too many pile up is
//! disconnected.

use crate::client::{Client, Origin, Queued};
use crate::client_outbox::{Letter, Parcel, Sent};
use crate::link_memory::{Memory, Shared, Source};
use crate::live_token_count::{Bytes, Tally};
use crate::poller_tokens::Wakeup;
use crate::reactor::{Reactor, Timer};
use crate::settings::Unwanted;
use omniverb_fairness::{Holder, Holders};
use omniverb_session::body::{Extent, LetGo};
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_sys::epoll::Interest;
use omniverb_sys::unsolicited_fds::{self, PlainMessage};
use omniverb_tenancy::{Channel, Pace, SessionId, VnicId};
use omniverb_terms::Qpn;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Budget: connections that have not said hello, of one vNIC.
const HALF_OPEN_PER_VNIC: usize = 256;
/// Budget: those of all together; over it the largest holder loses its oldest.
const HALF_OPEN: usize = 4096;
/// Budget: connections that are refused and have not been told so.
const REFUSED: usize = 64;
/// When to try again after clients held too many of our descriptors unread.
const DESCRIPTORS_AGAIN: Duration = Duration::from_millis(10);

/// A message, and its length.
pub(crate) type Received = ([u8; MESSAGE_BYTES_MAX], usize);

/// All of them.
#[derive(Debug)]
pub(crate) struct Clients {
    all: BTreeMap<SessionId, Client>,
    /// Connections without a hello so far, by their holders.
    half_open: Holders<SessionId>,
    /// The same for each vNIC.
    half_open_of: BTreeMap<VnicId, Holders<SessionId>>,
    /// Descriptors that wait to be sent to the processes of a vNIC: these have it.
    queued: BTreeMap<VnicId, Weak<Tally>>,
    /// How many these may be, for each vNIC.
    queued_max: usize,
    /// Bytes of messages that wait for all of them, and how many these may be.
    messages: Bytes,
    messages_max: usize,
    /// Connections that wait to be told that they are refused.
    refused: BTreeSet<SessionId>,
    /// Clients to disconnect once all that follows from earlier messages is done, with the reason.
    parting: Vec<(SessionId, &'static str)>,
    unwanted: Unwanted,
}

impl Clients {
    /// `queued_max`: descriptors that may wait to be taken by the processes of one vNIC;
    /// `waiting_bytes`: of all messages that wait.
    pub(crate) fn new(queued_max: usize, waiting_bytes: usize, unwanted: Unwanted) -> Clients {
        Clients {
            all: BTreeMap::new(),
            half_open: Holders::default(),
            half_open_of: BTreeMap::new(),
            queued: BTreeMap::new(),
            queued_max,
            messages: Bytes::default(),
            messages_max: waiting_bytes,
            refused: BTreeSet::new(),
            parting: Vec::new(),
            unwanted,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<&Client> {
        self.all.get(&id)
    }

    /// Those of certain vNICs.
    pub(crate) fn of(&self, is_meant: impl Fn(VnicId) -> bool) -> Vec<SessionId> {
        let of_it = |client: &Client| client.vnic().is_ok_and(&is_meant);
        self.all.iter().filter(|(_, client)| of_it(client)).map(|(id, _)| *id).collect()
    }

    /// Whether one more may wait to be told that it is refused.
    pub(crate) fn may_refuse(&self) -> bool {
        self.refused.len() < REFUSED
    }

    /// Where what waits counts for a process of a vNIC, or for one that is refused.
    pub(crate) fn queue_of(&mut self, vnic: Option<VnicId>) -> Queued {
        let messages = self.messages.clone();
        let Some(vnic) = vnic else { return Queued { messages, ..Queued::default() } };
        let known = self.queued.get(&vnic).and_then(Weak::upgrade);
        let descriptors = known.unwrap_or_else(|| {
            let queue = Arc::default();
            self.queued.insert(vnic, Arc::downgrade(&queue));
            queue
        });
        Queued { descriptors, messages }
    }

    /// If more bytes wait than may, the vNIC whose processes have most of them loses the client
    /// that has most.
    fn bound_messages(&mut self) {
        if self.messages.count() <= self.messages_max {
            return;
        }
        let parting: BTreeSet<SessionId> = self.parting.iter().map(|(id, _)| *id).collect();
        let mut vnics = BTreeMap::<Option<VnicId>, (usize, usize, SessionId)>::new();
        for (id, client) in self.all.iter().filter(|(_, client)| client.waiting_bytes() > 0) {
            // Those go in any case, and soon.
            if parting.contains(id) {
                return;
            }
            let own = client.waiting_bytes();
            let entry = vnics.entry(client.vnic().ok()).or_insert((0, 0, *id));
            entry.0 += own;
            if own > entry.1 {
                (entry.1, entry.2) = (own, *id);
            }
        }
        if let Some((_, _, id)) = vnics.into_values().max() {
            self.part(id, "holds the most unread messages while their total is used up");
        }
    }

    /// Adds a connection, half open; names the one that has to make room for it.
    pub(crate) fn add(
        &mut self,
        id: SessionId,
        client: Client,
        holder: &Holder,
    ) -> impl Iterator<Item = SessionId> + use<> {
        let vnic = client.vnic();
        if vnic.is_err() {
            self.refused.insert(id);
        }
        self.all.insert(id, client);
        let here = vnic.ok().and_then(|vnic| {
            let here = self.half_open_of.entry(vnic).or_default();
            over(here, id, holder, HALF_OPEN_PER_VNIC)
        });
        [here, over(&mut self.half_open, id, holder, HALF_OPEN)].into_iter().flatten()
    }

    /// One has said hello: its second socket, and a statistics area that it is to write.
    pub(crate) fn welcome(
        &mut self,
        id: SessionId,
        reactor: &Reactor,
    ) -> io::Result<(Parcel, Memory)> {
        self.no_longer_half_open(id);
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let client = self.all.get_mut(&id).ok_or_else(gone)?;
        let (theirs, area) = client.make_events()?;
        let ours = self.all.get(&id).and_then(Client::events).ok_or_else(gone)?;
        self.refuse(ours);
        reactor.watch(ours, Wakeup::Events(id))?;
        Ok((Arc::new(theirs), area))
    }

    /// Where memory comes from that a client shares.
    pub(crate) fn source(&self, id: SessionId) -> Source {
        self.all.get(&id).map(|client| client.source().clone()).unwrap_or_default()
    }

    /// A client has this until its end.
    pub(crate) fn keep(&mut self, id: SessionId, memory: &Memory) {
        if let Some(client) = self.all.get_mut(&id) {
            client.keep(memory);
        }
    }

    /// A client has a link of this queue pair's.
    pub(crate) fn keep_link(&mut self, id: SessionId, qpn: Qpn, shared: &Shared, origin: Origin) {
        if let Some(client) = self.all.get_mut(&id) {
            client.keep_link(qpn, shared, origin);
        }
    }

    /// A client has given the number of this queue pair back, and its links with it.
    pub(crate) fn drop_links_of(&mut self, id: SessionId, qpn: Qpn) {
        if let Some(client) = self.all.get_mut(&id) {
            client.drop_links_of(qpn);
        }
    }

    /// The number of a window for a client that shares it with a machine, outside of which it is.
    pub(crate) fn number_of_window(&mut self, id: SessionId, memory: &Memory) -> Option<u8> {
        self.all.get_mut(&id)?.number_of_window(memory)
    }

    /// A client is told of memory for pages; what of a window it is it has until it lets go of it.
    pub(crate) fn lend(&mut self, id: SessionId, memory: &Memory, said: (Extent, Origin)) {
        if let Some(client) = self.all.get_mut(&id) {
            client.lend(memory, said);
        }
    }

    /// A client reports pieces that it has released.
    pub(crate) fn let_go(&mut self, id: SessionId, said: &LetGo) {
        if let Some(client) = self.all.get_mut(&id) {
            client.let_go(said.memory, said.times);
        }
    }

    /// Pieces of windows that are over are kept no longer.
    pub(crate) fn drop_over(&mut self) {
        self.all.values_mut().for_each(Client::drop_over);
    }

    /// A client's process is gone, as its machine says.
    pub(crate) fn note_dead(&mut self, id: SessionId) {
        if let Some(client) = self.all.get_mut(&id) {
            client.note_dead();
        }
    }

    /// Has the kernel refuse descriptors that are sent to one of ours, if it can.
    pub(crate) fn refuse(&self, socket: impl AsFd) {
        if self.unwanted == Unwanted::Refused {
            let _ = unsolicited_fds::refuse(socket.as_fd());
        }
    }

    fn no_longer_half_open(&mut self, id: SessionId) {
        self.half_open.remove(&id);
        let vnic = self.all.get(&id).and_then(|client| client.vnic().ok());
        if let Some(vnic) = vnic
            && let Some(here) = self.half_open_of.get_mut(&vnic)
        {
            here.remove(&id);
            if here.is_empty() {
                self.half_open_of.remove(&vnic);
            }
        }
    }

    /// It is connected and has not said hello.
    pub(crate) fn is_half_open(&self, id: SessionId) -> bool {
        self.all.get(&id).is_some_and(|client| client.events().is_none())
    }

    /// Notes that a client's connection is to end.
    pub(crate) fn part(&mut self, id: SessionId, reason: &'static str) {
        if self.all.contains_key(&id) {
            self.parting.push((id, reason));
        }
    }

    /// The next client to disconnect.
    pub(crate) fn next_parting(&mut self) -> Option<(SessionId, &'static str)> {
        self.parting.pop()
    }

    /// Takes one out; its files are looked at no more.
    pub(crate) fn remove(&mut self, id: SessionId, reactor: &Reactor) -> Option<Client> {
        self.no_longer_half_open(id);
        let mut client = self.all.remove(&id)?;
        self.refused.remove(&id);
        // First: others are about to hear that it is gone, and what waits for it is not theirs.
        client.give_up();
        // With the last of them.
        if let Ok(vnic) = client.vnic()
            && self.queued.get(&vnic).is_some_and(|queue| queue.strong_count() <= 1)
        {
            self.queued.remove(&vnic);
        }
        client.files().for_each(|file| reactor.forget(file));
        Some(client)
    }

    /// Takes all out, at the end.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Client> + use<> {
        std::mem::take(&mut self.all).into_values()
    }

    /// The next message of one; notes its end if that is what there is.
    pub(crate) fn receive(&mut self, id: SessionId, channel: Channel) -> Option<Received> {
        let parting = self.parting.iter().any(|(session, _)| *session == id);
        let client = self.all.get(&id).filter(|_| !parting)?;
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        match client.receive(channel, &mut bytes)? {
            Ok(PlainMessage::Message(0)) => self.part(id, "closed its connection"),
            Ok(PlainMessage::Message(length)) => return Some((bytes, length)),
            // Clients send no descriptors. They stay in the socket; another thread closes it.
            Ok(PlainMessage::Descriptors) => self.part(id, "sent descriptors"),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                self.part(id, "broke its connection");
            }
            Err(_) => self.part(id, "sent a malformed message"),
        }
        None
    }

    /// Answers a call.
    pub(crate) fn answer(
        &mut self,
        id: SessionId,
        tag: u64,
        letter: Letter,
        reactor: &mut Reactor,
    ) {
        let sent = self.all.get_mut(&id).and_then(|client| client.answer(tag, letter));
        self.after_answer(id, sent, reactor);
    }

    /// Sends answers that wait.
    pub(crate) fn flush_answers(&mut self, id: SessionId, reactor: &mut Reactor) {
        let sent = self.all.get_mut(&id).and_then(Client::flush_answers);
        self.after_answer(id, sent, reactor);
    }

    /// Waits until the rest of a client's answers can be sent; until then it is not read from.
    fn after_answer(&mut self, id: SessionId, sent: Option<Sent>, reactor: &mut Reactor) {
        let (Some(client), Some(sent)) = (self.all.get(&id), sent) else { return };
        let interest = match sent {
            Sent::All => Interest::Input,
            Sent::Room => Interest::Room,
            Sent::Descriptors | Sent::Over => Interest::Neither,
        };
        reactor.change(client.calls(), Wakeup::Calls(id), interest);
        self.after(id, sent, "does not take its answers", reactor);
    }

    /// Tells one something it did not ask for.
    pub(crate) fn tell(&mut self, id: SessionId, letter: Letter, reactor: &mut Reactor) {
        self.send_events(id, Some(letter), reactor);
    }

    /// Sends events that wait.
    pub(crate) fn flush_events(&mut self, id: SessionId, reactor: &mut Reactor) {
        self.send_events(id, None, reactor);
    }

    /// Sends events, then waits until the rest of them can be sent.
    fn send_events(&mut self, id: SessionId, letter: Option<Letter>, reactor: &mut Reactor) {
        let Some(client) = self.all.get_mut(&id) else { return };
        let Some(sent) = client.tell(letter) else { return };
        let is_over = client.queued_of_vnic() > self.queued_max;
        let sent = if is_over { Sent::Over } else { sent };
        let interest = if sent == Sent::Room { Interest::Both } else { Interest::Input };
        if let Some(events) = self.all.get(&id).and_then(Client::events) {
            reactor.change(events, Wakeup::Events(id), interest);
        }
        self.after(id, sent, "does not take its events", reactor);
    }

    fn after(&mut self, id: SessionId, sent: Sent, reason: &'static str, reactor: &mut Reactor) {
        self.bound_messages();
        match sent {
            Sent::All | Sent::Room => {}
            Sent::Descriptors => {
                if self.all.get_mut(&id).is_some_and(Client::wants_flush_timer) {
                    reactor.set(DESCRIPTORS_AGAIN, Timer::Flush(id));
                }
            }
            Sent::Over => self.part(id, reason),
        }
    }

    /// The timer that was set for descriptors is due.
    pub(crate) fn flush_due(&mut self, id: SessionId, reactor: &mut Reactor) {
        if let Some(client) = self.all.get_mut(&id) {
            client.flush_timer_due();
        }
        self.flush_answers(id, reactor);
        self.flush_events(id, reactor);
    }

    /// How fast a client takes its messages, if that has changed.
    pub(crate) fn pace_change(&mut self, id: SessionId) -> Option<Pace> {
        self.all.get_mut(&id)?.pace_change()
    }
}

/// Adds a connection; returns the one that yields if there are too many.
fn over(
    half_open: &mut Holders<SessionId>,
    id: SessionId,
    holder: &Holder,
    most: usize,
) -> Option<SessionId> {
    half_open.add(holder, id);
    let full = half_open.len() > most;
    full.then(|| half_open.yields().copied()).flatten()
}
