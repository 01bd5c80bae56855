//! Makes and ends direct links: their quotas, their place in a bell.

use super::direct_link::{Invitation, Link, LinkReceipts};
use super::link_eviction::Places;
use super::reachability_table::ConsentUser;
use crate::accounts::Kind;
use crate::action::{Action, LinkEnd, LinkEvent};
use crate::links::Linker;
use crate::links::Unlinker;
use crate::network::Network;
use crate::network::SharedMemory;
use crate::qp_data_path::PathReason;
use crate::queue_pairs::queue_pair::QueuePair;
use crate::row_keys::{LinkKey, SessionId};
use crate::vm_pair_windows::window_table::MachineWindows;
use crate::vm_pair_windows::window_table::PairReceipts;
use omniverb_session::body::{
    CLOSED_BY_DEATH, CLOSED_BY_PEER, DisconnectQp, Done, Extent, LinkClosed, LinkReady,
};
use omniverb_terms::{Errno, Gid, Qpn, Service, VnicId};

/// A queue pair, its own GID, its peer's GID.
pub(crate) type End = (Qpn, Gid, Gid);

impl Linker<'_> {
    /// Makes a link and has both ends told. `uninvited`: a datagram link that one end did
    /// not ask for.
    pub(crate) fn make_link(
        &mut self,
        one: End,
        other: End,
        uninvited: Option<Invitation>,
        now: u64,
    ) -> Result<(), Errno> {
        let (first, second) = if one.0 <= other.0 { (one, other) } else { (other, one) };
        let key = LinkKey::new(first.0, second.0);
        let places = self.make_way(key, uninvited)?;
        let (sessions, vnics, mut receipts) = self.charge_link(key, uninvited, places)?;
        let in_window =
            self.pair_windows.take_place(self.tenants, self.network, vnics, sessions)?;
        if let Some(pair) = &mut receipts.pair {
            pair.place = in_window;
        }
        let place = self.links.bells.take(sessions[0], sessions[1]).ok_or(Errno::ENOMEM)?;
        let ways = [(first.1, first.2), (second.1, second.2)];
        let why = self.pair_windows.why_direct(self.network, vnics);
        // Of a doorbell in a window the second page is that of the window's holder, whichever is
        // older.
        let turned = match self.pair_windows.common(self.network, vnics) {
            SharedMemory::Window(end) => place.sides[end] ^ 1,
            SharedMemory::Any | SharedMemory::Nothing => 0,
        };
        let (questions, place_of) = ([None; 2], Some(place));
        let service = self.queue_pairs.get(key.0).map_or(Service::Rc, |qp| qp.service());
        let port = self.tenants.port_of_link(key, vnics, ways);
        let refused = self.tenants.judge(self.network, service, vnics, ways, port).refused;
        let link = Link {
            receipts,
            place: place_of,
            sessions,
            vnics,
            ways,
            questions,
            why,
            port,
            refused,
            uninvited,
        };
        self.insert_link(key, link, now);
        let traced = self.observer().is_traced(key);
        if traced {
            self.observer().trace(key);
        }
        let end = |this: usize| {
            let (ours, theirs) = if this == 0 { (first, second) } else { (second, first) };
            LinkEnd {
                session: sessions[this],
                ready: LinkReady {
                    qpn: ours.0,
                    peer_qpn: theirs.0,
                    side: u32::from(this == 1),
                    request_bytes: self.context.limits().request_bytes,
                    response_bytes: self.context.limits().response_bytes,
                    bell_new: u32::from(place.is_new),
                    bell: place.bell,
                    bell_side: place.sides[this] ^ turned,
                    loopback: u32::from(sessions[0] == sessions[1]),
                    local_slot: place.slots[this],
                    peer_slot: place.slots[1 - this],
                    sgid: ours.1,
                    dgid: ours.2,
                    engine: 0,
                    traced: u32::from(traced),
                    refused: refused[this].bits(),
                    carried: 0,
                    memory: Extent::NONE,
                    bell_memory: Extent::NONE,
                },
            }
        };
        let (first, second) = (end(0), end(1));
        self.context.act(Action::CreateLink { first, second });
        Ok(())
    }

    /// Sessions and vNICs of a link's ends, and its receipts, if their quotas allow it.
    pub(crate) fn charge_link(
        &mut self,
        key: LinkKey,
        uninvited: Option<Invitation>,
        places: Places,
    ) -> Result<([SessionId; 2], [VnicId; 2], LinkReceipts), Errno> {
        let uninvited = uninvited.map(|way| self.charge_uninvited(way)).transpose()?;
        let first = self.queue_pairs.get(key.0).ok_or(Errno::ENOENT)?;
        let second = self.queue_pairs.get(key.1).ok_or(Errno::ENOENT)?;
        let charge_end = |qp: &QueuePair| {
            let session = self.tenants.sessions.get(&qp.session()).ok_or(Errno::ENOENT)?;
            match places {
                Places::Returned => Ok(session.account().note(&[Kind::Link])),
                Places::Free => session.account().charge(&[Kind::Link]),
            }
        };
        let ends = [charge_end(first)?, charge_end(second)?];
        let direct = |qp: &QueuePair| {
            let vnic = self.tenants.vnics.get(&qp.vnic()).ok_or(Errno::ENOENT)?;
            Ok::<_, Errno>(vnic.account().note(&[Kind::Direct]))
        };
        let apart = first.vnic() != second.vnic();
        let direct = [Some(direct(first)?), apart.then(|| direct(second)).transpose()?];
        let vnics = [first.vnic(), second.vnic()];
        let pair = match self.pair_windows.common(self.network, vnics) {
            SharedMemory::Window(end) => {
                let note = |vnic| {
                    let machine = self.tenants.vnics.get(vnic).ok_or(Errno::ENOENT)?;
                    Ok::<_, Errno>(machine.account().note(&[Kind::PairLink]))
                };
                let other = &vnics[1 - end];
                let other = self.network.is_machine(*other).then(|| note(other)).transpose()?;
                Some(PairReceipts { end, link: note(&vnics[end])?, other, place: None })
            }
            SharedMemory::Any | SharedMemory::Nothing => None,
        };
        let receipts = LinkReceipts { ends, direct, uninvited, pair };
        Ok(([first.session(), second.session()], vnics, receipts))
    }

    /// Writes a link into the tables.
    pub(crate) fn insert_link(&mut self, key: LinkKey, mut link: Link, now: u64) {
        for qpn in [key.0, key.1] {
            self.queue_pairs.recover(qpn);
        }
        link.questions = [0, 1].map(|end| {
            let (sgid, dgid) = link.ways[end];
            self.network.question(self.tenants, link.vnics[end], link.vnics[1 - end], sgid, dgid)
        });
        for question in link.questions.into_iter().flatten() {
            let payer = link.uninvited.map_or(question.from, |invitation| invitation.from);
            self.links.rely_on(self.context, question, ConsentUser::Link(key), payer, now);
        }
        self.observer().audit_link(key, &link, LinkEvent::Made);
        let holder = self.inviter_of(&link);
        self.links.direct.insert(key, link, &holder);
    }
}

impl MachineWindows {
    fn why_direct(&self, network: &Network, vnics: [VnicId; 2]) -> PathReason {
        match self.common(network, vnics) {
            SharedMemory::Window(_) => PathReason::Pair,
            _ if vnics[0] != vnics[1] => PathReason::Neighbour,
            _ if network.is_machine(vnics[0]) => PathReason::SameMachine,
            _ => PathReason::SameVnic,
        }
    }
}

impl Unlinker<'_> {
    pub(crate) fn disconnect_qp(&mut self, id: SessionId, m: &DisconnectQp) -> Result<Done, Errno> {
        let before = self.tenants.taken(id);
        let qp = self.queue_pairs.own(id, m.qpn)?;
        if m.peer_qpn == Qpn(0) {
            self.close_all(m.qpn, CLOSED_BY_PEER);
        } else if self.links.is_linked(m.qpn, m.peer_qpn) || qp.wish(m.peer_qpn).is_some() {
            self.close_link(m.qpn, m.peer_qpn, CLOSED_BY_PEER);
        } else {
            return Err(Errno::ENOENT);
        }
        Ok(self.tenants.done_since(id, before))
    }

    /// Closes every link of a queue pair and forgets its wishes.
    pub(crate) fn close_all(&mut self, qpn: Qpn, reason: u32) {
        let Some(qp) = self.queue_pairs.get(qpn) else { return };
        let mut peers = self.links.peers_of(qpn);
        peers.extend(self.links.engine_peers(qpn));
        peers.extend(qp.wished());
        for peer in peers {
            self.close_link(qpn, peer, reason);
        }
    }

    /// Closes one link on behalf of `qpn`; the other end is told. Without a link, only the wish
    /// goes.
    pub(crate) fn close_link(&mut self, qpn: Qpn, peer: Qpn, reason: u32) {
        self.queue_pairs.drop_wish(self.context, qpn, peer);
        if reason == CLOSED_BY_DEATH {
            self.tell_deaths(qpn, peer);
        }
        self.end_engine_links(qpn, peer, None);
        if !self.links.has_direct(qpn, peer) {
            return;
        }
        self.remove_link(LinkKey::new(qpn, peer));
        if qpn == peer {
            return;
        }
        // It cannot tell apart what has the same number.
        self.end_engine_links(peer, qpn, None);
        if let Some(session) = self.queue_pairs.session_of(peer) {
            self.tenants.event(
                self.context,
                session,
                LinkClosed { qpn: peer, peer_qpn: qpn, reason, reserved: 0 },
            );
        }
    }

    /// A link could not be made after all: both ends are told that it is closed.
    pub(crate) fn undo_link(&mut self, key: LinkKey) {
        let Some(link) = self.links.direct(key) else { return };
        let ([first, second], place) = (link.sessions, link.place);
        // Its part of a pair window is no process's memory, and free at once.
        drop(self.take_link(key));
        self.refuse_wishes(key.0, key.1);
        // Its bell may have been new with it; then the bell does not exist, and links that were
        // to use it cannot, either.
        if let Some(place) = place.filter(|place| place.is_new) {
            let shares = |link: &Link| link.place.is_some_and(|other| other.bell == place.bell);
            let others: Vec<LinkKey> = self
                .links
                .all_direct()
                .filter(|(_, link)| shares(link))
                .map(|(key, _)| key)
                .collect();
            for key in others {
                self.remove_link(key);
                self.refuse_wishes(key.0, key.1);
            }
            self.links.bells.forget(first, second);
        }
    }

    /// Takes back both wishes and says so.
    pub(crate) fn refuse_wishes(&mut self, one: Qpn, other: Qpn) {
        self.refuse_wish(one, other);
        self.refuse_wish(other, one);
    }

    /// Takes back one wish and says so.
    pub(crate) fn refuse_wish(&mut self, qpn: Qpn, peer_qpn: Qpn) {
        self.queue_pairs.drop_wish(self.context, qpn, peer_qpn);
        self.end_engine_links(qpn, peer_qpn, None);
        if let Some(session) = self.queue_pairs.session_of(qpn) {
            let reason = CLOSED_BY_PEER;
            self.tenants.event(
                self.context,
                session,
                LinkClosed { qpn, peer_qpn, reason, reserved: 0 },
            );
        }
    }

    /// Takes a link out of the tables, if it is there.
    pub(crate) fn remove_link(&mut self, key: LinkKey) {
        let Some(mut link) = self.take_link(key) else { return };
        if let Some(place) = link.receipts.pair.as_mut().and_then(|pair| pair.place.take()) {
            self.pair_windows.leave(link.vnics, place);
        }
    }

    /// Takes a link out of the tables, if it is there; its receipts go to the caller.
    fn take_link(&mut self, key: LinkKey) -> Option<Link> {
        let link = self.links.direct.remove(key)?;
        self.observer().audit_link(key, &link, LinkEvent::Ended);
        for (qpn, peer) in [(key.0, key.1), (key.1, key.0)] {
            if self.queue_pairs.is_connected(qpn) {
                // The other end must wish anew before there can be a link again.
                self.queue_pairs.drop_wish(self.context, qpn, peer);
            }
        }
        for question in link.questions.into_iter().flatten() {
            self.links.stop_relying(self.context, question, ConsentUser::Link(key));
        }
        self.grants().end_granted(key, link.sessions);
        self.observer().untrace_removed(key, &link);
        if let Some(place) = &link.place {
            self.links.bells.give(link.sessions[0], link.sessions[1], place);
        }
        Some(link)
    }
}
