//! Who is at the end of a route, which the directory (`directory/`) has for a name? Asked through
//! the network itself: a datagram is sent from one vNIC, and the vNIC whose socket it comes out of
//! is the neighbour. So the answer is also that the network lets traffic pass. Another Omniverb
//! answers it; who else there is, does not.
//!
//! Answers are kept for a while. A probe's number is drawn at random and valid once, the vNIC it
//! came out of must have the name that was asked for, it must have come from an address of the
//! vNIC that asked, and a reply must come from the address asked to that vNIC: what was forged,
//! caught and replayed, or carried elsewhere proves nothing. What addresses a virtual machine has
//! it says itself, and it sees the numbers of its own probes: so these prove the very address that
//! they came from, as the network shows it, and no other of the machine's; that it has taken one
//! is proved by its knowing a number, which the network has brought it. Links that rest on an
//! answer have the network asked again as long as they live (`consent.rs`).

use super::neighbours::{Answer, Question, Waiter};
use crate::accounts::Kind;
use crate::action::Action;
use crate::directory::{Name, loopbacks};
use crate::ids::ProbeId;
use crate::links::unrelated::Unrelated;
use crate::tenancy::Tenancy;
use omniverb_terms::{Gid, Underlay, VnicId};
use std::net::IpAddr;

/// The answer for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolved {
    /// It is known, or needs no asking.
    To(Answer),
    /// The waiter is called again when the network has answered.
    Asking,
    /// Too many questions under way.
    Busy,
}

impl Tenancy {
    /// True if the GID is in the vNIC's table, or one of its loopback addresses.
    pub(crate) fn owns(&self, vnic: VnicId, gid: Gid) -> bool {
        let Some(vnic) = self.vnics.get(&vnic) else { return false };
        vnic.names.entry(gid).is_some() || loopbacks().contains(&gid)
    }

    /// Whose address `dgid` is, for vNIC `from` with its address `sgid`. If that is not known, the
    /// network is asked on `payer`'s account; `waiter` goes on when it has answered.
    pub(crate) fn resolve(
        &mut self,
        (from, sgid, dgid): (VnicId, Gid, Gid),
        payer: VnicId,
        waiter: Option<Waiter>,
        now: u64,
    ) -> Resolved {
        if dgid.is_loopback() || self.owns(from, dgid) {
            return Resolved::To(Answer::Is(from));
        }
        if !self.vnics.contains_key(&from) {
            return Resolved::To(Answer::NoAccess);
        }
        let Some(question) = self.question_of(from, sgid, dgid) else {
            return Resolved::To(Answer::NoAccess);
        };
        match self.network.neighbours.recall(&question, now) {
            Some(answer) => Resolved::To(answer),
            None => self.ask(question, payer, Kind::Probe, waiter),
        }
    }

    /// What is known already.
    pub(crate) fn known_answer(
        &self,
        from: VnicId,
        sgid: Gid,
        dgid: Gid,
        now: u64,
    ) -> Option<Answer> {
        self.network.neighbours.recall(&self.question_of(from, sgid, dgid)?, now)
    }

    /// The route that a name means, seen from a vNIC.
    pub(crate) fn route_to(&self, from: VnicId, sgid: Gid, dgid: Gid) -> Option<Underlay> {
        let entry = self.vnics.get(&from).and_then(|vnic| vnic.names.entry(sgid));
        let interface = entry.map_or(0, |entry| entry.ifindex);
        self.network.directory.route(&Name { from, sgid, interface, dgid })
    }

    /// What is to be asked to find out whom a name means. Not by which of the vNIC's addresses: it
    /// is one question for all of them. Which addresses a machine has is its own word: there it is
    /// one for each, and the answer holds for that one.
    pub(crate) fn question_of(&self, from: VnicId, sgid: Gid, dgid: Gid) -> Option<Question> {
        let Underlay { local, remote, interface, key } = self.route_to(from, sgid, dgid)?;
        let local = self.network.is_machine(from).then(|| local.to_canonical());
        Some(Question { from, local, interface, gid: dgid, remote, key })
    }

    /// Asks the network. `kind`: [`Kind::Probe`], or [`Kind::Consent`] for links that exist
    /// already: counted apart, so that these and new ones do not wait for each other.
    pub(crate) fn ask(
        &mut self,
        question: Question,
        payer: VnicId,
        kind: Kind,
        waiter: Option<Waiter>,
    ) -> Resolved {
        if self.network.neighbours.is_asked(&question) {
            self.network.neighbours.join(&question, waiter);
            return Resolved::Asking;
        }
        let Some(payer) = self.vnics.get(&payer) else {
            return Resolved::To(Answer::NoAccess);
        };
        let Ok(receipt) = payer.account().charge(&[kind]) else { return Resolved::Busy };
        let id = u128::from(self.entropy.next()) << 64 | u128::from(self.entropy.next());
        self.network.neighbours.begin(question, id, receipt, waiter);
        self.open_port(question.from);
        self.act(Action::Probe {
            id,
            vnic: question.from,
            interface: question.interface,
            source: question.local,
            destination: question.remote,
            key: question.key,
        });
        Resolved::Asking
    }

    /// True for the number of a probe under way.
    #[must_use]
    pub fn is_probe(&self, id: ProbeId) -> bool {
        self.network.neighbours.question(id).is_some()
    }

    /// The vNICs at whose sockets the answer to a probe under way is heard: that which asks, and
    /// that which it leads to as far as is known.
    #[must_use]
    pub fn hearers(&self, id: ProbeId) -> Vec<VnicId> {
        let Some((question, waiter)) = self.network.neighbours.waiter(id) else {
            return Vec::new();
        };
        let meant = match waiter {
            Some(Waiter::Wish { peer, .. }) => self.queue_pairs.vnic_of(peer),
            Some(Waiter::Relation(number)) => self.related_with(question.from, number),
            Some(Waiter::Consent) | None => None,
        };
        let all = [Some(question.from), self.led_to(&question), meant];
        let mut all: Vec<VnicId> = all.into_iter().flatten().collect();
        all.dedup();
        all
    }

    /// A probe came out at a vNIC.
    pub(crate) fn probe_at(&mut self, id: ProbeId, (from, at): (IpAddr, VnicId), now: u64) {
        let Some(question) = self.network.neighbours.question(id) else { return };
        let arrived = self.owns(at, question.gid);
        let sent = match question.local {
            Some(local) => local == from.to_canonical(),
            None => self.has(question.from, from),
        };
        if arrived && sent {
            return self.answered(question, Answer::Is(at), now);
        }
        // Not the owner of the address: the network carried it elsewhere. Or not from who asks:
        // somebody saw it and sent it again, or an address was translated on the way. Or the one
        // has the address only since a moment; then the next try of this probe finds it.
        if !arrived {
            self.read_addresses(at, None);
        }
        if !sent {
            self.read_addresses(question.from, None);
        }
    }

    /// True if the address is one of the vNIC's, in its table or not.
    fn has(&self, vnic: VnicId, address: IpAddr) -> bool {
        self.vnics.get(&vnic).is_some_and(|vnic| vnic.names.has_address(address))
    }

    /// A reply to a probe came from an address to a vNIC.
    pub(crate) fn reply_from(
        &mut self,
        id: ProbeId,
        (from, at): (IpAddr, VnicId),
        features: u32,
        now: u64,
    ) {
        let Some(question) = self.network.neighbours.question(id) else { return };
        if question.from == at && question.remote == from.to_canonical() {
            self.answered(question, Answer::Omniverb(features), now);
        }
    }

    /// A probe is over.
    pub(crate) fn probe_over(&mut self, id: ProbeId, answer: Answer, now: u64) {
        if let Some(question) = self.network.neighbours.question(id) {
            self.answered(question, answer, now);
        }
    }

    fn answered(&mut self, question: Question, answer: Answer, now: u64) {
        let kept = match answer {
            Answer::Is(_) | Answer::Omniverb(_) => self.limits().neighbour_time_ns,
            Answer::Silence | Answer::Unheard | Answer::NoAccess => self.limits().stranger_time_ns,
        };
        self.network.neighbours.learn(question, answer, now.saturating_add(kept), now);
        self.settle(question, now);
    }

    /// A question needs no more asking: its waiters go on.
    fn settle(&mut self, question: Question, now: u64) {
        // The waiters may ask anew.
        let Some((id, waiters)) = self.network.neighbours.end(&question) else { return };
        self.act(Action::ForgetProbe { id });
        for waiter in waiters {
            match waiter {
                Waiter::Wish { qpn, peer } => self.advance_wish(qpn, peer, now),
                Waiter::Relation(number) => self.advance_relation(number, now),
                Waiter::Consent => {
                    let answer = self.network.neighbours.recall(&question, now);
                    self.consent_answered(question, answer, now);
                }
            }
        }
    }

    /// What is known of the network, seen from a vNIC and up to it, holds no longer.
    pub(crate) fn forget_answers(&mut self, key: VnicId) {
        self.network.neighbours.forget(key);
    }

    /// A vNIC is gone: what was known of it, and what was asked from it, is void.
    pub(crate) fn forget_vnic(&mut self, key: VnicId, now: u64) {
        self.forget_answers(key);
        self.end_relations(key, Unrelated::Gone);
        for question in self.network.neighbours.of(key) {
            self.settle(question, now);
        }
    }
}
