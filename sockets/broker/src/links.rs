//! Keeps the links that were given: their two processes, and the address pair they live by.

use crate::broker_daemon_messages::NamespaceAddress;
use crate::client::Client;
use crate::unmatched_offers::Offer;
use omniverb_formats::broker_message::Reply;
use omniverb_sys::process_is_dead;
use omniverb_sys::tcp_connection_state::TcpConnection;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// How long a process that had no room for a message is not tried again, in nanoseconds.
const AGAIN: u64 = 100_000_000;

/// A link that was given to two processes.
#[derive(Debug)]
pub(crate) struct LinkRecord {
    /// The process that has each side; `None`: it has ended it.
    holders: [Option<Holder>; 2],
    /// The connection, as each side has it.
    pub(crate) ends: [TcpConnection; 2],
    /// The pair that it lives by, if its ends are in two network namespaces.
    pub(crate) pair: Option<[NamespaceAddress; 2]>,
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
    all: BTreeMap<u64, LinkRecord>,
    /// Processes that are to be told of ended links and had no room for that, by number.
    untold: BTreeMap<u64, UnsentEnds>,
    /// When these are tried again, in nanoseconds: until then a process that does not read costs
    /// nothing.
    again: u64,
}

/// What a process is to be told.
#[derive(Debug)]
struct UnsentEnds {
    client: Weak<Client>,
    links: VecDeque<u64>,
}

impl UnsentEnds {
    /// Tells the process until it has no room. Whether all is told, or the process is gone.
    fn tell(&mut self) -> bool {
        let Some(client) = self.client.upgrade() else { return true };
        while let Some(link) = self.links.front() {
            if !client.tell(Reply::Ended { link: *link }) {
                return false;
            }
            self.links.pop_front();
        }
        true
    }
}

/// A process is to be told that one is over.
fn queue(untold: &mut BTreeMap<u64, UnsentEnds>, number: u64, client: &Weak<Client>, link: u64) {
    let new = || UnsentEnds { client: client.clone(), links: VecDeque::new() };
    untold.entry(number).or_insert_with(new).links.push_back(link);
}

impl Links {
    /// One is about to be given.
    pub(crate) fn add(
        &mut self,
        link: u64,
        [first, second]: [&Offer; 2],
        pair: Option<[NamespaceAddress; 2]>,
        memory: Option<OwnedFd>,
    ) {
        let holder = |offer: &Offer| {
            let client = Arc::downgrade(&offer.client);
            Some(Holder { number: offer.client.number, client })
        };
        let holders = [holder(first), holder(second)];
        let ends = [first.connection, second.connection];
        self.all.insert(link, LinkRecord { holders, ends, pair, memory });
    }

    /// Another file may be kept, beside so many of channels: others need descriptors more.
    pub(crate) fn may_keep_file(&self, channels: usize) -> bool {
        self.all.len() + channels < process_is_dead::files_max() / 2
    }

    /// One of a number.
    pub(crate) fn get(&self, link: u64) -> Option<&LinkRecord> {
        self.all.get(&link)
    }

    /// Ends a link for a process, on whichever side it is. Returns a link that no process has any
    /// more.
    pub(crate) fn end(&mut self, link: u64, client: u64) -> Option<LinkRecord> {
        let given = self.all.get_mut(&link)?;
        for holder in &mut given.holders {
            // A process that was gone before it was given the link says nothing.
            holder.take_if(|one| one.number == client || one.client.strong_count() == 0);
        }
        match given.holders.iter().any(Option::is_some) {
            true => None,
            false => self.all.remove(&link),
        }
    }

    /// What was never given.
    pub(crate) fn undo(&mut self, link: u64) -> Option<LinkRecord> {
        self.all.remove(&link)
    }

    /// Tells the processes of these links that they are over: at once, where there is room.
    pub(crate) fn part(&mut self, links: impl IntoIterator<Item = u64>) {
        let mut clients = BTreeSet::new();
        for link in links {
            let holders = self.all.get(&link).into_iter().flat_map(|given| &given.holders);
            for Holder { number, client } in holders.flatten() {
                queue(&mut self.untold, *number, client, link);
                clients.insert(*number);
            }
        }
        clients.into_iter().for_each(|client| self.tell(client));
    }

    /// Tells one process that a channel is over: at once, where there is room.
    pub(crate) fn part_with_channel(&mut self, client: &Arc<Client>, channel: u64) {
        queue(&mut self.untold, client.number, &Arc::downgrade(client), channel);
        self.tell(client.number);
    }

    /// A process is told what it had no room for before.
    pub(crate) fn tell(&mut self, client: u64) {
        if self.untold.get_mut(&client).is_some_and(UnsentEnds::tell) {
            self.untold.remove(&client);
        }
    }

    /// All are, if it is time again.
    pub(crate) fn tell_all(&mut self, now: u64) {
        if now >= self.again && !self.untold.is_empty() {
            self.untold.retain(|_, untold| !untold.tell());
            self.again = now.saturating_add(AGAIN);
        }
    }

    /// Whether all processes have been told.
    pub(crate) fn are_told(&self) -> bool {
        self.untold.is_empty()
    }
}

impl LinkRecord {
    /// Which side a process has; both if it has both.
    pub(crate) fn sides(&self, client: u64) -> impl Iterator<Item = usize> {
        let is_its = move |holder: &Option<Holder>| {
            holder.as_ref().is_some_and(|holder| holder.number == client)
        };
        let is_its = [is_its(&self.holders[0]), is_its(&self.holders[1])];
        (0..2).filter(move |side| is_its[*side])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_formats::broker_message::BYTES;
    use omniverb_sys::seqpacket;
    use omniverb_sys::tcp_connection_state::TcpAddresses;
    use std::os::fd::AsFd;

    /// A process that reads nothing has room for some 64 messages.
    #[test]
    fn a_full_client_is_told_later_and_once() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let peer = seqpacket::peer(ours.as_fd()).unwrap();
        let client = Arc::new(Client::new(ours, peer, 5).unwrap());
        let address = ([127, 0, 0, 1], 9).into();
        let names = TcpAddresses { local: address, remote: address };
        let connection = TcpConnection { names, cookie: 1, namespace: 5, is_bound: false };
        let offer = Offer { client: client.clone(), tag: 7, connection, accepted: None };
        let mut links = Links::default();
        (0..1000).for_each(|link| links.add(link, [&offer, &offer], None, None));
        links.part(0..1000);
        let heard = || {
            let mut bytes = [0; BYTES];
            let mode = seqpacket::BlockingMode::NonBlocking;
            let (length, _) = seqpacket::receive(theirs.as_fd(), &mut bytes, mode).ok()?;
            match Reply::decode(&bytes[..length]) {
                Some(Reply::Ended { link }) => Some(link),
                other => panic!("{other:?}"),
            }
        };
        let mut told: Vec<u64> = std::iter::from_fn(heard).collect();
        assert!((10..500).contains(&told.len()), "{}", told.len());
        links.tell_all(5);
        told.extend(std::iter::from_fn(heard));
        let had = told.len();
        links.tell_all(6);
        assert_eq!(heard(), None, "not so soon");
        links.tell(client.number);
        told.extend(std::iter::from_fn(heard));
        assert!(told.len() > had, "who says something is told at once");
        for round in 1..1000 {
            links.tell_all(round * AGAIN + 5);
            told.extend(std::iter::from_fn(heard));
        }
        assert!(links.are_told());
        let all = (0..1000).flat_map(|link| [link; 2]);
        assert!(told.into_iter().eq(all), "both sides of each");
    }
}
