//! Reads counters of queue pairs, and sums of ended ones, from the daemon's rows.
//!
//! What a process says of its queue pairs may be any number, so sums wrap.

use serde_json::Value;

/// The counters of a queue pair, or of all that have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Bytes of messages sent.
    BytesSent,
    /// Bytes of messages received.
    BytesReceived,
    /// Messages that its process sent.
    MessagesSent,
    /// Messages that its process received.
    MessagesReceived,
    /// Packets that the engine sent.
    PacketsSent,
    /// Packets that the engine received.
    PacketsReceived,
    /// Operations on the target's pages.
    Mapped,
    /// Operations by the target.
    Mediated,
    /// Packets sent again.
    Resent,
    /// Packets that arrived again.
    Duplicates,
    /// Packets that could not be sent.
    Unsent,
    /// Gaps before requests of peers.
    OutOfOrder,
    /// RNR NAKs received.
    NotReady,
    /// NAKs received for gaps in what was sent.
    Gaps,
    /// Times that no answer came in time.
    Retries,
    /// Errors after too many retries.
    RetriesExceeded,
    /// Errors after too many RNR NAKs.
    RnrRetriesExceeded,
}

/// Values of all counters, in the order of [`Counter`].
pub type Counts = [u64; Counter::RnrRetriesExceeded as usize + 1];

/// Adds counts to sums.
pub fn add_wrapping(sums: &mut Counts, more: &Counts) {
    for (sum, more) in sums.iter_mut().zip(more) {
        *sum = sum.wrapping_add(*more);
    }
}

/// The counts of a queue pair, or of all that have ended.
#[must_use]
pub fn counts(row: &Value) -> Counts {
    let mut counts = packets(&row["packets"]);
    for (counter, key) in [
        (Counter::BytesSent, "bytes_sent"),
        (Counter::BytesReceived, "bytes_received"),
        (Counter::MessagesSent, "messages_sent"),
        (Counter::MessagesReceived, "messages_received"),
        (Counter::Mapped, "operations_mapped"),
        (Counter::Mediated, "operations_mediated"),
        (Counter::RetriesExceeded, "retries_exceeded"),
        (Counter::RnrRetriesExceeded, "rnr_retries_exceeded"),
    ] {
        counts[counter as usize] = number(row, key);
    }
    counts
}

/// What the engine has counted of a queue pair's packets, with all peers or one.
#[must_use]
pub fn packets(row: &Value) -> Counts {
    let mut counts = Counts::default();
    for (counter, key) in [
        (Counter::PacketsSent, "sent"),
        (Counter::PacketsReceived, "received"),
        (Counter::Resent, "resent"),
        (Counter::Duplicates, "duplicates"),
        (Counter::Unsent, "unsent"),
        (Counter::OutOfOrder, "out_of_order"),
        (Counter::NotReady, "not_ready_heard"),
        (Counter::Gaps, "gaps_heard"),
        (Counter::Retries, "retries"),
    ] {
        counts[counter as usize] = number(row, key);
    }
    counts
}

/// A number of a row; zero if there is none.
#[must_use]
pub fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_missing_is_zero_and_sums_wrap() {
        let row = json!({ "bytes_sent": 5, "operations_mapped": u64::MAX, "messages_sent": "x",
            "packets": { "sent": 3, "resent": 2 } });
        let mut sums = counts(&row);
        assert_eq!(sums[Counter::BytesSent as usize], 5);
        assert_eq!(sums[Counter::Resent as usize], 2);
        assert_eq!(sums[Counter::MessagesSent as usize], 0);
        add_wrapping(&mut sums, &counts(&row));
        assert_eq!(sums[Counter::PacketsSent as usize], 6);
        assert_eq!(sums[Counter::Mapped as usize], u64::MAX - 1);
        assert_eq!(counts(&Value::Null), Counts::default());
    }
}
