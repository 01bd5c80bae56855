//! How the data of a queue pair travels, why, and what an administrator may say about it.

use crate::accounts::Kind;
use crate::action::Action;
use crate::adoption::Adoption;
use crate::directory::Access;
use crate::ids::VnicId;
use crate::tenancy::Tenancy;
use omniverb_session::faults::Faults;
use std::collections::{BTreeMap, HashMap};

/// How the data of a queue pair travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// A link between the two processes.
    Direct,
    /// Through the engine, to a queue pair of this host.
    Forwarded,
    /// Through the engine and the network, to another Omniverb.
    Wire,
    /// Through the engine and the network, to whatever speaks RoCE v2 there.
    Roce,
}

impl Path {
    /// One word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Path::Direct => "direct",
            Path::Forwarded => "forwarded",
            Path::Wire => "wire",
            Path::Roce => "roce",
        }
    }
}

/// Why it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Both queue pairs are of one vNIC.
    SameVnic,
    /// The handshake came out at the peer's vNIC.
    Neighbour,
    /// The link is older than this daemon.
    Survivor,
    /// Its own vNIC is forwarded.
    Forwarded,
    /// The peer's vNIC is forwarded.
    PeerForwarded,
    /// Its own vNIC is limited.
    Limited,
    /// The peer's vNIC is limited.
    PeerLimited,
    /// Faults are set for its own vNIC.
    Faulty,
    /// Faults are set for the peer's vNIC.
    PeerFaulty,
    /// The peer, on this host, is forwarded towards us since before that was changed.
    PeerThroughEngine,
    /// The handshake was answered.
    Omniverb,
    /// The peer is a neighbour, but its own handshake did not arrive here.
    OneWay,
    /// The handshake was not answered.
    Unanswered,
    /// Datagrams came from there.
    Stranger,
}

impl Why {
    /// One phrase.
    #[must_use]
    pub fn phrase(self) -> &'static str {
        match self {
            Why::SameVnic => "same network namespace",
            Why::Neighbour => "the handshake came out at a vNIC of this host",
            Why::Survivor => "made before the daemon was restarted",
            Why::Forwarded => "this vNIC's datapath is forwarded",
            Why::PeerForwarded => "the peer's vNIC has datapath forwarded",
            Why::Limited => "this vNIC has a rate limit",
            Why::PeerLimited => "the peer's vNIC has a rate limit",
            Why::Faulty => "faults are set for this vNIC",
            Why::PeerFaulty => "faults are set for the peer's vNIC",
            Why::PeerThroughEngine => "the peer's side is forwarded",
            Why::Omniverb => "another Omniverb answered the handshake",
            Why::OneWay => "on this host, but the handshake passes in one direction only",
            Why::Unanswered => "nobody answered the handshake",
            Why::Stranger => "datagrams came from there",
        }
    }
}

/// Which way traffic within the host takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Datapath {
    /// Links between the processes.
    #[default]
    Direct,
    /// Through the engine.
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

/// What an administrator said about a vNIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Its datapath.
    pub datapath: Datapath,
    /// Its limit.
    pub limit: Option<RateLimit>,
    /// What is done to packets that arrive for it.
    pub faults: Option<Faults>,
    /// Which pages may be granted.
    pub adoption: Adoption,
}

/// Policies: the default, those of the configuration by name, those set at run time by namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// Where nothing else is said.
    pub general: Policy,
    /// By the vNIC's name.
    pub named: HashMap<String, Policy>,
    set: BTreeMap<VnicId, Policy>,
}

impl Policies {
    /// This is said of somebody.
    pub(crate) fn any(&self, adoption: Adoption) -> bool {
        let said = self.named.values().chain(self.set.values());
        self.general.adoption == adoption || said.into_iter().any(|p| p.adoption == adoption)
    }
}

impl Tenancy {
    /// Takes over what the configuration says.
    pub fn configure(&mut self, policies: Policies) {
        self.policies = policies;
    }

    /// What holds for a vNIC, whether or not it has processes.
    #[must_use]
    pub fn policy(&self, key: VnicId) -> Policy {
        let Policies { general, named, set } = &self.policies;
        let by_name = || {
            let identity = self.identities.get(&key)?;
            let alias = identity.alias.as_ref().and_then(|alias| named.get(alias));
            named.get(&identity.name).or(alias).copied()
        };
        set.get(&key).copied().or_else(by_name).unwrap_or(*general)
    }

    /// Changes what holds for a vNIC from now on. Links that exist stay as they are: says how many
    /// direct ones. What was granted and must not be any more is taken back: by the actions.
    pub fn set_policy(&mut self, key: VnicId, policy: Policy) -> (usize, Vec<Action>) {
        let before = self.policy(key);
        self.policies.set.insert(key, policy);
        self.adoption_changed(key, before);
        (self.direct_links(key), std::mem::take(&mut self.out))
    }

    /// The namespace that this was set for is no more. If one with processes has its place, what
    /// these granted and must not any more is taken back.
    #[must_use]
    pub fn forget_policy(&mut self, key: VnicId) -> Vec<Action> {
        let before = self.policy(key);
        self.policies.set.remove(&key);
        self.adoption_changed(key, before);
        std::mem::take(&mut self.out)
    }

    /// Links of a vNIC's queue pairs with others that do not pass through the engine.
    #[must_use]
    pub fn direct_links(&self, key: VnicId) -> usize {
        self.vnics.get(&key).map_or(0, |vnic| vnic.account.count(Kind::Direct))
    }

    /// Link ends of a vNIC, those to the engine included.
    #[must_use]
    pub fn links_of(&self, key: VnicId) -> usize {
        let account = self.vnics.get(&key).map(|vnic| &vnic.account);
        account.map_or(0, |all| all.count(Kind::Direct) + all.count(Kind::Wire))
    }

    /// Why traffic from one vNIC to another of this host must pass through the engine, if it must.
    pub(crate) fn through_engine(&self, from: VnicId, to: VnicId) -> Option<Why> {
        let (own, peer) = (self.policy(from), self.policy(to));
        let closed = |vnic| self.directory.access(vnic) == Access::Forwarded;
        if own.limit.is_some() {
            Some(Why::Limited)
        } else if own.faults.is_some() {
            Some(Why::Faulty)
        } else if own.datapath == Datapath::Forwarded || closed(from) {
            Some(Why::Forwarded)
        } else if peer.limit.is_some() {
            Some(Why::PeerLimited)
        } else if peer.faults.is_some() {
            Some(Why::PeerFaulty)
        } else if peer.datapath == Datapath::Forwarded || closed(to) {
            Some(Why::PeerForwarded)
        } else {
            None
        }
    }
}
