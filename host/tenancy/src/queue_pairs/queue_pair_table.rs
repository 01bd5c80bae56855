//! Keeps all queue pairs: by number, by process, and by the peer they wish for.
//!
//! It also has the numbers that were ever given, with their proofs. These are kept in step here and
//! nowhere else.

use super::qp_number_tickets::{Claim, Secret, Tickets};
use super::qp_numbers::{self, Entropy, QPN_ORDINARY, QpNumbers};
use super::queue_pair::{QueuePair, Wish};
use super::queue_pairs_by_desired_peer::Wishers;
use crate::row_keys::SessionId;
use omniverb_terms::{Errno, Qpn, Service, VnicId};
use omniverb_vgid::QpnRange;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// All queue pairs.
#[derive(Debug)]
pub(crate) struct QueuePairs {
    rows: HashMap<Qpn, QueuePair>,
    /// Sessions without any are not kept.
    by_session: BTreeMap<SessionId, BTreeSet<Qpn>>,
    /// All wishers, by peer.
    wishers: Wishers,
    numbers: QpNumbers,
    tickets: Tickets,
    /// How many daemons there were before, if that is known.
    generation: Option<u64>,
}

impl QueuePairs {
    /// None yet, and none that could have outlived a daemon. `boot` as for [`Tickets::new`].
    pub(crate) fn new(secret: [u64; 2], boot: u64) -> QueuePairs {
        QueuePairs {
            rows: HashMap::new(),
            by_session: BTreeMap::new(),
            wishers: Wishers::default(),
            numbers: QpNumbers::new(),
            tickets: Tickets::new(secret, boot),
            generation: None,
        }
    }

    /// Takes over the secret of the daemon before: see [`Tickets::inherit`].
    pub(crate) fn inherit(&mut self, secret: Secret, until: u64) {
        self.tickets.inherit(secret, until);
    }

    /// The secret that tickets are made with.
    pub(crate) fn secret(&self) -> Secret {
        self.tickets.secret()
    }

    /// How many daemons there were before, if that is known.
    pub(crate) fn set_generation(&mut self, generation: Option<u64>) {
        self.generation = generation;
    }

    /// True while what outlived a daemon may announce itself.
    pub(crate) fn takes_announcements(&self, now: u64) -> bool {
        self.tickets.are_taken(now)
    }

    /// No queue pair, and nothing that only finds some.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.by_session.is_empty() && self.wishers.is_empty()
    }

    pub(crate) fn get(&self, qpn: Qpn) -> Option<&QueuePair> {
        self.rows.get(&qpn)
    }

    /// All, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &QueuePair> {
        self.rows.values()
    }

    /// There is one of this number.
    pub(crate) fn contains(&self, qpn: Qpn) -> bool {
        self.rows.contains_key(&qpn)
    }

    /// One of this session's.
    pub(crate) fn own(&self, session: SessionId, qpn: Qpn) -> Result<&QueuePair, Errno> {
        self.get(qpn).filter(|qp| qp.session() == session).ok_or(Errno::ENOENT)
    }

    /// The session of the process that has this queue pair, if there is one of that number.
    pub(crate) fn session_of(&self, qpn: Qpn) -> Option<SessionId> {
        self.get(qpn).map(QueuePair::session)
    }

    /// The vNIC that it is in.
    pub(crate) fn vnic_of(&self, qpn: Qpn) -> Option<VnicId> {
        self.get(qpn).map(QueuePair::vnic)
    }

    /// It exists, and has one peer at a time.
    pub(crate) fn is_connected(&self, qpn: Qpn) -> bool {
        self.get(qpn).is_some_and(|qp| qp.service().is_connected())
    }

    /// It exists, and is for datagrams.
    pub(crate) fn is_datagram(&self, qpn: Qpn) -> bool {
        self.get(qpn).is_some_and(|qp| qp.service() == Service::Ud)
    }

    /// Those of a session, in order.
    pub(crate) fn of(&self, session: SessionId) -> Vec<Qpn> {
        self.by_session.get(&session).into_iter().flatten().copied().collect()
    }

    /// The first of a session's from this number on.
    pub(crate) fn next_of(&self, session: SessionId, from: Qpn) -> Option<Qpn> {
        self.by_session.get(&session)?.range(from..).next().copied()
    }

    /// There was one of this number, and is none any more.
    pub(crate) fn is_gone(&self, qpn: Qpn) -> bool {
        !self.contains(qpn) && self.numbers.was_given(qpn)
    }

    /// A free number, and when it is given out. As long as there may be queue pairs that are not
    /// announced yet, one that no earlier daemon has given to them. `within`: of these numbers.
    pub(crate) fn draw(
        &mut self,
        entropy: &mut dyn Entropy,
        within: Option<QpnRange>,
        now: u64,
    ) -> Option<(Qpn, u64)> {
        let QueuePairs { rows, numbers, tickets, generation, .. } = self;
        let new = tickets.are_taken(now);
        let apart = generation.filter(|_| new);
        let ranges = match within {
            None => [apart.map(qp_numbers::apart), Some(QPN_ORDINARY)],
            Some(range) => qp_numbers::within(range, apart),
        };
        let ranges = ranges.into_iter().flatten();
        let taken = |number: Qpn| rows.contains_key(&number);
        let number = { ranges }.find_map(|range| numbers.take(range, entropy, taken))?;
        Some((number, tickets.issue(now)))
    }

    /// The ticket that proves a claim to the next daemon.
    pub(crate) fn ticket(&self, claim: &Claim) -> [u8; 16] {
        self.tickets.make(claim)
    }

    /// Whether a session may have the number that it claims: its ticket is right and in time, and
    /// no later owner of the number has it.
    pub(crate) fn check_claim(
        &self,
        session: SessionId,
        claim: &Claim,
        ticket: [u8; 16],
        now: u64,
    ) -> Result<(), Errno> {
        if !self.tickets.are_taken(now) || !self.tickets.proves(claim, ticket) {
            return Err(Errno::EPERM);
        }
        let keeps = |qp: &QueuePair| qp.session() == session || qp.issued() >= claim.issued;
        if self.get(claim.qpn).is_some_and(keeps) { Err(Errno::EADDRINUSE) } else { Ok(()) }
    }

    /// A claim holds: its number was given, and numbers given out from now on are later.
    pub(crate) fn accept_claim(&mut self, claim: &Claim) {
        self.tickets.seen(claim.issued);
        self.numbers.note(claim.qpn);
    }

    /// A queue pair is made; its number is in use from now on.
    pub(crate) fn insert(&mut self, qpn: Qpn, qp: QueuePair) {
        self.by_session.entry(qp.session()).or_default().insert(qpn);
        self.rows.insert(qpn, qp);
    }

    /// Removes a queue pair and its wishes.
    pub(crate) fn remove(&mut self, qpn: Qpn) -> Option<QueuePair> {
        let qp = self.rows.remove(&qpn)?;
        for peer in qp.wished() {
            self.wishers.remove(peer, qpn);
        }
        if let Some(own) = self.by_session.get_mut(&qp.session()) {
            own.remove(&qpn);
            if own.is_empty() {
                self.by_session.remove(&qp.session());
            }
        }
        Some(qp)
    }

    /// Its process says that it is in ERR.
    pub(crate) fn fail(&mut self, qpn: Qpn) {
        if let Some(qp) = self.rows.get_mut(&qpn) {
            qp.failed = true;
        }
    }

    /// It has a new link: whatever failed is over.
    pub(crate) fn recover(&mut self, qpn: Qpn) {
        if let Some(qp) = self.rows.get_mut(&qpn) {
            qp.failed = false;
        }
    }

    /// A queue pair's wish for a peer.
    pub(crate) fn wish(&self, qpn: Qpn, peer: Qpn) -> Option<&Wish> {
        self.get(qpn)?.wish(peer)
    }

    /// Like [`wish`](Self::wish), to change it.
    pub(crate) fn wish_mut(&mut self, qpn: Qpn, peer: Qpn) -> Option<&mut Wish> {
        self.rows.get_mut(&qpn)?.wishes.get_mut(&peer)
    }

    /// A queue pair wishes for a peer, whatever it wished of it before.
    pub(crate) fn add_wish(&mut self, qpn: Qpn, peer: Qpn, wish: Wish) {
        if let Some(qp) = self.rows.get_mut(&qpn) {
            qp.wishes.insert(peer, wish);
            self.wishers.add(peer, qpn);
        }
    }

    /// A queue pair wishes for this peer no longer.
    pub(crate) fn remove_wish(&mut self, qpn: Qpn, peer: Qpn) {
        if self.rows.get_mut(&qpn).and_then(|qp| qp.wishes.remove(&peer)).is_some() {
            self.wishers.remove(peer, qpn);
        }
    }

    /// Queue pairs that wish for a peer, in order.
    pub(crate) fn wishers_of(&self, peer: Qpn) -> Vec<Qpn> {
        self.wishers.of(peer)
    }

    /// Both queue pairs are of one type and wish each other.
    pub(crate) fn is_mutual(&self, qpn: Qpn, peer: Qpn) -> bool {
        let (Some(one), Some(other)) = (self.get(qpn), self.get(peer)) else { return false };
        match (one.wish(peer), other.wish(qpn)) {
            (Some(there), Some(back)) => {
                let fit = one.service() == other.service().opposite();
                fit && there.is_survivor() == back.is_survivor()
            }
            _ => false,
        }
    }

    /// Forgets the targets of a vNIC's wishes, and of the wishes that lead to it.
    pub(crate) fn forget_targets(&mut self, vnic: VnicId) {
        for qp in self.rows.values_mut() {
            let ours = qp.vnic() == vnic;
            for wish in qp.wishes.values_mut().filter(|wish| ours || wish.target == Some(vnic)) {
                wish.target = None;
            }
        }
    }

    /// Checks that indexes and rows agree.
    ///
    /// # Panics
    /// If not.
    pub(crate) fn check(&self) {
        let wishes: usize = self.rows.values().map(|qp| qp.wished().len()).sum();
        assert_eq!(self.wishers.count(), wishes, "wishes, and wishers");
        let owned: usize = self.by_session.values().map(BTreeSet::len).sum();
        assert_eq!(owned, self.rows.len(), "queue pairs of sessions, and all");
    }
}

#[cfg(test)]
impl QueuePairs {
    /// Simulates a bug: a row goes, and its receipt is not returned.
    pub(crate) fn lose(&mut self, qpn: Qpn) {
        std::mem::forget(self.remove(qpn).unwrap().receipt);
    }

    /// Nor this: each pays for the other.
    pub(crate) fn swap_receipts(&mut self, one: Qpn, other: Qpn) {
        let [one, other] = self.rows.get_disjoint_mut([&one, &other]);
        std::mem::swap(&mut one.unwrap().receipt, &mut other.unwrap().receipt);
    }

    /// Simulates a bug: a wisher is noted without a wish.
    pub(crate) fn note_wisher(&mut self, peer: Qpn, wisher: Qpn) {
        self.wishers.add(peer, wisher);
    }
}
