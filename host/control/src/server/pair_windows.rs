//! Adds pair windows, assigns them to neighbours, and removes them.
//!
//! The reports of a machine's agent decide only which windows may be given away. The tables decide
//! the owner of a window when a link is made; here it is noted, and memory of it handed out. The
//! pieces of a disconnected neighbour's process come back when it has ended. If two machines want a
//! common window, one's is offered to the other's supervisor (`machines/shared_pair_windows.rs`).

use crate::client::{DepartedProcess, Origin};
use crate::daemon_log::Level;
use crate::link_memory::Shared;
use crate::pair_windows::Pair;
use crate::reactor::Timer;
use crate::server::Server;
use crate::server::operation_contexts::PairWindows;
use crate::virtual_machines::{InBoth, WindowDemand};
use crate::vm_supervisor::MachineSupervisor;
use crate::vm_window_allocator::{PAGE, PieceRange, Pieces};
use crate::vm_window_page_ledger::Ledger;
use omniverb_link::layout::{REQUEST_BYTES, RESPONSE_BYTES, link_bytes};
use omniverb_session::body::{Done, LinkReady};
use omniverb_session::operator::{
    AttachPair, AwaitPair, CAN_JOIN, CAN_TAKE_OUT, JoinPair, Message as Said, PairOffered,
    PairOver, PairWanted, PartPair,
};
use omniverb_session::pair_window::PlugTrouble;
use omniverb_session::vm::MachineName;
use omniverb_tenancy::{LinkEnd, Neighbour, SessionId};
use omniverb_terms::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Bytes of a link.
pub(super) const LINK_BYTES: u64 = link_bytes(REQUEST_BYTES, RESPONSE_BYTES) as u64;

/// Delay between a release and a check for unused windows, and the number of checks: a holder of
/// the file can make it take long to empty it.
const UNUSED_TIME: Duration = Duration::from_millis(250);
const UNUSED_LOOKS: u8 = 20;

impl PairWindows<'_> {
    /// An operator brings a pair window, and its ledger, for a machine that is attached.
    pub(super) fn attach_pair(
        &mut self,
        asked: &AttachPair,
        mut files: Vec<OwnedFd>,
    ) -> Result<(), Errno> {
        let checked = self.check_pair(asked, &files);
        let (id, number) = match checked {
            Ok(found) => found,
            Err(errno) => {
                self.captures.discard(files);
                return Err(errno);
            }
        };
        let (Some(ledger), Some(window)) = (files.pop(), files.pop()) else {
            return Err(Errno::EINVAL);
        };
        let (ledger, bin) = (Ledger::of(ledger), self.disposal.bin());
        let place = (asked.data, asked.at);
        let pair = Pair::new(window, place, ledger, bin).map_err(|_| Errno::ENOMEM)?;
        if let Some(pairs) = self.machines.pairs_mut(id) {
            pairs.add(number, pair);
        }
        Ok(())
    }

    /// The neighbour that gets it, and its number. Closing a file that is not memory may block for
    /// ever: nothing is done with it before this.
    pub(super) fn check_pair(
        &self,
        asked: &AttachPair,
        files: &[OwnedFd],
    ) -> Result<(SessionId, u8), Errno> {
        let [window, ledger] = files else { return Err(Errno::EINVAL) };
        let pages = asked.data.length / PAGE + Pair::LEDGER_BYTES;
        Ledger::check(ledger, pages).map_err(|_| Errno::EINVAL)?;
        self.check_window(asked, window)
    }

    /// The same of a window by itself.
    pub(super) fn check_window(
        &self,
        asked: &AttachPair,
        window: &OwnedFd,
    ) -> Result<(SessionId, u8), Errno> {
        let name = MachineName::read(&asked.name).ok_or(Errno::EINVAL)?;
        let number = u8::try_from(asked.number).map_err(|_| Errno::EINVAL)?;
        let sound = Pair::is_sound(asked) && Pieces::check(window, asked.data).is_ok();
        if !sound {
            return Err(Errno::EINVAL);
        }
        let id = self.machines.named(name).ok_or(Errno::ENOENT)?;
        match self.machines.pairs(id).is_some_and(|pairs| pairs.has(number)) {
            true => Err(Errno::EBUSY),
            false => Ok((id, number)),
        }
    }

    /// An operator says that a machine has a window of another's plugged in, which comes along.
    pub(super) fn join_pair(
        &mut self,
        asked: &JoinPair,
        mut files: Vec<OwnedFd>,
    ) -> Result<(), Errno> {
        let JoinPair { name, data, number, at } = *asked;
        let file = if files.len() == 1 { files.pop() } else { None };
        self.captures.discard(files);
        let file = file.ok_or(Errno::EINVAL)?;
        let asked = AttachPair { name, data, number, at };
        let (id, number) = match self.check_window(&asked, &file) {
            Ok(found) => found,
            Err(errno) => {
                self.captures.discard(vec![file]);
                return Err(errno);
            }
        };
        let bin = self.disposal.bin();
        let pairs = self.machines.pairs_mut(id).ok_or(Errno::ENOENT)?;
        pairs.joined_mut().add(PieceRange { number, at }, file, bin).map_err(|_| Errno::ENOMEM)
    }

    /// A machine's agent has found these.
    pub(super) fn machine_tells_pairs(&mut self, id: SessionId, present: u64) {
        if let Some(pairs) = self.machines.pairs_mut(id) {
            pairs.found(present);
        }
    }

    /// A machine's supervisor has taken a window out that was over.
    pub(super) fn part_pair(&mut self, asked: &PartPair) -> Result<(), Errno> {
        let name = MachineName::read(&asked.name).ok_or(Errno::EINVAL)?;
        let number = u8::try_from(asked.number).map_err(|_| Errno::EINVAL)?;
        let id = self.machines.named(name).ok_or(Errno::ENOENT)?;
        let pairs = self.machines.pairs_mut(id).ok_or(Errno::ENOENT)?;
        if pairs.take_out(number) { Ok(()) } else { Err(Errno::ENOENT) }
    }

    /// A process may have released pieces of a window, of a machine that has no slot left: checks
    /// for unused windows. Pieces that come back are emptied first, by threads of their own, so it
    /// checks more than once.
    pub(super) fn look_for_unused(&mut self) {
        for id in self.machines.full_ones() {
            self.machines.look_at_pairs(id);
            let begun = self
                .machines
                .get_mut(id)
                .map(|record| std::mem::replace(&mut record.looks, UNUSED_LOOKS));
            if begun == Some(0) {
                self.reactor.set(UNUSED_TIME, Timer::Unused(id));
            }
        }
    }

    /// Checks again whether a machine has unused windows.
    pub(super) fn look_again_for_unused(&mut self, id: SessionId) {
        let Some(record) = self.machines.get_mut(id) else { return };
        record.looks = record.looks.saturating_sub(1);
        let more = record.looks > 0 && record.pairs().is_full();
        record.looks = if more { record.looks } else { 0 };
        self.machines.look_at_pairs(id);
        if more {
            self.reactor.set(UNUSED_TIME, Timer::Unused(id));
        }
    }

    /// A client has said hello. There may be room again in windows that were full: pieces that come
    /// back are emptied first, by threads of their own.
    pub(super) fn look_at_pairs_of(&mut self, id: SessionId) {
        let Some(vnic) = self.clients.get(id).and_then(|client| client.vnic().ok()) else { return };
        let proof = self.tables.proof(vnic);
        self.machines.look_at_pairs_of(vnic, proof);
    }

    /// A link between a machine's process and a neighbour's.
    pub(super) fn create_pair_link(&mut self, ends: [&LinkEnd; 2]) {
        let vnics = ends.map(|end| self.clients.get(end.session).and_then(|c| c.vnic().ok()));
        let machines = vnics.map(|vnic| vnic.and_then(|vnic| self.machines.number_of(vnic)));
        let (id, outside) = match machines {
            [Some(id), None] => (id, 1),
            [None, Some(id)] => (id, 0),
            [Some(one), Some(other)] => return self.create_link_of_machines(ends, [one, other]),
            _ => return self.link_failed(ends[0], ends[1], &io::ErrorKind::Unsupported.into()),
        };
        // Whatever comes of it: the tables count what they have promised only until they are told.
        self.machines.look_at_pairs(id);
        let made = self.pair_memory(id, ends[outside].session, &ends[0].ready);
        match made {
            Ok(shared) => {
                for (index, end) in ends.into_iter().enumerate() {
                    self.clients.keep_link(end.session, end.ready.qpn, &shared, Origin::ItsMachine);
                    let letter = match index == outside {
                        true => shared.letter_outside(&end.ready),
                        false => shared.letter(&end.ready),
                    };
                    self.delivery().tell(end.session, letter);
                }
            }
            Err(error) => self.link_failed(ends[0], ends[1], &error),
        }
    }

    /// A link between processes of two machines, in the window that is in both.
    pub(super) fn create_link_of_machines(&mut self, ends: [&LinkEnd; 2], both: [SessionId; 2]) {
        both.into_iter().for_each(|id| self.machines.look_at_pairs(id));
        let found = self.machines.in_both(both).ok_or(io::ErrorKind::Unsupported.into());
        let made = found.and_then(|found| Ok((found, self.memory_in_both(both, found, ends[0])?)));
        let (InBoth { end, place, .. }, shared) = match made {
            Ok(made) => made,
            Err(error) => return self.link_failed(ends[0], ends[1], &error),
        };
        let (here, there) = (ends[end], ends[1 - end]);
        self.clients.keep_link(here.session, here.ready.qpn, &shared, Origin::ItsMachine);
        self.delivery().tell(here.session, shared.letter(&here.ready));
        let another = Origin::AnotherMachine;
        self.clients.keep_link(there.session, there.ready.qpn, &shared, another);
        self.delivery().tell(there.session, shared.letter_as(place, &there.ready));
    }

    pub(super) fn memory_in_both(
        &mut self,
        both: [SessionId; 2],
        InBoth { end, neighbour, .. }: InBoth,
        one: &LinkEnd,
    ) -> io::Result<Shared> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let there = self.machines.get(both[1 - end]).ok_or_else(gone)?;
        let name = format!("vm-{}", there.machine.name);
        self.machines.pairs_mut(both[end]).ok_or_else(gone)?.make(neighbour, &name, &one.ready)
    }

    pub(super) fn pair_memory(
        &mut self,
        id: SessionId,
        neighbour: SessionId,
        ready: &LinkReady,
    ) -> io::Result<Shared> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let client = self.clients.get(neighbour).ok_or_else(gone)?;
        let vnic = client.vnic().map_err(|_| gone())?;
        let owner = Neighbour { proof: self.tables.proof(vnic), uid: client.uid() };
        let name = self.vnics.registry().name(vnic).to_owned();
        self.machines.pairs_mut(id).ok_or_else(gone)?.make(owner, &name, ready)
    }
}

impl Server {
    /// A machine's supervisor waits until another window is wanted: the answer, if there is one
    /// now.
    pub(super) fn await_pair(
        &mut self,
        operator: SessionId,
        tag: u64,
        asked: &AwaitPair,
    ) -> Result<Option<Said>, Errno> {
        let name = MachineName::read(&asked.name).ok_or(Errno::EINVAL)?;
        let id = self.machines.named(name).ok_or(Errno::ENOENT)?;
        let pairs = self.machines.pairs_mut(id).ok_or(Errno::ENOENT)?;
        let (left, trouble) = (asked.left, PlugTrouble::of(asked.trouble.into()));
        let [may_join, can_take_out] = [CAN_JOIN, CAN_TAKE_OUT].map(|bit| asked.can & bit != 0);
        let tag = (left > 0 || can_take_out).then_some(tag);
        let plugger = MachineSupervisor { operator, tag, left, may_join, can_take_out, trouble };
        let before = pairs.set_plugger(Some(plugger));
        if let Some(before) = before.filter(|before| before.operator != operator) {
            self.end_operator(before.operator);
        }
        self.operators.keeps(operator);
        self.pair_windows().look_for_unused();
        Ok(tag.is_none().then(|| Done { take_back: 0 }.into()))
    }

    /// Has the tables know what has changed of pair windows. They count what they decide to give
    /// only until they are told: so this is done when all that they have decided is.
    pub(super) fn tell_pairs(&mut self) {
        let mut both = Vec::new();
        self.tables.note(|tables| both.extend(tables.take_wanted_windows()));
        for vnics in both {
            if let [Some(one), Some(other)] = vnics.map(|vnic| self.machines.number_of(vnic)) {
                self.machines.want_shared([one, other]);
            }
        }
        let WindowDemand { wanted, offers, over } = self.machines.wanted_pairs();
        for (operator, tag) in wanted {
            self.answer_operator(operator, tag, &PairWanted { reserved: 0 }.into());
        }
        for (operator, tag, number) in over {
            self.answer_operator(operator, tag, &PairOver { number: number.into() }.into());
        }
        for offer in offers {
            let offered = PairOffered { reserved: 0 }.into();
            self.answer_operator_with(offer.operator, offer.tag, &offered, &[offer.file.as_fd()]);
        }
        for (vnic, known) in self.machines.changed_pairs(LINK_BYTES) {
            self.tables.note(|tables| tables.set_pair_windows(vnic, known));
        }
    }

    /// A process is parted with that has some of a machine's pair window. It may be there, and use
    /// it.
    pub(super) fn wait_for_end(&mut self, id: SessionId, leaver: DepartedProcess) {
        if let Err(error) = self.departed.add(id, leaver, &self.reactor) {
            let text = format_args!("the end of a process will not be seen: {error}");
            self.journal.log(Level::Warning, text);
        }
    }

    /// A machine is parted with. What its neighbours had in its pair windows does not keep these:
    /// nothing in them is ever given back.
    pub(super) fn drop_what_is_over(&mut self) {
        self.clients.drop_over();
        self.departed.drop_over(&self.reactor);
    }
}
