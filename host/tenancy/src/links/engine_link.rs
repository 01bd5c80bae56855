//! Describes a link to the engine.

use super::doorbell_assignment::BellSlot;
use crate::accounts::Kind;
use crate::network::route_destination_cache::Question;
use crate::qp_data_path::{Path, PathReason};
use crate::row_keys::{RemotePeer, SessionId};
use omniverb_terms::{Gid, Operations, Qpn, Service, VnicId};

/// From a queue pair to its peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) qpn: Qpn,
    pub(crate) peer: Qpn,
    /// The queue pair's own name.
    pub(crate) sgid: Gid,
    /// The peer's name.
    pub(crate) dgid: Gid,
}

impl Flow {
    /// That of a connection both ends of which are in one vNIC. Where one is named by an address
    /// of the loopback packets carry the other address: the receiver takes them from no other.
    pub(crate) fn at_home(self) -> Flow {
        let Flow { sgid, dgid, .. } = self;
        let home = if sgid.is_loopback() && !dgid.is_loopback() { dgid } else { sgid };
        let is_home = sgid.is_loopback() || dgid.is_loopback();
        if is_home { Flow { sgid: home, dgid: home, ..self } } else { self }
    }

    /// The peer, as links to the engine are known by it.
    pub(crate) fn remote_peer(&self) -> RemotePeer {
        (self.peer, self.dgid)
    }
}

/// The cause of a link to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The queue pair's process asked for it.
    Requested,
    /// Datagrams of a sender that it has not named.
    Stranger,
    /// The queue pair is attached to a group. Such a link makes way for no other.
    Group,
}

impl Cause {
    /// The kinds that such a link of a queue pair of this service counts as.
    pub(crate) fn kinds(self, service: Service) -> &'static [Kind] {
        match self {
            Cause::Requested if service != Service::Ud => {
                &[Kind::Link, Kind::EngineLink, Kind::EngineConnection]
            }
            Cause::Requested => &[Kind::Link, Kind::EngineLink],
            Cause::Stranger => &[Kind::Link, Kind::EngineLink, Kind::Stranger],
            Cause::Group => &[Kind::Link, Kind::EngineLink, Kind::Group],
        }
    }
}

/// How and why it leads through the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) path: Path,
    pub(crate) why: PathReason,
    /// The peer's vNIC, if that is on this host and reached without the network.
    pub(crate) within: Option<VnicId>,
    /// The features that the other Omniverb has announced; 0: it is none, as far as is known.
    pub(crate) features: u32,
    pub(crate) cause: Cause,
    pub(crate) delivery: Delivery,
}

/// The treatment of packets of a link to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// They are sent to the peer.
    Sent,
    /// They are lost, as those to an address that does not exist.
    Lost,
}

/// Operations that a link to the engine refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refused {
    /// Requests of the peer, by the queue pair's process.
    pub(crate) inbound: Operations,
    /// Requests of the queue pair, by the engine.
    pub(crate) outbound: Operations,
}

impl Route {
    /// To a vNIC that a rule does not let be reached: looks like one that does not exist.
    pub(crate) fn denied() -> Route {
        Route { why: PathReason::Denied, ..Route::nowhere() }
    }

    /// To a vNIC of this host.
    pub(crate) fn forwarded(why: PathReason, to: VnicId) -> Route {
        let path = Path::Forwarded;
        Route {
            path,
            why,
            within: Some(to),
            features: 0,
            cause: Cause::Requested,
            delivery: Delivery::Sent,
        }
    }

    /// To a vNIC of another tenant: looks like one to an address that does not exist.
    pub(crate) fn nowhere() -> Route {
        Route { delivery: Delivery::Lost, ..Route::roce() }
    }

    /// To another Omniverb.
    pub(crate) fn omniverb(why: PathReason, features: u32) -> Route {
        Route {
            path: Path::Omniverb,
            why,
            within: None,
            features,
            cause: Cause::Requested,
            delivery: Delivery::Sent,
        }
    }

    /// To the members of a group.
    pub(crate) fn group() -> Route {
        Route { why: PathReason::Group, ..Route::roce() }
    }

    /// To whatever else there may be.
    pub(crate) fn roce() -> Route {
        let (path, why) = (Path::Roce, PathReason::Unanswered);
        Route {
            path,
            why,
            within: None,
            features: 0,
            cause: Cause::Requested,
            delivery: Delivery::Sent,
        }
    }
}

/// A link to the engine, for when it makes way: when it was made, its queue pair, its peer.
pub(crate) type EngineLinkAge = (u64, Qpn, RemotePeer);

/// A link to the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineLink {
    /// The process that has the queue pair.
    pub(crate) session: SessionId,
    /// The vNIC of that process.
    pub(crate) vnic: VnicId,
    pub(crate) service: Service,
    pub(crate) place: BellSlot,
    pub(crate) flow: Flow,
    pub(crate) path: Path,
    pub(crate) why: PathReason,
    /// The port of rdma_cm by which the queue pair was connected, if that is known.
    pub(crate) port: Option<u16>,
    /// The peer's vNIC, if that is on this host and reached without the network.
    pub(crate) within: Option<VnicId>,
    /// When it was made, in nanoseconds.
    pub(crate) born: u64,
    pub(crate) cause: Cause,
    pub(crate) delivery: Delivery,
    /// Operations that the peer and the queue pair may not request of each other.
    pub(crate) refused: Refused,
    /// The question that the network must go on answering, if the peer is reached without it.
    pub(crate) question: Option<Question>,
}

impl EngineLink {
    pub(super) fn age(&self) -> EngineLinkAge {
        (self.born, self.flow.qpn, self.flow.remote_peer())
    }
}
