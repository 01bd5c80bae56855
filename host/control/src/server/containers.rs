//! Gives vNICs of containers what rules say, at latest before their first process has a device.
//!
//! The helper's watcher tells of namespaces that get an interface; the others are looked at when a
//! process comes. A process waits for that: it never has a device of a tenant that is not its own.
//! With `isolate`, what nothing describes has none at all. Nor has a vNIC that belongs to a virtual
//! network and has no place there: it must not reach the network of its container instead.

use crate::daemon_log::Level;
use crate::objects::{Container, Interface};
use crate::pending_namespace_inspections::PendingInspection;
use crate::running_helper_requests::{Enclosed, Subject};
use crate::server::Server;
use crate::vnic_attachment::Attached;
use crate::vnic_attachment_identity::{Attachment, Evidence};
use omniverb_fairness::Holder;
use omniverb_netns::{ContainerFacts, Kind, Process};
use omniverb_sys::clock;
use omniverb_sys::netns::{Namespace, NetnsIdentity};
use omniverb_sys::pidfd::Peer;
use omniverb_tenancy::VnicId;
use omniverb_terms::Errno;
use std::io;
use std::sync::Arc;

impl Server {
    /// Has the helper tell of containers, if there are rules about them, or addresses of policies
    /// that come and go with them.
    pub(super) fn watch_containers(&mut self) {
        if !self.hears_of_containers() {
            return;
        }
        if !self.is_privileged() {
            let has_rules = self.objects.has_rules();
            if !has_rules || std::mem::replace(&mut self.has_said_rules_are_vain, has_rules) {
                return;
            }
            let text = "[[container]] is about no namespace: without CAP_SYS_ADMIN only this one \
                        is served";
            return self.journal.log(Level::Warning, text);
        }
        let Ok(ours) = Namespace::current() else { return };
        let (enclosed, now) = (Enclosed::Namespace(Arc::new(ours)), clock::now());
        self.helper.ask(Kind::Watch, Subject::Containers, &Holder::default(), enclosed, now);
    }

    fn hears_of_containers(&self) -> bool {
        self.objects.has_rules() || self.objects.has_policy_addresses()
    }

    /// The helper watches containers, or cannot.
    pub(super) fn watching(&mut self, found: Result<(), io::Error>) {
        if let Err(error) = found {
            let text = format_args!(
                "cannot listen to the kernel for new containers ({error}; CAP_NET_BROADCAST is \
                 needed): their vNICs appear with their first process"
            );
            self.journal.log(Level::Warning, text);
        }
    }

    /// A container has come or changed.
    pub(super) fn container_appeared(
        &mut self,
        identity: NetnsIdentity,
        cookie: Option<u64>,
        facts: ContainerFacts,
    ) {
        // Where the kernel does not count namespaces, the next one may look like this one.
        if cookie.is_some() && self.hears_of_containers() {
            self.hear_of_container(&evidence(identity, cookie), container(facts, None), true);
        }
    }

    /// A container's namespace is gone.
    pub(super) fn container_vanished(&mut self, identity: NetnsIdentity) {
        self.vnics.end_unused(&evidence(identity, None));
        self.engine_ports().tell_registered();
    }

    fn hear_of_container(&mut self, evidence: &Evidence, container: Container, is_watched: bool) {
        if self.vnics.registry().is_home(evidence) {
            return;
        }
        let vnic = self.engine_ports().recognize(evidence);
        let addresses = container.addresses();
        self.tables.note(|tables| tables.see_addresses(vnic, addresses));
        let registry = self.vnics.registry();
        let name = registry.name(vnic).to_owned();
        let is_in_use = |other: VnicId| registry.is_in_use(other);
        let (objects, when) = (&mut self.objects, (clock::now(), is_watched));
        let is_new = objects.hear_of_container((vnic, &name), container, when, is_in_use);
        if is_new {
            let (tenant, object) = (self.objects.tenant_of(vnic), self.objects.name_of(vnic));
            let object = object.unwrap_or_default();
            let text = format_args!("vNIC {object} of tenant {tenant}: a container's ({name})");
            self.journal.log(Level::Info, text);
            if self.objects.lacks_place(vnic) {
                let text = format_args!(
                    "vNIC {object} of tenant {tenant} has no device: its [[container]] rule has no \
                     virtual address for it that no other vNIC of the tenant has"
                );
                self.journal.log(Level::Warning, text);
            }
        }
        if self.objects.is_described(vnic) {
            self.engine_ports().apply_object(vnic);
            self.engine_ports().review_rules();
            self.carry_on();
        }
    }

    /// Whether rules have to be asked about the namespace of a process.
    pub(super) fn is_undecided(&mut self, process: &Process) -> bool {
        if !self.objects.has_rules() || !self.is_privileged() {
            return false;
        }
        let evidence = evidence(process.namespace.identity(), process.cookie);
        if self.vnics.registry().is_home(&evidence) {
            return false;
        }
        let vnic = self.engine_ports().recognize(&evidence);
        self.objects.is_undecided(vnic, clock::now())
    }

    /// Has the helper look at the namespace of a process.
    pub(super) fn look(&mut self, subject: Subject, process: Process, holder: &Holder) {
        let Process { namespace, cookie, cgroup, .. } = process;
        let namespace = Arc::new(namespace);
        let enclosed = Enclosed::Namespace(namespace.clone());
        self.looks.insert(
            subject,
            PendingInspection { namespace, cookie, cgroup, holder: holder.clone() },
        );
        self.helper.ask(Kind::Interfaces, subject, holder, enclosed, clock::now());
    }

    /// The helper has looked at a namespace, or could not: then its process gets no device, since
    /// it may belong to a tenant.
    pub(super) fn looked(&mut self, subject: Subject, found: io::Result<ContainerFacts>) {
        let Some(look) = self.looks.remove(&subject) else { return };
        let known = match found {
            Ok(facts) => {
                let evidence = evidence(look.namespace.identity(), look.cookie);
                self.hear_of_container(&evidence, container(facts, Some(look.cgroup)), false);
                Ok(Attached::Namespace(look.namespace, look.cookie))
            }
            Err(error) => {
                let text = format_args!(
                    "cannot look at the interfaces of a network namespace: {error}; its process \
                     gets no device, since a [[container]] might be about it"
                );
                self.journal.log(Level::Warning, text);
                Err(Errno::EPERM)
            }
        };
        match subject {
            Subject::Arrival(id) => {
                if let Some(arrival) = self.arrivals.take(id) {
                    self.enter(id, arrival, known);
                }
            }
            Subject::Sockets(number) => self.sockets_placed(number, known.ok(), look.holder),
            _ => {}
        }
    }

    /// What a process reaches its vNIC by, unless that has no device.
    pub(super) fn described(&mut self, known: Attached, peer: &Peer) -> Result<Attached, Errno> {
        let evidence = known.evidence();
        let vnic = self.engine_ports().recognize(&evidence);
        let is_namespace = evidence.attachment == Attachment::Namespace;
        // It may have been heard of before a path led there. A container may connect often.
        let is_known = self.objects.isolates() || self.hears_of_containers();
        let may_be_looked_at = is_known && is_namespace && !self.objects.is_described(vnic);
        if may_be_looked_at && self.objects.is_vnic_look_due(vnic, clock::now()) {
            self.engine_ports().apply_object(vnic);
            self.engine_ports().review_rules();
        }
        let Some(lack) = self.lack_of_device(vnic) else { return Ok(known) };
        let name = self.vnics.registry().name(vnic);
        let Peer { pid, uid, .. } = peer;
        let text = match lack {
            Lack::Description => format!(
                "this daemon isolates, and neither [vnic] nor [[container]] describes its network \
                 namespace, {name}"
            ),
            Lack::Address => format!(
                "its vNIC, {name}, belongs to tenant {:?}, which has a virtual network, and has no \
                 place in it: give it an address that no other vNIC has",
                self.objects.tenant_of(vnic)
            ),
        };
        let text = format_args!("no device for pid {pid} (uid {uid}): {text}");
        self.journal.log_of(Some(name), Level::Warning, text);
        Err(Errno::ENODEV)
    }

    /// Why a vNIC has no device, if it has none.
    fn lack_of_device(&self, vnic: VnicId) -> Option<Lack> {
        let registry = self.vnics.registry();
        let is_machine = registry.inode(vnic).is_none();
        if !is_machine && self.objects.isolates() && !self.objects.is_described(vnic) {
            return Some(Lack::Description);
        }
        self.objects.lacks_place(vnic).then_some(Lack::Address)
    }

    /// Parts with processes whose vNICs have no device any more.
    pub(super) fn end_undescribed(&mut self) {
        for (lack, reason) in [
            (Lack::Description, "nothing describes its vNIC any more"),
            (Lack::Address, "its vNIC has no place in the virtual network of its tenant"),
        ] {
            for id in self.clients.of(|vnic| self.lack_of_device(vnic) == Some(lack)) {
                self.clients.part(id, reason);
            }
        }
    }
}

/// Why a vNIC has no device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// Nothing describes it, and the daemon isolates.
    Description,
    /// Its tenant has a virtual network, in which it has no place.
    Address,
}

fn evidence(identity: NetnsIdentity, cookie: Option<u64>) -> Evidence {
    let place = [identity.device, identity.inode];
    Evidence { attachment: Attachment::Namespace, place, serial: cookie }
}

fn container(facts: ContainerFacts, cgroup: Option<String>) -> Container {
    let interfaces = facts.interfaces.into_iter().map(|found| Interface {
        name: found.name,
        is_up: found.is_up,
        bridge: found.bridge,
        addresses: found.addresses,
    });
    Container { namespace: facts.name, cgroup, interfaces: interfaces.collect() }
}
