//! Makes the rows of the tables that `omniverb status` shows.
//!
//! `status_cursor.rs` goes through them from any place on, so that one answer takes a moment only.

use crate::accounts::Kind;
use crate::links::engine_link::EngineLink;
use crate::policy::policies::Policy;
use crate::qp_data_path::{Path, PathReason};
use crate::row_keys::{LinkKey, SessionId};
use crate::view::StatusRows;
use omniverb_terms::{Gid, Qpn, Service, VnicId};
use std::net::IpAddr;

/// A vNIC in the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VnicStatus {
    /// Which one it is, as long as the daemon lives.
    pub key: VnicId,
    /// Its display name.
    pub name: String,
    /// Its node GUID, in network byte order.
    pub guid: [u8; 8],
    /// Its table of GIDs, in the order of their indices.
    pub gids: Vec<Gid>,
    /// Ids of its processes in the connection manager.
    pub cm_ids: usize,
    /// The administrator's policy for it, or the default.
    pub policy: Policy,
    /// Its processes, in the order of their connections.
    pub processes: Vec<ProcessStatus>,
}

/// A process in the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessStatus {
    /// Its connection with the daemon.
    pub session: SessionId,
    /// Its pid, as the daemon sees it.
    pub pid: i32,
    /// Its user, as the daemon sees it.
    pub uid: u32,
    /// Its own name, made fit to be shown; not trusted.
    pub name: String,
    /// Regions with remote access.
    pub mrs: usize,
    /// Ends of links that it has, those to the engine included.
    pub links: usize,
    /// Ids in the connection manager.
    pub cm_ids: usize,
    /// Its queue pairs.
    pub qps: Vec<QpStatus>,
}

/// One queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpStatus {
    /// The number that peers name it by.
    pub qpn: Qpn,
    /// Its transport service.
    pub service: Service,
    /// Its slot in the process's statistics area.
    pub slot: u32,
    /// Those that it has links with, one row for each link.
    pub peers: Vec<PeerStatus>,
    /// Peers that it wishes for and has no link with.
    pub waiting_for: Vec<Qpn>,
}

/// A link, as its queue pair sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// The peer's number.
    pub qpn: Qpn,
    /// The name of its vNIC, if that is on this host.
    pub vnic: Option<String>,
    /// The address that people call it by, if the link was made by this daemon.
    pub address: Option<IpAddr>,
    /// The underlay address of its host, if it has a virtual address.
    pub host: Option<IpAddr>,
    /// How data travels to it.
    pub path: Path,
    /// Why it travels so.
    pub why: PathReason,
}

/// A row of the status, in this order: a vNIC, its processes, of each its queue pairs, of each its
/// peers. A row does not contain the rows below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    /// A vNIC, without its processes.
    Vnic(VnicStatus),
    /// A process of the last vNIC.
    Process(ProcessStatus),
    /// A queue pair of the last process.
    Qp(QpStatus),
    /// A peer of the last queue pair, whose number is the first.
    Peer(Qpn, PeerStatus),
    /// A peer that the last queue pair waits for.
    WaitsFor(Qpn),
}

impl StatusRows<'_> {
    pub(crate) fn vnic_row(&self, key: VnicId) -> Option<VnicStatus> {
        let vnic = self.tenants.vnics.get(&key)?;
        Some(VnicStatus {
            key,
            name: self.tenants.vnic_name(key).to_owned(),
            guid: self.tenants.node_guid(key),
            gids: vnic.names.table().iter().map(|entry| entry.gid).collect(),
            cm_ids: vnic.account().count(Kind::CmId),
            policy: self.tenants.policy(key),
            processes: Vec::new(),
        })
    }

    pub(crate) fn process_row(&self, id: SessionId) -> Option<ProcessStatus> {
        let session = self.tenants.sessions.get(&id).filter(|session| session.is_welcomed())?;
        Some(ProcessStatus {
            session: id,
            pid: session.client().pid,
            uid: session.client().uid,
            name: session.name().to_owned(),
            mrs: session.regions.len(),
            links: session.account().count(Kind::Link),
            cm_ids: session.account().count(Kind::CmId),
            qps: Vec::new(),
        })
    }

    pub(crate) fn qp_row(&self, qpn: Qpn) -> Option<QpStatus> {
        let qp = self.queue_pairs.get(qpn)?;
        let (service, slot) = (qp.service(), qp.slot());
        Some(QpStatus { qpn, service, slot, peers: Vec::new(), waiting_for: Vec::new() })
    }

    pub(super) fn engine_row(&self, link: &EngineLink) -> PeerStatus {
        PeerStatus {
            qpn: link.flow.peer,
            vnic: link.within.map(|key| self.tenants.vnic_name(key).to_owned()),
            address: Some(self.network.address_of(self.tenants, link.vnic, link.flow.dgid)),
            host: self
                .tenants
                .virtual_networks
                .route(link.vnic, link.flow.dgid)
                .map(|route| route.remote),
            path: link.path,
            why: link.why,
        }
    }

    pub(crate) fn direct_row(&self, qpn: Qpn, peer: Qpn) -> Option<PeerStatus> {
        let key = LinkKey::new(qpn, peer);
        let link = self.links.direct(key)?;
        let peer_end = usize::from(peer == key.1);
        Some(PeerStatus {
            qpn: peer,
            vnic: Some(self.tenants.vnic_name(link.vnics[peer_end]).to_owned()),
            address: Some(self.network.address_of(
                self.tenants,
                link.vnics[1 - peer_end],
                link.ways[peer_end].0,
            )),
            host: None,
            path: Path::Direct,
            why: link.why,
        })
    }
}
