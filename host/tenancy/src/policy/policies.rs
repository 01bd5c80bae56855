//! Keeps the policies of administrators for vNICs.

use crate::policy::control_call_rate_limits::ControlLimits;
use crate::policy::page_adoption_between_vnics::Adoption;
use crate::sessions::vnic_identity::Identity;
use omniverb_session::network_fault_text::Faults;
use omniverb_terms::VnicId;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;

/// Which way traffic within the host takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Datapath {
    /// Links between the processes.
    #[default]
    Direct,
    /// Through the engine, like what comes from the network.
    Forwarded,
}

/// A rate that a vNIC must not exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Bits per second.
    pub bits_per_second: u64,
    /// Bytes that may go out at once after a pause.
    pub burst_bytes: u64,
}

impl RateLimit {
    /// Neither number is a mistake: 8 kbit/s to 1 Pbit/s, a packet to 1 GiB.
    #[must_use]
    pub fn is_sensible(&self) -> bool {
        (8_000..=1_000_000_000_000_000).contains(&self.bits_per_second)
            && (1_500..=1 << 30).contains(&self.burst_bytes)
    }
}

/// A tenant, by the number that the daemon gives to its name. Zero is the tenant `default`, to
/// which every vNIC belongs that is put into no other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u32);

/// A generation of a tenant's key, by a number that no other has: that by which packets to other
/// hosts are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyGeneration(pub u64);

/// A vNIC's policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Which way its traffic within the host takes.
    pub datapath: Datapath,
    /// The rate at which it may send; `None`: unlimited.
    pub limit: Option<RateLimit>,
    /// Operations that it may begin per second; `None`: unlimited.
    pub operations: Option<NonZeroU32>,
    /// Faults of packets that arrive for it; `None`: none.
    pub faults: Option<Faults>,
    /// Which pages may be granted.
    pub adoption: Adoption,
    /// The tenant that it belongs to.
    pub tenant: TenantId,
    /// By what its packets to other hosts are encrypted; `None`: they are not.
    pub encryption: Option<KeyGeneration>,
    /// Whether others share a limit with it, which holds besides its own.
    pub shared_limit: SharedLimit,
    /// What its processes may ask of the daemon.
    pub control: ControlLimits,
}

/// Whether a vNIC has a limit in common with others: that of its tenant, or of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedLimit {
    /// It has none.
    #[default]
    None,
    /// It has one or two.
    Exists,
}

impl Policy {
    /// Whether what it may send is limited: bytes or operations.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.limit.is_some()
            || self.operations.is_some()
            || self.shared_limit == SharedLimit::Exists
    }
}

/// Policies: the default, those of the configuration by name, those set at run time by namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// Where nothing else is said.
    pub general: Policy,
    /// For vNICs of these names, or aliases.
    pub named: HashMap<String, Policy>,
    set: BTreeMap<VnicId, Policy>,
}

impl Policies {
    /// The policy of a vNIC with this identity.
    pub(crate) fn of(&self, key: VnicId, identity: Option<&Identity>) -> Policy {
        let Policies { general, named, set } = self;
        let by_name = || {
            let identity = identity?;
            let alias = identity.alias.as_ref().and_then(|alias| named.get(alias));
            named.get(&identity.name).or(alias).copied()
        };
        set.get(&key).copied().or_else(by_name).unwrap_or(*general)
    }

    /// From now on this holds for a vNIC.
    pub(crate) fn set(&mut self, key: VnicId, policy: Policy) {
        self.set.insert(key, policy);
    }

    /// Nothing is set for a vNIC any more.
    pub(crate) fn unset(&mut self, key: VnicId) {
        self.set.remove(&key);
    }

    /// Whether all vNICs belong to one tenant.
    pub(crate) fn is_one_tenant(&self) -> bool {
        let first = self.general.tenant;
        self.named.values().chain(self.set.values()).all(|policy| policy.tenant == first)
    }

    /// Some vNIC, or all, may have this adoption.
    pub(crate) fn any(&self, adoption: Adoption) -> bool {
        let said = self.named.values().chain(self.set.values());
        self.general.adoption == adoption || said.into_iter().any(|p| p.adoption == adoption)
    }
}
