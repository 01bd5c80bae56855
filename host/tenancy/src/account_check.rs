//! Compares accounts with the rows of the tables, for tests and fuzzing.

use crate::accounts::{Account, Kind, Receipt};
use crate::links::direct_link::Link;
use crate::memory::grants_by_link::other_end;
use crate::memory::pending_grants::Grantee;
use crate::network::SharedMemory;
use crate::tenancy::Tenancy;
use std::collections::HashMap;
use std::fmt::Debug;

/// The expected counts of an account: of each kind, and receipts.
type ExpectedCounts = ([usize; Kind::ALL.len()], usize);

/// The expected counts of charged accounts, without those above them.
#[derive(Default)]
struct Tally(HashMap<usize, (Account, ExpectedCounts)>);

impl Tally {
    /// A row that pays these kinds, from this account.
    fn row(&mut self, receipt: &Receipt, account: &Account, kinds: &[Kind]) {
        assert!(receipt.is_for(account, kinds), "{kinds:?} is charged to its cause");
        self.count(receipt);
    }

    fn count(&mut self, receipt: &Receipt) {
        let account = receipt.account();
        let known = self.0.entry(account.id());
        let (_, (counts, receipts)) =
            known.or_insert_with(|| (account.clone(), ExpectedCounts::default()));
        *receipts += 1;
        for kind in receipt.kinds() {
            counts[kind as usize] += 1;
        }
    }

    /// The expected counts of all accounts: charged ones, and those above them.
    fn upwards(&self) -> HashMap<usize, ExpectedCounts> {
        let mut all = HashMap::<usize, ExpectedCounts>::new();
        for (account, (counts, receipts)) in self.0.values() {
            for account in account.upwards() {
                let above = all.entry(account.id()).or_default();
                above.1 += receipts;
                for (above, count) in above.0.iter_mut().zip(counts) {
                    *above += count;
                }
            }
        }
        all
    }
}

/// Compares an account's counts with the expected ones.
fn check(tally: &HashMap<usize, ExpectedCounts>, account: &Account, owner: &dyn Debug) {
    let (counts, receipts) = tally.get(&account.id()).copied().unwrap_or_default();
    for kind in Kind::ALL {
        let rows = counts[kind as usize];
        assert_eq!(account.count(kind), rows, "{kind:?}, counted and there: {owner:?}");
    }
    assert_eq!(account.receipts(), receipts, "receipts that are out, and rows: {owner:?}");
}

impl Tenancy {
    /// Checks that no link joins two tenants, and the owners of addresses.
    fn check_tenants(&self) {
        self.tenants.check_owners();
        for (key, link) in self.links.all_direct() {
            let [one, other] = link.vnics;
            assert!(self.tenants.share_tenant(one, other), "{key:?} joins two tenants");
        }
        for link in self.links.all_engine() {
            let other = link.within.unwrap_or(link.vnic);
            assert!(self.tenants.share_tenant(link.vnic, other), "{:?} joins two", link.flow);
        }
    }

    /// Compares the accounts with the rows of the tables.
    ///
    /// # Panics
    /// If they do not agree, or if no receipt is out and yet a row is left.
    pub fn check_accounts(&self) {
        self.check_tenants();
        let mut tally = Tally::default();
        for (key, vnic) in self.tenants.vnics.iter() {
            tally.row(vnic.receipt(), self.context.host(), &[Kind::Vnic]);
            let processes = vnic.processes().iter().filter_map(|id| self.tenants.sessions.get(id));
            let processes = processes.filter_map(|session| session.process());
            assert_eq!(processes.count(), vnic.processes().len(), "of {key:?}");
        }
        for (id, session) in self.tenants.sessions.iter() {
            tally.row(session.receipt(), self.context.host(), &[Kind::Client]);
            if let Some(process) = session.process() {
                let vnic = &self.tenants.vnics[&session.client().vnic];
                assert!(vnic.processes().contains(id));
                tally.row(process, vnic.account(), &[Kind::Process]);
            }
            for mr in session.regions.rows() {
                tally.row(mr.receipt(), session.account(), &[Kind::Mr]);
            }
            for question in session.questions.receipts() {
                tally.row(question, session.account(), &[Kind::Question]);
            }
        }
        for qp in self.queue_pairs.iter() {
            tally.row(qp.receipt(), self.tenants.sessions[&qp.session()].account(), &[Kind::Qp]);
        }
        for link in self.links.all_engine() {
            let account = self.tenants.sessions[&link.session].account();
            tally.row(link.receipt(), account, link.cause.kinds(link.service));
        }
        for (_, link) in self.links.all_direct() {
            for end in [0, 1] {
                let account = self.tenants.sessions[&link.sessions[end]].account();
                tally.row(&link.receipts.ends[end], account, &[Kind::Link]);
                if let Some(direct) = &link.receipts.direct[end] {
                    tally.row(
                        direct,
                        self.tenants.vnics[&link.vnics[end]].account(),
                        &[Kind::Direct],
                    );
                }
            }
            let apart = link.vnics[0] != link.vnics[1];
            let direct = link.receipts.direct.each_ref().map(Option::is_some);
            assert_eq!(direct, [true, apart], "once for each vNIC");
            let uninvited =
                link.uninvited.map(|way| &self.tenants.vnics[&way.to]).zip(link.uninvited);
            let uninvited = uninvited.and_then(|(vnic, way)| vnic.neighbour(way.from));
            assert_eq!(uninvited.is_some(), link.receipts.uninvited.is_some());
            if let (Some(account), Some(receipt)) = (uninvited, &link.receipts.uninvited) {
                tally.row(receipt, account, &[Kind::Uninvited]);
            }
            self.check_pair(link, &mut tally);
        }
        for extent in self.memory.extents() {
            let account = self.tenants.sessions[&extent.region.0].account();
            tally.row(extent.receipt(), account, &[Kind::Extent]);
        }
        for grant in self.memory.pending() {
            let (session, kind) = match grant.initiator {
                Grantee::Session(id) => (id, Kind::Grant),
                Grantee::Engine => (grant.owner, Kind::EngineGrant),
            };
            tally.row(&grant.receipt, self.tenants.sessions[&session].account(), &[kind]);
        }
        for (link, owner, paid) in self.memory.granted() {
            let grantee = other_end(self.links.direct(link).expect("a link").sessions, owner);
            let grantee = grantee.expect("a grantee that is not the owner");
            tally.row(paid, self.tenants.sessions[&grantee].account(), &[Kind::Granted]);
        }
        for ((session, _), id) in self.connections.iter() {
            tally.row(id.receipt(), self.tenants.sessions[session].account(), &[Kind::CmId]);
            if let Some((waits, listener)) = self.connections.waits(id) {
                // A waiting id outlives its listener.
                let account = listener.unwrap_or(waits.account());
                tally.row(waits, account, &[Kind::CmWaiting]);
            }
        }
        for (_, windows) in self.pair_windows.iter() {
            let (account, given) = windows.given();
            given.for_each(|receipt| tally.row(receipt, account, &[Kind::PairWindow]));
            windows.left().for_each(|place| tally.row(place, place.account(), &[Kind::PairPlace]));
        }
        for receipt in self.network.receipts() {
            // A question outlives its vNIC.
            assert!(receipt.kinds().all(|kind| matches!(kind, Kind::Probe | Kind::Consent)));
            tally.count(receipt);
        }
        for (qpn, named) in self.tenants.virtual_networks.named_peers() {
            let session = self.queue_pairs.session_of(qpn);
            assert!(session.is_some(), "peers of {qpn}, which is none");
            let links = self.context.limits().links_per_session;
            assert!(named <= 64 + 2 * links, "{qpn} has named {named} peers");
        }
        self.queue_pairs.check();
        self.connections.check();
        self.links.check();
        let tally = tally.upwards();
        check(&tally, self.context.host(), &"the host");
        for (key, vnic) in self.tenants.vnics.iter() {
            check(&tally, vnic.account(), key);
            for (from, account) in vnic.neighbours() {
                check(&tally, account, &(from, key));
            }
        }
        for (id, session) in self.tenants.sessions.iter() {
            check(&tally, session.account(), id);
        }
        for (key, account) in self.connections.listeners() {
            check(&tally, account, key);
        }
        for (machine, windows) in self.pair_windows.iter() {
            check(&tally, windows.given().0, machine);
            for (owner, places) in windows.places() {
                check(&tally, places, &(machine, owner));
            }
        }
        if self.is_empty() {
            self.check_empty();
        }
    }

    /// A link that is in a pair window pays for it, and no other.
    fn check_pair(&self, link: &Link, tally: &mut Tally) {
        let pair = match (self.network.common(link.vnics), &link.receipts.pair) {
            (SharedMemory::Window(end), Some(pair)) if end == pair.end => Some(pair),
            // In a window of the one or the other.
            (SharedMemory::Nothing, Some(pair)) => Some(pair),
            (SharedMemory::Any | SharedMemory::Nothing, None) => None,
            (common, pair) => panic!("in a pair window? {common:?}, {pair:?}"),
        };
        let Some(pair) = pair else { return };
        let account = |end: usize| self.tenants.vnics[&link.vnics[end]].account();
        tally.row(&pair.link, account(pair.end), &[Kind::PairLink]);
        if let Some(other) = &pair.other {
            tally.row(other, account(1 - pair.end), &[Kind::PairLink]);
        }
        if let Some(place) = &pair.place {
            // Where the daemon has counted since, of an account of before.
            tally.row(place, place.account(), &[Kind::PairPlace]);
        }
    }

    /// Indexes are empty when their rows are.
    fn check_empty(&self) {
        let tables = [
            ("vNICs", self.tenants.vnics.is_empty()),
            ("processes", self.tenants.sessions.is_empty()),
            ("queue pairs", self.queue_pairs.is_empty()),
            ("links", self.links.has_no_direct()),
            ("links to the engine", self.links.has_no_engine()),
            ("grants", self.memory.has_no_grants()),
            ("connections", self.connections.is_empty()),
            ("connected ports", self.tenants.connected_ports.is_empty()),
            ("extents", self.memory.has_no_extents()),
            ("probes", self.network.is_idle() && self.links.asks_nothing()),
            ("timers", self.context.timers.is_empty()),
            ("traces", self.observers.is_idle()),
        ];
        for (name, empty) in tables {
            assert!(empty, "no receipt is out, and there are {name}");
        }
    }
}

#[cfg(test)]
mod tests;
