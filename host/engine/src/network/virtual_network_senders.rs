//! Knows the vNICs of a virtual network by what their packets carry, for what is sent to groups.

use omniverb_terms::{Gid, Qpn};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The vNICs of a virtual network, here and on other hosts.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NetworkPlaces {
    /// By underlay addresses and first QPNs: how many there are, and the vGID.
    places: BTreeMap<(IpAddr, u32), (u32, Gid)>,
    hosts: BTreeSet<IpAddr>,
}

impl NetworkPlaces {
    /// Of vNICs by underlay address, first QPN, how many QPNs, and vGID.
    pub fn new(vnics: impl IntoIterator<Item = (IpAddr, Qpn, u32, Gid)>) -> NetworkPlaces {
        let vnics = vnics.into_iter();
        let places: BTreeMap<_, _> =
            vnics.map(|(host, first, count, gid)| ((host, first.0), (count, gid))).collect();
        let hosts = places.keys().map(|(host, _)| *host).collect();
        NetworkPlaces { places, hosts }
    }

    /// The vGID of the vNIC that sends from a QPN at an underlay address, and the number that
    /// programs know that QPN by.
    pub(crate) fn sender(&self, host: IpAddr, source: Qpn) -> Option<(Gid, Qpn)> {
        let (key, (count, gid)) = self.places.range((host, 0)..=(host, source.0)).next_back()?;
        let number = source.0 - key.1;
        (number < *count).then_some((*gid, Qpn(number)))
    }

    /// The underlay addresses of hosts that have some.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = IpAddr> {
        self.hosts.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_is_known_by_its_range_at_its_host() {
        let [a, b] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        let gid = |byte: u8| Gid::from(IpAddr::from([byte; 16]));
        let places = NetworkPlaces::new([
            (a, Qpn(0x40_0000), 1024, gid(1)),
            (a, Qpn(0x40_0800), 1024, gid(2)),
            (b, Qpn(0x40_0000), 2048, gid(3)),
        ]);
        let found = |host, source| places.sender(host, Qpn(source));
        assert_eq!(found(a, 0x40_0005), Some((gid(1), Qpn(5))));
        assert_eq!(found(a, 0x40_0bff), Some((gid(2), Qpn(1023))));
        assert_eq!(found(b, 0x40_0405), Some((gid(3), Qpn(1029))));
        for (host, source) in [(a, 0x40_0400), (a, 0x3f_ffff), (b, 0x40_0800), (b, 0)] {
            assert_eq!(found(host, source), None);
        }
        assert_eq!(found(IpAddr::from([192, 0, 2, 3]), 0x40_0005), None);
        assert_eq!(places.hosts().collect::<Vec<_>>(), [a, b]);
    }
}
