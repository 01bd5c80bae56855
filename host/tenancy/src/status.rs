//! What `omniverb status` shows of the tables.

use crate::path::{Path, Policy, Why};
use crate::tables::{LinkKey, SessionId, VnicKey};
use crate::tenancy::Tenancy;
use omniverb_session::body::ROLE_VERBS;

/// One vNIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VnicStatus {
    /// Its key.
    pub key: VnicKey,
    /// Its name for people.
    pub name: String,
    /// Its node GUID.
    pub guid: [u8; 8],
    /// Its GIDs.
    pub gids: Vec<[u8; 16]>,
    /// What holds for it.
    pub policy: Policy,
    /// Its processes.
    pub processes: Vec<ProcessStatus>,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessStatus {
    /// Its session.
    pub session: SessionId,
    /// Its pid.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// What it calls itself.
    pub name: String,
    /// Regions with remote access.
    pub mrs: usize,
    /// Link ends.
    pub links: usize,
    /// Its queue pairs.
    pub qps: Vec<QpStatus>,
}

/// One queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpStatus {
    /// Its number.
    pub qpn: u32,
    /// `QP_*`.
    pub qp_type: u32,
    /// Its slot in the process's statistics area.
    pub slot: u32,
    /// Whom it is linked to.
    pub peers: Vec<PeerStatus>,
    /// Whom it waits for.
    pub waiting_for: Vec<u32>,
}

/// A link, as its queue pair sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// The peer's number.
    pub qpn: u32,
    /// The name of its vNIC, if that is on this host.
    pub vnic: Option<String>,
    /// Its address, if the link was made by this daemon.
    pub gid: Option<[u8; 16]>,
    /// How data travels.
    pub path: Path,
    /// Why it does.
    pub why: Why,
}

impl Tenancy {
    /// The vNIC `scope`, or all of them.
    #[must_use]
    pub fn status(&self, scope: Option<VnicKey>) -> Vec<VnicStatus> {
        let wanted = |key: &VnicKey| scope.is_none_or(|scope| scope == *key);
        self.vnics
            .iter()
            .filter(|(key, _)| wanted(key))
            .map(|(key, vnic)| VnicStatus {
                key: *key,
                name: vnic.name.clone(),
                guid: vnic.guid,
                gids: vnic.gids.iter().map(|entry| entry.gid).collect(),
                policy: self.policy(*key),
                processes: vnic.sessions.iter().filter_map(|id| self.process(*id)).collect(),
            })
            .collect()
    }

    fn process(&self, id: SessionId) -> Option<ProcessStatus> {
        let session = self.sessions.get(&id).filter(|s| s.welcomed && s.role == ROLE_VERBS)?;
        Some(ProcessStatus {
            session: id,
            pid: session.client.pid,
            uid: session.client.uid,
            name: session.name.clone(),
            mrs: session.mrs.len(),
            links: session.links,
            qps: session.qps.iter().filter_map(|qpn| self.qp_status(*qpn)).collect(),
        })
    }

    fn qp_status(&self, qpn: u32) -> Option<QpStatus> {
        let qp = self.qps.get(&qpn)?;
        let direct = qp.links.iter().filter_map(|peer| self.direct_peer(qpn, *peer));
        let wires = qp.wires.iter().map(|((peer, _), wire)| PeerStatus {
            qpn: *peer,
            vnic: wire.within.map(|key| self.vnic_name(key)),
            gid: Some(wire.dgid),
            path: wire.path,
            why: wire.why,
        });
        Some(QpStatus {
            qpn,
            qp_type: qp.qp_type,
            slot: qp.slot,
            peers: direct.chain(wires).collect(),
            waiting_for: qp.wishes.keys().filter(|p| !qp.is_linked(**p)).copied().collect(),
        })
    }

    fn direct_peer(&self, qpn: u32, peer: u32) -> Option<PeerStatus> {
        let key = LinkKey::new(qpn, peer);
        let link = self.links.get(&key)?;
        let far = usize::from(peer == key.1);
        Some(PeerStatus {
            qpn: peer,
            vnic: Some(self.vnic_name(link.vnics[far])),
            gid: Some(link.ways[far].0),
            path: Path::Direct,
            why: link.why,
        })
    }
}
