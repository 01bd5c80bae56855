//! Schedules links to be served: vNICs take turns, and so do a vNIC's links.

use omniverb_terms::VnicId;
use std::collections::{HashMap, VecDeque};

/// Chooses the vNIC to serve next.
#[derive(Default)]
pub(crate) struct Agenda {
    links: HashMap<VnicId, VecDeque<usize>>,
    /// vNICs with links to serve; each once.
    turns: VecDeque<VnicId>,
    count: usize,
}

impl Agenda {
    /// Adds a link, which is not there yet.
    pub(crate) fn add(&mut self, vnic: VnicId, link: usize) {
        let links = self.links.entry(vnic).or_default();
        if links.is_empty() {
            self.turns.push_back(vnic);
        }
        links.push_back(link);
        self.count += 1;
    }

    /// Takes the next link.
    pub(crate) fn next(&mut self) -> Option<usize> {
        loop {
            let vnic = self.turns.pop_front()?;
            let Some(links) = self.links.get_mut(&vnic) else { continue };
            let link = links.pop_front();
            if links.is_empty() {
                self.links.remove(&vnic);
            } else {
                self.turns.push_back(vnic);
            }
            if link.is_some() {
                self.count -= 1;
                return link;
            }
        }
    }

    /// A link is gone.
    pub(crate) fn remove(&mut self, vnic: VnicId, link: usize) {
        if let Some(links) = self.links.get_mut(&vnic) {
            let before = links.len();
            links.retain(|other| *other != link);
            self.count -= before - links.len();
            if links.is_empty() {
                self.links.remove(&vnic);
                self.turns.retain(|turn| *turn != vnic);
            }
        }
    }

    /// Links to serve.
    pub(crate) fn len(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::{Agenda, VnicId};

    #[test]
    fn a_vnic_with_one_link_is_not_behind_one_with_many() {
        let mut agenda = Agenda::default();
        (10..20).for_each(|link| agenda.add(VnicId(1), link));
        agenda.add(VnicId(2), 20);
        assert_eq!(agenda.len(), 11);
        assert_eq!([agenda.next(), agenda.next(), agenda.next()], [Some(10), Some(20), Some(11)]);
        agenda.remove(VnicId(1), 12);
        assert_eq!(agenda.next(), Some(13));
        (14..20).for_each(|link| agenda.remove(VnicId(1), link));
        assert_eq!((agenda.next(), agenda.len()), (None, 0));
        agenda.add(VnicId(1), 5);
        assert_eq!(agenda.next(), Some(5));
    }
}
