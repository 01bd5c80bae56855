//! The tables as a whole: the ways in, and what every one of them needs.

use crate::accounts::{Account, Kind, Quotas};
use crate::action::{Action, Arrived, Occasion};
use crate::cm::table::Connections;
use crate::directory::{Access, Directory, Flat, VnicAddress};
use crate::ids::{LinkKey, ProbeId, SessionId};
use crate::limits::Limits;
use crate::links::Links;
use crate::links::engine_link::Way;
use crate::memory::Memory;
use crate::memory::layout::FileId;
use crate::network::Network;
use crate::network::neighbours::Answer;
use crate::observers::Observers;
use crate::pair_windows::table::MachineWindows;
use crate::policy::policies::Policies;
use crate::queue_pairs::numbers::Entropy;
use crate::queue_pairs::table::QueuePairs;
use crate::queue_pairs::tickets::Secret;
use crate::sessions::identity::{Client, Identity};
use crate::sessions::session::Session;
use crate::sessions::vnic::Vnic;
use crate::timers::{Timer, Timers};
use omniverb_fairness::FairTable;
use omniverb_session::Message;
use omniverb_session::body::{GidsChanged, Granted};
use omniverb_terms::{Errno, Qpn, Underlay, VnicId};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// All tables of one daemon.
pub struct Tenancy {
    limits: Limits,
    /// What all together have; every other account is below it.
    host: Account,
    pub(crate) entropy: Box<dyn Entropy>,
    /// By which processes tell this daemon from the one before; not zero.
    pub(crate) number: u32,
    pub(crate) network: Network,
    /// Who the vNICs are that there are, or that something was set for.
    identities: BTreeMap<VnicId, Identity>,
    /// Counted for who brought them.
    pub(crate) vnics: FairTable<VnicId, Vnic>,
    /// Counted for whose they are once they are processes, command lines included.
    pub(crate) sessions: FairTable<SessionId, Session>,
    pub(crate) queue_pairs: QueuePairs,
    pub(crate) links: Links,
    pub(crate) memory: Memory,
    pub(crate) connections: Connections,
    pub(crate) policies: Policies,
    pub(crate) observers: Observers,
    pub(crate) pair_windows: MachineWindows,
    pub(crate) timers: Timers,
    /// The latest time that was told.
    now: u64,
    /// What has been decided since somebody said something.
    out: Vec<Action>,
}

impl Tenancy {
    /// Empty tables. `boot` is the same as long as the machine runs.
    #[must_use]
    pub fn new(limits: Limits, entropy: Box<dyn Entropy>, boot: u64) -> Tenancy {
        Tenancy::with_directory(limits, entropy, boot, Box::new(Flat))
    }

    /// The same where names are not addresses.
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
            host: Account::new(Quotas::of_host(&limits)),
            limits,
            entropy,
            number,
            network: Network::new(directory),
            identities: BTreeMap::new(),
            vnics: FairTable::default(),
            sessions: FairTable::default(),
            queue_pairs: QueuePairs::new(secret, boot),
            links: Links::default(),
            memory: Memory::default(),
            connections: Connections::default(),
            policies: Policies::default(),
            observers: Observers::default(),
            pair_windows: MachineWindows::default(),
            timers: Timers::default(),
            now: 0,
            out: Vec::new(),
        }
    }

    /// Takes over the secret of the daemon before, whose clients may announce what they have of it
    /// until `until`. Without this nobody can announce anything.
    pub fn inherit(&mut self, secret: Secret, until: u64) {
        self.queue_pairs.inherit(secret, until);
    }

    /// How many daemons there were before, if that is known: while announcements are taken, numbers
    /// are drawn that none of those has given to anybody who may announce himself yet.
    pub fn count(&mut self, generation: Option<u64>) {
        self.queue_pairs.set_generation(generation);
    }

    /// The secret for the daemon after this one.
    #[must_use]
    pub fn secret(&self) -> Secret {
        self.queue_pairs.secret()
    }

    /// Says who a vNIC is, and how it is attached, before anything else is said of it.
    pub fn introduce(&mut self, vnic: VnicId, identity: Identity, access: Access) {
        self.identities.insert(vnic, identity);
        self.network.attach(vnic, access);
    }

    /// A vNIC that nobody is in, nobody comes back to, and nothing is set for.
    pub fn forget_identity(&mut self, vnic: VnicId) {
        self.identities.remove(&vnic);
        self.network.detach(vnic);
    }

    /// Who a vNIC is, if that was said.
    pub(crate) fn identity(&self, vnic: VnicId) -> Option<&Identity> {
        self.identities.get(&vnic)
    }

    /// What proves that a vNIC is this one, to the next daemon as well.
    #[must_use]
    pub fn proof(&self, vnic: VnicId) -> [u64; 4] {
        self.identity(vnic).map_or([0; 4], |identity| identity.proof)
    }

    /// Every maximum of the tables, and times.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What all together have, and may have.
    pub(crate) fn host(&self) -> &Account {
        &self.host
    }

    /// The time is told, in nanoseconds of the monotonic clock; it never goes back.
    pub(crate) fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    /// The latest time that was told.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// The daemon is to do something, behind what it is to do already.
    pub(crate) fn act(&mut self, action: Action) {
        self.out.push(action);
    }

    /// What the daemon is to do.
    pub(crate) fn decided(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.out)
    }

    /// A client connected. It must say `Hello` before anything else.
    pub fn open(&mut self, session: SessionId, client: Client) {
        let account = self.host.below(Quotas::of_session(&self.limits));
        let receipt = self.host.note(&[Kind::Client]);
        self.sessions.insert(session, Session::new(client, account, receipt));
    }

    /// A client said something.
    #[must_use]
    pub fn handle(&mut self, session: SessionId, arrived: &Arrived, now: u64) -> Vec<Action> {
        self.now = self.now.max(now);
        self.dispatch(session, arrived, now);
        self.decided()
    }

    /// A client is gone (or was dropped): everything it had goes, its peers are told.
    #[must_use]
    pub fn end(&mut self, session: SessionId, now: u64) -> Vec<Action> {
        self.now = self.now.max(now);
        self.end_session(session, now);
        self.decided()
    }

    /// The addresses of a vNIC, as asked for by [`Action::ReadAddresses`].
    #[must_use]
    pub fn addresses(&mut self, key: VnicId, found: &[VnicAddress], now: u64) -> Vec<Action> {
        let guid = self.node_guid(key);
        if let Some(vnic) = self.vnics.get_mut(&key) {
            let table = self.network.table(key, found, guid);
            let read = vnic.names.found(table, found, now);
            if let Some(before) = read.before {
                for session in vnic.processes().clone() {
                    self.event(session, GidsChanged { reserved: 0 });
                }
                self.review_groups(key, &before);
                self.review_relations(key);
            }
            for session in read.waiting {
                self.addresses_known(session);
            }
        }
        self.decided()
    }

    /// The datagram of a probe, sent from the address `from`, came out at a socket of vNIC `at`.
    #[must_use]
    pub fn probe_arrived(
        &mut self,
        id: ProbeId,
        (from, at): (IpAddr, VnicId),
        now: u64,
    ) -> Vec<Action> {
        self.probe_at(id, (from, at), now);
        self.decided()
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
        self.reply_from(id, (from, at), features, now);
        self.decided()
    }

    /// The datagram of a probe was sent, and nothing came of it.
    #[must_use]
    pub fn probe_unanswered(&mut self, id: ProbeId, now: u64) -> Vec<Action> {
        self.probe_over(id, Answer::Silence, now);
        self.decided()
    }

    /// The datagram of a probe was sent, and nothing came of it; but a receive queue where its
    /// answer would have been heard ([`Tenancy::hearers`]) overflowed meanwhile.
    #[must_use]
    pub fn probe_unheard(&mut self, id: ProbeId, now: u64) -> Vec<Action> {
        self.probe_over(id, Answer::Unheard, now);
        self.decided()
    }

    /// The datagram of a probe could not be sent.
    #[must_use]
    pub fn probe_failed(&mut self, id: ProbeId, now: u64) -> Vec<Action> {
        self.probe_over(id, Answer::NoAccess, now);
        self.decided()
    }

    /// A datagram for queue pair `qpn` of a vNIC, which has no link for it, came by this
    /// route from queue pair `source_qpn`.
    #[must_use]
    pub fn stranger(
        &mut self,
        at: VnicId,
        (qpn, source_qpn): (Qpn, Qpn),
        underlay: &Underlay,
        now: u64,
    ) -> Vec<Action> {
        if let Some((sgid, dgid)) = self.network.names(at, underlay) {
            let way = Way { qpn, peer: source_qpn, sgid, dgid };
            self.meet_stranger(at, way, now);
        }
        self.decided()
    }

    /// A link of [`Action::CreateLink`] could not be made.
    #[must_use]
    pub fn link_failed(&mut self, one: Qpn, other: Qpn, _now: u64) -> Vec<Action> {
        self.undo_link(LinkKey::new(one, other));
        self.decided()
    }

    /// A link of [`Action::AttachEngine`] could not be made.
    #[must_use]
    pub fn engine_link_failed(&mut self, qpn: Qpn, peer_qpn: Qpn) -> Vec<Action> {
        self.undo_engine_links(qpn, peer_qpn);
        self.decided()
    }

    /// The memory file of an [`Action::Adopt`] with this token could not be made.
    #[must_use]
    pub fn memory_failed(&mut self, token: u64) -> Vec<Action> {
        self.no_memory(token);
        self.decided()
    }

    /// The process of an [`Action::Grant`] cannot be told where what it was granted is, at present.
    #[must_use]
    pub fn grant_failed(
        &mut self,
        session: SessionId,
        file: FileId,
        granted: &Granted,
        occasion: Occasion,
    ) -> Vec<Action> {
        self.not_granted(session, file, granted, occasion);
        self.decided()
    }

    /// When [`tick`](Self::tick) wants to be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.timers.next()
    }

    /// Does what is due.
    #[must_use]
    pub fn tick(&mut self, now: u64) -> Vec<Action> {
        self.now = self.now.max(now);
        while let Some(timer) = self.timers.take_due(now) {
            match timer {
                Timer::Grant(token) => self.grant_timed_out(token),
                Timer::Wish { qpn, peer } => self.wish_due(qpn, peer, now),
                Timer::Consent(question) => self.consent_due(question, now),
                Timer::Connection(session, id) => self.connection_due(session, id, now),
                Timer::EarlyRequests => self.early_requests_due(now),
                Timer::Farewells => self.farewells_due(now),
            }
        }
        self.decided()
    }

    /// True once the session's hello was accepted.
    #[must_use]
    pub fn is_welcomed(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(Session::is_welcomed)
    }

    /// True for a vNIC with processes.
    #[must_use]
    pub fn has_vnic(&self, key: VnicId) -> bool {
        self.vnics.contains_key(&key)
    }

    /// Clients that have been welcomed.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.values().filter(|session| session.is_welcomed()).count()
    }

    /// True if nothing is left of anybody, that is, if no receipt is out: what must hold after the
    /// last client has gone.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.receipts() == 0
    }

    /// Receipts that are out: of rows in the tables that count against a quota.
    #[must_use]
    pub fn receipts(&self) -> usize {
        self.host.receipts()
    }

    pub(crate) fn reply(&mut self, session: SessionId, tag: u64, message: impl Into<Message>) {
        self.act(Action::Reply { session, tag, message: message.into() });
    }

    pub(crate) fn fail(&mut self, session: SessionId, tag: u64, errno: Errno) {
        self.reply(session, tag, Message::Failed(errno));
    }

    /// Tells a session something, if it is still there to be told.
    pub(crate) fn event(&mut self, session: SessionId, message: impl Into<Message>) {
        if self.is_welcomed(session) {
            self.act(Action::Event { session, message: message.into() });
        }
    }

    fn end_session(&mut self, id: SessionId, now: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.end();
        let key = session.client().vnic;
        self.end_connections(id, now);
        for qpn in self.queue_pairs.of(id) {
            self.remove_qp(qpn, omniverb_session::body::CLOSED_BY_DEATH, now);
        }
        self.end_grants(id);
        self.remove_all_extents(id);
        self.end_trace(id);
        for (other, bell) in self.links.end_session(id) {
            self.event(other, omniverb_session::body::BellClosed { bell });
        }
        self.sessions.remove(&id);
        let Some(vnic) = self.vnics.get_mut(&key) else { return };
        vnic.leave(id);
        if vnic.processes().is_empty() {
            self.last_farewells(key);
            self.vnics.remove(&key);
            self.act(Action::VnicGone { vnic: key });
            for vnic in self.vnics.values_mut() {
                vnic.forget_neighbour(key);
            }
            self.forget_vnic(key, now);
            self.forget_early(key);
        }
    }

    /// Drops a session of whoever has the most of something that another needs, too.
    pub(crate) fn make_yield(&mut self, id: SessionId, reason: &'static str, now: u64) {
        self.end_session(id, now);
        self.act(Action::Drop { session: id, reason });
    }
}
