//! Accumulates what vNICs have counted, by path, tenant and policy, so that no counter goes back.
//!
//! The daemon is asked piece by piece while traffic goes on. A queue pair that ends meanwhile may
//! be missing in one sample. So a vNIC's sums only grow, but for counters that began anew.
//!
//! The daemon knows the path of a queue pair, not of bytes. What a queue pair counts between two
//! samples belongs to the path that it was last seen on. What is known of no queue pair, as of one
//! that came and went between two samples, has the path `unknown`.

use omniverb_operator_client::counter_rows::{Counter, Counts, add_wrapping};
use std::collections::BTreeMap;

/// How data of a queue pair travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PathLabel {
    Direct,
    Forwarded,
    Wire,
    Roce,
    /// Its peers have several paths.
    Mixed,
    Unknown,
}

impl PathLabel {
    pub(super) fn named(name: &str) -> PathLabel {
        match name {
            "direct" => PathLabel::Direct,
            "forwarded" => PathLabel::Forwarded,
            "wire" => PathLabel::Wire,
            "roce" => PathLabel::Roce,
            _ => PathLabel::Unknown,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            PathLabel::Direct => "direct",
            PathLabel::Forwarded => "forwarded",
            PathLabel::Wire => "wire",
            PathLabel::Roce => "roce",
            PathLabel::Mixed => "mixed",
            PathLabel::Unknown => "unknown",
        }
    }

    /// The path of a queue pair with peers by both.
    pub(super) fn with(self, other: PathLabel) -> PathLabel {
        if self == other { self } else { PathLabel::Mixed }
    }
}

/// What may be sent in a second, as far as that is limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) bits: Option<u64>,
    pub(super) operations: Option<u64>,
}

/// A vNIC in one sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Vnic {
    pub(super) tenant: String,
    pub(super) policies: Vec<String>,
    pub(super) processes: u64,
    pub(super) memory_regions: u64,
    pub(super) links: u64,
    pub(super) cm_ids: u64,
    /// Its own limits.
    pub(super) limits: Limits,
    pub(super) encryption: String,
    /// Calls that the daemon refused its processes, by the error.
    pub(super) refused: BTreeMap<String, u64>,
    /// Packets that faults lost, and those that found the queue of faults full.
    pub(super) faults: [u64; 2],
    /// Queue pairs that have ended, together.
    pub(super) ended: Counts,
    /// Whether none ended while the others were asked for.
    pub(super) is_consistent: bool,
    /// The others, by their numbers.
    pub(super) queue_pairs: BTreeMap<u32, QueuePair>,
}

/// A queue pair in one sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueuePair {
    /// `None`: it has no peer.
    pub(super) path: Option<PathLabel>,
    pub(super) counts: Counts,
}

/// What the daemon says at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    pub(super) version: String,
    /// Since the daemon was started.
    pub(super) seconds: u64,
    /// Threads that hang.
    pub(super) stuck: u64,
    pub(super) vnics: BTreeMap<String, Vnic>,
    /// Limits of tenants and policies by their names; those without one, too.
    pub(super) tenants: BTreeMap<String, Limits>,
    pub(super) policies: BTreeMap<String, Limits>,
}

/// The last sample, and sums.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) sample: Sample,
    pub(super) vnics: BTreeMap<String, VnicTotals>,
    pub(super) tenants: BTreeMap<String, Counts>,
    pub(super) policies: BTreeMap<String, Counts>,
}

/// The sums of one vNIC.
#[derive(Debug, Default)]
pub(super) struct VnicTotals {
    /// What all its queue pairs had counted, at most.
    last: Counts,
    pub(super) by_path: BTreeMap<PathLabel, Counts>,
}

impl Totals {
    /// Takes over a sample.
    pub(super) fn update(&mut self, mut sample: Sample) {
        self.vnics.retain(|name, _| sample.vnics.contains_key(name));
        for (name, vnic) in &mut sample.vnics {
            let before = self.sample.vnics.get(name).map(|vnic| &vnic.queue_pairs);
            let more = self.vnics.entry(name.clone()).or_default().update(vnic, before);
            add(self.tenants.entry(vnic.tenant.clone()).or_default(), &more);
            for policy in &vnic.policies {
                add(self.policies.entry(policy.clone()).or_default(), &more);
            }
        }
        // Sums of what is no more are forgotten, so names do not accumulate.
        let vnics = &sample.vnics;
        self.tenants.retain(|name, _| {
            sample.tenants.contains_key(name) || vnics.values().any(|vnic| vnic.tenant == *name)
        });
        self.policies.retain(|name, _| sample.policies.contains_key(name));
        self.sample = sample;
    }
}

impl VnicTotals {
    /// Adds what happened since the last sample, which had these queue pairs; all of it.
    fn update(&mut self, vnic: &mut Vnic, before: Option<&BTreeMap<u32, QueuePair>>) -> Counts {
        let mut now = vnic.ended;
        for queue_pair in vnic.queue_pairs.values() {
            add_wrapping(&mut now, &queue_pair.counts);
        }
        let mut left: Counts = std::array::from_fn(|at| now[at].saturating_sub(self.last[at]));
        let all = left;
        for (last, now) in self.last.iter_mut().zip(now) {
            // Less than before: something is missing for a moment, or it began anew.
            *last = if vnic.is_consistent { now } else { now.max(*last) };
        }
        let mut ended = None;
        for (number, old) in before.into_iter().flatten() {
            match vnic.queue_pairs.get_mut(number) {
                Some(same) => {
                    same.path = same.path.or(old.path);
                    self.attribute(same.path, &mut left, |at| {
                        same.counts[at].checked_sub(old.counts[at]).unwrap_or(same.counts[at])
                    });
                }
                None => {
                    let path = old.path.unwrap_or(PathLabel::Unknown);
                    ended = Some(ended.map_or(path, |other: PathLabel| other.with(path)));
                }
            }
        }
        for (number, queue_pair) in &vnic.queue_pairs {
            if before.is_none_or(|before| !before.contains_key(number)) {
                self.attribute(queue_pair.path, &mut left, |at| queue_pair.counts[at]);
            }
        }
        // The rest is of those that have ended.
        let path = ended.filter(|path| *path != PathLabel::Mixed);
        self.attribute(path, &mut left, |_| u64::MAX);
        all
    }

    /// Moves so much, and no more than is left, to a path.
    fn attribute(
        &mut self,
        path: Option<PathLabel>,
        left: &mut Counts,
        much: impl Fn(usize) -> u64,
    ) {
        let part: Counts = std::array::from_fn(|at| left[at].min(much(at)));
        if part.iter().any(|count| *count > 0) {
            add(self.by_path.entry(path.unwrap_or(PathLabel::Unknown)).or_default(), &part);
        }
        for (left, part) in left.iter_mut().zip(part) {
            *left -= part;
        }
    }

    /// A counter over all paths.
    pub(super) fn sum(&self, counter: Counter) -> u64 {
        let of = |counts: &Counts| counts[counter as usize];
        self.by_path.values().map(of).fold(0, u64::saturating_add)
    }
}

/// Adds to sums, which go no further than they can.
fn add(sums: &mut Counts, more: &Counts) {
    for (sum, more) in sums.iter_mut().zip(more) {
        *sum = sum.saturating_add(*more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: [PathLabel; 3] = [PathLabel::Direct, PathLabel::Wire, PathLabel::Unknown];

    fn counts(value: u64) -> Counts {
        std::array::from_fn(|_| value)
    }

    fn vnic(ended: u64, queue_pairs: &[(u32, Option<PathLabel>, u64)]) -> Vnic {
        let pair = |(number, path, value): &(u32, Option<PathLabel>, u64)| {
            (*number, QueuePair { path: *path, counts: counts(*value) })
        };
        Vnic {
            tenant: "blue".into(),
            policies: vec!["gold".into()],
            ended: counts(ended),
            is_consistent: true,
            queue_pairs: queue_pairs.iter().map(pair).collect(),
            ..Vnic::default()
        }
    }

    fn sample(vnics: impl IntoIterator<Item = (&'static str, Vnic)>) -> Sample {
        let vnics = vnics.into_iter().map(|(name, vnic)| (name.to_owned(), vnic)).collect();
        Sample {
            vnics,
            policies: [("gold".to_owned(), Limits::default())].into(),
            ..Sample::default()
        }
    }

    fn paths(totals: &Totals, name: &str) -> [u64; 3] {
        let by_path = &totals.vnics[name].by_path;
        PATHS.map(|path| by_path.get(&path).map_or(0, |counts| counts[0]))
    }

    #[test]
    fn bytes_belong_to_the_path_that_their_queue_pair_was_last_seen_on() {
        let (direct, wire) = (Some(PathLabel::Direct), Some(PathLabel::Wire));
        let mut totals = Totals::default();
        totals.update(sample([("a", vnic(5, &[(1, direct, 10), (2, wire, 3)]))]));
        assert_eq!(paths(&totals, "a"), [10, 3, 5]);
        // One lost its peer before its last bytes were seen.
        totals.update(sample([("a", vnic(5, &[(1, None, 14), (2, wire, 3)]))]));
        assert_eq!(paths(&totals, "a"), [14, 3, 5]);
        // The other one has ended, and had sent more.
        totals.update(sample([("a", vnic(12, &[(1, None, 14)]))]));
        assert_eq!(paths(&totals, "a"), [14, 7, 5]);
        // One came and went between two samples.
        totals.update(sample([("a", vnic(20, &[(1, None, 14)]))]));
        assert_eq!(paths(&totals, "a"), [14, 7, 13]);
        // Another one has the number now.
        totals.update(sample([("a", vnic(34, &[(1, wire, 2)]))]));
        assert_eq!(paths(&totals, "a"), [14, 9, 13]);
        assert_eq!(totals.vnics["a"].sum(Counter::Retries), 36);
        assert_eq!((totals.tenants["blue"][0], totals.policies["gold"][0]), (36, 36));
    }

    #[test]
    fn counters_do_not_go_back() {
        let wire = Some(PathLabel::Wire);
        let mut totals = Totals::default();
        totals.update(sample([("a", vnic(0, &[(1, wire, 10)]))]));
        // It ended between two pieces, and is missing.
        let missing = Vnic { is_consistent: false, ..vnic(0, &[]) };
        totals.update(sample([("a", missing)]));
        assert_eq!(paths(&totals, "a"), [0, 10, 0]);
        totals.update(sample([("a", vnic(11, &[]))]));
        assert_eq!(totals.vnics["a"].sum(Counter::BytesSent), 11);
        // Counters that began anew count on.
        totals.update(sample([("a", vnic(2, &[]))]));
        totals.update(sample([("a", vnic(5, &[]))]));
        assert_eq!(totals.vnics["a"].sum(Counter::BytesSent), 14);
        // A process may claim anything.
        totals.update(sample([("a", vnic(5, &[(7, wire, u64::MAX)]))]));
        totals.update(sample([("a", vnic(5, &[(7, wire, 1)]))]));
        assert!(totals.vnics["a"].sum(Counter::BytesSent) >= 14);
    }

    #[test]
    fn sums_of_a_group_stay_while_there_is_a_group() {
        let mut totals = Totals::default();
        totals.update(sample([("a", vnic(4, &[])), ("b", vnic(3, &[]))]));
        totals.update(sample([("b", vnic(3, &[]))]));
        assert_eq!((totals.tenants["blue"][0], totals.policies["gold"][0]), (7, 7));
        assert!(!totals.vnics.contains_key("a"));
        totals.update(Sample::default());
        assert!(totals.tenants.is_empty() && totals.policies.is_empty());
    }
}
