//! Sums the counters of queue pairs: of the existing ones, and of each vNIC's former ones.
//!
//! A device's counters do not go back when a program ends. They do when the vNIC is another: a
//! former vNIC is [forgotten](Counters::forget), and a virtual machine's, which keeps its name and
//! settings, [begins anew](Counters::begin) with each machine.
//!
//! The programs write the words, so the sums are shown and used for nothing else. The engine counts
//! packets.

use crate::engine::QpCounters;
use omniverb_session::limits::STATISTICS_WORDS;
use omniverb_sys::extent::FileId;
use omniverb_tenancy::VnicId;
use omniverb_terms::Errno;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The words of a statistics slot. The first names the queue pair.
pub(crate) type Slot = [u64; STATISTICS_WORDS];

/// By vNIC, for as long as that is remembered: the sums of what slots had at last.
#[derive(Debug, Default)]
pub(crate) struct Counters(BTreeMap<VnicId, Totals>);

#[derive(Debug, Default)]
struct Totals {
    /// Of a machine's: the window of that machine.
    window: Option<FileId>,
    words: Slot,
    /// Calls of its processes that were refused, by the error.
    refused: BTreeMap<Errno, u64>,
}

impl Counters {
    /// Whether the machine with this window is the one that had this vNIC last: its proxy may have
    /// ended meanwhile and the machine have gone on.
    pub(crate) fn are_of(&self, vnic: VnicId, window: FileId) -> bool {
        self.0.get(&vnic).is_some_and(|totals| totals.window == Some(window))
    }

    /// A machine with another window has this vNIC, and has counted nothing.
    pub(crate) fn begin(&mut self, vnic: VnicId, window: FileId) {
        self.0.insert(vnic, Totals { window: Some(window), ..Totals::default() });
    }

    /// A queue pair has gone whose slot had these words.
    pub(crate) fn add(&mut self, vnic: VnicId, slot: &Slot) {
        let totals = self.0.entry(vnic).or_default();
        for (total, word) in totals.words.iter_mut().zip(slot) {
            *total = total.wrapping_add(*word);
        }
    }

    /// A call of a process of this vNIC was refused.
    pub(crate) fn refuse(&mut self, vnic: VnicId, errno: Errno) {
        let refused = &mut self.0.entry(vnic).or_default().refused;
        // Errors without a name are counted together, so there are as many as names.
        let errno = if errno.name().is_some() { errno } else { Errno::EIO };
        let count = refused.entry(errno).or_default();
        *count = count.saturating_add(1);
    }

    /// Calls of processes of this vNIC that were refused, by the names of errors.
    pub(crate) fn refused(&self, vnic: VnicId) -> Value {
        let refused = self.0.get(&vnic).into_iter().flat_map(|totals| &totals.refused);
        let row = refused.map(|(errno, count)| (errno.to_string(), json!(count)));
        Value::Object(row.collect())
    }

    /// Drops the counters of a vNIC that is gone.
    pub(crate) fn forget(&mut self, vnic: VnicId) {
        self.0.remove(&vnic);
    }

    /// For people and tools, by the names that queue pairs' counters have in the status. `ended`:
    /// of links that have.
    pub(crate) fn row(&self, vnic: VnicId, ended: &QpCounters) -> Value {
        let mut row = row(&self.0.get(&vnic).map(|totals| totals.words).unwrap_or_default());
        row["packets"] = packets(ended);
        row
    }
}

/// A slot as JSON, or the sum of some. (The words: docs/architecture.md.)
pub(crate) fn row(slot: &Slot) -> Value {
    let [_, sends, bytes_sent, receives, bytes_received, mapped, mediated, others_sent, ..] = *slot;
    let [others_received, waits, heard, said, exceeded, rnr_exceeded, ..] = slot[8..] else {
        return Value::Null;
    };
    json!({
        "messages_sent": sends.wrapping_add(others_sent),
        "bytes_sent": bytes_sent,
        "messages_received": receives.wrapping_add(others_received),
        "bytes_received": bytes_received,
        "operations_mapped": mapped,
        "operations_mediated": mediated,
        "receiver_not_ready": waits,
        "sends": sends,
        "receives": receives,
        "not_ready_heard": heard,
        "not_ready_said": said,
        "retries_exceeded": exceeded,
        "rnr_retries_exceeded": rnr_exceeded,
    })
}

/// The engine's counters of one link, or of several together, as JSON.
pub(crate) fn packets(counters: &QpCounters) -> Value {
    json!({
        "sent": counters.sent_packets,
        "received": counters.received_packets,
        "resent": counters.resent_packets,
        "duplicates": counters.duplicate_packets,
        "unsent": counters.unsent_packets,
        "out_of_order": counters.out_of_order,
        "not_ready_heard": counters.not_ready_heard,
        "not_ready_said": counters.not_ready_said,
        "gaps_heard": counters.gaps_heard,
        "retries": counters.retries,
        "executed": counters.mapped_operations,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_calls_are_counted_by_error() {
        let mut counted = Counters::default();
        for errno in [Errno::ENOMEM, Errno(3), Errno::ENOMEM, Errno(1 << 30)] {
            counted.refuse(VnicId(3), errno);
        }
        assert_eq!(counted.refused(VnicId(3)), json!({ "ENOMEM": 2, "EIO": 2 }));
        counted.forget(VnicId(3));
        assert_eq!(counted.refused(VnicId(3)), json!({}));
    }

    #[test]
    fn counters_of_ended_queue_pairs_last_as_long_as_their_vnic() {
        let mut counted = Counters::default();
        counted.add(VnicId(3), &[99, 1, 10, 2, 20, 0, 0, 7, 3, 1, 4, 5, 6, 7, 8, 9]);
        counted.add(VnicId(3), &[98, u64::MAX, 10, 2, 20, 5, 5, 0, 0, 1, 0, 0, 0, 1, 0, 0]);
        counted.add(VnicId(4), &[5; STATISTICS_WORDS]);
        let packets = QpCounters { sent_packets: 8, resent_packets: 2, ..QpCounters::default() };
        let none = QpCounters::default();
        let row = counted.row(VnicId(3), &packets);
        assert_eq!((&row["packets"]["sent"], &row["packets"]["resent"]), (&json!(8), &json!(2)));
        assert_eq!((&row["messages_sent"], &row["sends"]), (&json!(7), &json!(0)));
        assert_eq!((&row["messages_received"], &row["receives"]), (&json!(7), &json!(4)));
        assert_eq!((&row["bytes_sent"], &row["bytes_received"]), (&json!(20), &json!(40)));
        assert_eq!((&row["receiver_not_ready"], &row["not_ready_heard"]), (&json!(2), &json!(4)));
        assert_eq!((&row["not_ready_said"], &row["retries_exceeded"]), (&json!(5), &json!(6)));
        assert_eq!(row["rnr_retries_exceeded"], json!(8));
        counted.forget(VnicId(3));
        assert_eq!(counted.row(VnicId(3), &none)["bytes_received"], 0);
        assert_eq!(counted.row(VnicId(4), &none)["messages_sent"], 10);
    }
}
