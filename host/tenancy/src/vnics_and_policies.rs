//! Keeps vNICs, their processes and the policies for them.

use crate::accounts::Kind;
use crate::action::Action;
use crate::cm::connected_ports::ConnectedPorts;
use crate::decision_context::Context;
use crate::directory::VnicAddress;
use crate::directory::loopbacks;
use crate::directory::vnic_gids_and_addresses::Read;
use crate::directory::vnics_by_address::VnicsByAddress;
use crate::policy::control_call_rate_limits::ControlPace;
use crate::policy::page_adoption_between_vnics::Adoption;
use crate::policy::policies::{Policies, Policy, TenantId};
use crate::row_keys::SessionId;
use crate::rules::vnic_rules::RuleTable;
use crate::sessions::revocations_caused_by_peers::PeerKey;
use crate::sessions::session::Session;
use crate::sessions::vnic_identity::Identity;
use crate::sessions::vnic_members::Vnic;
use crate::virtual_networks::VirtualNetworks;
use omniverb_fairness::FairTable;
use omniverb_session::Message;
use omniverb_session::body::{Done, GidEntry, TAKE_ALL, TakeBack};
use omniverb_terms::{Errno, Gid, Rkey, VnicId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// vNICs, sessions, and policies.
#[derive(Default)]
pub(crate) struct Tenants {
    /// Identities of vNICs that exist, or that something was set for.
    pub(crate) identities: BTreeMap<VnicId, Identity>,
    /// Counted for the holder that brought them.
    pub(crate) vnics: FairTable<VnicId, Vnic>,
    /// Counted for their holders once they are processes, command lines included.
    pub(crate) sessions: FairTable<SessionId, Session>,
    pub(crate) policies: Policies,
    pub(crate) rules: RuleTable,
    /// Of connections that rdma_cm makes.
    pub(crate) connected_ports: ConnectedPorts,
    /// Recent control operations of vNICs that have a rate for them.
    pub(crate) control_paces: BTreeMap<VnicId, ControlPace>,
    /// Of tenants that have keys.
    pub(crate) virtual_networks: VirtualNetworks,
    /// Which vNICs have an address: kept with their names.
    owners: VnicsByAddress,
    /// Addresses of containers' interfaces, whether or not their vNICs have processes.
    seen: BTreeMap<VnicId, Vec<IpAddr>>,
    seen_owners: VnicsByAddress,
    /// Counts changes of owners, and of their tenants.
    owner_changes: u64,
}

impl Tenants {
    /// Whether the GID table of a session's vNIC may be out of date.
    pub(crate) fn is_table_old(&self, context: &Context, id: SessionId, now: u64) -> bool {
        let vnic =
            self.sessions.get(&id).and_then(|session| self.vnics.get(&session.client().vnic));
        vnic.is_some_and(|vnic| vnic.names.are_old(now, context.limits().gids_time_ns))
    }

    pub(crate) fn client_of(&self, session: SessionId) -> Option<(i32, u32)> {
        self.sessions.get(&session).map(|session| (session.client().pid, session.client().uid))
    }

    /// A process, or all of its vNIC, are attached to groups as often as they may.
    pub(crate) fn is_full_of_groups(&self, id: SessionId) -> bool {
        self.sessions.get(&id).is_some_and(|of| of.account().full(&[Kind::Group]).is_some())
    }

    /// An owner may be asked one more question.
    pub(crate) fn has_answered(&mut self, owner: SessionId) {
        if let Some(owner) = self.sessions.get_mut(&owner) {
            owner.questions.answered();
        }
    }

    /// Whether a peer may be granted anything of this owner's: it must not have caused too much to
    /// be taken back lately, nor hold too much.
    pub(crate) fn may_be_granted_more(
        &mut self,
        peer: SessionId,
        owner: SessionId,
        now: u64,
    ) -> Result<(), Errno> {
        let Some(session) = self.sessions.get(&peer) else { return Ok(()) };
        if session.account().full(&[Kind::Granted]).is_some() {
            return Err(Errno::ENOMEM);
        }
        let peer = (session.client().uid, session.client().vnic);
        let owner = self.sessions.get_mut(&owner);
        let overdrawn = owner.is_some_and(|owner| owner.taken.is_overdrawn(peer, now));
        if overdrawn { Err(Errno::EAGAIN) } else { Ok(()) }
    }

    /// The account that a process's revocations are charged to.
    pub(crate) fn peer_key(&self, id: SessionId) -> Option<PeerKey> {
        let client = self.sessions.get(&id)?.client();
        Some((client.uid, client.vnic))
    }

    /// How often a session was told to take an extent back.
    pub(crate) fn taken(&self, id: SessionId) -> u64 {
        self.sessions.get(&id).map_or(0, |session| session.taken.count())
    }

    /// The answer to a call that may have ended links.
    pub(crate) fn done_since(&self, id: SessionId, before: u64) -> Done {
        let now = self.taken(id);
        Done { take_back: if now > before { now } else { 0 } }
    }

    /// True if the GID is in the vNIC's table, or one of its loopback addresses.
    pub(crate) fn owns(&self, vnic: VnicId, gid: Gid) -> bool {
        let Some(row) = self.vnics.get(&vnic) else { return false };
        row.names.entry(gid).is_some()
            || loopbacks().contains(&gid)
            || self.virtual_networks.is_own(vnic, gid)
    }

    /// True if the address is one of the vNIC's, in its table or not.
    pub(crate) fn has(&self, vnic: VnicId, address: IpAddr) -> bool {
        self.vnics.get(&vnic).is_some_and(|vnic| vnic.names.has_address(address))
    }

    /// Direct links between the machine that has a vNIC and others.
    pub(crate) fn pair_links(&self, machine: VnicId) -> usize {
        self.vnics.get(&machine).map_or(0, |vnic| vnic.account().count(Kind::PairLink))
    }

    /// The policy of a vNIC, whether or not it has processes.
    pub(crate) fn policy(&self, key: VnicId) -> Policy {
        self.policies.of(key, self.identity(key))
    }

    /// Links of a vNIC's queue pairs with others that do not pass through the engine.
    pub(crate) fn direct_links(&self, key: VnicId) -> usize {
        self.vnics.get(&key).map_or(0, |vnic| vnic.account().count(Kind::Direct))
    }

    /// Link ends of a vNIC, those to the engine included.
    pub(crate) fn links_of(&self, key: VnicId) -> usize {
        let account = self.vnics.get(&key).map(|vnic| vnic.account());
        account.map_or(0, |all| all.count(Kind::Direct) + all.count(Kind::EngineLink))
    }

    /// The adoption setting between two vNICs.
    pub(crate) fn adoption_between(&self, one: VnicId, other: VnicId) -> Adoption {
        self.policy(one).adoption.with(self.policy(other).adoption)
    }

    /// Whether two vNICs belong to one tenant. Between tenants nothing passes.
    pub(crate) fn share_tenant(&self, one: VnicId, other: VnicId) -> bool {
        one == other || self.policy(one).tenant == self.policy(other).tenant
    }

    /// The vNIC of this host that has an address, among those with the tenant of `at`.
    pub(crate) fn owner_of(&self, at: VnicId, address: IpAddr) -> Option<VnicId> {
        self.owners.of(address).find(|owner| self.share_tenant(at, *owner))
    }

    /// Whether an address belongs to a vNIC of this host with another tenant, and to none with the
    /// tenant of `at`. Packets from there are dropped.
    pub(crate) fn is_foreign_address(&self, at: VnicId, address: IpAddr) -> bool {
        // A virtual address says which tenant it is of.
        if self.policies.is_one_tenant() || self.virtual_networks.has(at) {
            return false;
        }
        let mut owners = self.owners.of(address).chain(self.seen_owners.of(address)).peekable();
        owners.peek().is_some() && !owners.any(|owner| self.share_tenant(at, owner))
    }

    /// The addresses of a vNIC with processes were read.
    pub(crate) fn found_addresses(
        &mut self,
        key: VnicId,
        table: Vec<GidEntry>,
        found: &[VnicAddress],
        now: u64,
    ) -> Option<Read> {
        let names = &mut self.vnics.get_mut(&key)?.names;
        let before = names.addresses().to_vec();
        let read = names.found(table, found, now);
        if before != names.addresses() {
            self.owners.remove(key, &before);
            self.owners.add(key, names.addresses());
            self.owner_changes += 1;
        }
        Some(read)
    }

    /// Interfaces of a vNIC have these addresses, whether or not it has processes: what comes from
    /// there is of its tenant.
    pub(crate) fn see_addresses(&mut self, key: VnicId, addresses: Vec<IpAddr>) {
        let before = self.seen.remove(&key).unwrap_or_default();
        self.owner_changes += u64::from(before != addresses);
        self.seen_owners.remove(key, &before);
        self.seen_owners.add(key, &addresses);
        if !addresses.is_empty() {
            self.seen.insert(key, addresses);
        }
    }

    /// A vNIC has no processes any more.
    pub(crate) fn remove_vnic(&mut self, key: VnicId) {
        if let Some(vnic) = self.vnics.get(&key) {
            self.owners.remove(key, vnic.names.addresses());
            self.owner_changes += 1;
        }
        self.vnics.remove(&key);
    }

    /// A vNIC is in another tenant.
    pub(crate) fn has_moved(&mut self) {
        self.owner_changes += 1;
    }

    /// How often it has changed which tenants have which addresses.
    pub(crate) fn owner_changes(&self) -> u64 {
        self.owner_changes
    }

    /// The tenants that have an address of this host, by addresses; `None`: there is one tenant.
    pub(crate) fn tenants_by_address(&self) -> Option<BTreeMap<IpAddr, BTreeSet<TenantId>>> {
        if self.policies.is_one_tenant() {
            return None;
        }
        let mut all: BTreeMap<IpAddr, BTreeSet<TenantId>> = BTreeMap::new();
        for (address, owner) in self.owners.all().chain(self.seen_owners.all()) {
            all.entry(address).or_default().insert(self.policy(owner).tenant);
        }
        Some(all)
    }

    /// Compares the owners of addresses with the names of vNICs.
    pub(crate) fn check_owners(&self) {
        let mut owners = VnicsByAddress::default();
        for (key, vnic) in self.vnics.iter() {
            owners.add(*key, vnic.names.addresses());
        }
        assert_eq!(owners, self.owners, "owners of addresses, and names");
    }

    /// The vNIC's name for people.
    pub(crate) fn vnic_name(&self, key: VnicId) -> &str {
        self.identity(key).map_or("?", |identity| &identity.name)
    }

    pub(crate) fn node_guid(&self, key: VnicId) -> [u8; 8] {
        self.identity(key).map_or([0; 8], |identity| identity.guid)
    }

    /// The identity of a vNIC, if it was introduced.
    pub(crate) fn identity(&self, vnic: VnicId) -> Option<&Identity> {
        self.identities.get(&vnic)
    }

    /// Proves that a vNIC is this one, to the next daemon as well.
    pub(crate) fn proof(&self, vnic: VnicId) -> [u64; 4] {
        self.identity(vnic).map_or([0; 4], |identity| identity.proof)
    }

    /// True once the session's hello was accepted.
    pub(crate) fn is_welcomed(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(Session::is_welcomed)
    }

    /// True for a vNIC with processes.
    pub(crate) fn has_vnic(&self, key: VnicId) -> bool {
        self.vnics.contains_key(&key)
    }

    /// Tells a session something, if it is still there to be told.
    pub(crate) fn event(
        &self,
        context: &mut Context,
        session: SessionId,
        message: impl Into<Message>,
    ) {
        if self.is_welcomed(session) {
            context.act(Action::Event { session, message: message.into() });
        }
    }

    /// Processes of a vNIC with an open device.
    pub(crate) fn processes(&self, key: VnicId) -> usize {
        self.vnics.get(&key).map_or(0, |vnic| vnic.processes().len())
    }

    /// The processes of a vNIC, by the numbers of their connections.
    pub(crate) fn processes_of(&self, key: VnicId) -> BTreeSet<SessionId> {
        self.vnics.get(&key).map(|vnic| vnic.processes().clone()).unwrap_or_default()
    }

    /// The first vNIC with processes from this one on.
    pub(crate) fn vnic_from(&self, key: VnicId) -> Option<VnicId> {
        self.vnics.next_key(key)
    }

    /// A process that outlived the daemon may have granted pages that are not allowed any more: the
    /// configuration may be another one. Its links are not known yet.
    pub(crate) fn take_back_after_restart(&mut self, context: &mut Context, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else { return };
        if session.resumes() && self.policies.any(Adoption::Off) {
            self.event(
                context,
                id,
                TakeBack { what: TAKE_ALL, rkey: Rkey(0), start: 0, number: 0 },
            );
        }
    }
}
