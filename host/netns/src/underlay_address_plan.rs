//! Decides which addresses of policies interfaces get and lose.
//!
//! In: the addresses that the daemon wants, and those that interfaces have. Out: [`Step`]s. What
//! this helper has added, or another one has marked, is ours. An address that is there by another
//! hand is used, and never removed.
//!
//! The first address of an interface is the source of the host's own packets. Where an address of
//! ours comes before all of the operator's, since they were lost and came back, it is added again.

use omniverb_sys::address_assignment::AssignedAddress;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Something that has to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The interface with this index loses an address of ours.
    Remove(IpAddr, u32),
    /// The interface with this index gets it.
    Add(IpAddr, u32),
    /// No interface has the address that it is to be beside.
    Homeless(IpAddr),
}

/// Addresses of policies, as far as this helper knows.
#[derive(Debug, Default)]
pub(crate) struct UnderlayAddresses {
    /// Each with the address of the interface that is to have it.
    wanted: BTreeMap<IpAddr, IpAddr>,
    /// Those of ours, with their interfaces.
    ours: BTreeSet<(IpAddr, u32)>,
    /// Those that another helper has left, until they are wanted or were kept for long enough.
    left: BTreeSet<(IpAddr, u32)>,
    /// They were looked for: later a marked address may be another daemon's.
    has_begun: bool,
    /// The kernel keeps marks, as was seen.
    has_marks: bool,
}

impl UnderlayAddresses {
    /// These are wanted from now on.
    pub(crate) fn want(&mut self, wanted: BTreeMap<IpAddr, IpAddr>) {
        self.wanted = wanted;
    }

    /// Those that are wanted.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = IpAddr> {
        self.wanted.keys().copied()
    }

    /// Whether something is wanted.
    pub(crate) fn is_any_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Whether what another helper has left waits to be wanted.
    pub(crate) fn is_any_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// What another helper has left, and is not wanted by now, is to be removed.
    pub(crate) fn end_waiting(&mut self) {
        self.ours.append(&mut self.left);
    }

    /// What has to be done if interfaces have these addresses: removals first.
    pub(crate) fn plan(&mut self, found: &[AssignedAddress]) -> Vec<Step> {
        // Before Linux 5.18 there are no marks: what we have added is known by that alone.
        self.has_marks |= found.iter().any(|it| it.is_marked);
        let may_be_ours = |it: &&AssignedAddress| it.is_marked || it.is_alone && !self.has_marks;
        let added = found.iter().filter(may_be_ours);
        let all: BTreeSet<_> = added.map(|it| (it.ip, it.interface)).collect();
        self.ours.retain(|ours| all.contains(ours));
        self.left.retain(|left| all.contains(left));
        let marked = found.iter().filter(|it| it.is_marked).map(|it| (it.ip, it.interface));
        if !std::mem::replace(&mut self.has_begun, true) {
            self.left.extend(marked.clone());
        }
        // Another daemon of this namespace may want it, too: then it adds it again.
        self.ours.extend(marked.filter(|(ip, _)| self.wanted.contains_key(ip)));
        self.left.retain(|left| !self.ours.contains(left));

        let is_ours =
            |it: &AssignedAddress| it.is_alone && self.ours.contains(&(it.ip, it.interface));
        let homes: BTreeMap<IpAddr, u32> =
            found.iter().rev().map(|it| (it.ip, it.interface)).collect();
        let others: BTreeSet<IpAddr> =
            found.iter().filter(|it| !is_ours(it)).map(|it| it.ip).collect();
        // The kernel adds behind all of these, so this happens once. Another daemon's do not count:
        // both would go on for ever.
        let is_operators = |it: &&AssignedAddress| it.may_be_source && !may_be_ours(it);
        let mut sources = BTreeMap::new();
        for (at, it) in found.iter().enumerate().filter(|(_, it)| is_operators(it)) {
            sources.entry(it.interface).or_insert(at);
        }
        let early = found.iter().enumerate().filter(|(at, it)| {
            is_ours(it) && sources.get(&it.interface).is_some_and(|source| at < source)
        });
        let early: BTreeSet<_> = early.map(|(_, it)| (it.ip, it.interface)).collect();
        let (mut steps, mut additions) = (Vec::new(), Vec::new());
        for (ip, interface) in &self.ours {
            let home = self.wanted.get(ip).filter(|_| !others.contains(ip));
            // Without that interface it stays where it is.
            let home = home.map(|beside| homes.get(beside).unwrap_or(interface));
            if home != Some(interface) || early.contains(&(*ip, *interface)) {
                steps.push(Step::Remove(*ip, *interface));
            }
        }
        for (ip, beside) in self.wanted.iter().filter(|(ip, _)| !others.contains(ip)) {
            let home = homes.get(beside);
            let mut of_ours = self.ours.iter().filter(|(ours, _)| ours == ip);
            let at = of_ours.find(|(_, at)| home.is_none_or(|home| home == at));
            match home.or(at.map(|(_, at)| at)) {
                Some(home) if at.is_none() || early.contains(&(*ip, *home)) => {
                    additions.push(Step::Add(*ip, *home));
                }
                Some(_) => {}
                None => additions.push(Step::Homeless(*ip)),
            }
        }
        steps.extend(additions);
        steps
    }

    /// An interface has got an address.
    pub(crate) fn added(&mut self, ip: IpAddr, interface: u32) {
        self.ours.insert((ip, interface));
    }

    /// An interface has lost it.
    pub(crate) fn removed(&mut self, ip: IpAddr, interface: u32) {
        self.ours.remove(&(ip, interface));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn wanted(list: &[(u8, u8)]) -> BTreeMap<IpAddr, IpAddr> {
        list.iter().map(|(one, beside)| (ip(*one), ip(*beside))).collect()
    }

    fn of_operator(last: u8, interface: u32) -> AssignedAddress {
        AssignedAddress {
            ip: ip(last),
            interface,
            is_alone: false,
            is_marked: false,
            may_be_source: true,
        }
    }

    fn marked(last: u8, interface: u32) -> AssignedAddress {
        AssignedAddress { is_alone: true, is_marked: true, ..of_operator(last, interface) }
    }

    /// Does what is to be done, as the kernel would: `marks` is false before Linux 5.18.
    fn carry_out(
        all: &mut UnderlayAddresses,
        has: &mut Vec<AssignedAddress>,
        marks: bool,
    ) -> usize {
        let steps = all.plan(has);
        for step in &steps {
            match *step {
                Step::Add(ip, interface) => {
                    let new = AssignedAddress {
                        ip,
                        interface,
                        is_alone: true,
                        is_marked: marks,
                        may_be_source: true,
                    };
                    assert!(!has.iter().any(|it| (it.ip, it.interface) == (ip, interface)));
                    has.push(new);
                    all.added(ip, interface);
                }
                Step::Remove(ip, interface) => {
                    let before = has.len();
                    has.retain(|it| !(it.is_alone && (it.ip, it.interface) == (ip, interface)));
                    assert_eq!(has.len() + 1, before);
                    all.removed(ip, interface);
                }
                Step::Homeless(_) => {}
            }
        }
        steps.len()
    }

    #[test]
    fn addresses_come_and_go_with_the_interface_of_the_underlay_address() {
        for marks in [true, false] {
            let mut all = UnderlayAddresses::default();
            let mut has = vec![of_operator(1, 7), of_operator(9, 8)];
            all.want(wanted(&[(50, 1), (51, 1), (60, 2)]));
            assert_eq!(carry_out(&mut all, &mut has, marks), 3, "60 has no home yet");
            assert_eq!(all.plan(&has), [Step::Homeless(ip(60))], "nothing is done twice");
            // A home comes, another one is another interface's now.
            has.retain(|it| it.ip != ip(1));
            has.insert(0, of_operator(1, 9));
            has.push(of_operator(2, 8));
            assert_eq!(carry_out(&mut all, &mut has, marks), 5);
            let places = |last| has.iter().filter(move |it| it.ip == ip(last));
            assert_eq!(places(50).map(|it| it.interface).collect::<Vec<_>>(), [9]);
            assert_eq!(places(60).map(|it| it.interface).collect::<Vec<_>>(), [8]);
            // Its interface has lost it: it is added again.
            has.retain(|it| it.ip != ip(51));
            assert_eq!(all.plan(&has), [Step::Add(ip(51), 9)]);
            carry_out(&mut all, &mut has, marks);
            // Without a home for a while it stays.
            let home = has.remove(0);
            assert_eq!(all.plan(&has), []);
            has.insert(0, home);
            all.want(wanted(&[]));
            assert_eq!(carry_out(&mut all, &mut has, marks), 3);
            assert!(!has.iter().any(|it| it.is_alone) && has.len() == 3);
        }
    }

    /// The source address of the host's own packets is never ours.
    #[test]
    fn an_address_that_comes_before_the_operators_is_added_again_once() {
        for marks in [true, false] {
            let mut all = UnderlayAddresses::default();
            let mut has = vec![of_operator(1, 7)];
            all.want(wanted(&[(50, 1), (51, 1)]));
            carry_out(&mut all, &mut has, marks);
            // Its home is lost, and comes back behind it.
            let home = has.remove(0);
            assert_eq!(all.plan(&has).len(), 0, "they stay meanwhile");
            has.push(home);
            let (one, two) = (ip(50), ip(51));
            let steps = [Step::Remove(one, 7), Step::Remove(two, 7)];
            let added = [Step::Add(one, 7), Step::Add(two, 7)];
            assert_eq!(all.plan(&has), [steps, added].concat());
            carry_out(&mut all, &mut has, marks);
            assert_eq!(has[0], home);
            assert_eq!(all.plan(&has), []);
            // No order of these makes another one the source.
            for other in [
                AssignedAddress { may_be_source: false, ..of_operator(2, 7) },
                of_operator(3, 7),
                of_operator(4, 8),
            ] {
                has.push(other);
                assert_eq!(all.plan(&has), []);
            }
            // Another daemon's does not count.
            has.remove(0);
            has.retain(|it| it.is_alone);
            has.push(AssignedAddress { is_marked: marks, ..marked(60, 7) });
            assert_eq!(all.plan(&has), []);
        }
    }

    #[test]
    fn an_operators_address_is_used_and_stays() {
        let mut all = UnderlayAddresses::default();
        let by_hand = AssignedAddress { is_alone: true, ..of_operator(50, 3) };
        let mut has = vec![of_operator(1, 7), by_hand];
        all.want(wanted(&[(50, 1)]));
        assert_eq!(all.plan(&has), []);
        all.want(wanted(&[]));
        assert_eq!(all.plan(&has), []);
        // It comes later, beside ours.
        has.pop();
        all.want(wanted(&[(50, 1)]));
        assert_eq!(carry_out(&mut all, &mut has, true), 1);
        has.push(by_hand);
        assert_eq!(all.plan(&has), [Step::Remove(ip(50), 7)]);
        carry_out(&mut all, &mut has, true);
        assert_eq!(has, [of_operator(1, 7), by_hand]);
    }

    #[test]
    fn what_another_helper_left_is_taken_over_or_removed() {
        let mut all = UnderlayAddresses::default();
        let mut has = vec![of_operator(1, 7), marked(50, 7), marked(51, 7), marked(52, 8)];
        all.want(wanted(&[(50, 1), (52, 1)]));
        assert_eq!(all.plan(&has), [Step::Remove(ip(52), 8), Step::Add(ip(52), 7)]);
        carry_out(&mut all, &mut has, true);
        assert!(all.is_any_left(), "51 may be wanted soon");
        all.end_waiting();
        assert_eq!(all.plan(&has), [Step::Remove(ip(51), 7)]);
        carry_out(&mut all, &mut has, true);
        assert!(!all.is_any_left());
        // Later such an address is another daemon's.
        has.push(marked(53, 7));
        assert_eq!(all.plan(&has), []);
        all.want(wanted(&[]));
        carry_out(&mut all, &mut has, true);
        assert_eq!(has, [of_operator(1, 7), marked(53, 7)]);
    }

    /// Whatever happens to addresses, in the end what is wanted is there once, and nothing that
    /// another hand has made is gone.
    #[test]
    fn any_history_ends_with_what_is_wanted() {
        let mut seed = 5_u64;
        let mut next = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..300 {
            let marks = next(2) == 0;
            let mut all = UnderlayAddresses::default();
            let mut has = vec![of_operator(1, 1), of_operator(2, 2)];
            for _ in 0..30 {
                match next(5) {
                    0 => {
                        let count = next(4);
                        let list: Vec<_> =
                            (0..count).map(|_| (50 + next(5) as u8, 1 + next(3) as u8)).collect();
                        all.want(wanted(&list));
                    }
                    1 => {
                        let (last, interface) = (50 + next(5) as u8, 1 + next(2) as u32);
                        let may_be_source = next(2) == 0;
                        let is_free =
                            |it: &AssignedAddress| (it.ip, it.interface) != (ip(last), interface);
                        if has.iter().all(is_free) {
                            has.push(AssignedAddress {
                                may_be_source,
                                ..of_operator(last, interface)
                            });
                        }
                    }
                    2 if !has.is_empty() => {
                        let at = next(has.len() as u64) as usize;
                        has.remove(at);
                    }
                    _ => {
                        let by_hand = has.iter().filter(|it| !it.is_alone).count();
                        carry_out(&mut all, &mut has, marks);
                        assert_eq!(has.iter().filter(|it| !it.is_alone).count(), by_hand);
                    }
                }
            }
            carry_out(&mut all, &mut has, marks);
            let left = all.plan(&has);
            assert!(left.iter().all(|step| matches!(step, Step::Homeless(_))), "{left:?}");
            for interface in [1, 2] {
                let mut here = has.iter().filter(|it| it.interface == interface);
                let has_source = here.clone().any(|it| !it.is_alone && it.may_be_source);
                let first = here.find(|it| it.may_be_source);
                assert!(!has_source || first.is_some_and(|it| !it.is_alone), "{has:?}");
            }
            for one in all.wanted() {
                let is_homeless = left.contains(&Step::Homeless(one));
                assert_eq!(is_homeless, !has.iter().any(|it| it.ip == one));
                assert!(has.iter().filter(|it| it.ip == one && it.is_alone).count() <= 1);
            }
            all.want(wanted(&[]));
            carry_out(&mut all, &mut has, marks);
            assert!(!has.iter().any(|it| it.is_alone));
        }
    }
}
