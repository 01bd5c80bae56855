//! Joins all tables, and dispatches each call of the daemon with the tables that it needs.

use crate::accounts::{Kind, Quotas};
use crate::action::{Action, Arrived};
use crate::cm::ConnectionManager;
use crate::cm::id_table::Connections;
use crate::decision_context::Context;
use crate::directory::{Access, Directory, Flat, VnicAddress};
use crate::limits::Limits;
use crate::link_observers::Observers;
use crate::links::engine_link::Flow;
use crate::links::socket_relation_refusal::RelationEnd;
use crate::links::{Linker, Links, Observer, Pairing, Relater, Unlinker};
use crate::memory::{Grants, Memory};
use crate::network::Network;
use crate::network::route_destination_cache::{Answer, Waiter};
use crate::queue_pairs::qp_number_tickets::Secret;
use crate::queue_pairs::qp_numbers::Entropy;
use crate::queue_pairs::queue_pair_table::QueuePairs;
use crate::row_keys::{LinkKey, ProbeId, SessionId};
use crate::sessions::session::{Pace, Session};
use crate::sessions::vnic_identity::{Client, Identity};
use crate::timers::Timer;
use crate::view::StatusRows;
use crate::vm_pair_windows::window_table::MachineWindows;
use crate::vnics_and_policies::Tenants;
use omniverb_session::body::GidsChanged;
use omniverb_terms::{Qpn, UnderlayRoute, VnicId};
use std::net::IpAddr;

/// All tables of one daemon. A call borrows those that it needs: see [`Pairing`], [`Grants`],
/// [`ConnectionManager`].
pub struct Tenancy {
    pub(crate) context: Context,
    pub(crate) tenants: Tenants,
    pub(crate) network: Network,
    pub(crate) pair_windows: MachineWindows,
    pub(crate) queue_pairs: QueuePairs,
    pub(crate) links: Links,
    pub(crate) memory: Memory,
    pub(crate) connections: Connections,
    pub(crate) observers: Observers,
}

impl Tenancy {
    /// Empty tables. `boot` is the same as long as the machine runs.
    #[must_use]
    pub fn new(limits: Limits, entropy: Box<dyn Entropy>, boot: u64) -> Tenancy {
        Tenancy::with_directory(limits, entropy, boot, Box::new(Flat))
    }

    /// Like `new`, with a directory whose names are not addresses.
    #[must_use]
    pub fn with_directory(
        limits: Limits,
        mut entropy: Box<dyn Entropy>,
        boot: u64,
        directory: Box<dyn Directory>,
    ) -> Tenancy {
        let secret = [entropy.next(), entropy.next()];
        let number = entropy.next() as u32 | 1;
        Tenancy {
            context: Context::new(limits, entropy, number),
            tenants: Tenants::default(),
            network: Network::new(directory),
            pair_windows: MachineWindows::default(),
            queue_pairs: QueuePairs::new(secret, boot),
            links: Links::default(),
            memory: Memory::default(),
            connections: Connections::default(),
            observers: Observers::default(),
        }
    }

    /// Brings queue pairs together, with all tables that this may need.
    pub(crate) fn pairing(&mut self) -> Pairing<'_> {
        Pairing {
            context: &mut self.context,
            tenants: &mut self.tenants,
            network: &mut self.network,
            pair_windows: &mut self.pair_windows,
            queue_pairs: &mut self.queue_pairs,
            links: &mut self.links,
            memory: &mut self.memory,
            observers: &mut self.observers,
        }
    }

    /// Makes links, with all tables that this may need.
    pub(crate) fn linker(&mut self) -> Linker<'_> {
        self.pairing().into_linker()
    }

    /// Ends links, with all tables that this may need.
    pub(crate) fn unlinker(&mut self) -> Unlinker<'_> {
        self.pairing().into_unlinker()
    }

    /// Brings sockets together.
    pub(crate) fn relater(&mut self) -> Relater<'_> {
        self.pairing().into_relater()
    }

    /// Grants pages, and takes them back.
    pub(crate) fn grants(&mut self) -> Grants<'_> {
        self.pairing().into_unlinker().into_grants()
    }

    /// Tells those that watch links.
    pub(crate) fn observer(&mut self) -> Observer<'_> {
        self.pairing().into_unlinker().into_observer()
    }

    /// Serves ids of the connection manager.
    pub(crate) fn cm(&mut self) -> ConnectionManager<'_> {
        ConnectionManager {
            context: &mut self.context,
            tenants: &mut self.tenants,
            network: &self.network,
            queue_pairs: &self.queue_pairs,
            connections: &mut self.connections,
            observers: &self.observers,
        }
    }

    /// Looks at what there is to see.
    pub(crate) fn rows(&self) -> StatusRows<'_> {
        StatusRows {
            tenants: &self.tenants,
            network: &self.network,
            queue_pairs: &self.queue_pairs,
            links: &self.links,
        }
    }

    /// Takes over the secret of the earlier daemon, whose clients may announce what they have of it
    /// until `until`. Without this no announcement is accepted.
    pub fn inherit(&mut self, secret: Secret, until: u64) {
        self.queue_pairs.inherit(secret, until);
    }

    /// The number of earlier daemons, if known: while announcements are taken, numbers are drawn
    /// that none of those has given to a process that may still announce itself.
    pub fn count(&mut self, generation: Option<u64>) {
        self.queue_pairs.set_generation(generation);
    }

    /// The secret for the daemon after this one.
    #[must_use]
    pub fn secret(&self) -> Secret {
        self.queue_pairs.secret()
    }

    /// Introduces a vNIC: its identity and how it is attached.
    pub fn introduce(&mut self, vnic: VnicId, identity: Identity, access: Access) {
        self.tenants.identities.insert(vnic, identity);
        self.network.attach(vnic, access);
    }

    /// Forgets a vNIC without processes and settings, to which none comes back.
    pub fn forget_identity(&mut self, vnic: VnicId) {
        self.tenants.identities.remove(&vnic);
        self.tenants.see_addresses(vnic, Vec::new());
        self.tenants.rules.forget(vnic);
        self.tenants.control_paces.remove(&vnic);
        self.network.detach(vnic);
    }

    /// Interfaces of a vNIC have these addresses. It need not have processes: anything in its
    /// network can send packets.
    pub fn see_addresses(&mut self, vnic: VnicId, addresses: Vec<IpAddr>) {
        self.tenants.see_addresses(vnic, addresses);
    }

    /// A client connected. It must say `Hello` before anything else.
    pub fn open(&mut self, session: SessionId, client: Client) {
        let host = self.context.host();
        let account = host.below(Quotas::of_session(self.context.limits()));
        let receipt = host.note(&[Kind::Client]);
        self.tenants.sessions.insert(session, Session::new(client, account, receipt));
    }

    /// A client said something.
    #[must_use]
    pub fn handle(&mut self, session: SessionId, arrived: &Arrived, now: u64) -> Vec<Action> {
        self.context.advance(now);
        self.dispatch(session, arrived, now);
        self.context.decided()
    }

    /// A client is gone (or was dropped): everything it had goes, its peers are told.
    #[must_use]
    pub fn end(&mut self, session: SessionId, now: u64) -> Vec<Action> {
        self.context.advance(now);
        self.end_session(session, now);
        self.context.decided()
    }

    /// The addresses of a vNIC, as asked for by [`Action::ReadAddresses`].
    #[must_use]
    pub fn addresses(&mut self, key: VnicId, found: &[VnicAddress], now: u64) -> Vec<Action> {
        let guid = self.tenants.node_guid(key);
        let flat = self.network.table(key, found, guid);
        let networks = &self.tenants.virtual_networks;
        let table = networks.table(key, found, &flat).unwrap_or(flat);
        if let Some(read) = self.tenants.found_addresses(key, table, found, now) {
            if let Some(before) = read.before {
                for session in self.tenants.processes_of(key) {
                    self.tenants.event(&mut self.context, session, GidsChanged { reserved: 0 });
                }
                self.unlinker().review_groups(key, &before);
                self.relater().review_relations(key);
            } else if self.tenants.virtual_networks.has(key) {
                // Its table does not have the addresses of its interfaces.
                self.relater().review_relations(key);
            }
            for session in read.waiting {
                self.addresses_known(session);
            }
        }
        self.context.decided()
    }

    /// The datagram of a probe, sent from the address `from`, came out at a socket of vNIC `at`.
    #[must_use]
    pub fn probe_arrived(
        &mut self,
        id: ProbeId,
        (from, at): (IpAddr, VnicId),
        now: u64,
    ) -> Vec<Action> {
        self.pairing().probe_at(id, (from, at), now);
        self.context.decided()
    }

    /// A reply to a probe arrived at a socket of vNIC `at`, from the address `from`.
    #[must_use]
    pub fn probe_replied(
        &mut self,
        id: ProbeId,
        (from, at): (IpAddr, VnicId),
        features: u32,
        now: u64,
    ) -> Vec<Action> {
        self.pairing().reply_from(id, (from, at), features, now);
        self.context.decided()
    }

    /// The datagram of a probe was sent, and nothing came of it.
    #[must_use]
    pub fn probe_unanswered(&mut self, id: ProbeId, now: u64) -> Vec<Action> {
        self.pairing().probe_over(id, Answer::Silence, now);
        self.context.decided()
    }

    /// The datagram of a probe was sent, and nothing came of it; but a receive queue where its
    /// answer would have been heard ([`Tenancy::hearers`]) overflowed meanwhile.
    #[must_use]
    pub fn probe_unheard(&mut self, id: ProbeId, now: u64) -> Vec<Action> {
        self.pairing().probe_over(id, Answer::Unheard, now);
        self.context.decided()
    }

    /// The datagram of a probe could not be sent.
    #[must_use]
    pub fn probe_failed(&mut self, id: ProbeId, now: u64) -> Vec<Action> {
        self.pairing().probe_over(id, Answer::NoAccess, now);
        self.context.decided()
    }

    /// A datagram for queue pair `qpn` of a vNIC, which has no link for it, came by this
    /// route from queue pair `source_qpn`.
    #[must_use]
    pub fn stranger(
        &mut self,
        at: VnicId,
        (qpn, source_qpn): (Qpn, Qpn),
        underlay: &UnderlayRoute,
        now: u64,
    ) -> Vec<Action> {
        if let Some((sgid, dgid)) = self.network.names(&self.tenants, at, source_qpn, underlay) {
            let flow = Flow { qpn, peer: source_qpn, sgid, dgid };
            self.pairing().meet_stranger(at, flow, now);
        }
        self.context.decided()
    }

    /// A management datagram came to queue pair 1 of a vNIC by this way, from queue pair `source`
    /// as packets number it: 1, or that of a vNIC with a virtual address.
    #[must_use]
    pub fn management(
        &mut self,
        at: VnicId,
        source: Qpn,
        underlay: &UnderlayRoute,
        datagram: &[u8],
        now: u64,
    ) -> Vec<Action> {
        self.context.advance(now);
        self.cm().received(at, (source, underlay), datagram, now);
        self.context.decided()
    }

    /// Asks whether two addresses of two vNICs may be brought together; [`Action::Related`] says
    /// so, and when that has ended. `number`: not in use.
    #[must_use]
    pub fn relate(&mut self, number: u64, ends: [RelationEnd; 2], now: u64) -> Vec<Action> {
        self.context.advance(now);
        self.relater().begin_relation(number, ends, now);
        self.context.decided()
    }

    /// Ends a relation that is not needed any more.
    pub fn relate_no_more(&mut self, number: u64) {
        self.relater().relate_no_more(number);
    }

    /// The session's reading speed has changed.
    pub fn set_pace(&mut self, session: SessionId, pace: Pace) {
        self.tenants.set_pace(session, pace);
    }

    /// The vNIC's name for people.
    #[must_use]
    pub fn vnic_name(&self, key: VnicId) -> &str {
        self.tenants.vnic_name(key)
    }

    /// Proves that a vNIC is this one, to the next daemon as well.
    #[must_use]
    pub fn proof(&self, vnic: VnicId) -> [u64; 4] {
        self.tenants.proof(vnic)
    }

    /// True once the session's hello was accepted.
    #[must_use]
    pub fn is_welcomed(&self, session: SessionId) -> bool {
        self.tenants.is_welcomed(session)
    }

    /// True for a vNIC with processes.
    #[must_use]
    pub fn has_vnic(&self, key: VnicId) -> bool {
        self.tenants.has_vnic(key)
    }

    /// A link of [`Action::CreateLink`] could not be made.
    #[must_use]
    pub fn link_failed(&mut self, one: Qpn, other: Qpn, _now: u64) -> Vec<Action> {
        self.unlinker().undo_link(LinkKey::new(one, other));
        self.context.decided()
    }

    /// A link of [`Action::AttachEngine`] could not be made.
    #[must_use]
    pub fn engine_link_failed(&mut self, qpn: Qpn, peer_qpn: Qpn) -> Vec<Action> {
        self.unlinker().undo_engine_links(qpn, peer_qpn);
        self.context.decided()
    }

    /// When [`tick`](Self::tick) wants to be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.context.timers.next()
    }

    /// Does what is due by now.
    #[must_use]
    pub fn tick(&mut self, now: u64) -> Vec<Action> {
        self.context.advance(now);
        while let Some(timer) = self.context.timers.take_due(now) {
            match timer {
                Timer::Grant(token) => self.grants().grant_timed_out(token),
                Timer::Wish { qpn, peer } => self.pairing().wish_due(qpn, peer, now),
                Timer::Consent(question) => self.pairing().consent_due(question, now),
                Timer::RelationAddresses(number) => {
                    self.relater().read_addresses_again(number, now);
                }
                Timer::Connection(session, id) => self.cm().connection_due(session, id, now),
                Timer::EarlyRequests => self.cm().early_requests_due(now),
                Timer::DreqRetransmissions => self.cm().farewells_due(now),
                Timer::PortNotice { qpn, peer } => self.unlinker().notice_due((qpn, peer), now),
                Timer::GiveLink { qpn, peer } => self.unlinker().give_link_due(qpn, peer),
                Timer::PacedCall(session) => self.paced_call_due(session, now),
            }
        }
        self.context.decided()
    }

    /// Clients that have been welcomed.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.tenants.sessions.values().filter(|session| session.is_welcomed()).count()
    }

    /// True if no receipt is out, that is, no row of any client is left: what must hold after the
    /// last client has gone.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.receipts() == 0
    }

    /// Receipts that are out: of rows in the tables that count against a quota.
    #[must_use]
    pub fn receipts(&self) -> usize {
        self.context.host().receipts()
    }

    /// True for the number of a probe under way.
    #[must_use]
    pub fn is_probe(&self, id: ProbeId) -> bool {
        self.network.neighbours.question(id).is_some()
    }

    /// The vNICs at whose sockets the answer to a probe under way arrives: the prober, and the
    /// probed one as far as known.
    #[must_use]
    pub fn hearers(&self, id: ProbeId) -> Vec<VnicId> {
        let Some((question, waiter)) = self.network.neighbours.waiter(id) else {
            return Vec::new();
        };
        let meant = match waiter {
            Some(Waiter::Wish { peer, .. }) => self.queue_pairs.vnic_of(peer),
            Some(Waiter::Relation(number)) => self.links.related_with(question.from, number),
            Some(Waiter::Consent) | None => None,
        };
        let all = [Some(question.from), self.links.led_to(&question), meant];
        let mut all: Vec<VnicId> = all.into_iter().flatten().collect();
        all.dedup();
        all
    }
}
