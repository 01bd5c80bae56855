//! Asks the daemon, by its operators' socket, what its vNICs have counted.
//!
//! The rows are those of `omniverb status --json`. The thread that decides answers piece by piece
//! between its other work, so a scrape holds nothing up.

use super::counter_totals::{Limits, PathLabel, QueuePair, Sample, Vnic};
use anyhow::{Context, ensure};
use omniverb_operator_client::counter_rows::{add_wrapping, counts, number, packets};
use omniverb_operator_client::{Connection, each_row};
use omniverb_session::body::Cursor;
use omniverb_session::operator::{Message, QueryAll, QueryObjects, QueryVnics};
use omniverb_session::tc_units;
use rustix::process::geteuid;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// Budget: queue pairs that a sample has; those beyond are counted without their path.
const QUEUE_PAIRS_MAX: usize = 65536;
/// How long the daemon may take for one piece.
const PIECE_TIME: Duration = Duration::from_secs(5);
/// How long it may take for all of them.
const SAMPLE_TIME: Duration = Duration::from_secs(20);

/// What the daemon with this operators' socket says now.
///
/// # Errors
/// It does not answer, or takes too long.
pub(super) fn sample(socket: &Path) -> anyhow::Result<Sample> {
    let daemon = Daemon::connect(socket)?;
    let mut rows = Rows::default();
    daemon.rows(|from| QueryObjects { from }.into(), &mut rows)?;
    // What has ended before and behind what has not: see `counter_totals`.
    daemon.rows(|from| QueryVnics { from }.into(), &mut rows)?;
    daemon.rows(|from| QueryAll { from }.into(), &mut rows)?;
    rows.is_again = true;
    daemon.rows(|from| QueryVnics { from }.into(), &mut rows)?;
    Ok(rows.sample())
}

struct Daemon {
    connection: Connection,
    deadline: Instant,
}

impl Daemon {
    fn connect(path: &Path) -> anyhow::Result<Daemon> {
        let shown = path.display();
        let connection =
            Connection::connect(path).with_context(|| format!("cannot connect to {shown}"))?;
        ensure!(
            connection.owner() == geteuid().as_raw(),
            "another user's daemon listens at {shown}"
        );
        Ok(Daemon { connection, deadline: Instant::now() + SAMPLE_TIME })
    }

    fn rows(&self, ask: impl Fn(Cursor) -> Message, rows: &mut Rows) -> anyhow::Result<()> {
        let take = |text: &[u8]| {
            ensure!(Instant::now() < self.deadline, "the daemon did not answer in {SAMPLE_TIME:?}");
            each_row(text, &mut |kind, row| {
                rows.row(kind, &row);
                Ok(())
            })?;
            Ok(())
        };
        self.connection.pieces(PIECE_TIME, ask, take).map(drop)
    }
}

/// A sample under construction.
#[derive(Default)]
struct Rows {
    sample: Sample,
    /// Policies of vNICs that were described, by the names of these objects.
    described: BTreeMap<String, Vec<String>>,
    /// vNICs are seen for the second time.
    is_again: bool,
    /// The vNIC that rows of processes belong to.
    vnic: Option<String>,
    /// The queue pair that rows of peers belong to.
    queue_pair: Option<(u32, QueuePair)>,
    queue_pairs: usize,
}

impl Rows {
    fn row(&mut self, kind: &str, row: &Value) {
        if kind != "peer" && kind != "waiting_for" {
            self.end_queue_pair();
        }
        match kind {
            "daemon" => {
                self.sample.version = text(row, "version");
                self.sample.seconds = number(row, "seconds");
                self.sample.stuck = row["stuck"].as_array().map_or(0, |all| all.len() as u64);
            }
            "object" => self.object(row),
            "vnic" if row["ended"].is_object() && self.is_again => self.vnic_again(row),
            "vnic" if row["ended"].is_object() => self.vnic_policy(row),
            "vnic" => {
                let name = text(row, "name");
                let vnic = self.sample.vnics.entry(name.clone()).or_default();
                vnic.tenant = text(row, "tenant");
                vnic.encryption = text(row, "encryption");
                vnic.cm_ids = number(row, "cm_ids");
                self.vnic = Some(name);
            }
            "process" => {
                if let Some(vnic) = self.current() {
                    vnic.processes += 1;
                    vnic.memory_regions += number(row, "mrs");
                    vnic.links += number(row, "links");
                }
            }
            "qp" => {
                let qpn = u32::try_from(number(row, "qpn")).unwrap_or(u32::MAX);
                self.queue_pair = Some((qpn, QueuePair { path: None, counts: counts(row) }));
            }
            "peer" => {
                if let Some((_, queue_pair)) = &mut self.queue_pair {
                    let path = PathLabel::named(row["path"].as_str().unwrap_or_default());
                    queue_pair.path = Some(queue_pair.path.map_or(path, |other| other.with(path)));
                    add_wrapping(&mut queue_pair.counts, &packets(&row["packets"]));
                }
            }
            _ => {}
        }
    }

    fn current(&mut self) -> Option<&mut Vnic> {
        self.sample.vnics.get_mut(self.vnic.as_ref()?)
    }

    fn end_queue_pair(&mut self) {
        let Some((qpn, queue_pair)) = self.queue_pair.take() else { return };
        let has_room = self.queue_pairs < QUEUE_PAIRS_MAX;
        self.queue_pairs += 1;
        match self.current() {
            Some(vnic) if has_room => drop(vnic.queue_pairs.insert(qpn, queue_pair)),
            Some(vnic) => add_wrapping(&mut vnic.ended, &queue_pair.counts),
            None => {}
        }
    }

    /// A tenant, a policy, or a vNIC as it was described.
    fn object(&mut self, row: &Value) {
        let (name, fields) = (text(row, "name"), &row["fields"]);
        let rate = &fields["rate"];
        let bits = rate.as_str().and_then(|rate| tc_units::rate(rate).ok()).or(rate.as_u64());
        let operations = fields["ops"].as_str().and_then(|ops| tc_units::ops(ops).ok());
        let limits =
            Limits { bits: bits.filter(|rate| *rate > 0), operations: operations.map(u64::from) };
        match row["kind"].as_str() {
            Some("tenant") => drop(self.sample.tenants.insert(name, limits)),
            Some("policy") => drop(self.sample.policies.insert(name, limits)),
            Some("address") => {}
            _ => {
                let policies = fields["policies"].as_array().into_iter().flatten();
                let names = policies.filter_map(|name| name.as_str().map(str::to_owned));
                self.described.insert(name, names.collect());
            }
        }
    }

    /// What holds for a vNIC, and what has ended there.
    fn vnic_policy(&mut self, row: &Value) {
        let described = row["object"].as_str().and_then(|name| self.described.get(name));
        let faults = &row["injected"];
        let refused = row["refused_calls"].as_object().into_iter().flatten();
        let vnic = Vnic {
            tenant: text(row, "tenant"),
            policies: described.cloned().unwrap_or_default(),
            limits: Limits { bits: row["rate"].as_u64(), operations: row["ops"].as_u64() },
            encryption: text(row, "encryption"),
            refused: refused.map(|(error, n)| (error.clone(), n.as_u64().unwrap_or(0))).collect(),
            faults: [number(faults, "lost"), number(faults, "dropped")],
            ended: counts(&row["ended"]),
            ..Vnic::default()
        };
        self.sample.vnics.insert(text(row, "name"), vnic);
    }

    /// A vNIC once more, behind all queue pairs that have not ended.
    fn vnic_again(&mut self, row: &Value) {
        if let Some(vnic) = self.sample.vnics.get_mut(&text(row, "name")) {
            vnic.is_consistent = vnic.ended == counts(&row["ended"]);
        }
    }

    fn sample(mut self) -> Sample {
        self.end_queue_pair();
        self.sample
    }
}

fn text(row: &Value, key: &str) -> String {
    row[key].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_operator_client::CallError;
    use omniverb_operator_client::counter_rows::Counter;

    fn add(rows: &mut Rows, line: &str) -> Result<(), CallError> {
        each_row(line.as_bytes(), &mut |kind, row| {
            rows.row(kind, &row);
            Ok(())
        })
    }

    fn rows(lines: &[&str]) -> Rows {
        let mut rows = Rows::default();
        lines.iter().for_each(|line| add(&mut rows, line).unwrap());
        rows
    }

    #[test]
    fn rows_become_a_sample() {
        let ended = r#"{"vnic":{"name":"vnic-1","tenant":"blue","object":"web","rate":80,"ops":90,
            "encryption":"psp","refused_calls":{"ENOMEM":2},"injected":{"lost":4,"dropped":1},
            "ended":{"bytes_sent":5,"packets":{"sent":2}}}}"#
            .replace('\n', "");
        let mut rows = rows(&[
            r#"{"object":{"kind":"tenant","name":"blue","fields":{"rate":"8mbit"}}}"#,
            r#"{"object":{"kind":"policy","name":"gold","fields":{"mode":"each","ops":"2500/s"}}}"#,
            r#"{"object":{"kind":"vnic","name":"web","fields":{"policies":["gold"]}}}"#,
            &ended,
            r#"{"daemon":{"version":"0.1.0","seconds":9,"stuck":[{}]}}"#,
            r#"{"vnic":{"name":"vnic-1","tenant":"blue","encryption":"psp","cm_ids":3}}"#,
            r#"{"process":{"mrs":2,"links":4}}"#,
            r#"{"qp":{"qpn":7,"bytes_sent":10,"operations_mapped":3}}"#,
            r#"{"peer":{"path":"direct","packets":null}}"#,
            r#"{"qp":{"qpn":8,"bytes_sent":1,"retries_exceeded":1}}"#,
            r#"{"peer":{"path":"wire","packets":{"sent":4,"retries":1}}}"#,
            r#"{"peer":{"path":"direct"}}"#,
            r#"{"qp":{"qpn":9}}"#,
            r#"{"waiting_for":3}"#,
        ]);
        rows.is_again = true;
        add(&mut rows, &ended).unwrap();
        let sample = rows.sample();
        assert_eq!((sample.seconds, sample.stuck), (9, 1));
        let blue = Limits { bits: Some(8_000_000), operations: None };
        let gold = Limits { bits: None, operations: Some(2500) };
        assert_eq!((sample.tenants["blue"], sample.policies["gold"]), (blue, gold));
        let vnic = &sample.vnics["vnic-1"];
        assert_eq!((vnic.limits.bits, vnic.limits.operations), (Some(80), Some(90)));
        assert_eq!((vnic.processes, vnic.memory_regions), (1, 2));
        assert_eq!((vnic.links, vnic.cm_ids, vnic.refused["ENOMEM"]), (4, 3, 2));
        assert_eq!((&vnic.policies[..], vnic.faults), (&["gold".to_owned()][..], [4, 1]));
        assert!(vnic.is_consistent);
        let of = |qpn: u32, counter: Counter| vnic.queue_pairs[&qpn].counts[counter as usize];
        assert_eq!((of(7, Counter::BytesSent), of(7, Counter::Mapped)), (10, 3));
        assert_eq!((of(8, Counter::PacketsSent), of(8, Counter::RetriesExceeded)), (4, 1));
        assert_eq!(of(8, Counter::Retries), 1);
        assert_eq!(vnic.ended[Counter::PacketsSent as usize], 2);
        let paths: Vec<_> = vnic.queue_pairs.values().map(|queue_pair| queue_pair.path).collect();
        assert_eq!(paths, [Some(PathLabel::Direct), Some(PathLabel::Mixed), None]);
        assert!(add(&mut Rows::default(), "{").is_err());
    }

    #[test]
    fn what_ended_meanwhile_makes_a_vnic_inconsistent() {
        let row =
            |sent: u64| format!(r#"{{"vnic":{{"name":"a","ended":{{"bytes_sent":{sent}}}}}}}"#);
        let mut rows = rows(&[&row(5)]);
        rows.is_again = true;
        add(&mut rows, &row(6)).unwrap();
        assert!(!rows.sample().vnics["a"].is_consistent);
    }
}
