//! Keeps doubly linked lists of numbered nodes, in arrays.
//!
//! Every node is in one list at most, and leaves it in constant time.

/// No node, or no list.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Member {
    before: u32,
    after: u32,
    ring: u32,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
}

/// Lists, by their number.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    members: Vec<Member>,
    rings: Vec<Ends>,
}

impl Rings {
    /// Makes room for members below this number.
    pub(crate) fn grow_members(&mut self, count: usize) {
        if count > self.members.len() {
            self.members.resize(count, Member { before: NONE, after: NONE, ring: NONE });
        }
    }

    /// Makes room for lists below this number.
    pub(crate) fn grow_rings(&mut self, count: usize) {
        if count > self.rings.len() {
            self.rings.resize(count, Ends { first: NONE, last: NONE });
        }
    }

    /// The first of a list.
    pub(crate) fn front(&self, ring: u32) -> u32 {
        self.rings[ring as usize].first
    }

    /// Whether a list has one member.
    pub(crate) fn has_one(&self, ring: u32) -> bool {
        let Ends { first, last } = self.rings[ring as usize];
        first == last && first != NONE
    }

    /// Adds to the end of a list a node that is in none.
    pub(crate) fn push_back(&mut self, ring: u32, node: u32) {
        let last = std::mem::replace(&mut self.rings[ring as usize].last, node);
        self.members[node as usize] = Member { before: last, after: NONE, ring };
        match last {
            NONE => self.rings[ring as usize].first = node,
            last => self.members[last as usize].after = node,
        }
    }

    /// Adds to the beginning of a list a node that is in none.
    pub(crate) fn push_front(&mut self, ring: u32, node: u32) {
        let first = std::mem::replace(&mut self.rings[ring as usize].first, node);
        self.members[node as usize] = Member { before: NONE, after: first, ring };
        match first {
            NONE => self.rings[ring as usize].last = node,
            first => self.members[first as usize].before = node,
        }
    }

    /// Takes the first of a list.
    pub(crate) fn pop_front(&mut self, ring: u32) -> Option<u32> {
        let first = self.front(ring);
        (first != NONE).then(|| {
            self.remove(first);
            first
        })
    }

    /// Takes a node out of the list that it is in; which that was.
    pub(crate) fn remove(&mut self, node: u32) -> u32 {
        let Member { before, after, ring } = self.members[node as usize];
        if ring == NONE {
            return NONE;
        }
        self.members[node as usize].ring = NONE;
        match before {
            NONE => self.rings[ring as usize].first = after,
            before => self.members[before as usize].after = after,
        }
        match after {
            NONE => self.rings[ring as usize].last = before,
            after => self.members[after as usize].before = before,
        }
        ring
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn node_lists_match_the_model(
            steps in proptest::collection::vec((0_u32..8, 0_usize..3, 0_u8..4), 1..300),
        ) {
            let (mut rings, mut model) = (Rings::default(), vec![VecDeque::new(); 3]);
            rings.grow_members(8);
            rings.grow_rings(3);
            for (node, ring, what) in steps {
                let of = model.iter().position(|list| list.contains(&node));
                let ring_number = ring as u32;
                match (what, of) {
                    (0, None) => {
                        rings.push_back(ring_number, node);
                        model[ring].push_back(node);
                    }
                    (1, None) => {
                        rings.push_front(ring_number, node);
                        model[ring].push_front(node);
                    }
                    (2, _) => {
                        let first = model[ring].pop_front();
                        prop_assert_eq!(rings.pop_front(ring_number), first);
                    }
                    (_, of) => {
                        prop_assert_eq!(rings.remove(node), of.map_or(NONE, |of| of as u32));
                        if let Some(of) = of {
                            model[of].retain(|member| *member != node);
                        }
                    }
                }
                for (number, list) in (0..).zip(&model) {
                    prop_assert_eq!(rings.front(number), list.front().copied().unwrap_or(NONE));
                    prop_assert_eq!(rings.has_one(number), list.len() == 1);
                }
            }
        }
    }
}
