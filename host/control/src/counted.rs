//! What the queue pairs of each vNIC have counted that are no more: a device's counters do not go
//! back when a program ends.
//!
//! The words are the programs' own, and so is what comes of them: they are shown, nothing else.
//! Packets are what the engine has counted of links that have ended.

use crate::engine::QpCounters;
use omniverb_tenancy::VnicId;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Words of a statistics slot behind the first, which says whose it is.
const WORDS: usize = 7;

/// By vNIC, for as long as that is remembered.
#[derive(Debug, Default)]
pub(crate) struct Counted(BTreeMap<VnicId, [u64; WORDS]>);

impl Counted {
    /// A queue pair has gone whose slot had these words.
    pub(crate) fn add(&mut self, vnic: VnicId, slot: &[u64; 8]) {
        let totals = self.0.entry(vnic).or_default();
        for (total, word) in totals.iter_mut().zip(&slot[1..]) {
            *total = total.wrapping_add(*word);
        }
    }

    /// Nobody will ask for this one any more.
    pub(crate) fn forget(&mut self, vnic: VnicId) {
        self.0.remove(&vnic);
    }

    /// For people and tools, by the names that queue pairs' counters have in the status. `packets`:
    /// of links that have ended.
    pub(crate) fn row(&self, vnic: VnicId, packets: &QpCounters) -> Value {
        let words = self.0.get(&vnic).copied().unwrap_or_default();
        let [messages_sent, bytes_sent, messages_received, bytes_received, ..] = words;
        json!({
            "messages_sent": messages_sent,
            "bytes_sent": bytes_sent,
            "messages_received": messages_received,
            "bytes_received": bytes_received,
            "receiver_not_ready": words[6],
            "packets": {
                "sent": packets.sent_packets,
                "received": packets.received_packets,
                "resent": packets.resent_packets,
                "duplicates": packets.duplicate_packets,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_stays_counted_until_the_vnic_is_forgotten() {
        let mut counted = Counted::default();
        counted.add(VnicId(3), &[99, 1, 10, 2, 20, 0, 0, 7]);
        counted.add(VnicId(3), &[98, u64::MAX, 10, 2, 20, 5, 5, 0]);
        counted.add(VnicId(4), &[0, 5, 5, 5, 5, 5, 5, 5]);
        let packets = QpCounters { sent_packets: 8, resent_packets: 2, ..QpCounters::default() };
        let none = QpCounters::default();
        let row = counted.row(VnicId(3), &packets);
        assert_eq!((&row["packets"]["sent"], &row["packets"]["resent"]), (&json!(8), &json!(2)));
        assert_eq!((&row["messages_sent"], &row["bytes_sent"]), (&json!(0), &json!(20)));
        assert_eq!((&row["bytes_received"], &row["receiver_not_ready"]), (&json!(40), &json!(7)));
        counted.forget(VnicId(3));
        assert_eq!(counted.row(VnicId(3), &none)["bytes_received"], 0);
        assert_eq!(counted.row(VnicId(4), &none)["messages_sent"], 5);
    }
}
