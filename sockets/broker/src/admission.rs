//! Admits processes to the broker, and keeps each holder to its share.
//!
//! A process is admitted before there is a thread for it, and released when that is about to end.
//! When the table is full the largest holder yields its oldest process, as in the daemon
//! (docs/decisions/0025): that connection is shut, and its thread goes on until it has closed what
//! it was sent. What an entry is counted by stands here, beside a weak reference to its process:
//! counting holds no process.

use crate::client::Client;
use crate::limits;
use omniverb_fairness::{Holder, Holders};
use omniverb_sys::clock;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// The holder that an entry counts for: a user in a cgroup, and the network namespace of the
/// connected socket, which all offered sockets have to be in.
pub(crate) fn holder(cgroup: &str, user: u32, namespace: u64) -> Holder {
    Holder::new(cgroup, user).in_vnic(namespace)
}

#[derive(Debug)]
struct Entry {
    holder: Holder,
    namespace: u64,
    /// It has said hello.
    has_greeted: bool,
    client: Weak<Client>,
}

/// All of them, by the numbers of processes.
#[derive(Debug)]
pub(crate) struct AdmissionTable {
    all: BTreeMap<u64, Entry>,
    holders: Holders<u64>,
    /// Entries that have yielded, and whose threads have not ended.
    leaving: BTreeMap<u64, Holder>,
    /// When the last one was given back, or this began.
    last_release: u64,
}

impl Default for AdmissionTable {
    fn default() -> AdmissionTable {
        let (all, holders, leaving) = (BTreeMap::new(), Holders::default(), BTreeMap::new());
        AdmissionTable { all, holders, leaving, last_release: clock::now() }
    }
}

/// Whether a newcomer has an entry now.
#[derive(Debug)]
pub(crate) enum Admission {
    Granted,
    /// It has, and this client has yielded: its connection is to be shut.
    Replaces(Weak<Client>),
    Refused,
}

impl AdmissionTable {
    /// Takes one, if there is one for that holder.
    pub(crate) fn admit(
        &mut self,
        number: u64,
        (holder, namespace): (&Holder, u64),
        client: Weak<Client>,
    ) -> Admission {
        let is_silent = |entry: &&Entry| entry.holder == *holder && !entry.has_greeted;
        if self.all.values().filter(is_silent).count() >= limits::SILENT {
            return Admission::Refused;
        }
        let mut admission = Admission::Granted;
        if self.all.len() >= limits::PROCESSES {
            let yields = self.holders.yields_to(holder).copied();
            let yields = yields.filter(|number| {
                self.all.get(number).is_some_and(|entry| self.may_yield(&entry.holder, holder))
            });
            let Some(yields) = yields else { return Admission::Refused };
            let Some(entry) = self.all.remove(&yields) else { return Admission::Refused };
            self.holders.remove(&yields);
            self.leaving.insert(yields, entry.holder);
            admission = Admission::Replaces(entry.client);
        }
        self.holders.add(holder, number);
        let holder = holder.clone();
        self.all.insert(number, Entry { holder, namespace, has_greeted: false, client });
        admission
    }

    /// Whether there is room for one more thread that may not end. Relatives that take places from
    /// each other have half of the room for each level of the cgroup path that they share. So a
    /// holder that fills its container's part leaves all others theirs.
    fn may_yield(&self, yields: &Holder, newcomer: &Holder) -> bool {
        let (way, newcomer) = (yields.path(), newcomer.path());
        let shared = way.iter().zip(&newcomer).take_while(|(one, other)| one == other).count();
        let leaving: Vec<_> = self.leaving.values().map(Holder::path).collect();
        (0..=shared).all(|steps| {
            let count = leaving.iter().filter(|one| one.starts_with(&way[..steps])).count();
            count < (limits::LEAVING >> steps.min(limits::LEAVING.ilog2() as usize))
        })
    }

    /// The client of this entry has said hello.
    pub(crate) fn mark_greeted(&mut self, number: u64) {
        if let Some(entry) = self.all.get_mut(&number) {
            entry.has_greeted = true;
        }
    }

    /// Gives one back.
    pub(crate) fn release(&mut self, number: u64) {
        self.all.remove(&number);
        self.holders.remove(&number);
        self.leaving.remove(&number);
        self.last_release = clock::now();
    }

    /// For how many nanoseconds there has been no entry; `None`: there is one.
    pub(crate) fn idle_time(&self, now: u64) -> Option<u64> {
        self.all.is_empty().then_some(now.saturating_sub(self.last_release))
    }

    /// The client of an entry.
    pub(crate) fn client(&self, number: u64) -> Option<Arc<Client>> {
        self.all.get(&number)?.client.upgrade()
    }

    /// The clients in a network namespace, or everywhere, by number. Keeps none of them alive.
    pub(crate) fn clients_in(&self, namespace: Option<u64>) -> Vec<Weak<Client>> {
        let is_here = |entry: &&Entry| namespace.is_none_or(|here| entry.namespace == here);
        self.all.values().filter(is_here).map(|entry| entry.client.clone()).collect()
    }

    /// The clients of all network namespaces.
    pub(crate) fn clients(&self) -> Vec<Arc<Client>> {
        self.all.values().filter_map(|entry| entry.client.upgrade()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{PROCESSES, SILENT};

    impl AdmissionTable {
        /// As many as can be had, up to two thousand; they say hello if they are polite.
        fn fill(
            &mut self,
            first: u64,
            is_polite: bool,
            holder: impl Fn(u64) -> (Holder, u64),
        ) -> usize {
            let takes = |number: &u64| {
                let (holder, namespace) = holder(*number);
                let admission = self.admit(*number, (&holder, namespace), Weak::new());
                if is_polite {
                    self.mark_greeted(*number);
                }
                // The threads of clients that were shut have ended.
                self.leaving.clear();
                !matches!(admission, Admission::Refused)
            };
            (first..first + 2000).take_while(takes).count()
        }

        fn of(&self, cgroup: &str) -> usize {
            let part = format!("{:?}", Holder::new(cgroup, 0));
            let part = part.split("User").next().unwrap_or_default();
            let is_its = |entry: &&Entry| format!("{:?}", entry.holder).starts_with(part);
            self.all.values().filter(is_its).count()
        }
    }

    fn of(cgroup: &str, user: u32, namespace: u64) -> impl Fn(u64) -> (Holder, u64) {
        move |_| (holder(cgroup, user, namespace), namespace)
    }

    #[test]
    fn a_container_shuts_no_other_out() {
        let mut table = AdmissionTable::default();
        // Root in its own cgroup, as in most containers, with as many namespaces as it likes.
        let greedy = |number: u64| (holder("/box/greedy", number as u32 % 7, number), number);
        assert_eq!(table.fill(0, true, greedy), PROCESSES);
        // Another one, of the same user, gets as many, and no more.
        table.fill(10_000, true, of("/box/second", 0, 1_000_000));
        let counts = [table.of("/box/greedy"), table.of("/box/second")];
        assert!(counts.iter().sum::<usize>() == PROCESSES, "{counts:?}");
        assert!(counts[0].abs_diff(counts[1]) <= 2, "{counts:?}");
        // And so on, also where only the namespace is another one.
        assert!(table.fill(20_000, true, of("/other", 0, 1_000_001)) >= PROCESSES / 2 - 1);
        table.fill(30_000, true, of("/other", 0, 1_000_002));
        assert!(table.all.values().filter(|entry| entry.namespace == 1_000_002).count() > 200);
        assert_eq!(table.all.len(), PROCESSES);
        assert!(table.of("/box/second") > 200, "{}", table.of("/box/second"));
    }

    #[test]
    fn silent_clients_have_few_entries() {
        let mut table = AdmissionTable::default();
        assert_eq!(table.fill(0, false, of("/a", 0, 1)), SILENT);
        assert_eq!(table.fill(1000, false, of("/b", 0, 1)), SILENT);
        assert_eq!(table.fill(2000, false, of("/a", 0, 2)), SILENT);
        table.release(5);
        assert_eq!(table.fill(3000, false, of("/a", 0, 1)), 1);
    }

    #[test]
    fn threads_that_do_not_end_are_few() {
        let mut table = AdmissionTable::default();
        assert_eq!(table.fill(0, true, of("/a", 0, 1)), 2000.min(PROCESSES));
        let second = holder("/b", 0, 2);
        let (mut count, mut number) = (0, 10_000);
        while let Admission::Replaces(_) = table.admit(number, (&second, 2), Weak::new()) {
            table.mark_greeted(number);
            (count, number) = (count + 1, number + 1);
        }
        assert_eq!(count, limits::LEAVING);
        let first = *table.leaving.keys().next().unwrap();
        table.release(first);
        let admission = table.admit(20_000, (&second, 2), Weak::new());
        assert!(matches!(admission, Admission::Replaces(_)));
    }

    #[test]
    fn relatives_yield_to_each_other_first() {
        let mut table = AdmissionTable::default();
        assert_eq!(table.fill(0, true, of("/boxes/a", 0, 1)), PROCESSES);
        // From many other namespaces of the same container; threads of those that yield hang.
        let hang = |table: &mut AdmissionTable, first: u64, cgroup: &str, namespaces: u64| {
            let takes = |number: &u64| {
                let namespace = 1000 + number % namespaces;
                let holder = holder(cgroup, 0, namespace);
                let admission = table.admit(*number, (&holder, namespace), Weak::new());
                table.mark_greeted(*number);
                matches!(admission, Admission::Replaces(_))
            };
            (first..first + 2000).take_while(takes).count()
        };
        let own = hang(&mut table, 10_000, "/boxes/a", 50);
        assert!(own > 0 && own <= limits::LEAVING / 4, "{own}");
        let second = hang(&mut table, 20_000, "/boxes/b", 1);
        assert!(second >= limits::LEAVING / 4, "{second}");
        let elsewhere = hang(&mut table, 30_000, "/system", 1);
        assert_eq!((second + own, elsewhere), (limits::LEAVING / 2, limits::LEAVING / 2));
    }

    #[test]
    fn idle_time_begins_with_the_last_client() {
        let mut table = AdmissionTable::default();
        assert_eq!(table.fill(7, true, of("/a", 0, 1)), PROCESSES);
        assert_eq!(table.idle_time(clock::now()), None);
        (0..3000).for_each(|number| table.release(number));
        let before = clock::now();
        table.release(7);
        assert_eq!(table.idle_time(u64::MAX).map(|time| u64::MAX - time >= before), Some(true));
    }
}
