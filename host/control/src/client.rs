//! Describes one connected process: its sockets, its unsent messages, its statistics area.

use crate::client_outbox::{Letter, Outbox, Sent};
use crate::link_memory::{Memory, Shared, Source};
use crate::live_token_count::{Bytes, Tally};
use crate::vm_window_allocator::Piece;
use crate::vm_window_piece_loans::Loans;
use crate::vnic_references::Hold;
use omniverb_session::body;
use omniverb_session::limits::{STATISTICS_SLOT_BYTES, STATISTICS_SLOTS, STATISTICS_WORDS};
use omniverb_sys::deferred_close::CloseQueue;
use omniverb_sys::pidfd::Peer;
use omniverb_sys::unsolicited_fds::{self, PlainMessage};
use omniverb_sys::{Access, Mapping, seqpacket};
use omniverb_tenancy::{Channel, Pace, VnicId};
use omniverb_terms::{Errno, Qpn};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Bytes of a statistics area.
const AREA_BYTES: usize = STATISTICS_SLOTS * STATISTICS_SLOT_BYTES;
/// Budget: bytes of messages, with what the kernel needs to keep them, that a client may leave
/// unread without counting as behind: some thirty messages.
const UNREAD_MAX: usize = 32 << 10;

/// Where what waits for a process counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queued {
    /// Descriptors, of what all processes of its vNIC are told unasked.
    pub(crate) descriptors: Arc<Tally>,
    /// Bytes of messages, of all processes.
    pub(crate) messages: Bytes,
}

/// A connected process.
#[derive(Debug)]
pub(crate) struct Client {
    /// Where the process asks, and is answered.
    calls: OwnedFd,
    /// The process is told here; once it has said hello.
    events: Option<OwnedFd>,
    /// Readable when the process has ended.
    pidfd: Option<Arc<OwnedFd>>,
    /// The kernel's description of the process.
    peer: Peer,
    /// Has its vNIC open, or the errno it is refused with.
    hold: Result<Hold, Errno>,
    /// Counters that it writes and we only read; from hello on.
    statistics: Option<Mapping>,
    /// Answers that wait for room in `calls`.
    answers: Outbox,
    /// Events that wait for room in `events`.
    unasked: Outbox,
    /// How fast it takes its messages, as the tables know it.
    pace: Pace,
    /// A timer is set that will try again to send what waits.
    flush_timer: bool,
    /// Where memory comes from that it shares.
    source: Source,
    /// Those of a window that it was given.
    pieces: Vec<KeptPiece>,
    /// Those that it has for pages, until it lets go of them.
    loans: Loans<Origin>,
    /// Its machine says that its process has ended: nothing of its memory is in use.
    dead: bool,
}

/// A piece of a window that a process may use: as long as it lives, or as long as it has a queue
/// pair, whose link it is.
#[derive(Debug)]
struct KeptPiece {
    piece: Arc<Piece>,
    link_of: Option<Qpn>,
    origin: Origin,
}

/// The window that a process uses something of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Its machine's; or, if it has none, any.
    ItsMachine,
    /// Another machine's than its own: that one's boots say nothing of this process.
    AnotherMachine,
}

/// A process that may still run although its connection is gone, and the pieces it may use until it
/// ends.
#[derive(Debug)]
pub(crate) struct DepartedProcess {
    /// Readable when it has ended.
    life: Arc<OwnedFd>,
    pieces: Vec<Arc<Piece>>,
}

impl DepartedProcess {
    /// Readable when it has ended.
    pub(crate) fn life(&self) -> &OwnedFd {
        &self.life
    }

    /// Its end will not be seen.
    pub(crate) fn retire(&self) {
        self.pieces.iter().for_each(|piece| piece.retire_for_good());
    }

    /// Lets go of what it has of windows that are over. False: it has nothing else.
    pub(crate) fn drop_over(&mut self) -> bool {
        self.pieces.retain(|piece| !piece.is_over());
        !self.pieces.is_empty()
    }
}

impl Client {
    /// Its unsent messages count in `queued`.
    pub(crate) fn new(
        calls: OwnedFd,
        pidfd: Option<Arc<OwnedFd>>,
        peer: Peer,
        hold: Result<Hold, Errno>,
        source: Source,
        (bin, queued): (&CloseQueue, Queued),
    ) -> Client {
        Client {
            calls,
            events: None,
            pidfd,
            peer,
            hold,
            statistics: None,
            answers: Outbox::new(bin.clone(), Arc::default(), queued.messages.clone()),
            unasked: Outbox::new(bin.clone(), queued.descriptors, queued.messages),
            pace: Pace::KeepsUp,
            flush_timer: false,
            source,
            pieces: Vec::new(),
            loans: Loans::default(),
            dead: false,
        }
    }

    /// Where memory comes from that it shares.
    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// It has this until its end, if it is of a window.
    pub(crate) fn keep(&mut self, memory: &Memory) {
        self.keep_piece(memory, None, Origin::ItsMachine);
    }

    /// It has a link of this queue pair's, by a doorbell that may be for others as well.
    pub(crate) fn keep_link(&mut self, qpn: Qpn, shared: &Shared, origin: Origin) {
        shared.bell.iter().for_each(|bell| self.keep_piece(bell, None, origin));
        self.keep_piece(&shared.link, Some(qpn), origin);
    }

    fn keep_piece(&mut self, memory: &Memory, link_of: Option<Qpn>, origin: Origin) {
        self.pieces.extend(memory.piece().map(|piece| KeptPiece { piece, link_of, origin }));
    }

    /// It has given the number of this queue pair back. Before a library does so it has let go of
    /// the links, and it takes none that it hears of later.
    pub(crate) fn drop_links_of(&mut self, qpn: Qpn) {
        self.pieces.retain(|kept| kept.link_of != Some(qpn));
    }

    /// The number of a window that it shares with a machine, outside of which it is.
    pub(crate) fn number_of_window(&mut self, memory: &Memory) -> Option<u8> {
        let piece = memory.piece()?;
        self.loans.number_of(piece.window())
    }

    /// It is told of memory for pages; what of a window it is it has until it lets go of it.
    pub(crate) fn lend(&mut self, memory: &Memory, (said, origin): (body::Extent, Origin)) {
        if let Some(piece) = memory.piece() {
            self.loans.told(piece, said, origin);
        }
    }

    /// It says that it has let go of a piece for pages, which it was told of so many times.
    pub(crate) fn let_go(&mut self, memory: body::Extent, times: u32) {
        self.loans.let_go(memory, times);
    }

    /// Of windows that are over nothing is given back: they are not kept for its sake.
    pub(crate) fn drop_over(&mut self) {
        self.pieces.retain(|kept| !kept.piece.is_over());
        self.loans.drop_over();
    }

    /// Its pieces of windows that machines share with it, and the pidfd that tells when its process
    /// has ended: until then it may use them.
    pub(crate) fn leave_behind(&mut self) -> Option<DepartedProcess> {
        let life = self.pidfd.clone().filter(|_| matches!(self.source, Source::Files))?;
        let kept = std::mem::take(&mut self.pieces).into_iter().map(|kept| kept.piece);
        let pieces: Vec<_> = kept.chain(self.loans.take()).collect();
        (!pieces.is_empty()).then_some(DepartedProcess { life, pieces })
    }

    /// Its process is gone, as its machine says.
    pub(crate) fn note_dead(&mut self) {
        self.dead = true;
    }

    pub(crate) fn calls(&self) -> &OwnedFd {
        &self.calls
    }

    pub(crate) fn events(&self) -> Option<&OwnedFd> {
        self.events.as_ref()
    }

    pub(crate) fn pid(&self) -> i32 {
        self.peer.pid
    }

    pub(crate) fn uid(&self) -> u32 {
        self.peer.uid
    }

    /// Its vNIC, or the errno it is refused with.
    pub(crate) fn vnic(&self) -> Result<VnicId, Errno> {
        self.hold.as_ref().map(Hold::vnic).map_err(|errno| *errno)
    }

    /// All that the loop looks at for it.
    pub(crate) fn files(&self) -> impl Iterator<Item = &OwnedFd> {
        let pidfd = self.pidfd.as_deref();
        [Some(&self.calls), self.events.as_ref(), pidfd].into_iter().flatten()
    }

    /// Its sockets, to be let go of. A process that has lost its daemon goes on with its links, so
    /// what it has of a window stays as it is unless it is known to be gone.
    pub(crate) fn into_sockets(self) -> impl Iterator<Item = OwnedFd> {
        let retire = match self.source {
            Source::Window(_) => Piece::retire,
            Source::Files => Piece::retire_for_good,
        };
        if !self.dead {
            let kept = self.pieces.iter().map(|kept| (&kept.piece, &kept.origin));
            kept.chain(self.loans.iter()).for_each(|(piece, origin)| match origin {
                Origin::ItsMachine => retire(piece),
                Origin::AnotherMachine => piece.retire_for_good(),
            });
        }
        [Some(self.calls), self.events].into_iter().flatten()
    }

    /// Makes its second socket and the statistics area that it writes: the client's ends of both.
    pub(crate) fn make_events(&mut self) -> io::Result<(OwnedFd, Memory)> {
        let (ours, theirs) = seqpacket::pair()?;
        let area = self.source.make("omniverb-statistics", AREA_BYTES as u64)?;
        self.statistics = Some(area.extent.mapping(Access::ReadOnly)?);
        self.keep(&area);
        self.events = Some(ours);
        Ok((theirs, area))
    }

    /// The words of a statistics slot, as they are at the moment.
    pub(crate) fn counters(&self, slot: u32) -> Option<[u64; STATISTICS_WORDS]> {
        let area = self.statistics.as_ref()?;
        let start = (slot as usize).checked_mul(STATISTICS_SLOT_BYTES)?;
        let mut words = [0; STATISTICS_WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            *word = area.load_u64(start + 8 * index)?;
        }
        Some(words)
    }

    /// Whether it has taken all its answers. A client that has not is not read from.
    pub(crate) fn listens(&self) -> bool {
        self.answers.is_empty()
    }

    /// Answers a call. The result says what the remaining answers wait for, if they waited before
    /// or do now.
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

    /// Sends it an event, or what waits of events. The result says what the rest waits for, if it
    /// waited before or does now; `None` also before its hello.
    pub(crate) fn tell(&mut self, letter: Option<Letter>) -> Option<Sent> {
        let events = self.events.as_ref()?.as_fd();
        let idle = self.unasked.is_empty();
        let sent = match letter {
            Some(letter) => self.unasked.push(events, 0, letter),
            None if idle => return None,
            None => self.unasked.flush(events),
        };
        (!idle || sent != Sent::All).then_some(sent)
    }

    /// Descriptors among what waits to be told to the processes of its vNIC.
    pub(crate) fn queued_of_vnic(&self) -> usize {
        self.unasked.descriptors_of_all()
    }

    /// Bytes of messages that wait for it.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.answers.bytes() + self.unasked.bytes()
    }

    /// It is told nothing any more, and nothing waits for it.
    pub(crate) fn give_up(&mut self) {
        self.answers.give_up();
        self.unasked.give_up();
    }

    /// Whether a timer is still to be set that tries again to send what waits.
    pub(crate) fn wants_flush_timer(&mut self) -> bool {
        !std::mem::replace(&mut self.flush_timer, true)
    }

    /// That timer was due.
    pub(crate) fn flush_timer_due(&mut self) {
        self.flush_timer = false;
    }

    /// How fast it takes its messages, if that has changed.
    pub(crate) fn pace_change(&mut self) -> Option<Pace> {
        let events = self.events.as_ref()?;
        let unread = || seqpacket::unread(events.as_fd()).unwrap_or(0);
        let behind = !self.unasked.is_empty() || unread() > UNREAD_MAX;
        let pace = if behind { Pace::Behind } else { Pace::KeepsUp };
        let before = std::mem::replace(&mut self.pace, pace);
        (before != pace).then_some(pace)
    }

    /// The next message of it; `None`: it has not said hello, so it has no such socket.
    pub(crate) fn receive(
        &self,
        channel: Channel,
        bytes: &mut [u8],
    ) -> Option<io::Result<PlainMessage>> {
        let from: BorrowedFd<'_> = match channel {
            Channel::Calls => self.calls.as_fd(),
            Channel::Events => self.events.as_ref()?.as_fd(),
        };
        Some(unsolicited_fds::receive(from, bytes))
    }
}
