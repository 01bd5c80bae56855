//! Computes rates of vNICs from two samples of the daemon's counters.
//!
//! In: what `omniverb vnic list` and `omniverb status` have, at two times. Out: rows, sorted.

use omniverb_arguments::TopOrder;
use omniverb_operator_client::counter_rows::{
    Counter, Counts, add_wrapping, counts, number, packets,
};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// What one vNIC has counted, and what holds for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Vnic {
    tenant: String,
    /// Bits per second: the least of the limits that hold for it.
    limit: Option<u64>,
    /// Operations per second: likewise.
    operations_limit: Option<u64>,
    processes: u64,
    queue_pairs: u64,
    paths: BTreeSet<String>,
    counters: Counts,
    /// Packets that faults lost, or found the queue of faults full.
    injected: u64,
    /// Whether no queue pair ended while others were asked for: one may be missing otherwise.
    is_consistent: bool,
}

/// What all vNICs have counted at one time.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    at: Instant,
    vnics: BTreeMap<String, Vnic>,
}

/// A vNIC in the time between two samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) tenant: String,
    /// Bits per second.
    pub(super) sent: u64,
    /// Bits per second.
    pub(super) received: u64,
    /// Messages, READs and atomics per second that were over.
    pub(super) operations: u64,
    /// Bits per second, if there is a limit.
    pub(super) limit: Option<u64>,
    /// Operations per second, if there is a limit.
    pub(super) operations_limit: Option<u64>,
    /// Packets per second.
    pub(super) dropped: u64,
    /// Packets per second.
    pub(super) resent: u64,
    pub(super) processes: u64,
    pub(super) queue_pairs: u64,
    /// That of its queue pairs: `mixed` if there are several, `-` if there is none.
    pub(super) path: String,
}

/// All vNICs in the time between two samples.
#[derive(Clone, Debug, Default)]
pub(super) struct Rates {
    pub(super) rows: Vec<Row>,
    pub(super) interval: Duration,
}

impl Sample {
    /// What `omniverb vnic list` shows, what `omniverb status` shows, and the first once more.
    pub(super) fn new(vnics: &Value, status: &Value, again: &Value, at: Instant) -> Sample {
        let mut found: BTreeMap<String, Vnic> = BTreeMap::new();
        for row in list(vnics, "vnics") {
            let least = |key: &str| {
                let all = list(row, "shared_limits").iter().chain(std::iter::once(row));
                all.filter_map(|one| one[key].as_u64()).min()
            };
            let mut vnic = Vnic {
                tenant: row["tenant"].as_str().unwrap_or("default").to_owned(),
                limit: least("rate"),
                operations_limit: least("ops"),
                ..Vnic::default()
            };
            vnic.counters = counts(&row["ended"]);
            let faults = &row["injected"];
            vnic.injected = number(faults, "lost").wrapping_add(number(faults, "dropped"));
            found.insert(name_of(row), vnic);
        }
        for row in list(status, "vnics") {
            let vnic = found.entry(name_of(row)).or_default();
            for process in list(row, "processes") {
                vnic.processes += 1;
                list(process, "qps").iter().for_each(|qp| vnic.add_queue_pair(qp));
            }
        }
        for (before, after) in list(vnics, "vnics").iter().zip(list(again, "vnics")) {
            let is_same = before["name"] == after["name"] && before["ended"] == after["ended"];
            if let Some(vnic) = found.get_mut(&name_of(before)) {
                vnic.is_consistent = is_same;
            }
        }
        Sample { at, vnics: found }
    }

    /// Replaces counters that went back only since a queue pair was missing.
    pub(super) fn correct(&mut self, before: &Sample) {
        for (name, vnic) in self.vnics.iter_mut().filter(|(_, vnic)| !vnic.is_consistent) {
            if let Some(old) = before.vnics.get(name) {
                for (now, before) in vnic.counters.iter_mut().zip(old.counters) {
                    *now = before.max(*now);
                }
            }
        }
    }
}

impl Vnic {
    fn add_queue_pair(&mut self, qp: &Value) {
        self.queue_pairs += 1;
        add_wrapping(&mut self.counters, &counts(qp));
        if let Some(path) = qp["path"].as_str().filter(|path| *path != "none") {
            self.paths.insert(path.to_owned());
        }
        for peer in list(qp, "peers") {
            add_wrapping(&mut self.counters, &packets(&peer["packets"]));
        }
    }

    fn path(&self) -> String {
        let mut paths = self.paths.iter();
        match (paths.next(), paths.next()) {
            (None, _) => "-".into(),
            (Some(path), None) => path.clone(),
            _ => "mixed".into(),
        }
    }
}

impl Rates {
    /// What happened between two samples. A vNIC that is new has rates from the next one on: what
    /// it counted before is not of this time.
    pub(super) fn new(before: &Sample, now: &Sample, order: TopOrder) -> Rates {
        let interval = now.at.saturating_duration_since(before.at);
        let nanoseconds = interval.as_nanos().max(1);
        let per_second = |now: u64, before: u64, unit: u128| {
            let more = u128::from(now.saturating_sub(before)) * unit * 1_000_000_000;
            u64::try_from(more / nanoseconds).unwrap_or(u64::MAX)
        };
        let row = |(name, vnic): (&String, &Vnic)| {
            let old = before.vnics.get(name).unwrap_or(vnic);
            let of = |vnic: &Vnic, counter: Counter| vnic.counters[counter as usize];
            let rate = |counter, unit| per_second(of(vnic, counter), of(old, counter), unit);
            let dropped = |vnic: &Vnic| of(vnic, Counter::Unsent).wrapping_add(vnic.injected);
            Row {
                name: name.clone(),
                tenant: vnic.tenant.clone(),
                sent: rate(Counter::BytesSent, 8),
                received: rate(Counter::BytesReceived, 8),
                operations: rate(Counter::MessagesSent, 1),
                limit: vnic.limit,
                operations_limit: vnic.operations_limit,
                dropped: per_second(dropped(vnic), dropped(old), 1),
                resent: rate(Counter::Resent, 1),
                processes: vnic.processes,
                queue_pairs: vnic.queue_pairs,
                path: vnic.path(),
            }
        };
        let mut rates = Rates { rows: now.vnics.iter().map(row).collect(), interval };
        rates.sort(order);
        rates
    }

    /// The greatest first, and of equal ones the first by name.
    pub(super) fn sort(&mut self, order: TopOrder) {
        self.rows.sort_by(|one, other| {
            let key = |row: &Row| match order {
                TopOrder::Rate => Some(row.sent.saturating_add(row.received)),
                TopOrder::Limit => row.use_of_limit(),
                TopOrder::Drops => Some(row.dropped),
                TopOrder::Name => None,
            };
            Reverse(key(one)).cmp(&Reverse(key(other))).then_with(|| one.name.cmp(&other.name))
        });
    }

    /// The sum of a column.
    pub(super) fn sum(&self, column: fn(&Row) -> u64) -> u64 {
        self.rows.iter().map(column).fold(0, u64::saturating_add)
    }

    pub(super) fn json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "name": row.name,
                "tenant": row.tenant,
                "sent_bits_per_second": row.sent,
                "received_bits_per_second": row.received,
                "operations_per_second": row.operations,
                "limit_bits_per_second": row.limit,
                "limit_operations_per_second": row.operations_limit,
                "dropped_packets_per_second": row.dropped,
                "resent_packets_per_second": row.resent,
                "processes": row.processes,
                "queue_pairs": row.queue_pairs,
                "path": row.path,
            })
        };
        let rows: Vec<Value> = self.rows.iter().map(row).collect();
        json!({ "interval_seconds": self.interval.as_secs_f64(), "vnics": rows })
    }
}

impl Row {
    /// How much of a limit is used, of bits or of operations, in thousandths: the greater part.
    /// `None` if there is no limit.
    pub(super) fn use_of_limit(&self) -> Option<u64> {
        let part = |used: u64, limit: Option<u64>| {
            u64::try_from(u128::from(used) * 1000 / u128::from(limit?.max(1))).ok()
        };
        part(self.sent, self.limit).max(part(self.operations, self.operations_limit))
    }
}

fn name_of(row: &Value) -> String {
    row["name"].as_str().unwrap_or("?").to_owned()
}

fn list<'a>(row: &'a Value, key: &str) -> &'a [Value] {
    row[key].as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vnics(ended: u64) -> Value {
        json!({ "vnics": [
            { "name": "a", "tenant": "blue", "rate": 8_000_000, "ended": { "bytes_sent": ended },
              "injected": { "lost": 2, "dropped": 1 }, "ops": 5000,
              "shared_limits": [{ "rate": 4_000_000 }, { "rate": null, "ops": 9000 }] },
            { "name": "b", "tenant": "default", "rate": null, "ops": null,
              "ended": { "bytes_sent": 5 } },
        ]})
    }

    fn sample(at: Instant, ended: [u64; 2], sent: u64, unsent: u64) -> Sample {
        let qp = |path: &str, bytes: u64| {
            json!({ "path": path, "bytes_sent": bytes, "messages_sent": bytes / 100,
                    "peers": [{ "packets": { "unsent": unsent, "resent": 2 * unsent } }] })
        };
        let status = json!({ "vnics": [
            { "name": "a", "processes": [{ "qps": [qp("forwarded", sent), qp("none", 0)] }] },
            { "name": "b", "processes": [] },
        ]});
        Sample::new(&vnics(ended[0]), &status, &vnics(ended[1]), at)
    }

    #[test]
    fn rates_are_differences_over_time() {
        let begun = Instant::now();
        let before = sample(begun, [1000, 1000], 1000, 1);
        let now = sample(begun + Duration::from_millis(500), [1000, 1000], 126_000, 3);
        let rates = Rates::new(&before, &now, TopOrder::Rate);
        let [a, b] = rates.rows.as_slice() else { panic!("{rates:?}") };
        assert_eq!((a.sent, a.operations, a.dropped, a.resent), (2_000_000, 2500, 8, 16));
        assert_eq!((a.limit, a.use_of_limit(), a.queue_pairs), (Some(4_000_000), Some(500), 2));
        assert_eq!((a.operations_limit, b.operations_limit), (Some(5000), None));
        let held_back = Row { operations: 4500, ..a.clone() };
        assert_eq!(held_back.use_of_limit(), Some(900), "the greater part");
        assert_eq!((&*a.path, &*b.path, b.sent, a.processes), ("forwarded", "-", 0, 1));
        assert_eq!((rates.sum(|row| row.sent), rates.rows.len()), (2_000_000, 2));
        let json = rates.json();
        assert_eq!(json["interval_seconds"], 0.5);
        assert_eq!(json["vnics"][0]["sent_bits_per_second"], 2_000_000);
        assert_eq!(json["vnics"][0]["limit_operations_per_second"], 5000);
        assert_eq!(json["vnics"][1]["limit_bits_per_second"], Value::Null);
        // Counters that began anew are no traffic, and neither is what a new vNIC counted before.
        assert_eq!(Rates::new(&now, &before, TopOrder::Rate).sum(|row| row.sent), 0);
        let nothing = Sample { at: begun, vnics: BTreeMap::new() };
        assert_eq!(Rates::new(&nothing, &now, TopOrder::Rate).sum(|row| row.sent), 0);
    }

    #[test]
    fn a_queue_pair_that_is_missing_for_a_moment_makes_no_traffic_later() {
        let begun = Instant::now();
        let second = Duration::from_secs(1);
        let before = sample(begun, [0, 0], 1000, 0);
        // It ended behind the first look at what has ended.
        let mut missing = sample(begun + second, [0, 1000], 0, 0);
        missing.correct(&before);
        assert_eq!(Rates::new(&before, &missing, TopOrder::Rate).rows[0].sent, 0);
        let after = sample(begun + 2 * second, [1000, 1000], 0, 0);
        assert_eq!(Rates::new(&missing, &after, TopOrder::Rate).rows[0].sent, 0);
    }

    #[test]
    fn each_order_puts_the_greatest_first() {
        let row = |name: &str, sent, limit, dropped| Row {
            name: name.into(),
            sent,
            limit,
            dropped,
            ..Row::default()
        };
        let rows = vec![row("x", 5, None, 1), row("y", 9, Some(90), 0), row("z", 1, Some(2), 3)];
        let mut rates = Rates { rows, ..Rates::default() };
        for (order, names) in [
            (TopOrder::Rate, "yxz"),
            (TopOrder::Limit, "zyx"),
            (TopOrder::Drops, "zxy"),
            (TopOrder::Name, "xyz"),
        ] {
            rates.sort(order);
            let found: String = rates.rows.iter().map(|row| row.name.as_str()).collect();
            assert_eq!(found, names, "{order:?}");
        }
    }
}
