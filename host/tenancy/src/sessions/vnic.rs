//! A vNIC with processes, as the tables have it.

use crate::accounts::{Account, Receipt};
use crate::ids::SessionId;
use omniverb_session::body::GidEntry;
use omniverb_terms::VnicId;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The vNIC's sockets for the handshake of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    /// Nobody can look for it yet.
    Closed,
    /// The daemon was told to open them.
    Open,
}

/// A vNIC with processes.
#[derive(Debug)]
pub(crate) struct Vnic {
    pub(crate) gids: Vec<GidEntry>,
    /// When `gids` was read; `None`: never.
    pub(crate) read_at: Option<u64>,
    /// Sessions to answer when the addresses arrive; `Some` while they are being read.
    pub(crate) reading: Option<Vec<SessionId>>,
    /// Its processes.
    pub(crate) sessions: BTreeSet<SessionId>,
    pub(crate) account: Account,
    pub(crate) receipt: Receipt,
    /// What others have of it: accounts below its own for datagram links opened towards it.
    pub(crate) uninvited: BTreeMap<VnicId, Account>,
    pub(crate) port: Port,
    /// All its addresses, sorted; the GID table has only some of them.
    pub(crate) addresses: Vec<IpAddr>,
}

impl Vnic {
    /// One of which nothing is known yet.
    pub(crate) fn new(account: Account, receipt: Receipt) -> Vnic {
        Vnic {
            gids: Vec::new(),
            read_at: None,
            reading: None,
            sessions: BTreeSet::new(),
            account,
            receipt,
            uninvited: BTreeMap::new(),
            port: Port::Closed,
            addresses: Vec::new(),
        }
    }
}
