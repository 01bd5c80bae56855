//! Writes metrics in the OpenMetrics text format, by the crate `prometheus-client`.
//!
//! Names follow node_exporter's for InfiniBand where it has the same thing. Counters end in
//! `_total`. Labels are names of vNICs, tenants and policies, words of this file, and names of
//! errors: no program makes one. A counter that is zero is left out, but for bytes and messages.

use super::counter_totals::{Limits, PathLabel, Totals, Vnic, VnicTotals};
use omniverb_operator_client::counter_rows::{Counter, Counts};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Counters by path: of vNICs, and in sums of tenants and policies.
const BY_PATH: [(&str, &str, Counter); 6] = [
    ("data_transmitted_bytes", "Bytes of messages sent", Counter::BytesSent),
    ("data_received_bytes", "Bytes of messages received", Counter::BytesReceived),
    ("messages_transmitted", "Messages sent", Counter::MessagesSent),
    ("messages_received", "Messages received", Counter::MessagesReceived),
    (
        "packets_transmitted",
        "Packets sent by the daemon, none of direct links",
        Counter::PacketsSent,
    ),
    (
        "packets_received",
        "Packets received by the daemon, none of direct links",
        Counter::PacketsReceived,
    ),
];

/// Counters of vNICs that have no path.
const OF_VNICS: [(&str, &str, Counter); 6] = [
    ("resent_packets", "Packets sent again", Counter::Resent),
    ("duplicate_requests_packets", "Packets that arrived again", Counter::Duplicates),
    ("out_of_sequence_packets_received", "Gaps before requests of peers", Counter::OutOfOrder),
    ("rnr_nak_retry_packets_received", "RNR NAKs received", Counter::NotReady),
    ("packet_sequence_errors", "NAKs received for gaps in what was sent", Counter::Gaps),
    (
        "local_ack_timeout_errors",
        "Times that sending began anew for want of an acknowledgement",
        Counter::Retries,
    ),
];

/// All metrics of these sums, and of the server itself.
///
/// # Errors
/// None that are known: text has room for all.
pub(super) fn render(totals: &Totals, server: &Server) -> Result<String, fmt::Error> {
    let mut families = of_daemon(totals, server);
    of_vnics(totals, &mut families);
    let vnics = &totals.sample.vnics;
    let mut counted = BTreeMap::new();
    for vnic in vnics.values() {
        *counted.entry(vnic.tenant.as_str()).or_default() += 1;
    }
    of_groups("tenant", (&totals.tenants, &totals.sample.tenants), &counted, &mut families);
    let mut counted = BTreeMap::new();
    for policy in vnics.values().flat_map(|vnic| &vnic.policies) {
        *counted.entry(policy.as_str()).or_default() += 1;
    }
    of_groups("policy", (&totals.policies, &totals.sample.policies), &counted, &mut families);
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Families(families)));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}

/// Facts about the server of metrics itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Server {
    /// Connections that were refused, since there were too many.
    pub(super) refused: u64,
    /// Nanoseconds that asking the daemon took.
    pub(super) query_ns: u64,
}

/// The labels of one metric.
type Labels = Vec<(&'static str, String)>;

#[derive(Clone, Copy, Debug)]
enum Value {
    Counter(u64),
    Gauge(u64),
    Seconds(f64),
}

impl Value {
    fn encode(self, encoder: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Value::Counter(value) => ConstCounter::new(value).encode(encoder),
            Value::Gauge(value) => {
                ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(encoder)
            }
            Value::Seconds(value) => ConstGauge::new(value).encode(encoder),
        }
    }
}

/// Metrics of one name.
#[derive(Debug)]
struct Family {
    name: String,
    help: String,
    rows: Vec<(Labels, Value)>,
}

#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for Family { name, help, rows } in &self.0 {
            let kind = match rows.first() {
                None => continue,
                Some((_, Value::Counter(_))) => MetricType::Counter,
                Some((_, Value::Gauge(_) | Value::Seconds(_))) => MetricType::Gauge,
            };
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            if let [(labels, value)] = rows.as_slice()
                && labels.is_empty()
            {
                value.encode(family)?;
                continue;
            }
            for (labels, value) in rows {
                value.encode(family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

fn family(name: &str, help: &str, rows: Vec<(Labels, Value)>) -> Family {
    Family { name: name.to_owned(), help: help.to_owned(), rows }
}

fn of_daemon(totals: &Totals, server: &Server) -> Vec<Family> {
    let sample = &totals.sample;
    let one = |value| vec![(Labels::new(), value)];
    let version = vec![("version", sample.version.clone())];
    let seconds = Value::Seconds(sample.seconds as f64);
    vec![
        family("omniverb_build_info", "The daemon", vec![(version, Value::Gauge(1))]),
        family("omniverb_uptime_seconds", "Time since the daemon was started", one(seconds)),
        family("omniverb_stuck_threads", "Threads of the daemon that hang", {
            one(Value::Gauge(sample.stuck))
        }),
        family("omniverb_vnics", "vNICs that have processes or were given something", {
            one(Value::Gauge(sample.vnics.len() as u64))
        }),
        family("omniverb_scrapes_refused", "Connections refused as there were too many", {
            one(Value::Counter(server.refused))
        }),
        family("omniverb_query_seconds", "Time that the last look at all queue pairs took", {
            one(Value::Seconds(server.query_ns as f64 / 1e9))
        }),
    ]
}

/// A vNIC with its labels and its sums.
struct VnicRow<'a> {
    labels: Labels,
    vnic: &'a Vnic,
    totals: Option<&'a VnicTotals>,
}

impl VnicRow<'_> {
    fn labels_with(&self, key: &'static str, word: &str) -> Labels {
        let mut labels = self.labels.clone();
        labels.push((key, word.to_owned()));
        labels
    }

    fn sum(&self, counter: Counter) -> u64 {
        self.totals.map_or(0, |totals| totals.sum(counter))
    }
}

fn of_vnics(totals: &Totals, families: &mut Vec<Family>) {
    let rows: Vec<VnicRow<'_>> = totals
        .sample
        .vnics
        .iter()
        .map(|(name, vnic)| VnicRow {
            labels: vec![("vnic", name.clone()), ("tenant", vnic.tenant.clone())],
            vnic,
            totals: totals.vnics.get(name),
        })
        .collect();
    counters_of_vnics(&rows, families);
    gauges_of_vnics(&rows, families);
}

fn counters_of_vnics(rows: &[VnicRow<'_>], families: &mut Vec<Family>) {
    let mut push = |name: &str, help: &str, rows: Vec<(Labels, Value)>| {
        families.push(family(&format!("omniverb_{name}"), help, rows));
    };
    for (name, help, counter) in BY_PATH {
        let of = rows.iter().flat_map(|row| {
            let none = [(PathLabel::Unknown, Counts::default())];
            let paths = row.totals.map(|totals| &totals.by_path).filter(|paths| !paths.is_empty());
            let paths: Vec<_> = match paths {
                Some(paths) => paths.iter().map(|(path, counts)| (*path, *counts)).collect(),
                None => none.to_vec(),
            };
            paths.into_iter().filter_map(move |(path, counts)| {
                let value = counts[counter as usize];
                let is_packets = matches!(counter, Counter::PacketsSent | Counter::PacketsReceived);
                (value > 0 || !is_packets)
                    .then(|| (row.labels_with("path", path.name()), Value::Counter(value)))
            })
        });
        push(&format!("port_{name}"), help, of.collect());
    }
    for (name, help, counter) in OF_VNICS {
        let of = rows.iter().map(|row| (row.labels.clone(), row.sum(counter)));
        push(name, help, counters(of));
    }
    let words = [("mapped", Counter::Mapped), ("mediated", Counter::Mediated)];
    let of = rows.iter().flat_map(|row| {
        words.map(|(word, counter)| (row.labels_with("execution", word), row.sum(counter)))
    });
    push("operations", "WRITEs, READs and atomics on direct links", counters(of));
    let of = rows.iter().flat_map(|row| {
        let [lost, dropped] = row.vnic.faults;
        let unsent = row.sum(Counter::Unsent);
        [("unsent", unsent), ("fault_loss", lost), ("fault_limit", dropped)]
            .map(|(reason, count)| (row.labels_with("reason", reason), count))
    });
    push("dropped_packets", "Packets dropped by the daemon", counters(of));
    let words = [("transport", Counter::RetriesExceeded), ("rnr", Counter::RnrRetriesExceeded)];
    let of = rows.iter().flat_map(|row| {
        words.map(|(word, counter)| (row.labels_with("reason", word), row.sum(counter)))
    });
    push("retries_exceeded", "Queue pairs that failed since a peer did not answer", counters(of));
    let of = rows.iter().flat_map(|row| {
        let of = |(error, count): (&String, &u64)| (row.labels_with("error", error), *count);
        row.vnic.refused.iter().map(of)
    });
    push("refused_calls", "Calls of programs that the daemon refused", counters(of));
}

fn gauges_of_vnics(rows: &[VnicRow<'_>], families: &mut Vec<Family>) {
    let mut paths = Vec::new();
    for row in rows {
        let mut counted: BTreeMap<&str, u64> = BTreeMap::new();
        for queue_pair in row.vnic.queue_pairs.values() {
            *counted.entry(queue_pair.path.map_or("none", PathLabel::name)).or_default() += 1;
        }
        paths.extend(
            counted
                .into_iter()
                .map(|(path, count)| (row.labels_with("path", path), Value::Gauge(count))),
        );
    }
    families.push(family("omniverb_queue_pairs", "Queue pairs by path", paths));
    type Gauge = (&'static str, &'static str, fn(&Vnic) -> Option<u64>);
    let gauges: [Gauge; 6] = [
        ("omniverb_processes", "Processes with an open device", |vnic| Some(vnic.processes)),
        ("omniverb_memory_regions", "Memory regions with remote access", |vnic| {
            Some(vnic.memory_regions)
        }),
        ("omniverb_links", "Ends of links", |vnic| Some(vnic.links)),
        ("omniverb_cm_ids", "Ids of the connection manager", |vnic| Some(vnic.cm_ids)),
        (
            "omniverb_vnic_limit_bits_per_second",
            "What it may send in a second, if it has a rate of its own",
            |vnic| vnic.limits.bits,
        ),
        (
            "omniverb_vnic_limit_operations_per_second",
            "Operations that it may begin in a second, if it has a limit of its own",
            |vnic| vnic.limits.operations,
        ),
    ];
    for (name, help, value) in gauges {
        let of = rows
            .iter()
            .filter_map(|row| Some((row.labels.clone(), Value::Gauge(value(row.vnic)?))));
        families.push(family(name, help, of.collect()));
    }
    let states = rows.iter().map(|row| {
        let state = match row.vnic.encryption.as_str() {
            "" | "none" => "none",
            "psp" => "psp",
            _ => "unavailable",
        };
        (row.labels_with("state", state), Value::Gauge(1))
    });
    families.push(family("omniverb_encryption", "State of encryption between hosts", {
        states.collect()
    }));
}

/// Counters that have counted something.
fn counters(rows: impl Iterator<Item = (Labels, u64)>) -> Vec<(Labels, Value)> {
    let rows = rows.filter(|(_, count)| *count > 0);
    rows.map(|(labels, count)| (labels, Value::Counter(count))).collect()
}

/// Sums of a kind of groups, and limits of those that were described.
fn of_groups(
    kind: &'static str,
    (sums, limits): (&BTreeMap<String, Counts>, &BTreeMap<String, Limits>),
    counted: &BTreeMap<&str, u64>,
    families: &mut Vec<Family>,
) {
    let names: BTreeSet<&String> = sums.keys().chain(limits.keys()).collect();
    let labels = |name: &str| vec![(kind, name.to_owned())];
    for (end, help, counter) in BY_PATH {
        let rows = names.iter().map(|name| {
            let sum = sums.get(*name).map_or(0, |counts| counts[counter as usize]);
            (labels(name), Value::Counter(sum))
        });
        let help = format!("{help}, of all its vNICs");
        families.push(family(&format!("omniverb_{kind}_{end}"), &help, rows.collect()));
    }
    let rows = names
        .iter()
        .map(|name| (labels(name), Value::Gauge(counted.get(name.as_str()).copied().unwrap_or(0))));
    families.push(family(&format!("omniverb_{kind}_vnics"), "vNICs that belong to it", {
        rows.collect()
    }));
    type Limit = (&'static str, &'static str, fn(&Limits) -> Option<u64>);
    let of_both: [Limit; 2] = [
        ("bits", "Its rate, if it has one", |limits| limits.bits),
        ("operations", "Operations in a second, if they are limited", |limits| limits.operations),
    ];
    for (unit, help, limit) in of_both {
        let rows = limits
            .iter()
            .filter_map(|(name, limits)| Some((labels(name), Value::Gauge(limit(limits)?))));
        let name = format!("omniverb_{kind}_limit_{unit}_per_second");
        families.push(family(&name, help, rows.collect()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::counter_totals::{QueuePair, Sample};
    use super::*;

    fn totals() -> Totals {
        let counts: Counts = std::array::from_fn(|at| at as u64 + 1);
        let path = Some(PathLabel::Wire);
        let vnic = Vnic {
            tenant: "blue \"1\"\n".into(),
            policies: vec!["gold".into()],
            processes: 2,
            memory_regions: 7,
            limits: Limits { bits: Some(8_000_000), operations: Some(500) },
            encryption: "psp, but UDP port 1000 cannot be opened".into(),
            refused: [("ENOMEM".to_owned(), 3)].into(),
            faults: [0, 9],
            is_consistent: true,
            queue_pairs: [(4, QueuePair { path, counts }), (5, QueuePair::default())].into(),
            ..Vnic::default()
        };
        let quiet = Vnic { tenant: "default".into(), ..Vnic::default() };
        let gold = Limits { bits: Some(80), operations: Some(70) };
        let mut totals = Totals::default();
        totals.update(Sample {
            version: "0.1.0".into(),
            vnics: [("vnic-1".to_owned(), vnic), ("host".to_owned(), quiet)].into(),
            policies: [("gold".to_owned(), gold), ("other".to_owned(), Limits::default())].into(),
            ..Sample::default()
        });
        totals
    }

    #[test]
    fn the_text_has_each_family_once_with_its_rows() {
        let text = render(&totals(), &Server { refused: 5, query_ns: 1_500_000_000 }).unwrap();
        let has = |line: &str| assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        has("omniverb_scrapes_refused_total 5");
        has("omniverb_query_seconds 1.5");
        has("omniverb_build_info{version=\"0.1.0\"} 1");
        let labels = r#"vnic="vnic-1",tenant="blue \"1\"\n""#;
        has(&format!("omniverb_port_data_transmitted_bytes_total{{{labels},path=\"wire\"}} 1"));
        has(&format!("omniverb_port_packets_received_total{{{labels},path=\"wire\"}} 6"));
        has(&format!("omniverb_operations_total{{{labels},execution=\"mediated\"}} 8"));
        has(&format!("omniverb_dropped_packets_total{{{labels},reason=\"unsent\"}} 11"));
        has(&format!("omniverb_dropped_packets_total{{{labels},reason=\"fault_limit\"}} 9"));
        has(&format!("omniverb_refused_calls_total{{{labels},error=\"ENOMEM\"}} 3"));
        has(&format!("omniverb_retries_exceeded_total{{{labels},reason=\"rnr\"}} 17"));
        has(&format!("omniverb_queue_pairs{{{labels},path=\"none\"}} 1"));
        has(&format!("omniverb_memory_regions{{{labels}}} 7"));
        has(&format!("omniverb_encryption{{{labels},state=\"unavailable\"}} 1"));
        has(&format!("omniverb_vnic_limit_bits_per_second{{{labels}}} 8000000"));
        let quiet = r#"vnic="host",tenant="default""#;
        has(&format!("omniverb_port_data_received_bytes_total{{{quiet},path=\"unknown\"}} 0"));
        has("omniverb_policy_limit_bits_per_second{policy=\"gold\"} 80");
        has(&format!("omniverb_vnic_limit_operations_per_second{{{labels}}} 500"));
        has("omniverb_policy_limit_operations_per_second{policy=\"gold\"} 70");
        has("omniverb_policy_vnics{policy=\"other\"} 0");
        has("omniverb_policy_packets_transmitted_total{policy=\"gold\"} 5");
        has("omniverb_tenant_vnics{tenant=\"default\"} 1");
        has("# TYPE omniverb_local_ack_timeout_errors counter");
        let kinds: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let names: BTreeSet<&str> = kinds.iter().copied().collect();
        assert_eq!(kinds.len(), names.len());
        assert!(text.ends_with("\n# EOF\n"));
    }
}
