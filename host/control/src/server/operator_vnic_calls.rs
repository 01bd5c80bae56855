//! Serves what an operator asks about vNICs: their datapaths, limits and faults.

use crate::daemon_log::Level;
use crate::engine::SharedLimits;
use crate::objects::ObjectKind;
use crate::roce_port::PortUse;
use crate::server::operation_contexts::EnginePorts;
use crate::server::operation_contexts::StatusRows;
use crate::vnic_attachment_identity::Evidence;
use crate::vnic_identities::News;
use crate::vnic_policy::{changed, datapath_name, set_fields, shown};
use omniverb_netns::PORT;
use omniverb_session::operator::{Disconnected, SET_FAULTS, SetVnic, VnicChanged};
use omniverb_sys::clock;
use omniverb_sys::udp_socket::UdpPort;
use omniverb_tenancy::{RateLimit, VnicId};
use omniverb_terms::Errno;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;

impl EnginePorts<'_> {
    pub(super) fn set_vnic(&mut self, key: VnicId, m: &SetVnic) -> Result<VnicChanged, Errno> {
        let policy = changed(self.tables.policy(key), m)?;
        self.vnics.keep(key)?;
        let name = self.vnics.registry().name(key).to_owned();
        let set = self.objects.set_vnic(key, &name, |object| set_fields(object, &policy, m));
        if let Err(problem) = set {
            self.journal.log(Level::Warning, format_args!("cannot change vNIC {name}: {problem}"));
            return Err(Errno::EIO);
        }
        // The same faults again: from the start.
        if m.what & SET_FAULTS != 0 && self.vnics.has_port(key) {
            self.engine.faults(key, policy.faults);
        }
        self.apply_object(key);
        self.review_rules();
        Ok(shown(&self.tables.policy(key), self.tables.direct_links(key)))
    }

    /// An operator who looks for the reason of a bad network finds it in the log, too.
    pub(super) fn warn_of_faults(&mut self, key: VnicId) {
        let name = self.vnics.registry().name(key);
        let text = match self.tables.policy(key).faults {
            Some(faults) => format!("packets for vNIC {name} are given faults: {}", faults.show()),
            None => format!("packets for vNIC {name} are given no more faults"),
        };
        self.journal.log(Level::Warning, text);
    }

    /// The vNIC with this evidence.
    pub(super) fn recognize(&mut self, evidence: &Evidence) -> VnicId {
        let vnic = self.vnics.recognize(evidence);
        self.tell_registered();
        vnic
    }

    /// Asks for a vNIC's sockets, unless that was done not long ago; whether they are there, or
    /// will be for all that is known.
    pub(super) fn want_port(&mut self, vnic: VnicId) -> bool {
        // A machine's agent has it open already; without an agent nothing reaches its processes.
        let of_machine = self.machines.of_vnic(vnic).map(|record| record.port.clone());
        let is_reached = of_machine.as_ref().is_none_or(Option::is_some);
        let port = match self.tables.place(vnic) {
            Some(_) if is_reached => self.underlay_port().ok(),
            Some(_) => None,
            None => of_machine.flatten(),
        };
        let Some(port) = port else {
            return self.vnics.want_port(vnic, self.helper, clock::now());
        };
        let wanted = self.vnics.port_mut(vnic).map(|own| own.want(clock::now()));
        if wanted == Some(PortUse::Ask) {
            self.port_found(vnic, Ok(port));
        }
        // One that waits for the port of PSP is not open yet.
        let port = self.vnics.port(vnic);
        port.is_some_and(|port| port.open().is_some() || port.is_asked_for())
    }

    /// A port that needs no sockets of a vNIC's namespace: that of one with a virtual address.
    pub(super) fn underlay_port(&self) -> io::Result<Arc<UdpPort>> {
        // No descriptors are in it: the other end is our own.
        UdpPort::carried_by_another(PORT, Box::new(drop)).map(Arc::new)
    }

    /// Tells the tables of new vNICs and of those that are gone: after a holder came or
    /// [released](crate::vnic_references::Hold) one.
    pub(super) fn tell_registered(&mut self) {
        for news in self.vnics.news() {
            match news {
                News::New(vnic, identity, access) => {
                    self.tables.note(|tables| tables.introduce(vnic, identity, access));
                    self.apply_object(vnic);
                    if self.objects.is_look_due(clock::now()) {
                        self.warn_of_paths();
                    }
                }
                News::Gone(vnic) => {
                    self.addresses.need(vnic, None);
                    if let Err(problem) = self.objects.forget(vnic) {
                        self.journal.log(Level::Warning, format_args!("{problem}"));
                    }
                    if self.objects.take_new_places() {
                        self.apply_networks();
                    }
                    self.tables.decide(|tables| tables.forget_policy(vnic));
                    self.tables.note(|tables| tables.forget_identity(vnic));
                    self.counted.forget(vnic);
                    self.engine.forget_counted(vnic);
                }
                News::NotMeant(vnic, inode) => {
                    let name = self.vnics.registry().name(vnic);
                    let text = format_args!(
                        "what the configuration says of net-{inode} does not hold for vNIC {name}: \
                         the kernel gave that inode number to another namespace before"
                    );
                    self.journal.log(Level::Warning, text);
                }
            }
        }
    }

    /// Ends all links of a vNIC.
    pub(super) fn disconnect_vnic(&mut self, key: VnicId) -> Disconnected {
        let links = self.tables.links_of(key);
        self.tables.decide(|tables| tables.disconnect_vnic(key));
        let name = self.vnics.registry().name(key);
        self.journal.log(Level::Info, format_args!("an operator ended {links} links of {name}"));
        Disconnected { links: u32::try_from(links).unwrap_or(u32::MAX), reserved: 0 }
    }
}

impl StatusRows<'_> {
    /// What was done to packets of a vNIC that is served and has faults.
    pub(super) fn injected(&self, key: VnicId) -> Option<Value> {
        let done = self.engine.fault_counters(key)?;
        Some(json!({
            "packets": done.sent,
            "lost": done.lost,
            "duplicated": done.duplicated,
            "reordered": done.reordered,
            "corrupted": done.corrupted,
            "marked": done.marked,
            "dropped": done.dropped,
        }))
    }

    /// The first vNIC from this one on that has processes or was given something.
    pub(super) fn vnic_from(&self, key: VnicId) -> Option<VnicId> {
        let registry = self.vnics.registry();
        [registry.kept_from(key), self.tables.vnic_from(key), self.machines.vnic_from(key)]
            .into_iter()
            .flatten()
            .min()
    }

    /// What holds for a vNIC.
    pub(super) fn policy_row(&self, key: VnicId) -> Value {
        let policy = self.tables.policy(key);
        json!({
            "name": self.vnics.registry().name(key),
            "tenant": self.objects.shown_tenant(key),
            "object": self.objects.name_of(key),
            "namespace": self.vnics.registry().inode(key),
            "machine": self.machine_row(key),
            "processes": self.tables.processes(key),
            "datapath": datapath_name(policy),
            "adoption": policy.adoption.name(),
            "encryption": self.encryption(key),
            "rate": policy.limit.map(|limit| limit.bits_per_second),
            "burst": policy.limit.map(|limit| limit.burst_bytes),
            "ops": policy.operations,
            "shared_limits": self.shared_limits_row(key),
            "control_rate": policy.control.operations,
            "qp_rate": policy.control.queue_pairs_per_second,
            "queue_pairs": policy.control.queue_pairs,
            "faults": policy.faults.map(|faults| faults.show()),
            "injected": self.injected(key),
            "direct_links": self.tables.direct_links(key),
            "refused_calls": self.counted.refused(key),
            "ended": self.counted.row(key, &self.engine.ended(key)),
        })
    }

    /// Limits that a vNIC has in common with others: a row for its tenant, and for each policy.
    fn shared_limits_row(&self, key: VnicId) -> Vec<Value> {
        let SharedLimits { rate, ops, .. } = self.objects.shared_limits(key);
        let row = |kind: ObjectKind, name: &str, rate: Option<RateLimit>, ops| {
            json!({
                "of": kind.word(),
                "name": name,
                "rate": rate.map(|limit| limit.bits_per_second),
                "burst": rate.map(|limit| limit.burst_bytes),
                "ops": ops,
            })
        };
        let mut rows = Vec::new();
        if rate.of_tenant.is_some() || ops.of_tenant.is_some() {
            let tenant = self.objects.tenant_of(key);
            rows.push(row(ObjectKind::Tenant, tenant, rate.of_tenant, ops.of_tenant));
        }
        let mut policies: BTreeMap<String, (Option<RateLimit>, Option<NonZeroU32>)> =
            BTreeMap::new();
        if let Some((name, limit)) = rate.of_policy {
            policies.entry(name).or_default().0 = Some(limit);
        }
        if let Some((name, limit)) = ops.of_policy {
            policies.entry(name).or_default().1 = Some(limit);
        }
        let of_policy =
            |(name, (rate, ops)): (&String, &_)| row(ObjectKind::Policy, name, *rate, *ops);
        rows.extend(policies.iter().map(of_policy));
        rows
    }
}
