//! Links that were given: whose they are, and what they live by.

use crate::client::Client;
use crate::daemon::Place;
use crate::offers::Offer;
use omniverb_sys::connection::Connection;
use omniverb_sys::process;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// A link that was given to two processes.
#[derive(Debug)]
pub(crate) struct Given {
    /// Who has which side; `None`: he has it no more.
    holders: [Option<Holder>; 2],
    /// The connection, as each side has it.
    pub(crate) ends: [Connection; 2],
    /// The pair that it lives by, if its ends are in two network namespaces.
    pub(crate) pair: Option<[Place; 2]>,
    /// What both share, if it is kept: it is only shown.
    pub(crate) memory: Option<OwnedFd>,
}

#[derive(Debug)]
struct Holder {
    number: u64,
    client: Weak<Client>,
}

/// All of them, by number.
#[derive(Debug, Default)]
pub(crate) struct Links {
    all: BTreeMap<u64, Given>,
    /// Who is to be told that one is over, and had no room for that.
    untold: Vec<(Weak<Client>, u64)>,
}

impl Links {
    /// One is about to be given.
    pub(crate) fn add(
        &mut self,
        link: u64,
        [first, second]: [&Offer; 2],
        pair: Option<[Place; 2]>,
        memory: Option<OwnedFd>,
    ) {
        let holder = |offer: &Offer| {
            let client = Arc::downgrade(&offer.client);
            Some(Holder { number: offer.client.number, client })
        };
        let holders = [holder(first), holder(second)];
        let ends = [first.connection, second.connection];
        self.all.insert(link, Given { holders, ends, pair, memory });
    }

    /// Another file may be kept: others need descriptors more.
    pub(crate) fn may_keep_file(&self) -> bool {
        self.all.len() < process::files_max() / 2
    }

    /// One of a number.
    pub(crate) fn get(&self, link: u64) -> Option<&Given> {
        self.all.get(&link)
    }

    /// A process has one no more, on whichever side. What nobody has any more comes back.
    pub(crate) fn end(&mut self, link: u64, client: u64) -> Option<Given> {
        let given = self.all.get_mut(&link)?;
        for holder in &mut given.holders {
            // Who has gone before he was given it says nothing.
            holder.take_if(|one| one.number == client || one.client.strong_count() == 0);
        }
        match given.holders.iter().any(Option::is_some) {
            true => None,
            false => self.all.remove(&link),
        }
    }

    /// What was never given.
    pub(crate) fn undo(&mut self, link: u64) -> Option<Given> {
        self.all.remove(&link)
    }

    /// Who has one is told that it is over.
    pub(crate) fn part(&mut self, link: u64) {
        let holders = self.all.get(&link).into_iter().flat_map(|given| &given.holders);
        let clients = holders.flatten().map(|holder| (holder.client.clone(), link));
        self.untold.extend(clients);
        self.tell();
    }

    /// Those are told who had no room for it before.
    pub(crate) fn tell(&mut self) {
        self.untold
            .retain(|(client, link)| client.upgrade().is_some_and(|client| !client.part(*link)));
    }

    /// Everybody has been told.
    pub(crate) fn are_told(&self) -> bool {
        self.untold.is_empty()
    }
}

impl Given {
    /// Which side a process has; both if it has both.
    pub(crate) fn sides(&self, client: u64) -> impl Iterator<Item = usize> {
        let is_its = move |holder: &Option<Holder>| {
            holder.as_ref().is_some_and(|holder| holder.number == client)
        };
        let is_its = [is_its(&self.holders[0]), is_its(&self.holders[1])];
        (0..2).filter(move |side| is_its[*side])
    }
}
