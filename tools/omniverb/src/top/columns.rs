//! Defines the columns of `omniverb top`, and what stands in them.

use super::vnic_rates::{Row, Sample};
use crate::operator_connection::Operator;
use omniverb_arguments::TopOrder;
use omniverb_session::tc_units::{show_ops, show_rate};
use std::time::Instant;

/// Columns, in the order in which they are shown.
pub(super) const HEADERS: [&str; 13] = [
    "VNIC",
    "TENANT",
    "SENT/s",
    "RECEIVED/s",
    "LIMIT",
    "USE%",
    "DROPS/s",
    "PATH",
    "OPS/s",
    "OPS-LIMIT",
    "RESENT/s",
    "QPs",
    "PROCESSES",
];
pub(super) const COLUMNS: usize = HEADERS.len();

/// What the daemon says now.
pub(super) fn sample(operator: &Operator) -> anyhow::Result<Sample> {
    let (vnics, status) = (operator.vnics()?, operator.status()?);
    let at = Instant::now();
    Ok(Sample::new(&vnics, &status, &operator.vnics()?, at))
}

/// The cells of a row, in the order of the columns.
pub(super) fn cells(row: &Row) -> [String; COLUMNS] {
    [
        row.name.clone(),
        row.tenant.clone(),
        short_rate(row.sent),
        short_rate(row.received),
        row.limit.map_or_else(|| "-".into(), show_rate),
        row.use_of_limit().map_or_else(|| "-".into(), |part| (part / 10).to_string()),
        row.dropped.to_string(),
        row.path.clone(),
        row.operations.to_string(),
        row.operations_limit.map_or_else(|| "-".into(), show_ops),
        row.resent.to_string(),
        row.queue_pairs.to_string(),
        row.processes.to_string(),
    ]
}

/// A measured rate in three digits, as `2.03mbit`.
pub(super) fn short_rate(bits: u64) -> String {
    let units =
        [(1_000_000_000_000, "tbit"), (1_000_000_000, "gbit"), (1_000_000, "mbit"), (1000, "kbit")];
    let Some((unit, word)) = units.into_iter().find(|(unit, _)| bits >= *unit) else {
        return format!("{bits}bit");
    };
    let (whole, hundredths) = (bits / unit, bits % unit / (unit / 100));
    match whole {
        0..=9 => format!("{whole}.{hundredths:02}{word}"),
        10..=99 => format!("{whole}.{}{word}", hundredths / 10),
        _ => format!("{whole}{word}"),
    }
}

/// The order behind this one.
pub(super) fn next_order(order: TopOrder) -> TopOrder {
    match order {
        TopOrder::Rate => TopOrder::Limit,
        TopOrder::Limit => TopOrder::Drops,
        TopOrder::Drops => TopOrder::Name,
        TopOrder::Name => TopOrder::Rate,
    }
}
