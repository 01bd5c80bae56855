//! A link to the engine: from where to where it is wanted, and what there is of it.

use crate::accounts::Kind;
use crate::bells::Place;
use crate::directory::neighbours::Question;
use crate::ids::{Far, VnicId};
use crate::path::{Path, Why};
use omniverb_terms::{Gid, Qpn};

/// From a queue pair to its peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) qpn: Qpn,
    pub(crate) peer: Qpn,
    pub(crate) sgid: Gid,
    pub(crate) dgid: Gid,
}

/// How and why it leads through the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) path: Path,
    pub(crate) why: Why,
    pub(crate) within: Option<VnicId>,
    pub(crate) features: u32,
    pub(crate) uninvited: bool,
}

impl Route {
    pub(crate) fn forwarded(why: Why, to: VnicId) -> Route {
        let path = Path::Forwarded;
        Route { path, why, within: Some(to), features: 0, uninvited: false }
    }

    pub(crate) fn wire(why: Why, features: u32) -> Route {
        Route { path: Path::Wire, why, within: None, features, uninvited: false }
    }

    pub(crate) fn roce() -> Route {
        let (path, why) = (Path::Roce, Why::Unanswered);
        Route { path, why, within: None, features: 0, uninvited: false }
    }
}

/// What a link to the engine counts as.
pub(crate) fn kinds(uninvited: bool) -> &'static [Kind] {
    if uninvited { &[Kind::Link, Kind::Wire, Kind::Stranger] } else { &[Kind::Link, Kind::Wire] }
}

/// A link to the engine: when it was made, its queue pair, its peer.
pub(crate) type WireKey = (u64, Qpn, Far);

/// A link to the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    pub(crate) place: Place,
    pub(crate) sgid: Gid,
    pub(crate) dgid: Gid,
    pub(crate) path: Path,
    pub(crate) why: Why,
    /// The peer's vNIC, if that is on this host and reached without the network.
    pub(crate) within: Option<VnicId>,
    pub(crate) born: u64,
    /// A stranger caused it.
    pub(crate) uninvited: bool,
    /// What the network must go on saying, if the peer is reached without it.
    pub(crate) question: Option<Question>,
}
