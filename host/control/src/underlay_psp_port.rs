//! Keeps the port of PSP in the daemon's own network namespace, by which encrypted virtual networks
//! exchange packets with other hosts.

use crate::engine::Refusal;
use crate::roce_port::VnicPort;
use omniverb_sys::udp_socket::UdpPort;
use omniverb_tenancy::{TenantId, VnicId};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Budget: underlay addresses without encryption that are remembered for a virtual network, to say
/// so once and to show.
const REFUSED_MAX: usize = 256;

/// The port, open as long as a vNIC with processes needs it.
#[derive(Debug, Default)]
pub(crate) struct UnderlayPspPort {
    pub(crate) port: VnicPort,
    /// vNICs that need it, and their tenants.
    users: BTreeMap<VnicId, TenantId>,
    /// Addresses that get nothing of a tenant, since they do not encrypt.
    refused: BTreeMap<(TenantId, IpAddr), Refusal>,
    /// That it could not be opened was logged.
    pub(crate) is_warned_of: bool,
    /// It could not be opened, and is wanted again in a while.
    pub(crate) is_retry_set: bool,
}

impl UnderlayPspPort {
    /// A vNIC with processes needs it.
    pub(crate) fn join(&mut self, vnic: VnicId, tenant: TenantId) {
        if let Some(before) = self.users.insert(vnic, tenant) {
            self.forget_unused(before);
        }
    }

    /// Without vNICs that need it, nothing is remembered for a tenant.
    fn forget_unused(&mut self, tenant: TenantId) {
        if !self.users.values().any(|other| *other == tenant) {
            self.refused.retain(|(of, _), _| *of != tenant);
        }
    }

    /// A vNIC needs it no more. What was open, if that was the last one.
    pub(crate) fn leave(&mut self, vnic: VnicId) -> Option<Arc<UdpPort>> {
        let tenant = self.users.remove(&vnic)?;
        self.forget_unused(tenant);
        if self.users.is_empty() { self.port.close() } else { None }
    }

    /// It is wanted again in a while. Whether a timer for that is set already.
    pub(crate) fn retry(&mut self) -> bool {
        std::mem::replace(&mut self.is_retry_set, true)
    }

    /// The vNICs that need it.
    pub(crate) fn users(&self) -> Vec<VnicId> {
        self.users.keys().copied().collect()
    }

    /// The tenant of a vNIC that needs it.
    pub(crate) fn tenant_of(&self, vnic: VnicId) -> Option<TenantId> {
        self.users.get(&vnic).copied()
    }

    /// An address gets nothing of a tenant, or does again. Whether it is another reason than
    /// before.
    pub(crate) fn note_refusal(
        &mut self,
        tenant: TenantId,
        remote: IpAddr,
        refusal: Option<Refusal>,
    ) -> bool {
        let key = (tenant, remote);
        let Some(why) = refusal else { return self.refused.remove(&key).is_some() };
        let of_tenant = self.refused.keys().filter(|(of, _)| *of == tenant).count();
        if of_tenant >= REFUSED_MAX && !self.refused.contains_key(&key) {
            return false;
        }
        self.refused.insert(key, why) != Some(why)
    }

    /// Why an address gets nothing of a vNIC's tenant.
    pub(crate) fn refusal(&self, vnic: VnicId, remote: IpAddr) -> Option<Refusal> {
        self.refused.get(&(self.tenant_of(vnic)?, remote)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_of_a_tenant_and_end_with_its_last_vnic() {
        let mut port = UnderlayPspPort::default();
        let (blue, red) = (TenantId(1), TenantId(2));
        for (vnic, tenant) in [(1, blue), (2, blue), (3, red)] {
            port.join(VnicId(vnic), tenant);
        }
        let there = IpAddr::from([192, 0, 2, 2]);
        let silent = Some(Refusal::NoAnswer);
        assert!(port.note_refusal(blue, there, silent));
        assert!(!port.note_refusal(blue, there, silent), "said once");
        assert_eq!([1, 2, 3].map(|vnic| port.refusal(VnicId(vnic), there)), [silent, silent, None]);
        for n in 0..2000_u32 {
            port.note_refusal(blue, IpAddr::from(n.to_be_bytes()), silent);
        }
        assert!(port.refused.len() <= REFUSED_MAX);
        assert!(port.note_refusal(red, there, Some(Refusal::Plain)), "another tenant has room");
        assert!(port.note_refusal(blue, there, None) && !port.note_refusal(blue, there, None));
        port.leave(VnicId(1));
        assert!(!port.refused.is_empty());
        port.leave(VnicId(2));
        assert_eq!((port.refused.len(), port.users()), (1, vec![VnicId(3)]));
        // It is another tenant's from now on, without having left.
        port.join(VnicId(3), red);
        assert_eq!(port.refused.len(), 1);
        port.join(VnicId(3), blue);
        assert!(port.refused.is_empty());
        port.join(VnicId(3), red);
        assert_eq!(port.refusal(VnicId(3), there), None);
    }
}
