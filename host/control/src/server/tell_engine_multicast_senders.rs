//! Tells the engine which senders to multicast groups vNICs of a flat network hear: those of their
//! tenant.

use crate::engine::TenantsByAddress;
use crate::server::Server;
use crate::server::operation_contexts::EnginePorts;
use omniverb_tenancy::{TenantId, VnicId};
use std::sync::Arc;

impl Server {
    /// Tells of all members again, if addresses of vNICs or their tenants have changed.
    pub(super) fn tell_of_group_senders(&mut self) {
        let changes = Some(self.tables.owner_changes());
        if std::mem::replace(&mut self.group_senders.told, changes) == changes {
            return;
        }
        for vnic in self.tables.in_flat_groups() {
            self.engine_ports().tell_group_senders(vnic);
        }
    }
}

impl EnginePorts<'_> {
    fn renew_group_senders(&mut self) {
        let changes = Some(self.tables.owner_changes());
        if self.group_senders.changes == changes {
            return;
        }
        let all = self.tables.tenants_by_address().map(|all| {
            let each = all.into_iter().flat_map(|(address, tenants)| {
                tenants.into_iter().map(move |TenantId(tenant)| (address, tenant))
            });
            Arc::new(TenantsByAddress::new(each))
        });
        (self.group_senders.changes, self.group_senders.all) = (changes, all);
    }

    /// Tells which senders a vNIC hears that is in groups of a flat network, or will be.
    pub(super) fn tell_group_senders(&mut self, vnic: VnicId) {
        self.renew_group_senders();
        let tenant = self.tables.policy(vnic).tenant;
        let senders = self.group_senders.all.clone().map(|all| (tenant, all));
        self.engine.set_group_senders(vnic, senders);
    }
}
