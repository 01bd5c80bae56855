//! The connected processes: their sockets, what waits to be sent, their statistics areas, and who
//! of them has not said hello.
//!
//! Connections that say nothing are bounded, for a vNIC and for all; over the bound whoever has the
//! most of them loses the oldest. So are descriptors that wait to be taken.

use crate::disposal::Bin;
use crate::memory;
use crate::outbox::{Letter, Outbox, Sent};
use omniverb_session::limits::{STATISTICS_SLOT_BYTES, STATISTICS_SLOTS};
use omniverb_sys::descriptors::{self, Plain};
use omniverb_sys::pidfd::Peer;
use omniverb_sys::{Access, Extent, Mapping, socket};
use omniverb_tenancy::{Channel, Holder, Holders, SessionId, VnicId};
use omniverb_terms::Errno;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Bytes of a statistics area.
const AREA_BYTES: usize = STATISTICS_SLOTS * STATISTICS_SLOT_BYTES;
/// Bytes of messages, with what the kernel needs to keep them, that a client may leave unread and
/// not count as behind: some thirty messages.
const UNREAD_MAX: usize = 32 << 10;
/// Connections that have not said hello, of one vNIC.
const HALF_OPEN_PER_VNIC: usize = 256;
/// The same, of all together.
const HALF_OPEN: usize = 4096;
/// Connections that are refused and have not been told so.
const REFUSED: usize = 64;

/// A connected process.
#[derive(Debug)]
pub(crate) struct Client {
    /// The process asks here.
    calls: OwnedFd,
    /// The process is told here; once it has said hello.
    events: Option<OwnedFd>,
    /// Readable when the process has ended.
    pidfd: Option<Arc<OwnedFd>>,
    /// What the kernel says about it.
    peer: Peer,
    /// Its vNIC, or the errno it is refused with.
    vnic: Result<VnicId, Errno>,
    /// Has said hello.
    greeted: bool,
    /// Counters that it writes.
    statistics: Option<Mapping>,
    answers: Outbox,
    told: Outbox,
    /// What the tables were told: it has left more than a little of what it was told.
    behind: bool,
    /// A timer will try again to send what waits.
    flush_timer: bool,
}

impl Client {
    pub(crate) fn new(
        calls: OwnedFd,
        pidfd: Option<Arc<OwnedFd>>,
        peer: Peer,
        vnic: Result<VnicId, Errno>,
        bin: &Bin,
    ) -> Client {
        Client {
            calls,
            events: None,
            pidfd,
            peer,
            vnic,
            greeted: false,
            statistics: None,
            answers: Outbox::new(bin.clone()),
            told: Outbox::new(bin.clone()),
            behind: false,
            flush_timer: false,
        }
    }

    pub(crate) fn calls(&self) -> &OwnedFd {
        &self.calls
    }

    pub(crate) fn events(&self) -> Option<&OwnedFd> {
        self.events.as_ref()
    }

    pub(crate) fn pidfd(&self) -> Option<&OwnedFd> {
        self.pidfd.as_deref()
    }

    pub(crate) fn pid(&self) -> i32 {
        self.peer.pid
    }

    /// Its vNIC, or the errno it is refused with.
    pub(crate) fn vnic(&self) -> Result<VnicId, Errno> {
        self.vnic
    }

    /// Its sockets, to be let go of.
    pub(crate) fn into_sockets(self) -> impl Iterator<Item = OwnedFd> {
        [Some(self.calls), self.events].into_iter().flatten()
    }

    /// Makes its second socket and a statistics area that it is to write: what it gets.
    pub(crate) fn make_events(&mut self) -> io::Result<(OwnedFd, Extent)> {
        let (ours, theirs) = socket::pair()?;
        let area = memory::make("omniverb-statistics", AREA_BYTES as u64)?;
        self.statistics = Some(area.mapping(Access::ReadOnly)?);
        self.events = Some(ours);
        Ok((theirs, area))
    }

    /// The eight words of a statistics slot, as they are at the moment.
    pub(crate) fn counters(&self, slot: u32) -> Option<[u64; 8]> {
        let area = self.statistics.as_ref()?;
        let start = (slot as usize).checked_mul(STATISTICS_SLOT_BYTES)?;
        let mut words = [0; 8];
        for (index, word) in words.iter_mut().enumerate() {
            *word = area.load_u64(start + 8 * index)?;
        }
        Some(words)
    }

    /// Has taken all its answers. Who has not is not asked for more.
    pub(crate) fn listens(&self) -> bool {
        self.answers.is_empty()
    }

    /// Answers a call. What the rest of its answers wait for, if it waited before or does now.
    pub(crate) fn answer(&mut self, tag: u64, letter: Letter) -> Option<Sent> {
        let idle = self.answers.is_empty();
        let sent = self.answers.push(self.calls.as_fd(), tag, letter);
        (!idle || sent != Sent::All).then_some(sent)
    }

    /// Sends answers that wait, if there are any.
    pub(crate) fn flush_answers(&mut self) -> Option<Sent> {
        let waits = !self.answers.is_empty();
        waits.then(|| self.answers.flush(self.calls.as_fd()))
    }

    /// True if a timer is to be set that tries again to send what waits.
    pub(crate) fn wants_flush_timer(&mut self) -> bool {
        !std::mem::replace(&mut self.flush_timer, true)
    }

    /// That timer was due.
    pub(crate) fn flush_timer_due(&mut self) {
        self.flush_timer = false;
    }

    /// Whether it has left more than a little of what it was told, if that has changed.
    pub(crate) fn backlog_change(&mut self) -> Option<bool> {
        let events = self.events.as_ref()?;
        let unread = || socket::unread(events.as_fd()).unwrap_or(0);
        let behind = !self.told.is_empty() || unread() > UNREAD_MAX;
        let before = std::mem::replace(&mut self.behind, behind);
        (before != behind).then_some(behind)
    }

    /// The next message of it.
    pub(crate) fn receive(&self, channel: Channel, bytes: &mut [u8]) -> Option<io::Result<Plain>> {
        let from: BorrowedFd<'_> = match channel {
            Channel::Calls => self.calls.as_fd(),
            Channel::Events => self.events.as_ref()?.as_fd(),
        };
        Some(descriptors::receive(from, bytes))
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    all: BTreeMap<SessionId, Client>,
    /// Whose connections have not said hello yet.
    half_open: Holders<SessionId>,
    /// The same for each vNIC.
    half_open_of: BTreeMap<VnicId, Holders<SessionId>>,
    /// Descriptors that wait to be sent to the processes of a vNIC.
    queued: BTreeMap<VnicId, usize>,
    /// Connections that wait to be told that they are refused.
    refused: usize,
}

impl Clients {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn has(&self, id: SessionId) -> bool {
        self.all.contains_key(&id)
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<&Client> {
        self.all.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut Client> {
        self.all.get_mut(&id)
    }

    /// True if one more may wait to be told that it is refused.
    pub(crate) fn may_refuse(&self) -> bool {
        self.refused < REFUSED
    }

    /// Adds one, half open; says who has to make room for it.
    pub(crate) fn add(
        &mut self,
        id: SessionId,
        client: Client,
        holder: &Holder,
    ) -> impl Iterator<Item = SessionId> + use<> {
        let vnic = client.vnic;
        self.refused += usize::from(vnic.is_err());
        self.all.insert(id, client);
        let here = vnic.ok().and_then(|vnic| {
            let here = self.half_open_of.entry(vnic).or_default();
            over(here, id, holder, HALF_OPEN_PER_VNIC)
        });
        [here, over(&mut self.half_open, id, holder, HALF_OPEN)].into_iter().flatten()
    }

    /// One has said hello.
    pub(crate) fn greeted(&mut self, id: SessionId) {
        self.half_open.remove(&id);
        let Some(client) = self.all.get_mut(&id) else { return };
        client.greeted = true;
        if let Ok(vnic) = client.vnic
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
        self.all.get(&id).is_some_and(|client| !client.greeted)
    }

    /// Takes one out.
    pub(crate) fn remove(&mut self, id: SessionId) -> Option<Client> {
        self.greeted(id);
        let client = self.all.remove(&id)?;
        self.refused -= usize::from(client.vnic.is_err());
        self.note_queued(client.vnic, client.told.descriptors(), 0);
        Some(client)
    }

    /// Takes all out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Client> + use<> {
        std::mem::take(self).all.into_values()
    }

    /// Tells one something, or sends what waits of that. What the rest waits for, if it waited
    /// before or does now; [`Sent::Over`] also if its vNIC lets more than `most` descriptors wait.
    pub(crate) fn tell(
        &mut self,
        id: SessionId,
        letter: Option<Letter>,
        most: usize,
    ) -> Option<Sent> {
        let client = self.all.get_mut(&id)?;
        let events = client.events.as_ref()?.as_fd();
        let (idle, before) = (client.told.is_empty(), client.told.descriptors());
        let sent = match letter {
            Some(letter) => client.told.push(events, 0, letter),
            None if idle => return None,
            None => client.told.flush(events),
        };
        if idle && sent == Sent::All {
            return None;
        }
        let (vnic, after) = (client.vnic, client.told.descriptors());
        let over = self.note_queued(vnic, before, after) > most;
        Some(if over { Sent::Over } else { sent })
    }

    fn note_queued(&mut self, vnic: Result<VnicId, Errno>, before: usize, after: usize) -> usize {
        let Ok(vnic) = vnic else { return 0 };
        let queued = self.queued.entry(vnic).or_default();
        *queued = *queued + after - before;
        let now = *queued;
        if now == 0 {
            self.queued.remove(&vnic);
        }
        now
    }
}

/// Adds one; who yields if there are more than may be.
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
