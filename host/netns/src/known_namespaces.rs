//! Keeps which namespaces are known by which number, which have changed, and which are sought.

use omniverb_sys::netns::NetnsIdentity;
use omniverb_sys::network_events::NetworkEvent;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Budget: network namespaces that are watched at a time.
pub(crate) const NAMESPACES_MAX: usize = 16384;
/// Budget: times that a namespace is sought, among names and processes, after each of its events.
pub(crate) const SEEKS_MAX: u32 = 8;

/// A namespace, and where it can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) identity: NetnsIdentity,
    pub(crate) path: PathBuf,
}

/// All that the kernel has told of.
#[derive(Debug, Default)]
pub(crate) struct NamespaceBook {
    known: BTreeMap<u32, Found>,
    /// To be looked at.
    changed: BTreeSet<u32>,
    /// To be sought, and how many times they were.
    sought: BTreeMap<u32, u32>,
    /// Gone, and to be said so.
    ended: Vec<NetnsIdentity>,
    /// Something was not told.
    is_lost: bool,
}

impl NamespaceBook {
    pub(crate) fn hear(&mut self, event: NetworkEvent) {
        match event {
            NetworkEvent::Changed(number) if self.known.contains_key(&number) => {
                self.changed.insert(number);
            }
            NetworkEvent::Changed(number) => {
                if self.known.len() + self.sought.len() < NAMESPACES_MAX {
                    self.sought.insert(number, 0);
                }
            }
            NetworkEvent::Ended(number) => self.end(number),
            NetworkEvent::Lost => self.is_lost = true,
        }
    }

    fn end(&mut self, number: u32) {
        self.changed.remove(&number);
        self.sought.remove(&number);
        self.ended.extend(self.known.remove(&number).map(|found| found.identity));
    }

    /// Whether something was not told since this was asked last.
    pub(crate) fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.is_lost)
    }

    /// These numbers and no others are given to namespaces now. The namespaces behind them have to
    /// be seen anew.
    pub(crate) fn recount(&mut self, numbers: &[u32]) {
        let gone: Vec<u32> =
            self.known.keys().chain(self.sought.keys()).copied().collect::<Vec<_>>();
        for number in gone.into_iter().filter(|number| !numbers.contains(number)) {
            self.end(number);
        }
        for number in numbers {
            self.hear(NetworkEvent::Changed(*number));
        }
    }

    /// Whether there is something to do at once.
    pub(crate) fn is_due(&self) -> bool {
        let is_new = self.least_sought() == Some(0);
        is_new || !self.changed.is_empty() || !self.ended.is_empty() || self.is_lost
    }

    /// Whether some namespace is sought.
    pub(crate) fn seeks(&self) -> bool {
        !self.sought.is_empty()
    }

    /// Those that are known and need not be found again.
    pub(crate) fn identities(&self) -> impl Iterator<Item = NetnsIdentity> {
        let found = self.known.iter().filter(|(number, _)| !self.sought.contains_key(number));
        found.map(|(_, found)| found.identity)
    }

    /// The namespace of this number was found.
    pub(crate) fn found(&mut self, number: u32, found: Found) {
        if self.sought.remove(&number).is_some() {
            let identity = found.identity;
            let before = self.known.insert(number, found).map(|before| before.identity);
            self.ended.extend(before.filter(|before| *before != identity));
            self.changed.insert(number);
        }
    }

    /// All names and processes were looked at: what was not found is sought a few times more.
    pub(crate) fn sought_once(&mut self) {
        self.sought.values_mut().for_each(|times| *times += 1);
        self.sought.retain(|_, times| *times < SEEKS_MAX);
    }

    /// The one that was sought least, how many times.
    pub(crate) fn least_sought(&self) -> Option<u32> {
        self.sought.values().min().copied()
    }

    /// One that is to be looked at.
    pub(crate) fn next_changed(&mut self) -> Option<(u32, Found)> {
        let number = self.changed.pop_first()?;
        Some((number, self.known.get(&number)?.clone()))
    }

    /// A known namespace is not any more where it was found. It may be elsewhere, or have ended,
    /// which the kernel tells.
    pub(crate) fn moved(&mut self, number: u32) {
        if self.known.contains_key(&number) {
            self.sought.insert(number, 0);
        }
    }

    /// One that has ended.
    pub(crate) fn next_ended(&mut self) -> Option<NetnsIdentity> {
        self.ended.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(inode: u64) -> Found {
        Found { identity: NetnsIdentity { device: 4, inode }, path: "/run/netns/x".into() }
    }

    #[test]
    fn a_namespace_is_sought_then_looked_at_once_and_ends_once() {
        let mut book = NamespaceBook::default();
        for _ in 0..3 {
            book.hear(NetworkEvent::Changed(5));
        }
        assert!(book.seeks() && book.least_sought() == Some(0));
        book.found(6, found(9));
        assert_eq!(book.identities().count(), 0, "that was not sought");
        book.found(5, found(7));
        assert_eq!(book.next_changed(), Some((5, found(7))));
        assert!(book.next_changed().is_none() && !book.is_due());
        book.hear(NetworkEvent::Changed(5));
        assert_eq!(book.next_changed(), Some((5, found(7))));
        book.moved(5);
        assert!(book.seeks() && book.identities().next().is_none());
        book.found(5, found(8));
        assert_eq!(book.next_ended(), Some(found(7).identity), "another has its number");
        // It ends, and is not where it was before the kernel says so.
        book.moved(5);
        book.hear(NetworkEvent::Ended(5));
        assert_eq!((book.next_ended(), book.next_ended()), (Some(found(8).identity), None));
        assert!(!book.is_due() && !book.seeks());
    }

    #[test]
    fn a_missing_namespace_is_not_sought_for_ever() {
        let mut book = NamespaceBook::default();
        book.hear(NetworkEvent::Changed(5));
        assert!(book.is_due());
        book.sought_once();
        assert!(book.seeks() && !book.is_due(), "it waits");
        (1..SEEKS_MAX).for_each(|_| book.sought_once());
        assert!(!book.seeks());
        for number in 0..2 * NAMESPACES_MAX as u32 {
            book.hear(NetworkEvent::Changed(number));
        }
        assert_eq!(book.sought.len(), NAMESPACES_MAX);
    }

    #[test]
    fn after_a_loss_all_are_counted_anew() {
        let mut book = NamespaceBook::default();
        for number in [1, 2] {
            book.hear(NetworkEvent::Changed(number));
            book.found(number, found(u64::from(number)));
        }
        while book.next_changed().is_some() {}
        book.hear(NetworkEvent::Lost);
        assert!(book.take_lost() && !book.take_lost());
        book.recount(&[2, 3]);
        assert_eq!(book.next_ended(), Some(found(1).identity));
        assert_eq!(book.next_changed(), Some((2, found(2))));
        assert!(book.seeks());
    }
}
