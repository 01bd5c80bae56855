//! Finds out which vNIC or host is at the end of a route of the directory (`directory/`).
//!
//! The network itself is asked: a datagram is sent from one vNIC, and the vNIC whose socket it
//! comes out of is the neighbour. So the answer also proves that the network lets traffic pass.
//! Another Omniverb answers it; other hosts do not.
//!
//! Answers are kept for a while. A probe's number is drawn at random and valid once, the vNIC it
//! came out of must have the name that was asked for, it must have come from an address of the vNIC
//! that asked, and a reply must come from the address asked to that vNIC: a forged, replayed or
//! misrouted datagram proves nothing. A virtual machine reports its addresses itself, and it sees
//! the numbers of its own probes: so these prove the very address that they came from, as the
//! network shows it, and no other of the machine's; it proves that it has taken one in by knowing
//! its number, which the network has brought it. Links that rest on an answer have the network
//! asked again as long as they live (`reachability_probes.rs`).

use super::route_destination_cache::{Answer, Question, Waiter};
use crate::accounts::Kind;
use crate::action::Action;
use crate::decision_context::Context;
use crate::directory::Name;
use crate::network::Network;
use crate::policy::policies::Datapath;
use crate::qp_data_path::PathReason;
use crate::virtual_networks::Destination;
use crate::vnics_and_policies::Tenants;
use omniverb_terms::{Gid, UnderlayRoute, VnicId};

/// The destination of a vGID, if the vNIC is of a tenant with a key. No network is asked, and a
/// vNIC without processes is no destination.
fn virtual_answer(tenants: &Tenants, from: VnicId, dgid: Gid) -> Option<Answer> {
    let networks = &tenants.virtual_networks;
    Some(match networks.destination(from, dgid)? {
        Destination::Here(to) if tenants.vnics.contains_key(&to) => Answer::Is(to),
        Destination::There(_) => Answer::Omniverb(networks.features(from)),
        Destination::Here(_) | Destination::Nowhere => Answer::Foreign(from),
    })
}

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

impl Network {
    /// The vNIC with address `dgid`, for vNIC `from` with its address `sgid`. If that is not known,
    /// the network is asked on `payer`'s account; `waiter` goes on when it has answered.
    pub(crate) fn resolve(
        &mut self,
        context: &mut Context,
        tenants: &mut Tenants,
        (from, sgid, dgid): (VnicId, Gid, Gid),
        payer: VnicId,
        waiter: Option<Waiter>,
        now: u64,
    ) -> Resolved {
        if dgid.is_loopback() || tenants.owns(from, dgid) {
            return Resolved::To(Answer::Is(from));
        }
        if !tenants.vnics.contains_key(&from) {
            return Resolved::To(Answer::NoAccess);
        }
        if let Some(answer) = virtual_answer(tenants, from, dgid) {
            return Resolved::To(answer);
        }
        let Some(question) = self.question_of(tenants, from, sgid, dgid) else {
            return Resolved::To(Answer::NoAccess);
        };
        match self.neighbours.recall(&question, now) {
            Some(answer) => Resolved::To(answer),
            None => self.ask(context, tenants, question, payer, Kind::Probe, waiter),
        }
    }

    /// The answer that is known already.
    pub(crate) fn known_answer(
        &self,
        tenants: &Tenants,
        from: VnicId,
        sgid: Gid,
        dgid: Gid,
        now: u64,
    ) -> Option<Answer> {
        if let Some(answer) = virtual_answer(tenants, from, dgid) {
            return Some(answer);
        }
        self.neighbours.recall(&self.question_of(tenants, from, sgid, dgid)?, now)
    }

    /// Forgets what is known of the network, seen from a vNIC and up to it.
    pub(crate) fn forget_answers(&mut self, key: VnicId) {
        self.neighbours.forget(key);
    }

    /// The route that a name means, seen from a vNIC.
    pub(crate) fn route_to(
        &self,
        tenants: &Tenants,
        from: VnicId,
        sgid: Gid,
        dgid: Gid,
    ) -> Option<UnderlayRoute> {
        if let Some(route) = tenants.virtual_networks.route(from, dgid) {
            return Some(route);
        }
        let entry = tenants.vnics.get(&from).and_then(|vnic| vnic.names.entry(sgid));
        let interface = entry.map_or(0, |entry| entry.ifindex);
        self.directory.route(&Name { from, sgid, interface, dgid })
    }

    /// The question that resolves a name. The vNIC's own address is no part of it: it is one
    /// question for all of them. A machine's addresses are its own word: there it is one for each,
    /// and the answer holds for that one.
    pub(crate) fn question_of(
        &self,
        tenants: &Tenants,
        from: VnicId,
        sgid: Gid,
        dgid: Gid,
    ) -> Option<Question> {
        // The vGID says it.
        if tenants.virtual_networks.has(from) {
            return None;
        }
        let UnderlayRoute { local, remote, interface, key } =
            self.route_to(tenants, from, sgid, dgid)?;
        let local = self.is_machine(from).then(|| local.to_canonical());
        Some(Question { from, local, interface, gid: dgid, remote, key })
    }

    /// Asks the network. `kind`: [`Kind::Probe`], or [`Kind::Consent`] for links that exist
    /// already: counted apart, so that these and new ones do not wait for each other.
    pub(crate) fn ask(
        &mut self,
        context: &mut Context,
        tenants: &mut Tenants,
        question: Question,
        payer: VnicId,
        kind: Kind,
        waiter: Option<Waiter>,
    ) -> Resolved {
        if self.neighbours.is_asked(&question) {
            self.neighbours.join(&question, waiter);
            return Resolved::Asking;
        }
        let Some(payer) = tenants.vnics.get(&payer) else {
            return Resolved::To(Answer::NoAccess);
        };
        let Ok(receipt) = payer.account().charge(&[kind]) else { return Resolved::Busy };
        let id = u128::from(context.entropy.next()) << 64 | u128::from(context.entropy.next());
        self.neighbours.begin(question, id, receipt, waiter);
        tenants.open_port(context, question.from);
        context.act(Action::Probe {
            id,
            vnic: question.from,
            interface: question.interface,
            source: question.local,
            destination: question.remote,
            key: question.key,
        });
        Resolved::Asking
    }
}

impl Network {
    /// The setting because of which traffic from one vNIC to another of this host passes through
    /// the engine, if there is one.
    pub(crate) fn through_engine(
        &self,
        tenants: &Tenants,
        from: VnicId,
        to: VnicId,
    ) -> Option<PathReason> {
        let (own, peer) = (tenants.policy(from), tenants.policy(to));
        let closed = |vnic| self.is_closed(vnic);
        if own.is_limited() {
            Some(PathReason::Limited)
        } else if own.faults.is_some() {
            Some(PathReason::Faulty)
        } else if own.datapath == Datapath::Forwarded || closed(from) {
            Some(PathReason::Forwarded)
        } else if peer.is_limited() {
            Some(PathReason::PeerLimited)
        } else if peer.faults.is_some() {
            Some(PathReason::PeerFaulty)
        } else if peer.datapath == Datapath::Forwarded || closed(to) {
            Some(PathReason::PeerForwarded)
        } else {
            None
        }
    }
}
