//! Counts the vNICs that need addresses of policies on interfaces of this host.
//!
//! In: the address of each vNIC. Out: the addresses that the helper is to add, once for all vNICs
//! of each, and what there is to say of them.

use omniverb_netns::AddressState;
use omniverb_tenancy::VnicId;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

/// Addresses of policies that vNICs have.
#[derive(Debug)]
pub(crate) struct VnicsByPolicyAddress {
    /// Of each vNIC its address, and another one of the interface that is to have it.
    needed: BTreeMap<VnicId, (IpAddr, IpAddr)>,
    /// The helper does not know of all of them.
    is_changed: bool,
    /// It could not be told of them, as was said.
    has_failed: bool,
    states: AddressState,
}

impl VnicsByPolicyAddress {
    /// None; the helper does not know of that either, and may have found others.
    pub(crate) fn new() -> VnicsByPolicyAddress {
        let (needed, states) = (BTreeMap::new(), AddressState::new());
        VnicsByPolicyAddress { needed, is_changed: true, has_failed: false, states }
    }

    /// A vNIC needs this address, beside the other one, or none.
    pub(crate) fn need(&mut self, vnic: VnicId, address: Option<(IpAddr, IpAddr)>) {
        let before = match address {
            Some(address) => self.needed.insert(vnic, address),
            None => self.needed.remove(&vnic),
        };
        self.is_changed |= before != address;
    }

    /// Whether a vNIC needs one.
    pub(crate) fn is_any_needed(&self) -> bool {
        !self.needed.is_empty()
    }

    /// There is another helper.
    pub(crate) fn begin_again(&mut self) {
        self.is_changed = true;
    }

    /// What the helper is to hear, if that has changed.
    pub(crate) fn news(&self) -> Option<BTreeMap<IpAddr, IpAddr>> {
        self.is_changed.then(|| self.needed.values().copied().collect())
    }

    /// The helper has heard it.
    pub(crate) fn heard(&mut self) {
        (self.is_changed, self.has_failed) = (false, false);
    }

    /// The helper could not be told: it is, later. Whether that is news.
    pub(crate) fn failed(&mut self) -> bool {
        !std::mem::replace(&mut self.has_failed, true)
    }

    /// Whether the helper could not be told, and was not since.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Whether vNICs need this address.
    pub(crate) fn is_needed(&self, address: IpAddr) -> bool {
        self.needed.values().any(|(needed, _)| *needed == address)
    }

    /// What has become of addresses. Those with another error than before, or with none any more.
    pub(crate) fn became(&mut self, states: AddressState) -> Vec<(IpAddr, Option<io::Error>)> {
        let before = std::mem::replace(&mut self.states, states);
        let state = |ip: &IpAddr| before.get(ip).copied().unwrap_or(0);
        let other = self.states.iter().filter(|(ip, now)| state(ip) != **now);
        other.map(|(ip, now)| (*ip, error(*now))).collect()
    }

    /// Why the host does not have an address that vNICs need, if that is known.
    pub(crate) fn problem(&self, ip: IpAddr) -> Option<io::Error> {
        let state = self.states.get(&ip).filter(|_| self.is_needed(ip));
        state.and_then(|state| error(*state))
    }
}

fn error(state: i32) -> Option<io::Error> {
    (state != 0).then(|| io::Error::from_raw_os_error(state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_wanted_as_long_as_a_vnic_has_it() {
        let mut all = VnicsByPolicyAddress::new();
        assert_eq!(all.news(), Some(BTreeMap::new()), "a helper that died may have left some");
        all.heard();
        let ip = |last| IpAddr::from([192, 0, 2, last]);
        let gold = (ip(50), ip(1));
        for vnic in [1, 2] {
            all.need(VnicId(vnic), Some(gold));
        }
        all.need(VnicId(3), None);
        assert_eq!(all.news(), Some(BTreeMap::from([gold])));
        all.heard();
        all.need(VnicId(1), Some(gold));
        assert_eq!(all.news(), None);
        all.need(VnicId(1), None);
        assert_eq!(all.news(), Some(BTreeMap::from([gold])));
        all.need(VnicId(2), Some((ip(51), ip(1))));
        assert_eq!(all.news(), Some(BTreeMap::from([(ip(51), ip(1))])));
        all.heard();
        all.begin_again();
        for is_news in [true, false] {
            assert_eq!(all.failed(), is_news);
            assert!(all.news().is_some(), "it is tried again");
        }
        all.heard();
        assert!(all.failed(), "the next time it is said again");
    }

    #[test]
    fn an_error_is_said_once_and_its_end() {
        let mut all = VnicsByPolicyAddress::new();
        let ip = IpAddr::from([192, 0, 2, 50]);
        all.need(VnicId(1), Some((ip, ip)));
        assert!(all.became(BTreeMap::from([(ip, 0)])).is_empty());
        for times in [1, 0] {
            assert_eq!(all.became(BTreeMap::from([(ip, 1)])).len(), times);
        }
        assert!(all.problem(ip).is_some());
        let over = all.became(BTreeMap::from([(ip, 0)]));
        assert!(over.len() == 1 && over[0].1.is_none() && all.problem(ip).is_none());
        // It stays though no vNIC needs it.
        all.need(VnicId(1), None);
        assert_eq!(all.became(BTreeMap::from([(ip, 1)])).len(), 1);
        assert!(all.problem(ip).is_none() && !all.is_needed(ip));
    }
}
