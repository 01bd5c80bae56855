//! Describes a vNIC with processes.

use crate::accounts::{Account, Quotas, Receipt};
use crate::directory::vnic_gids_and_addresses::GidsAndAddresses;
use crate::row_keys::SessionId;
use omniverb_terms::VnicId;
use std::collections::{BTreeMap, BTreeSet};

/// The vNIC's sockets for the handshake of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Port {
    /// No peer can look for it yet.
    Closed,
    /// The daemon was told to open them.
    Open,
}

/// A vNIC with processes.
#[derive(Debug)]
pub(crate) struct Vnic {
    pub(crate) names: GidsAndAddresses,
    processes: BTreeSet<SessionId>,
    account: Account,
    receipt: Receipt,
    /// The part that others use of it: accounts below its own for datagram links opened towards it.
    uninvited: BTreeMap<VnicId, Account>,
    port: Port,
}

impl Vnic {
    /// One of which nothing is known yet.
    pub(crate) fn new(account: Account, receipt: Receipt) -> Vnic {
        Vnic {
            names: GidsAndAddresses::default(),
            processes: BTreeSet::new(),
            account,
            receipt,
            uninvited: BTreeMap::new(),
            port: Port::Closed,
        }
    }

    /// The account of its processes: counts and quotas.
    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    /// The charge for this vNIC.
    pub(crate) fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    /// Its processes, by the numbers of their connections.
    pub(crate) fn processes(&self) -> &BTreeSet<SessionId> {
        &self.processes
    }

    /// A session is one of its processes from now on.
    pub(crate) fn join(&mut self, session: SessionId) {
        self.processes.insert(session);
    }

    /// A session has ended.
    pub(crate) fn leave(&mut self, session: SessionId) {
        self.processes.remove(&session);
        self.names.wait_no_more(session);
    }

    /// The account for a neighbour's links towards it, if there were any.
    pub(crate) fn neighbour(&self, from: VnicId) -> Option<&Account> {
        self.uninvited.get(&from)
    }

    /// Like [`neighbour`](Self::neighbour), opening the account if there is none.
    pub(crate) fn neighbour_for(&mut self, from: VnicId, quotas: Quotas) -> &Account {
        self.uninvited.entry(from).or_insert_with(|| self.account.below(quotas))
    }

    /// All neighbours that have such an account.
    pub(crate) fn neighbours(&self) -> impl Iterator<Item = (&VnicId, &Account)> {
        self.uninvited.iter()
    }

    /// A neighbour is no more, nor its links.
    pub(crate) fn forget_neighbour(&mut self, from: VnicId) {
        self.uninvited.remove(&from);
    }

    /// Peers can look for it from now on. True: the daemon is to be told so.
    pub(crate) fn open_port(&mut self) -> bool {
        std::mem::replace(&mut self.port, Port::Open) == Port::Closed
    }
}
