//! Hands out memory for granted pages.
//!
//! The tables decide the window (`PageHome`). A process that is told of a piece has it until it
//! reports its release, or has ended (`vm_window_piece_loans.rs`).

use crate::client::Origin;
use crate::client_outbox::{Letter, Parcel};
use crate::extent_memory::{Lending, SharedBy};
use crate::link_memory::Memory;
use crate::server::Server;
use crate::server::operation_contexts::PageLender;
use crate::server::pair_windows::LINK_BYTES;
use omniverb_session::Message;
use omniverb_session::body::{Adopt, Extent, Granted};
use omniverb_session::pair_window;
use omniverb_tenancy::{FileId, GrantOccasion, Neighbour, PageHome, SessionId};
use std::io;

/// The announcement of memory: its place, the descriptor that goes along, and its window.
type AnnouncedExtent = (Extent, Option<Parcel>, Origin);

impl PageLender<'_> {
    /// Gives an owner memory for pages of its own.
    pub(super) fn adopt(
        &mut self,
        owner: SessionId,
        adopt: &Adopt,
        (home, file): (PageHome, FileId),
        new: Option<u64>,
    ) {
        let made = match new {
            Some(bytes) => self.make_for_pages(owner, home, bytes),
            None => self.extents.get(file).ok_or(io::ErrorKind::NotFound.into()),
        };
        let told = made.is_ok_and(|lending| {
            self.extents.add(file, lending.clone());
            self.lend(owner, &lending, |memory| Adopt { memory, ..*adopt }.into(), adopt.memory)
        });
        if !told {
            self.tables.decide(|tables| tables.memory_failed(adopt.token));
        }
    }

    /// Grants an initiator its pages, unless it cannot be told of them.
    pub(super) fn grant(
        &mut self,
        to: SessionId,
        file: FileId,
        granted: &Granted,
        occasion: GrantOccasion,
    ) {
        let told = self.extents.get(file).is_some_and(|lending| {
            self.lend(to, &lending, |memory| Granted { memory, ..*granted }.into(), granted.memory)
        });
        if !told {
            self.tables.decide(|tables| tables.grant_failed(to, file, granted, occasion));
        }
    }

    pub(super) fn make_for_pages(
        &mut self,
        owner: SessionId,
        home: PageHome,
        bytes: u64,
    ) -> io::Result<Lending> {
        let PageHome::Pair { machine, neighbour } = home else {
            let memory = self.clients.source(owner).make_for_pages(bytes)?;
            return Ok(Lending { memory, shared_by: None });
        };
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let machine = self.machines.number_of(machine).ok_or_else(gone)?;
        let pairs = self.machines.pairs_mut(machine).ok_or_else(gone)?;
        let memory = pairs.make_for_pages(&neighbour, bytes, LINK_BYTES)?;
        Ok(Lending { memory, shared_by: Some(SharedBy { machine, neighbour }) })
    }

    /// Announces a part of memory for pages to a client. False: it may not have it, or not any
    /// more.
    pub(super) fn lend(
        &mut self,
        to: SessionId,
        lending: &Lending,
        message: impl FnOnce(Extent) -> Message,
        part: Extent,
    ) -> bool {
        let told = match &lending.shared_by {
            None => Some((lending.memory.said(), lending.memory.enclosed(), Origin::ItsMachine)),
            Some(by) => self.told_in_pair(to, &lending.memory, by),
        };
        let Some((said, parcel, origin)) = told else { return false };
        let said = Extent { offset: said.offset.saturating_add(part.offset), length: part.length };
        self.clients.lend(to, &lending.memory, (said, origin));
        self.delivery().tell(to, Letter::with(message(said), parcel.into_iter().collect()));
        true
    }

    /// The announcement of memory in a pair window to a client that shares the window.
    pub(super) fn told_in_pair(
        &mut self,
        to: SessionId,
        memory: &Memory,
        by: &SharedBy,
    ) -> Option<AnnouncedExtent> {
        let client = self.clients.get(to)?;
        let (vnic, uid) = (client.vnic().ok()?, client.uid());
        let Some(machine) = self.machines.number_of(vnic) else {
            let neighbour = Neighbour { proof: self.tables.proof(vnic), uid };
            let outside = (neighbour == by.neighbour).then(|| memory.outside())?;
            let number = self.clients.number_of_window(to, memory)?;
            let (said, file) = outside;
            return Some((pair_window::numbered(number, said), Some(file), Origin::AnotherMachine));
        };
        if machine == by.machine {
            return Some((memory.said(), None, Origin::ItsMachine));
        }
        let pairs = self.machines.pairs(machine)?;
        let file = memory.extent.file_id().ok()?;
        let place = pairs.place_of_found(file).filter(|_| pairs.this() == Some(by.neighbour))?;
        Some((memory.said_as(place), None, Origin::AnotherMachine))
    }
}

impl Server {
    /// Files that a process might have had are gone.
    pub(super) fn files_gone(&mut self) {
        for file in self.watched_files.gone() {
            self.tables.note(|tables| tables.file_gone(file));
        }
    }
}
