//! Finds the vNICs of this host that have an address.
//!
//! Asked for datagrams of strangers, so it must not take longer the more vNICs there are.

use omniverb_terms::VnicId;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Addresses with the vNICs that have them: two networks may have the same.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct VnicsByAddress(BTreeSet<(IpAddr, VnicId)>);

impl VnicsByAddress {
    /// A vNIC has these addresses from now on.
    pub(crate) fn add(&mut self, vnic: VnicId, addresses: &[IpAddr]) {
        self.0.extend(addresses.iter().map(|address| (*address, vnic)));
    }

    /// A vNIC does not have these addresses any more.
    pub(crate) fn remove(&mut self, vnic: VnicId, addresses: &[IpAddr]) {
        for address in addresses {
            self.0.remove(&(*address, vnic));
        }
    }

    /// All addresses with vNICs that have them.
    pub(crate) fn all(&self) -> impl Iterator<Item = (IpAddr, VnicId)> {
        self.0.iter().copied()
    }

    /// All vNICs that have an address.
    pub(crate) fn of(&self, address: IpAddr) -> impl Iterator<Item = VnicId> {
        let address = address.to_canonical();
        let range = (address, VnicId(u64::MIN))..=(address, VnicId(u64::MAX));
        self.0.range(range).map(|(_, vnic)| *vnic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_have_several_owners() {
        let [one, two] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let mut owners = VnicsByAddress::default();
        owners.add(VnicId(7), &[one, two]);
        owners.add(VnicId(u64::MAX), &[one]);
        let of = |owners: &VnicsByAddress, address| owners.of(address).collect::<Vec<_>>();
        assert_eq!(of(&owners, one), [VnicId(7), VnicId(u64::MAX)]);
        let mapped = "::ffff:10.0.0.2".parse().unwrap();
        assert_eq!(of(&owners, mapped), [VnicId(7)]);
        owners.remove(VnicId(7), &[one, two]);
        assert_eq!(of(&owners, one), [VnicId(u64::MAX)]);
        assert!(of(&owners, two).is_empty());
    }
}
