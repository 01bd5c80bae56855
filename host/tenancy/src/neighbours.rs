//! Whose address is this? Asked through the network itself: a datagram is sent from one vNIC's
//! namespace, and the vNIC whose socket it comes out of is the neighbour. So the answer is also
//! that the network lets traffic pass.
//!
//! Answers are kept for a while. A probe's number is drawn at random and valid once, and the vNIC
//! it came out of must own the address that was asked for: a datagram that was forged, caught and
//! replayed, or carried elsewhere proves nothing.

use crate::action::{Action, ProbeId};
use crate::gids;
use crate::tables::{Asked, Question, VnicKey, Waiter};
use crate::tenancy::Tenancy;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Answers kept before those that have run out are thrown away.
const SWEEP_AT: usize = 1024;

/// What is known, and what is being asked.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    known: BTreeMap<Question, (Option<VnicKey>, u64)>,
    asked: BTreeMap<Question, Asked>,
    ids: HashMap<ProbeId, Question>,
    sweep_at: usize,
}

/// The answer for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolved {
    /// This vNIC's.
    Is(VnicKey),
    /// Nobody that we know or may reach.
    Nobody,
    /// The waiter is called again when the network has answered.
    Asking,
    /// Too many questions under way.
    Busy,
}

impl Neighbours {
    /// No probe is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.asked.is_empty() && self.ids.is_empty()
    }

    fn learn(&mut self, question: Question, answer: Option<VnicKey>, until: u64, now: u64) {
        if self.known.len() >= self.sweep_at.max(SWEEP_AT) {
            self.known.retain(|_, (_, until)| *until > now);
            self.sweep_at = self.known.len() * 2;
        }
        self.known.insert(question, (answer, until));
    }
}

impl Tenancy {
    /// True if the GID is in the vNIC's table.
    pub(crate) fn owns(&self, vnic: VnicKey, gid: [u8; 16]) -> bool {
        self.vnics.get(&vnic).is_some_and(|v| v.gids.iter().any(|entry| entry.gid == gid))
    }

    /// Whose address `dgid` is, for vNIC `from` with its address `sgid`. If that is not known, the
    /// network is asked on `payer`'s account.
    pub(crate) fn resolve(
        &mut self,
        (from, sgid, dgid): (VnicKey, [u8; 16], [u8; 16]),
        payer: VnicKey,
        waiter: Waiter,
        now: u64,
    ) -> Resolved {
        if gids::is_loopback(dgid) || self.owns(from, dgid) {
            return Resolved::Is(from);
        }
        let interface = match self.vnics.get(&from) {
            Some(vnic) if gids::needs_interface(dgid) => {
                vnic.gids.iter().find(|entry| entry.gid == sgid).map_or(0, |entry| entry.ifindex)
            }
            Some(_) => 0,
            None => return Resolved::Nobody,
        };
        let question = Question { from, interface, gid: dgid };
        if let Some((answer, until)) = self.neighbours.known.get(&question)
            && *until > now
        {
            return answer.map_or(Resolved::Nobody, Resolved::Is);
        }
        self.ask(question, payer, waiter)
    }

    fn ask(&mut self, question: Question, payer: VnicKey, waiter: Waiter) -> Resolved {
        if let Some(asked) = self.neighbours.asked.get_mut(&question) {
            asked.waiters.insert(waiter);
            return Resolved::Asking;
        }
        let Some(account) = self.vnics.get_mut(&payer) else { return Resolved::Nobody };
        if account.probes >= self.limits.probes_per_vnic {
            return Resolved::Busy;
        }
        account.probes += 1;
        let id = u128::from(self.entropy.next()) << 64 | u128::from(self.entropy.next());
        self.neighbours.ids.insert(id, question);
        let asked = Asked { id, payer: Some(payer), waiters: BTreeSet::from([waiter]) };
        self.neighbours.asked.insert(question, asked);
        self.open_port(question.from);
        self.out.push(Action::Probe {
            id,
            vnic: question.from,
            interface: question.interface,
            destination: question.gid,
        });
        Resolved::Asking
    }

    /// A probe came out at a vNIC, or nowhere.
    pub(crate) fn answer_probe(&mut self, id: ProbeId, at: Option<VnicKey>, now: u64) {
        let Some(question) = self.neighbours.ids.get(&id).copied() else { return };
        if let Some(at) = at
            && !self.owns(at, question.gid)
        {
            // Not the owner of the address: the network carried it elsewhere. Or the owner has it
            // only since a moment; then the next try of this probe finds it in the table.
            return self.read_addresses(at, None);
        }
        let kept = match at {
            Some(_) => self.limits.neighbour_time_ns,
            None => self.limits.stranger_time_ns,
        };
        self.neighbours.learn(question, at, now.saturating_add(kept), now);
        self.settle(question, now);
    }

    /// A question needs no more asking: its waiters go on.
    fn settle(&mut self, question: Question, now: u64) {
        let Some(asked) = self.neighbours.asked.remove(&question) else { return };
        self.neighbours.ids.remove(&asked.id);
        if let Some(payer) = asked.payer.and_then(|key| self.vnics.get_mut(&key)) {
            payer.probes -= 1;
        }
        self.out.push(Action::ForgetProbe { id: asked.id });
        for waiter in asked.waiters {
            match waiter {
                Waiter::Wish { qpn, peer } => self.advance_wish(qpn, peer, now),
                Waiter::Call(session) => self.advance_call(session, now),
            }
        }
    }

    /// A vNIC is gone: what was known of it, and what was asked from it, is void.
    pub(crate) fn forget_vnic(&mut self, key: VnicKey, now: u64) {
        self.neighbours
            .known
            .retain(|question, (answer, _)| question.from != key && *answer != Some(key));
        for asked in self.neighbours.asked.values_mut() {
            asked.payer = asked.payer.filter(|payer| *payer != key);
        }
        let open: Vec<_> =
            self.neighbours.asked.keys().filter(|question| question.from == key).copied().collect();
        for question in open {
            self.settle(question, now);
        }
    }
}
