//! The rows of the tables.

use crate::accounts::{Account, Paid, Receipt};
use crate::bells::Place;
use crate::directory::neighbours::Question;
use crate::extents::{ExtentId, Part};
use crate::grantees::Strain;
use crate::identity::Client;
use crate::ids::{Far, SessionId, VnicId};
use crate::mr::Mr;
use crate::path::Why;
use crate::wire::Wire;
use omniverb_session::body::GidEntry;
use omniverb_terms::{Gid, Qpn, Rkey, Service};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

#[derive(Debug)]
pub(crate) struct Vnic {
    pub(crate) gids: Vec<GidEntry>,
    /// When `gids` was read; `None`: never.
    pub(crate) read_at: Option<u64>,
    /// Sessions to answer when the addresses arrive; `Some` while they are being read.
    pub(crate) reading: Option<Vec<SessionId>>,
    pub(crate) sessions: BTreeSet<SessionId>,
    pub(crate) account: Account,
    pub(crate) receipt: Receipt,
    /// What others have of it: accounts below its own for datagram links opened towards it.
    pub(crate) uninvited: BTreeMap<VnicId, Account>,
    pub(crate) port: bool,
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
            port: false,
            addresses: Vec::new(),
        }
    }
}

/// A call that is answered later.
#[derive(Clone, Debug)]
pub(crate) enum Waiting {
    /// `Hello`, until the addresses are known.
    Hello { tag: u64 },
    /// `QueryGids`, the same.
    Gids { tag: u64 },
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) name: String,
    pub(crate) role: u32,
    pub(crate) resume: bool,
    pub(crate) welcomed: bool,
    pub(crate) waiting: Option<Waiting>,
    /// Below its vNIC's once it has one.
    pub(crate) account: Account,
    /// What it pays as a connection.
    pub(crate) receipt: Receipt,
    /// What it pays as a process of its vNIC's, once it is that.
    pub(crate) process: Option<Receipt>,
    pub(crate) qps: BTreeSet<Qpn>,
    pub(crate) mrs: HashMap<Rkey, Paid<Mr>>,
    /// It has not taken what it was told; see `pace.rs`.
    pub(crate) behind: bool,
    /// Questions for pages that it has not answered: any answer, late or not, is to one of them.
    pub(crate) questions: Vec<Receipt>,
    /// How often it was told to take an extent back.
    pub(crate) taken: u64,
    /// What of that was because of whom.
    pub(crate) strain: Strain,
}

impl Session {
    /// One that has not said anything yet.
    pub(crate) fn new(client: Client, account: Account, receipt: Receipt) -> Session {
        Session {
            client,
            account,
            receipt,
            process: None,
            name: String::new(),
            role: 0,
            resume: false,
            welcomed: false,
            waiting: None,
            qps: BTreeSet::new(),
            mrs: HashMap::new(),
            behind: false,
            questions: Vec::new(),
            taken: 0,
            strain: Strain::default(),
        }
    }
}

/// Where a connected queue pair wants to go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) sgid: Gid,
    pub(crate) dgid: Gid,
    /// Whose address `dgid` is, once that is known.
    pub(crate) target: Option<VnicId>,
    /// Announced as surviving a restart of the daemon.
    pub(crate) resumed: bool,
    /// Times the network was asked in vain.
    pub(crate) failures: u32,
    /// The peer is gone, for this reason; said when the timer is due.
    pub(crate) gone: Option<u32>,
    /// If `resumed`: when the other end is taken for dead.
    pub(crate) deadline: u64,
}

#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) receipt: Receipt,
    pub(crate) session: SessionId,
    pub(crate) vnic: VnicId,
    pub(crate) service: Service,
    pub(crate) pd: u32,
    pub(crate) slot: u32,
    /// When its number was given out.
    pub(crate) issued: u64,
    /// It was made before this daemon was started.
    pub(crate) claimed: bool,
    /// Its process says that it is in ERR; nothing is granted through it.
    pub(crate) failed: bool,
    /// By peer: one for RC and UC; for UD only surviving links that wait for their other end.
    pub(crate) wishes: BTreeMap<Qpn, Wish>,
    /// Peers on this host that a link exists to.
    pub(crate) links: BTreeSet<Qpn>,
    /// Links to the engine. The numbers are the peers' own: one may be that of somebody here, and
    /// datagram peers on different hosts may have the same.
    pub(crate) wires: BTreeMap<Far, Paid<Wire>>,
}

impl Qp {
    /// There is a link for this peer, of whatever kind.
    pub(crate) fn is_linked(&self, peer: Qpn) -> bool {
        self.links.contains(&peer) || self.wires_to(peer).next().is_some()
    }

    /// The links to the engine for this number.
    pub(crate) fn wires_to(&self, peer: Qpn) -> impl Iterator<Item = &Paid<Wire>> {
        self.wires.range((peer, Gid::ZERO)..=(peer, Gid::MAX)).map(|(_, wire)| wire)
    }
}

/// What a link pays for its ends, for being direct in one vNIC or two, and for being uninvited.
#[derive(Debug)]
pub(crate) struct LinkReceipts {
    pub(crate) ends: [Receipt; 2],
    pub(crate) direct: [Option<Receipt>; 2],
    pub(crate) uninvited: Option<Receipt>,
}

/// Its own GID, the peer's.
pub(crate) type GidPair = (Gid, Gid);

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) receipts: LinkReceipts,
    /// The first end is the queue pair with the smaller number. `None` for a link that survived a
    /// restart: its bell is older than we are.
    pub(crate) place: Option<Place>,
    pub(crate) sessions: [SessionId; 2],
    pub(crate) vnics: [VnicId; 2],
    /// Each end's own GID and that which it knows the other by.
    pub(crate) ways: [GidPair; 2],
    /// What the network must go on saying to each end.
    pub(crate) questions: [Option<Question>; 2],
    pub(crate) why: Why,
    /// It is in `uninvited` of the second of these, and paid by the first.
    pub(crate) uninvited: Option<(VnicId, VnicId)>,
}

/// Who is to be granted something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grantee {
    /// The process at the other end of a link.
    Session(SessionId),
    /// The engine, at the other end of a link of the owner's.
    Engine,
}

/// A grant that waits for the owner's pages.
#[derive(Debug)]
pub(crate) struct PendingGrant {
    pub(crate) receipt: Receipt,
    pub(crate) initiator: Grantee,
    pub(crate) owner: SessionId,
    pub(crate) qpn: Qpn,
    pub(crate) peer_qpn: Qpn,
    pub(crate) rkey: Rkey,
    /// What the owner is asked for.
    pub(crate) part: Part,
    /// What holds that, or is to.
    pub(crate) extent: ExtentId,
}
