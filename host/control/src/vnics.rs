//! Keeps the daemon's vNICs: their identity, attachments and UDP sockets.
//!
//! The registry and the stored attachment change as soon as a vNIC's first holder comes or its last
//! goes (`vnic_references.rs`). The helper reads its addresses and opens its sockets.

use crate::engine::Refusal;
use crate::helper_requests::HelperRequests;
use crate::roce_port::{Closed, PortUse, VnicPort};
use crate::running_helper_requests::Subject;
use crate::underlay_psp_port::UnderlayPspPort;
use crate::vnic_attachment::Attached;
use crate::vnic_attachment_identity::Evidence;
use crate::vnic_identities::{News, Registry};
use crate::vnic_references::{Hold, UnusedVnics, WeakHold};
use omniverb_fairness::Holder;
use omniverb_netns::Kind;
use omniverb_sys::local_addresses::{self, AddressScope};
use omniverb_sys::netns::Namespace;
use omniverb_sys::udp_socket::UdpPort;
use omniverb_tenancy::{Reach, VnicAddress, VnicId};
use omniverb_terms::Errno;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

/// Budget: addresses without encryption that are remembered for a vNIC, to say so once and to show.
const REFUSED_MAX: usize = 256;
/// Budget: vNICs that a warning is remembered for.
const WARNED_MAX: usize = 4096;

/// An open vNIC, and what is stored for so long.
#[derive(Debug)]
struct Served {
    attached: Attached,
    /// The first holder, for which the helper is asked; empty: it was opened for a capture.
    holder: Holder,
    /// Clients, machines and captures that have it open.
    held: WeakHold,
    port: VnicPort,
    psp: PspPort,
}

/// The port of PSP of a vNIC whose packets are encrypted.
#[derive(Debug, Default)]
struct PspPort {
    port: VnicPort,
    /// The vNIC's other port, which is not used before it is known what becomes of this one.
    before: Option<Arc<UdpPort>>,
    /// Addresses that get nothing, since they do not encrypt.
    refused: BTreeMap<IpAddr, Refusal>,
}

/// A named vNIC, and its attachment if that is open.
pub(crate) type Named = (VnicId, Option<Attached>);

/// All of them.
#[derive(Debug)]
pub(crate) struct Vnics {
    registry: Registry,
    served: HashMap<VnicId, Served>,
    /// The port of PSP of all that have a virtual address.
    pub(crate) underlay_psp: UnderlayPspPort,
    /// vNICs whose last holder has gone.
    left: UnusedVnics,
    /// Sockets that were closed: there as long as a packet thread has not let go of them.
    closed: Vec<Weak<UdpPort>>,
    /// vNICs whose sockets could not be opened and were logged.
    warned: BTreeSet<VnicId>,
}

impl Vnics {
    pub(crate) fn new(registry: Registry) -> Vnics {
        Vnics {
            registry,
            served: HashMap::new(),
            underlay_psp: UnderlayPspPort::default(),
            left: UnusedVnics::default(),
            closed: Vec::new(),
            warned: BTreeSet::new(),
        }
    }

    /// These sockets are closed, when a packet thread has heard of it.
    pub(crate) fn let_go(&mut self, port: &Arc<UdpPort>) {
        self.closed.retain(|port| port.strong_count() > 0);
        self.closed.push(Arc::downgrade(port));
    }

    /// Where the sockets are that were closed.
    pub(crate) fn closed(&self) -> Closed {
        match self.closed.iter().any(|port| port.strong_count() > 0) {
            true => Closed::Lingering,
            false => Closed::Gone,
        }
    }

    /// The registry of vNICs.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// vNICs that have come and gone since the last call.
    pub(crate) fn news(&mut self) -> Vec<News> {
        self.let_go_of_left();
        self.registry.news()
    }

    /// The vNIC with this evidence.
    pub(crate) fn recognize(&mut self, evidence: &Evidence) -> VnicId {
        self.let_go_of_left();
        self.registry.recognize(evidence)
    }

    /// A namespace is gone: its vNIC is forgotten, unless it is open.
    pub(crate) fn end_unused(&mut self, evidence: &Evidence) {
        self.let_go_of_left();
        self.registry.end_unused(evidence);
    }

    /// Something is set for one: it is remembered.
    pub(crate) fn keep(&mut self, vnic: VnicId) -> Result<(), Errno> {
        self.registry.keep(vnic)
    }

    /// A process reaches a vNIC that way from now on.
    pub(crate) fn join(&mut self, attached: Attached, holder: &Holder) -> Hold {
        let vnic = self.recognize(&attached.evidence());
        self.open(vnic, attached, holder)
    }

    /// A further hold of a vNIC.
    pub(crate) fn hold(&mut self, vnic: VnicId, attached: Attached) -> Hold {
        self.let_go_of_left();
        self.open(vnic, attached, &Holder::default())
    }

    fn open(&mut self, vnic: VnicId, attached: Attached, holder: &Holder) -> Hold {
        if let Some(hold) = self.served.get(&vnic).and_then(|served| served.held.another()) {
            return hold;
        }
        let (hold, held) = self.left.hold(vnic);
        self.registry.hold(vnic);
        let (port, psp) = (VnicPort::default(), PspPort::default());
        self.served.insert(vnic, Served { attached, holder: holder.clone(), held, port, psp });
        hold
    }

    /// Releases the attachments of vNICs whose last holder has gone.
    fn let_go_of_left(&mut self) {
        for vnic in self.left.take() {
            self.served.remove(&vnic);
            self.registry.release(vnic);
        }
    }

    /// The vNIC of this name, which is not by a process; an empty one is our own's.
    pub(crate) fn named(&self, name: &[u8]) -> Result<Named, Errno> {
        let name = std::str::from_utf8(name).map_err(|_| Errno::EINVAL)?;
        let vnic = match name {
            "" => self.registry.home(),
            _ if name.starts_with("pid:") => return Err(Errno::EINVAL),
            _ => self.registry.named(name).ok_or(Errno::ENOENT)?,
        };
        self.by_id(vnic)
    }

    /// A vNIC, and its attachment if that is open.
    pub(crate) fn by_id(&self, vnic: VnicId) -> Result<Named, Errno> {
        Ok((vnic, self.served.get(&vnic).map(|served| served.attached.clone())))
    }

    /// Whether all of these vNICs are open.
    pub(crate) fn are_open(&self, vnics: &[VnicId]) -> bool {
        vnics.iter().all(|vnic| self.served.contains_key(vnic))
    }

    /// The port of an open vNIC.
    pub(crate) fn port(&self, vnic: VnicId) -> Option<&VnicPort> {
        self.served.get(&vnic).map(|served| &served.port)
    }

    pub(crate) fn port_mut(&mut self, vnic: VnicId) -> Option<&mut VnicPort> {
        self.served.get_mut(&vnic).map(|served| &mut served.port)
    }

    /// The port of PSP in an open vNIC's own namespace.
    pub(crate) fn psp_port_mut(&mut self, vnic: VnicId) -> Option<&mut VnicPort> {
        self.served.get_mut(&vnic).map(|served| &mut served.psp.port)
    }

    /// The port of PSP that an open vNIC uses.
    pub(crate) fn psp_port(&self, vnic: VnicId) -> Option<&VnicPort> {
        if self.underlay_psp.tenant_of(vnic).is_some() {
            return Some(&self.underlay_psp.port);
        }
        self.served.get(&vnic).map(|served| &served.psp.port)
    }

    /// Keeps a vNIC's port until it is known what becomes of its port of PSP.
    pub(crate) fn keep_port(&mut self, vnic: VnicId, port: Arc<UdpPort>) {
        if let Some(served) = self.served.get_mut(&vnic) {
            served.psp.before = Some(port);
        }
    }

    /// The port that was kept.
    pub(crate) fn take_kept_port(&mut self, vnic: VnicId) -> Option<Arc<UdpPort>> {
        self.served.get_mut(&vnic)?.psp.before.take()
    }

    /// A vNIC needs the port of PSP in its own namespace no more. What was open.
    pub(crate) fn close_psp(&mut self, vnic: VnicId) -> Option<Arc<UdpPort>> {
        let psp = std::mem::take(&mut self.served.get_mut(&vnic)?.psp);
        let PspPort { mut port, .. } = psp;
        port.close()
    }

    /// Asks for a vNIC's port of PSP, unless that was done not long ago.
    pub(crate) fn want_psp_port(
        &mut self,
        vnic: VnicId,
        helper: &mut HelperRequests,
        now: u64,
    ) -> PortUse {
        let Some(port) = self.psp_port_mut(vnic) else { return PortUse::Vain };
        let wanted = port.want(now);
        if wanted == PortUse::Ask {
            self.ask(Kind::PspPort, vnic, helper, now);
        }
        wanted
    }

    /// Asks for the port of PSP in the namespace of the underlay, unless that was done not long
    /// ago. An error: that cannot be looked at.
    pub(crate) fn want_underlay_psp_port(
        &mut self,
        helper: &mut HelperRequests,
        namespace: io::Result<Namespace>,
        now: u64,
    ) -> PortUse {
        match (self.underlay_psp.port.want(now), namespace) {
            (PortUse::Ask, Ok(namespace)) => {
                helper.ask_underlay_psp_port(namespace, now);
                PortUse::Ask
            }
            (PortUse::Ask, Err(_)) => {
                drop(self.underlay_psp.port.failed(now));
                PortUse::Vain
            }
            (wanted, _) => wanted,
        }
    }

    /// A vNIC's port of PSP that was in use is asked for again.
    pub(crate) fn ask_psp_port(&self, vnic: VnicId, helper: &mut HelperRequests, now: u64) {
        self.ask(Kind::PspPort, vnic, helper, now);
    }

    /// An address gets nothing of a vNIC, or does again. Whether it is another reason than before.
    pub(crate) fn note_refusal(
        &mut self,
        vnic: VnicId,
        remote: IpAddr,
        refusal: Option<Refusal>,
    ) -> bool {
        if let Some(tenant) = self.underlay_psp.tenant_of(vnic) {
            return self.underlay_psp.note_refusal(tenant, remote, refusal);
        }
        let Some(served) = self.served.get_mut(&vnic) else { return false };
        let refused = &mut served.psp.refused;
        match refusal {
            None => refused.remove(&remote).is_some(),
            Some(_) if refused.len() >= REFUSED_MAX && !refused.contains_key(&remote) => false,
            Some(why) => refused.insert(remote, why) != Some(why),
        }
    }

    /// Why an address gets nothing of a vNIC.
    pub(crate) fn refusal(&self, vnic: VnicId, remote: IpAddr) -> Option<Refusal> {
        let flat = || self.served.get(&vnic)?.psp.refused.get(&remote).copied();
        self.underlay_psp.refusal(vnic, remote).or_else(flat)
    }

    /// The first holder of an open vNIC.
    pub(crate) fn holder(&self, vnic: VnicId) -> Holder {
        self.served.get(&vnic).map(|served| served.holder.clone()).unwrap_or_default()
    }

    /// Whether a vNIC's sockets are there.
    pub(crate) fn has_port(&self, vnic: VnicId) -> bool {
        self.port(vnic).is_some_and(|port| port.open().is_some())
    }

    /// Whether it is still to be said that a vNIC's sockets could not be opened.
    pub(crate) fn is_warning_due(&mut self, vnic: VnicId) -> bool {
        if self.warned.len() >= WARNED_MAX {
            self.warned.clear();
        }
        self.warned.insert(vnic)
    }

    /// Asks for a vNIC's addresses.
    pub(crate) fn read_addresses(&self, vnic: VnicId, helper: &mut HelperRequests, now: u64) {
        self.ask(Kind::Addresses, vnic, helper, now);
    }

    fn ask(&self, kind: Kind, vnic: VnicId, helper: &mut HelperRequests, now: u64) {
        if let Some(served) = self.served.get(&vnic)
            && let Some(enclosed) = served.attached.enclosed()
        {
            helper.ask(kind, Subject::Vnic(vnic), &served.holder, enclosed, now);
        }
    }

    /// Asks for a vNIC's sockets, unless that was done not long ago; whether they are there, or
    /// will be for all that is known.
    pub(crate) fn want_port(
        &mut self,
        vnic: VnicId,
        helper: &mut HelperRequests,
        now: u64,
    ) -> bool {
        if !self.served.get(&vnic).is_some_and(|served| served.attached.may_have_port()) {
            return false;
        }
        let Some(wanted) = self.port_mut(vnic).map(|port| port.want(now)) else { return false };
        if wanted == PortUse::Ask {
            self.ask(Kind::Port, vnic, helper, now);
        }
        wanted != PortUse::Vain
    }

    /// A port that was in use is asked for again.
    pub(crate) fn try_port_again(&self, vnic: VnicId, helper: &mut HelperRequests, now: u64) {
        if self.port(vnic).is_some_and(VnicPort::is_asked_for) {
            self.ask(Kind::Port, vnic, helper, now);
        }
    }
}

/// The addresses of a vNIC as the tables want them. So many bytes of each packet are encryption's.
pub(crate) fn usable(list: &[local_addresses::Address], overhead: u32) -> Vec<VnicAddress> {
    let without = |address: VnicAddress| {
        let mtu = address.mtu.saturating_sub(if address.is_loopback { 0 } else { overhead });
        VnicAddress { mtu, ..address }
    };
    list.iter().filter_map(convert).map(without).collect()
}

fn convert(address: &local_addresses::Address) -> Option<VnicAddress> {
    let reach = match address.scope {
        AddressScope::Global => Reach::Global,
        AddressScope::Link => Reach::Link,
        AddressScope::Host => Reach::Host,
    };
    let (ip, interface, is_loopback) = (address.ip, address.interface, address.is_loopback);
    address.is_up.then_some(VnicAddress { ip, interface, reach, is_loopback, mtu: address.mtu })
}
