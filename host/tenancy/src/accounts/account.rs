//! Counts what is charged to an account, and returns it when a receipt is dropped.
//!
//! One thread charges: `Tenancy` is behind `&mut`. The counters are atomic only so that a receipt
//! can be returned without the tables, and may go to another thread with them; no ordering is
//! needed, and a check before a count is not a race.

use super::quotas::{Kind, Quotas};
use omniverb_terms::Errno;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The counts and quotas of a party. Clones are the same account.
#[derive(Clone, Debug)]
pub(crate) struct Account(Arc<Counters>);

#[derive(Debug)]
struct Counters {
    used: [AtomicUsize; Kind::ALL.len()],
    quotas: Quotas,
    /// Receipts that are out, of this account and those below.
    receipts: AtomicUsize,
    above: Option<Account>,
}

impl Account {
    /// One above which there is none.
    pub(crate) fn new(quotas: Quotas) -> Account {
        Account::open(quotas, None)
    }

    /// An account whose charges count here, too.
    pub(crate) fn below(&self, quotas: Quotas) -> Account {
        Account::open(quotas, Some(self.clone()))
    }

    fn open(quotas: Quotas, above: Option<Account>) -> Account {
        let used = [const { AtomicUsize::new(0) }; Kind::ALL.len()];
        Account(Arc::new(Counters { used, quotas, receipts: AtomicUsize::new(0), above }))
    }

    /// This one and all above.
    pub(crate) fn upwards(&self) -> impl Iterator<Item = &Account> {
        std::iter::successors(Some(self), |account| account.0.above.as_ref())
    }

    /// How many of a kind are counted here.
    pub(crate) fn count(&self, kind: Kind) -> usize {
        self.0.used[kind as usize].load(Relaxed)
    }

    /// How many of a kind there may be, as far as this account is concerned.
    pub(crate) fn quota(&self, kind: Kind) -> usize {
        self.0.quotas.most(kind)
    }

    /// How many of a kind there may be here, as far as any account upwards is concerned.
    pub(crate) fn least_quota(&self, kind: Kind) -> usize {
        self.upwards().map(|account| account.quota(kind)).min().unwrap_or_default()
    }

    /// Receipts that are out, of this account and all below.
    pub(crate) fn receipts(&self) -> usize {
        self.0.receipts.load(Relaxed)
    }

    /// The first account, from here upwards, that has no room for one more of each of these.
    pub(crate) fn full(&self, kinds: &[Kind]) -> Option<&Account> {
        self.full_after(kinds, &[])
    }

    /// Like [`full`](Self::full), once these receipts are returned.
    pub(crate) fn full_after(&self, kinds: &[Kind], returned: &[&Receipt]) -> Option<&Account> {
        let has_room =
            |account: &Account| kinds.iter().all(|kind| account.has_room(*kind, returned));
        self.upwards().find(|account| !has_room(account))
    }

    /// One more of a kind fits in here once these receipts are returned. A row that replaces a
    /// returned one takes nothing of the room left for others.
    fn has_room(&self, kind: Kind, returned: &[&Receipt]) -> bool {
        let back = |account: &Account| {
            returned.iter().filter(|receipt| receipt.counts_in(account, kind)).count()
        };
        let fits = self.count(kind).saturating_sub(back(self)) < self.quota(kind);
        let shares = || {
            let host = self.host_of(kind);
            let left = host.map(|host| self.left(kind).saturating_add(back(host)));
            left.is_none_or(|left| self.count(kind) < left)
        };
        fits && (back(self) > 0 || shares())
    }

    /// The host, if this is a vNIC, of which there must be as many left for others as it has.
    fn host_of(&self, kind: Kind) -> Option<&Account> {
        let host = self.0.above.as_ref().filter(|above| above.0.above.is_none());
        host.filter(|_| Quotas::SHARED.contains(&kind))
    }

    /// The room left for others of the host's quota, if as many rows are to stay free as are
    /// counted here.
    pub(crate) fn left(&self, kind: Kind) -> usize {
        let left = |host: &Account| host.quota(kind).saturating_sub(host.count(kind));
        self.host_of(kind).map_or(usize::MAX, left)
    }

    /// One more of each of these, here and in all accounts above; nothing if there is no room in
    /// one of them.
    pub(crate) fn charge(&self, kinds: &[Kind]) -> Result<Receipt, Errno> {
        if self.full(kinds).is_some() {
            return Err(Errno::ENOMEM);
        }
        Ok(self.note(kinds))
    }

    /// Charges these kinds, whether or not there is room: for rows that exist already.
    pub(crate) fn note(&self, kinds: &[Kind]) -> Receipt {
        let kinds = KindSet::new(kinds);
        for account in self.upwards() {
            account.0.receipts.fetch_add(1, Relaxed);
            for kind in kinds.iter() {
                account.0.used[kind as usize].fetch_add(1, Relaxed);
            }
        }
        Receipt { account: self.clone(), kinds }
    }

    /// Identifies the account as long as it exists.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Whether both are the same account, not only an equal one.
    pub(crate) fn is(&self, other: &Account) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Some kinds, each once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KindSet(u32);

impl KindSet {
    fn new(kinds: &[Kind]) -> KindSet {
        KindSet(kinds.iter().fold(0, |set, kind| set | 1 << *kind as u32))
    }

    fn iter(self) -> impl Iterator<Item = Kind> {
        let next = |set: &u32| Some(set & (set - 1)).filter(|rest| *rest != 0);
        let sets = std::iter::successors(Some(self.0).filter(|set| *set != 0), next);
        sets.map(|set| Kind::ALL[set.trailing_zeros() as usize])
    }
}

/// A charge, returned when this is dropped: it is stored with the row that it was charged for.
#[derive(Debug)]
#[must_use = "what was charged is returned at once"]
pub(crate) struct Receipt {
    account: Account,
    kinds: KindSet,
}

impl Receipt {
    /// For a row that is copied about: the table has it with its receipt.
    pub(crate) fn pays_for<T>(self, row: T) -> Paid<T> {
        Paid { row, receipt: self }
    }

    /// One of a kind was charged to this account, or to one below.
    fn counts_in(&self, account: &Account, kind: Kind) -> bool {
        let charged = self.kinds.iter().any(|of| of == kind);
        charged && self.account.upwards().any(|upward| upward.is(account))
    }

    /// It was charged to this account, first of those that it counts in.
    pub(crate) fn is_of(&self, account: &Account) -> bool {
        self.account.is(account)
    }

    /// These kinds and no others were charged to this account.
    pub(crate) fn is_for(&self, account: &Account, kinds: &[Kind]) -> bool {
        self.is_of(account) && self.kinds == KindSet::new(kinds)
    }

    /// The charged kinds.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = Kind> {
        self.kinds.iter()
    }

    /// The account that was charged, first of those that it counts in.
    pub(crate) fn account(&self) -> &Account {
        &self.account
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        for account in self.account.upwards() {
            account.0.receipts.fetch_sub(1, Relaxed);
            for kind in self.kinds.iter() {
                account.0.used[kind as usize].fetch_sub(1, Relaxed);
            }
        }
    }
}

/// A row of a table with its receipt.
#[derive(Debug)]
pub(crate) struct Paid<T> {
    row: T,
    receipt: Receipt,
}

impl<T> Paid<T> {
    /// The charge for it.
    pub(crate) fn receipt(&self) -> &Receipt {
        &self.receipt
    }
}

impl<T> Deref for Paid<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.row
    }
}

impl<T> DerefMut for Paid<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.row
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOTH: [Kind; 2] = [Kind::Link, Kind::EngineLink];

    #[test]
    fn a_quota_is_exact_and_dropped_receipts_return() {
        let account = Account::new(Quotas::only(&[(Kind::Mr, 2)]));
        let first = account.charge(&[Kind::Mr]).unwrap();
        let second = account.charge(&[Kind::Mr]).unwrap();
        assert_eq!(account.charge(&[Kind::Mr]).unwrap_err(), Errno::ENOMEM);
        assert_eq!((account.count(Kind::Mr), account.receipts()), (2, 2));
        drop(first);
        let third = account.charge(&[Kind::Mr]).unwrap();
        assert_eq!((account.count(Kind::Mr), account.receipts()), (2, 2));
        drop((second, third));
        assert_eq!((account.count(Kind::Mr), account.receipts()), (0, 0));
    }

    #[test]
    fn it_is_all_or_nothing() {
        let host = Account::new(Quotas::only(&[(Kind::EngineLink, 1)]));
        let (one, other) = (host.below(Quotas::only(&[])), host.below(Quotas::only(&[])));
        let held = one.charge(&BOTH).unwrap();
        assert!(other.full(&BOTH).unwrap().is(&host), "it names the full account");
        assert_eq!(other.charge(&BOTH).unwrap_err(), Errno::ENOMEM);
        assert_eq!((other.count(Kind::Link), host.count(Kind::Link)), (0, 1));
        let ends =
            || Ok::<_, Errno>([other.charge(&[Kind::Link])?, other.charge(&[Kind::EngineLink])?]);
        assert_eq!(ends().unwrap_err(), Errno::ENOMEM);
        assert_eq!(other.receipts(), 0, "the first of two goes when the second is refused");
        drop(held);
        assert!(ends().is_ok());
        assert_eq!(host.receipts(), 0);
    }

    #[test]
    fn an_existing_row_counts_over_quota() {
        let account = Account::new(Quotas::only(&[(Kind::Granted, 0)]));
        let fact = account.note(&[Kind::Granted]);
        assert_eq!(account.count(Kind::Granted), 1);
        drop(fact);
        assert_eq!(account.count(Kind::Granted), 0);
    }

    #[test]
    fn a_row_returns_its_charge_when_dropped_not_when_copied() {
        let account = Account::new(Quotas::only(&[]));
        let mut rows = vec![account.charge(&[Kind::Extent]).unwrap().pays_for(7u8)];
        *rows[0] += 1;
        let copy = *rows[0];
        assert_eq!((copy, account.count(Kind::Extent)), (8, 1));
        rows.clear();
        assert_eq!(account.receipts(), 0);
    }

    #[test]
    fn an_account_outlives_its_owner_as_long_as_a_receipt_is_out() {
        let host = Account::new(Quotas::only(&[]));
        let vnic = host.below(Quotas::only(&[]));
        let probe = vnic.charge(&[Kind::Probe]).unwrap();
        drop(vnic);
        assert_eq!(host.receipts(), 1);
        drop(probe);
        assert_eq!(host.receipts(), 0);
    }

    #[test]
    fn no_vnic_has_more_of_the_hosts_rows_than_it_leaves() {
        let host = Account::new(Quotas::only(&[(Kind::Qp, 64)]));
        let fill = |vnic: &Account| {
            std::iter::from_fn(|| vnic.charge(&[Kind::Qp]).ok()).collect::<Vec<_>>()
        };
        let vnics = [0; 5].map(|_| host.below(Quotas::only(&[])));
        let held = vnics.each_ref().map(fill);
        assert_eq!(held.each_ref().map(Vec::len), [32, 16, 8, 4, 2]);
        assert!(vnics[0].full(&[Kind::Qp]).unwrap().is(&vnics[0]), "the largest is full");
        assert_eq!(fill(&host.below(Quotas::only(&[(Kind::Qp, 1)]))).len(), 1);
        drop(held);
        assert_eq!(fill(&vnics[4]).len(), 32);
        assert_eq!(host.receipts(), 0);
    }

    #[test]
    fn a_replacement_takes_none_of_the_room_for_others() {
        let host = Account::new(Quotas::only(&[(Kind::Link, 64)]));
        let [one, other] = [0; 2].map(|_| host.below(Quotas::only(&[(Kind::Link, 60)])));
        let session = one.below(Quotas::only(&[]));
        let fill =
            |of: &Account| std::iter::from_fn(|| of.charge(&[Kind::Link]).ok()).collect::<Vec<_>>();
        let (held, grown) = (fill(&session), fill(&other));
        assert_eq!((held.len(), grown.len(), one.left(Kind::Link)), (32, 16, 16));
        assert!(session.full(&[Kind::Link]).unwrap().is(&one));
        assert!(session.full_after(&[Kind::Link], &[&held[0]]).is_none(), "its own place");
        assert!(session.full_after(&[Kind::Link], &[&grown[0]]).unwrap().is(&one));
        assert!(other.full_after(&[Kind::Link], &[&held[0]]).is_none(), "one more is left");
        // Its quota holds all the same, and so does that of another kind.
        let few = other.below(Quotas::only(&[(Kind::Link, 0), (Kind::EngineLink, 0)]));
        let of_few = few.note(&[Kind::Link]);
        assert!(few.full_after(&[Kind::Link], &[&of_few]).unwrap().is(&few));
        assert!(few.full_after(&[Kind::EngineLink], &[&of_few]).unwrap().is(&few));
    }

    /// A third party, between the host and the vNICs: its line is the second.
    #[test]
    fn a_tenant_of_several_vnics_is_one_more_account() {
        let host = Account::new(Quotas::only(&[(Kind::Probe, 4)]));
        let tenant = host.below(Quotas::only(&[(Kind::Probe, 3)]));
        let vnics = [0; 2].map(|_| tenant.below(Quotas::only(&[(Kind::Probe, 2)])));
        let least = vnics.each_ref().map(|vnic| vnic.least_quota(Kind::Probe));
        assert_eq!((least, tenant.least_quota(Kind::Probe)), ([2, 2], 3));
        let mut held: Vec<Receipt> = Vec::new();
        let charge = |vnic: &Account| vnic.charge(&[Kind::Probe]);
        held.extend([charge(&vnics[0]).unwrap(), charge(&vnics[0]).unwrap()]);
        assert!(vnics[0].full(&[Kind::Probe]).unwrap().is(&vnics[0]));
        held.push(charge(&vnics[1]).unwrap());
        assert!(vnics[1].full(&[Kind::Probe]).unwrap().is(&tenant), "it has three in two vNICs");
        assert_eq!(charge(&vnics[1]).unwrap_err(), Errno::ENOMEM);
        assert_eq!(tenant.count(Kind::Probe), 3);
        held.push(charge(&host.below(Quotas::only(&[]))).unwrap());
        assert!(vnics[1].full(&[Kind::Probe]).is_some());
        held.clear();
        assert_eq!((host.receipts(), tenant.receipts()), (0, 0));
    }

    proptest! {
        /// In any order of charges and drops, an account counts exactly the receipts that are out,
        /// and never more than its quota.
        #[test]
        fn accounts_count_the_receipts_that_are_out(
            steps in prop::collection::vec((0usize..4, 0u8..7, 0usize..40), 0..200),
        ) {
            let host = Account::new(Quotas::only(&[(Kind::EngineLink, 5)]));
            let tenant = host.below(Quotas::only(&[(Kind::Link, 6)]));
            let leaves = [
                tenant.below(Quotas::only(&[(Kind::Link, 4), (Kind::EngineLink, 3)])),
                tenant.below(Quotas::only(&[(Kind::EngineLink, 3)])),
                host.below(Quotas::only(&[(Kind::Link, 2)])),
                host.clone(),
            ];
            let mut out: Vec<(usize, &[Kind], Receipt)> = Vec::new();
            for (leaf, what, which) in steps {
                let kinds: &[Kind] = match what {
                    0 | 1 => &[Kind::Link],
                    2 => &[Kind::EngineLink],
                    3 => &BOTH,
                    _ => {
                        if which < out.len() {
                            drop(out.swap_remove(which));
                        }
                        continue;
                    }
                };
                let may = leaves[leaf].full(kinds).is_none();
                let receipt = leaves[leaf].charge(kinds);
                prop_assert_eq!(receipt.is_ok(), may);
                out.extend(receipt.ok().map(|receipt| (leaf, kinds, receipt)));
                for kind in BOTH {
                    let count = |leaves: &[usize]| {
                        let ours = out.iter().filter(|row| leaves.contains(&row.0));
                        ours.filter(|row| row.1.contains(&kind)).count()
                    };
                    for (leaf, account) in leaves.iter().take(3).enumerate() {
                        prop_assert_eq!(account.count(kind), count(&[leaf]));
                    }
                    prop_assert_eq!(tenant.count(kind), count(&[0, 1]));
                    prop_assert_eq!(host.count(kind), count(&[0, 1, 2, 3]));
                    for account in leaves.iter().chain([&tenant]) {
                        prop_assert!(account.count(kind) <= account.quota(kind));
                    }
                }
                prop_assert_eq!(host.receipts(), out.len());
            }
            out.clear();
            prop_assert_eq!((host.receipts(), host.count(Kind::Link)), (0, 0));
        }
    }
}
