//! Knows which senders to groups a vNIC without a virtual network hears: those of its tenant.
//!
//! In a flat network anything can send to a group. An address of this host says which tenants it is
//! of; any other is of none that has a name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The number of the tenant of all that nothing describes.
const DEFAULT: u32 = 0;

/// Tenants by addresses of this host: several may have one.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TenantsByAddress(BTreeMap<IpAddr, BTreeSet<u32>>);

impl TenantsByAddress {
    /// Of addresses and the numbers of tenants that have them; 0 is the one of all others.
    pub fn new(all: impl IntoIterator<Item = (IpAddr, u32)>) -> TenantsByAddress {
        let mut tenants: BTreeMap<IpAddr, BTreeSet<u32>> = BTreeMap::new();
        for (address, tenant) in all {
            tenants.entry(address.to_canonical()).or_default().insert(tenant);
        }
        TenantsByAddress(tenants)
    }

    /// Whether a vNIC of a tenant hears what comes to a group from an address.
    pub(crate) fn hears(&self, tenant: u32, from: IpAddr) -> bool {
        match self.0.get(&from.to_canonical()) {
            Some(tenants) => tenants.contains(&tenant),
            None => tenant == DEFAULT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_hears_its_own_and_the_default_one_what_is_of_none() {
        let [blue, red, both, strange] = [1, 2, 3, 9].map(|last| IpAddr::from([10, 0, 0, last]));
        let of = [(blue, 1), (red, 2), (both, 1), (both, 0)];
        let all = TenantsByAddress::new(of);
        for (tenant, heard) in [
            (1, [true, false, true, false]),
            (2, [false, true, false, false]),
            (DEFAULT, [false, false, true, true]),
        ] {
            assert_eq!([blue, red, both, strange].map(|from| all.hears(tenant, from)), heard);
        }
        assert!(all.hears(1, "::ffff:10.0.0.1".parse().unwrap()));
    }
}
