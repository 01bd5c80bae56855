//! Brings two queue pairs together that name each other.
//!
//! RC and UC: each side states a *wish*: the peer's number and GID. When both wishes name each
//! other and each GID turned out (see `directory/`) to be an address of the other's vNIC, the
//! direct link is made. Where the peer is not of this host, or one of the two vNICs is forwarded or
//! limited, one wish is enough for a link to the engine (see `engine_link_lifecycle.rs`). A wish
//! that is neither stays; the queue pair behaves as on a dead network.
//!
//! UD is in `datagram_pairing.rs`.

use super::engine_link::{Flow, Route};
use crate::links::Pairing;
use crate::network::route_destination_cache::Answer;
use crate::network::route_destination_cache::Waiter;
use crate::network::route_destination_probes::Resolved;
use crate::qp_data_path::PathReason;
use crate::row_keys::SessionId;
use crate::sessions::session::Session;
use crate::vm_pair_windows::window_assignment::LinkOrigin;
use omniverb_session::body::{CLOSED_BY_DEATH, CLOSED_BY_PEER, ConnectQp, Connected, LinkClosed};
use omniverb_terms::{Errno, Qpn, Service, VnicId};

/// Times a peer of this host that names us back is looked for where the network cannot be asked.
const FAILURES_MAX: u32 = 8;
/// Times it is looked for where the network does not answer; then the wire is tried.
const SILENCES_MAX: u32 = 2;
/// Like `SILENCES_MAX`, where one of the two is a process of a virtual machine: its agent receives
/// and sends handshakes when the guest has a processor for it, which the host cannot see.
const MACHINE_SILENCES_MAX: u32 = 8;

impl Pairing<'_> {
    pub(crate) fn connect_qp(&mut self, id: SessionId, tag: u64, m: &ConnectQp, now: u64) {
        let service = match self.connect_checked(id, m, now) {
            Ok(service) => service,
            Err(errno) => return self.context.fail(id, tag, errno),
        };
        let ready = Connected { qpn: m.qpn, ready: 1 };
        if m.resume != 0 {
            let answer = self.announce(m, service, now);
            return match answer {
                Ok(()) => self.context.reply(id, tag, ready),
                Err(errno) => self.context.fail(id, tag, errno),
            };
        }
        if service == Service::Ud {
            return self.connect_datagrams(id, tag, m, now);
        }
        if self.links.is_linked(m.qpn, m.dest_qpn) {
            return self.context.reply(id, tag, ready);
        }
        self.unlinker().close_all(m.qpn, CLOSED_BY_PEER);
        self.queue_pairs.note_wish(self.context, m, None);
        self.advance_wish(m.qpn, m.dest_qpn, now);
        if self.queue_pairs.wish(m.qpn, m.dest_qpn).is_some() {
            let is_ready = u32::from(self.links.is_linked(m.qpn, m.dest_qpn));
            self.context.reply(id, tag, Connected { qpn: m.qpn, ready: is_ready });
        } else {
            self.context.fail(id, tag, Errno::ENOMEM);
        }
    }

    /// The queue pair's type, if it may say this.
    fn connect_checked(&self, id: SessionId, m: &ConnectQp, now: u64) -> Result<Service, Errno> {
        let qp = self.queue_pairs.own(id, m.qpn)?;
        let resume = m.resume != 0;
        let resumes = self.tenants.sessions.get(&id).is_some_and(Session::resumes);
        if m.dest_qpn > Qpn::MAX || !self.tenants.owns(qp.vnic(), m.sgid) || (resume && !resumes) {
            return Err(Errno::EINVAL);
        }
        // The end of a group is no single peer, so no host is probed there.
        let to_all = qp.service() == Service::Ud && m.dest_qpn == Qpn::MULTICAST;
        if m.dgid.is_multicast() && !to_all {
            return Err(Errno::EINVAL);
        }
        // Only what has proved that it was there can have had links.
        if resume && !(qp.is_claimed() && self.queue_pairs.takes_announcements(now)) {
            return Err(Errno::EPERM);
        }
        Ok(qp.service())
    }

    /// Takes a wish as far as it gets: resolves its address, then, if that is a neighbour's with
    /// the same wish, makes the link; or goes through the engine.
    pub(crate) fn advance_wish(&mut self, qpn: Qpn, peer: Qpn, now: u64) {
        let Some(qp) = self.queue_pairs.get(qpn) else { return };
        let Some(wish) = qp.wish(peer) else { return };
        if self.links.is_linked(qpn, peer) {
            return;
        }
        let (vnic, survivor) = (qp.vnic(), wish.is_survivor());
        let flow = (vnic, wish.sgid, wish.dgid);
        let answer = match self.network.resolve(
            self.context,
            self.tenants,
            flow,
            vnic,
            Some(Waiter::Wish { qpn, peer }),
            now,
        ) {
            Resolved::Asking => return,
            Resolved::Busy => None,
            Resolved::To(answer) => Some(answer),
        };
        let target = answer.and_then(|answer| match answer {
            Answer::Is(target) => Some(target),
            _ => None,
        });
        if let Some(wish) = self.queue_pairs.wish_mut(qpn, peer) {
            wish.target = target;
        }
        if target.is_some() && !self.may_link(qpn, peer, target) {
            return match survivor {
                true => self.unlinker().abandon_resume(qpn, peer),
                false => self.wish_by_engine(qpn, peer, Route::denied(), now),
            };
        }
        let Some(target) = target else { return self.no_neighbour(qpn, peer, answer, now) };
        if self.queue_pairs.is_gone(peer) {
            return self.queue_pairs.peer_is_gone(self.context, qpn, peer, CLOSED_BY_DEATH, now);
        }
        // The network has led to one vNIC, and the number is of another's.
        if self.queue_pairs.vnic_of(peer).is_some_and(|at| at != target) {
            return;
        }
        let ends = ((vnic, qpn), (target, peer));
        if !survivor
            && let Some(why) = self.pair_windows.kept_apart(
                self.tenants,
                self.network,
                self.queue_pairs,
                ends.0,
                ends.1,
                LinkOrigin::ByBoth,
            )
        {
            self.pair_windows.note_apart(self.network, why, vnic, target);
            return self.wish_by_engine(qpn, peer, Route::forwarded(why, target), now);
        }
        if !self.queue_pairs.is_mutual(qpn, peer) {
            return;
        }
        let back = self.links.engine.to(peer, qpn).next().map(|link| link.within);
        if let Some(within) = back {
            // The peer could not wait for us, or had to go another way; so we go it, too.
            let route = match within {
                Some(_) => Route::forwarded(PathReason::PeerThroughEngine, target),
                None => Route::omniverb(PathReason::OneWay, 0),
            };
            return self.wish_by_engine(qpn, peer, route, now);
        }
        match self.wish_target(peer, qpn, now) {
            None => self.advance_wish(peer, qpn, now),
            Some(back) if back == vnic => self.fulfil(qpn, peer, now),
            Some(_) => {}
        }
    }

    /// The address belongs to no vNIC here.
    fn no_neighbour(&mut self, qpn: Qpn, peer: Qpn, answer: Option<Answer>, now: u64) {
        let mutual = self.queue_pairs.is_mutual(qpn, peer);
        let is_here = self.is_named(qpn, peer, self.queue_pairs.vnic_of(peer));
        let to_machine = self.is_for_machine(qpn, peer);
        // That a number and an address are a machine's is the machine's word: if only the other end
        // names it they do not wait for long.
        let silences = match mutual && (to_machine || self.is_of_machine(qpn)) {
            true => MACHINE_SILENCES_MAX,
            false => SILENCES_MAX,
        };
        let Some(wish) = self.queue_pairs.wish_mut(qpn, peer) else { return };
        wish.failures += 1;
        // A peer is here and names us, so the network may still be coming up. Otherwise asking
        // again would be idle: the peer's own wish asks again for both.
        let again = match answer {
            None => true,
            Some(_) if wish.is_survivor() => mutual,
            Some(Answer::NoAccess) => mutual && wish.failures < FAILURES_MAX,
            // It may be here, and a flood may have kept it from being heard.
            Some(Answer::Unheard) => (mutual || is_here) && wish.failures < FAILURES_MAX,
            Some(Answer::Silence) => (mutual || to_machine) && wish.failures < silences,
            Some(_) => false,
        };
        let given_up = wish.survivor_until;
        let again = again.then_some(now.saturating_add(self.context.limits().stranger_time_ns));
        if let Some(at) = again.into_iter().chain(given_up).min() {
            return self.queue_pairs.set_wish_timer(self.context, qpn, peer, at);
        }
        match answer {
            Some(Answer::Omniverb(_) | Answer::Silence | Answer::Unheard)
                if !self.may_link(qpn, peer, None) =>
            {
                self.wish_by_engine(qpn, peer, Route::denied(), now);
            }
            Some(Answer::Omniverb(features)) => {
                self.wish_by_engine(
                    qpn,
                    peer,
                    Route::omniverb(PathReason::Omniverb, features),
                    now,
                );
            }
            Some(Answer::Silence | Answer::Unheard) => {
                self.wish_by_engine(qpn, peer, Route::roce(), now)
            }
            Some(Answer::Foreign(_)) => self.wish_by_engine(qpn, peer, Route::nowhere(), now),
            _ => {}
        }
    }

    fn is_of_machine(&self, qpn: Qpn) -> bool {
        self.queue_pairs.vnic_of(qpn).is_some_and(|vnic| self.network.is_machine(vnic))
    }

    /// Whether a wish names a process of a machine of this host, by number and address. That
    /// process may not have named its peer yet, since all it does takes longer.
    fn is_for_machine(&self, qpn: Qpn, peer: Qpn) -> bool {
        self.is_named(
            qpn,
            peer,
            self.queue_pairs.vnic_of(peer).filter(|_| self.is_of_machine(peer)),
        )
    }

    /// Whether a wish names a queue pair of this vNIC by its address, too.
    fn is_named(&self, qpn: Qpn, peer: Qpn, at: Option<VnicId>) -> bool {
        let named = self.queue_pairs.wish(qpn, peer).map(|wish| wish.dgid);
        at.zip(named).is_some_and(|(at, gid)| self.tenants.owns(at, gid))
    }

    /// A wish is fulfilled by a link to the engine.
    fn wish_by_engine(&mut self, qpn: Qpn, peer: Qpn, route: Route, now: u64) {
        self.queue_pairs.clear_wish_timer(self.context, qpn, peer);
        let Some(wish) = self.queue_pairs.wish(qpn, peer).copied() else { return };
        let flow = Flow { qpn, peer, sgid: wish.sgid, dgid: wish.dgid };
        // A peer that claims to be at the loopback takes no address of another vNIC's by that.
        let is_at_home = route.within.is_some_and(|at| self.queue_pairs.vnic_of(qpn) == Some(at));
        let flow = match is_at_home && !self.queue_pairs.is_datagram(qpn) {
            true => flow.at_home(),
            false => flow,
        };
        if self.linker().link_to_engine(flow, route, now).is_err() {
            return self.unlinker().refuse_wish(qpn, peer);
        }
        // A peer that waits for us to wish the same need not wait any more.
        if self.queue_pairs.is_mutual(qpn, peer) {
            self.advance_wish(peer, qpn, now);
        }
    }

    /// The vNIC that a wish leads to. The network's answer may be old: if it is known no longer,
    /// the network is asked again.
    fn wish_target(&self, qpn: Qpn, peer: Qpn, now: u64) -> Option<VnicId> {
        let qp = self.queue_pairs.get(qpn)?;
        let wish = qp.wish(peer)?;
        let target = wish.target?;
        let known =
            || self.network.known_answer(self.tenants, qp.vnic(), wish.sgid, wish.dgid, now);
        (target == qp.vnic() || known() == Some(Answer::Is(target))).then_some(target)
    }

    fn fulfil(&mut self, qpn: Qpn, peer: Qpn, now: u64) {
        let Some(wish) = self.queue_pairs.wish(qpn, peer).copied() else { return };
        let Some(back) = self.queue_pairs.wish(peer, qpn).copied() else { return };
        let ends = ((qpn, wish.sgid, wish.dgid), (peer, back.sgid, back.dgid));
        let made = match wish.survivor_until {
            Some(_) => self.linker().record_link(ends.0, ends.1, now),
            None => self.linker().make_link(ends.0, ends.1, None, now),
        };
        for (from, to) in [(qpn, peer), (peer, qpn)] {
            self.queue_pairs.clear_wish_timer(self.context, from, to);
        }
        if made.is_err() {
            self.unlinker().refuse_wishes(qpn, peer);
        } else if self.queue_pairs.is_datagram(qpn) {
            self.queue_pairs.drop_wish(self.context, qpn, peer);
            self.queue_pairs.drop_wish(self.context, peer, qpn);
        }
    }

    /// A wish's timer is due: ask again, or give up what survived only on one side.
    pub(crate) fn wish_due(&mut self, qpn: Qpn, peer: Qpn, now: u64) {
        let Some(wish) = self.queue_pairs.wish(qpn, peer) else { return };
        if let Some(reason) = wish.gone {
            self.queue_pairs.drop_wish(self.context, qpn, peer);
            if self.links.has_engine(qpn, peer) {
                return self.unlinker().end_engine_links(qpn, peer, Some(reason));
            }
            if let Some(session) = self.queue_pairs.session_of(qpn) {
                self.tenants.event(
                    self.context,
                    session,
                    LinkClosed { qpn, peer_qpn: peer, reason, reserved: 0 },
                );
            }
            return;
        }
        if wish.survivor_until.is_some_and(|until| now >= until) {
            self.unlinker().abandon_resume(qpn, peer);
        } else {
            self.advance_wish(qpn, peer, now);
        }
    }
}
