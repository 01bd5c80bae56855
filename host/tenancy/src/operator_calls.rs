//! Serves operators: policies, captures, the audit, the end of links, rows of the status.
//!
//! Turning a switch off also revokes earlier grants: a peer cannot be made to give a mapping back,
//! so owners are told to take the pages.

use crate::action::Action;
use crate::links::socket_relation_refusal::RelationRefusal;
use crate::policy::policies::{Policies, Policy, TenantId};
use crate::row_keys::SessionId;
use crate::rules::vnic_rules::Links;
use crate::rules::vnic_rules::VnicRules;
use crate::tenancy::Tenancy;
use crate::view::status_rows::{Row, VnicStatus};
use crate::virtual_networks::{TenantNetwork, VnicPlace};
use omniverb_session::body::Cursor;
use omniverb_terms::{Gid, Qpn, VnicId};
use omniverb_wire::PortNotice;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

impl Tenancy {
    /// Takes over the policies of the configuration.
    pub fn configure(&mut self, policies: Policies) {
        self.tenants.policies = policies;
    }

    /// Changes what holds for vNICs that nothing else is said of.
    #[must_use]
    pub fn set_general_policy(&mut self, general: Policy) -> Vec<Action> {
        let keys: Vec<VnicId> = self.tenants.identities.keys().copied().collect();
        let before: Vec<(VnicId, Policy)> =
            keys.into_iter().map(|key| (key, self.tenants.policy(key))).collect();
        self.tenants.policies.general = general;
        for (key, before) in before {
            self.policy_changed(key, before);
        }
        self.context.decided()
    }

    /// Changes a vNIC's policy. Links that exist stay as they are: returns the number of direct
    /// ones. Grants that are not allowed any more are revoked by the actions.
    pub fn set_policy(&mut self, key: VnicId, policy: Policy) -> (usize, Vec<Action>) {
        let before = self.tenants.policy(key);
        self.tenants.policies.set(key, policy);
        self.policy_changed(key, before);
        (self.tenants.direct_links(key), self.context.decided())
    }

    /// The namespace that this was set for is no more. If one with processes has its place, what
    /// these granted and must not any more is taken back.
    #[must_use]
    pub fn forget_policy(&mut self, key: VnicId) -> Vec<Action> {
        let before = self.tenants.policy(key);
        self.tenants.policies.unset(key);
        self.policy_changed(key, before);
        self.context.decided()
    }

    /// Changes the rules of a vNIC, and the names by which others' rules mean it. They hold for new
    /// links at once, and for those that exist after [`Tenancy::review_rules`].
    pub fn set_rules(&mut self, key: VnicId, rules: VnicRules) {
        let links = if self.tenants.has_vnic(key) { Links::Possible } else { Links::None };
        self.tenants.rules.set(key, rules, links);
    }

    /// Compares what exists with rules, if these have changed: links that are not allowed any more
    /// end, others refuse what they have to, and pages are taken back.
    #[must_use]
    pub fn review_rules(&mut self) -> Vec<Action> {
        if self.tenants.rules.take_change() {
            self.unlinker().review_links();
            let keys: Vec<VnicId> = self.tenants.identities.keys().copied().collect();
            for key in keys {
                self.relater().review_relations(key);
            }
        }
        self.context.decided()
    }

    /// Applies to what exists what holds for a vNIC now. With another tenant, all its links end.
    fn policy_changed(&mut self, key: VnicId, before: Policy) {
        if self.tenants.policy(key).tenant != before.tenant {
            self.tenants.has_moved();
            self.end_links_of(key);
            self.unlinker().leave_groups(key);
        }
        self.unlinker().adoption_changed(key, before);
        self.unlinker().review_carried(key);
        self.relater().review_relations(key);
    }

    /// How often it has changed which tenants have which addresses of this host.
    #[must_use]
    pub fn owner_changes(&self) -> u64 {
        self.tenants.owner_changes()
    }

    /// The tenants that have an address of this host, by addresses; `None`: there is one tenant.
    #[must_use]
    pub fn tenants_by_address(&self) -> Option<BTreeMap<IpAddr, BTreeSet<TenantId>>> {
        self.tenants.tenants_by_address()
    }

    /// The vNICs without a virtual network that have queue pairs attached to groups.
    #[must_use]
    pub fn in_flat_groups(&self) -> Vec<VnicId> {
        let is_flat = |vnic: &VnicId| !self.tenants.virtual_networks.has(*vnic);
        self.links.in_groups().filter(is_flat).collect()
    }

    /// Changes the virtual networks of tenants that have keys. Links that exist stay, but for those
    /// that datagrams of senders caused which are not described any more.
    #[must_use]
    pub fn describe_networks(
        &mut self,
        networks: BTreeMap<TenantId, TenantNetwork>,
    ) -> Vec<Action> {
        self.tenants.virtual_networks.describe(networks);
        self.unlinker().end_undescribed_senders();
        for vnic in self.tenants.virtual_networks.vnics() {
            self.tenants.read_addresses(&mut self.context, vnic, None);
        }
        self.context.decided()
    }

    /// The tenant in whose virtual network a vNIC is, and its place there.
    #[must_use]
    pub fn place(&self, key: VnicId) -> Option<(TenantId, VnicPlace)> {
        self.tenants.virtual_networks.place(key)
    }

    /// The vNICs of a tenant's virtual network, here and on other hosts: their places and vGIDs.
    #[must_use]
    pub fn names_in(&self, tenant: TenantId) -> Vec<(VnicPlace, Gid)> {
        self.tenants.virtual_networks.names_in(tenant)
    }

    /// The number of a vNIC's queue pair 1 in packets.
    #[must_use]
    pub fn services_of(&self, key: VnicId) -> Qpn {
        let offset = self.place(key).map_or(0, |(_, place)| place.range.offset().number());
        Qpn(offset + Qpn::GENERAL_SERVICES.0)
    }

    /// Gives a vNIC its place in the virtual network of its tenant; `None`: it is flat. If that is
    /// another one, all its links end.
    #[must_use]
    pub fn set_place(&mut self, key: VnicId, place: Option<(TenantId, VnicPlace)>) -> Vec<Action> {
        if self.tenants.virtual_networks.seat(key, place) {
            self.end_links_of(key);
            self.unlinker().leave_groups(key);
            self.tenants.read_addresses(&mut self.context, key, None);
        }
        self.context.decided()
    }

    fn end_links_of(&mut self, key: VnicId) {
        self.unlinker().part_vnic(key);
        self.relater().end_relations(key, RelationRefusal::Gone);
        self.network.forget_answers(key);
        self.queue_pairs.forget_targets(key);
    }

    /// The policy of a vNIC, whether or not it has processes.
    #[must_use]
    pub fn policy(&self, key: VnicId) -> Policy {
        self.tenants.policy(key)
    }

    /// From now on processes may carry links to other hosts themselves.
    pub fn let_processes_carry(&mut self) {
        self.links.carried.turn_on();
    }

    /// Whether they may.
    #[must_use]
    pub fn has_carried_links(&self) -> bool {
        self.links.carried.is_on()
    }

    /// A link of [`Action::AttachCarried`] could not be given to the engine.
    #[must_use]
    pub fn carried_link_lost(&mut self, qpn: Qpn, peer_qpn: Qpn) -> Vec<Action> {
        self.unlinker().carried_link_lost(qpn, peer_qpn);
        self.context.decided()
    }

    /// A notice of ports came to a vNIC from this address.
    #[must_use]
    pub fn port_notice(
        &mut self,
        at: VnicId,
        from: IpAddr,
        notice: &PortNotice,
        now: u64,
    ) -> Vec<Action> {
        self.context.advance(now);
        self.unlinker().notice_arrived(at, from, notice, now);
        self.context.decided()
    }

    /// Tells the audit of links from now on.
    pub fn begin_audit(&mut self) {
        self.observers.begin_audit();
    }

    /// Packets of this vNIC are captured from now on.
    #[must_use]
    pub fn begin_capture(&mut self, vnic: VnicId) -> Vec<Action> {
        self.observer().change_captures(|captures| captures.add(vnic));
        self.unlinker().review_carried(vnic);
        self.context.decided()
    }

    /// Packets of a vNIC are not captured any more.
    #[must_use]
    pub fn end_capture(&mut self, vnic: VnicId) -> Vec<Action> {
        self.observer().change_captures(|captures| captures.remove(vnic));
        self.context.decided()
    }

    /// Ends all links of a vNIC, direct ones and those to the engine, and those to the engine that
    /// lead to it. What is known of the network from it and to it is forgotten: a new connection
    /// has the network asked first.
    #[must_use]
    pub fn disconnect_vnic(&mut self, key: VnicId) -> Vec<Action> {
        self.end_links_of(key);
        self.context.decided()
    }

    /// Links of a vNIC's queue pairs with others that do not pass through the engine.
    #[must_use]
    pub fn direct_links(&self, key: VnicId) -> usize {
        self.tenants.direct_links(key)
    }

    /// Link ends of a vNIC, those to the engine included.
    #[must_use]
    pub fn links_of(&self, key: VnicId) -> usize {
        self.tenants.links_of(key)
    }

    /// Direct links between the machine that has a vNIC and others.
    #[must_use]
    pub fn pair_links(&self, machine: VnicId) -> usize {
        self.tenants.pair_links(machine)
    }

    /// Processes of a vNIC with an open device.
    #[must_use]
    pub fn processes(&self, key: VnicId) -> usize {
        self.tenants.processes(key)
    }

    /// The first vNIC with processes from this one on.
    #[must_use]
    pub fn vnic_from(&self, key: VnicId) -> Option<VnicId> {
        self.tenants.vnic_from(key)
    }

    /// Shows the rows of the vNIC `scope`, or of all, from a place on. Ends after so many steps, or
    /// when `show` has no room for a row; says where to go on, if that was not all.
    pub fn walk(
        &self,
        scope: Option<VnicId>,
        from: Cursor,
        steps: usize,
        show: &mut dyn FnMut(Row) -> bool,
    ) -> Option<Cursor> {
        self.rows().rows(scope, from, steps, show)
    }

    /// The vNIC `scope`, or all of them, at once: for tests.
    #[must_use]
    pub fn status(&self, scope: Option<VnicId>) -> Vec<VnicStatus> {
        let mut vnics: Vec<VnicStatus> = Vec::new();
        let _ = self.walk(scope, Cursor::START, usize::MAX, &mut |row| {
            if let Row::Vnic(vnic) = row {
                vnics.push(vnic);
                return true;
            }
            let Some(vnic) = vnics.last_mut() else { return true };
            let Some(process) =
                vnic.processes.last_mut().filter(|_| !matches!(row, Row::Process(_)))
            else {
                if let Row::Process(process) = row {
                    vnic.processes.push(process);
                }
                return true;
            };
            match (row, process.qps.last_mut()) {
                (Row::Qp(qp), _) => process.qps.push(qp),
                (Row::Peer(_, peer), Some(qp)) => qp.peers.push(peer),
                (Row::WaitsFor(peer), Some(qp)) => qp.waiting_for.push(peer),
                _ => {}
            }
            true
        });
        vnics
    }

    /// The slot that a queue pair of this session counts in.
    #[must_use]
    pub fn slot_of(&self, id: SessionId, qpn: Qpn) -> Option<u32> {
        self.queue_pairs.own(id, qpn).ok().map(|qp| qp.slot())
    }

    /// The slots that a session's queue pairs count in.
    #[must_use]
    pub fn slots_of(&self, id: SessionId) -> Vec<u32> {
        let qpns = self.queue_pairs.of(id).into_iter();
        qpns.filter_map(|qpn| self.slot_of(id, qpn)).collect()
    }

    /// The vNIC of a queue pair.
    #[must_use]
    pub fn vnic_of(&self, qpn: Qpn) -> Option<VnicId> {
        let session = self.queue_pairs.session_of(qpn)?;
        self.tenants.sessions.get(&session).map(|session| session.client().vnic)
    }

    /// The session that owns a queue pair.
    #[must_use]
    pub fn owner_of(&self, qpn: Qpn) -> Option<SessionId> {
        self.queue_pairs.session_of(qpn)
    }
}
