//! Decides whether two sockets are the ends of one connection, by what the kernel counts.
//!
//! Within a network namespace names and cookies say so: the kernel gives no names twice there. In
//! two namespaces both sockets may have such names by chance, or because a process between them has
//! their names. No number of a connection's own is shown at both ends (the sequences need the right
//! to administrate the network). But what one end has sent the other one has received, the same
//! number of bytes and at the same time, and windows are scaled as both have agreed.

use omniverb_sys::tcp_connection_state::TcpTraffic;

/// How much later than it was sent something may come, beside the round trip, in milliseconds: the
/// kernel counts in ticks, and may do other things first.
const LATE: u32 = 100;
/// `TCPI_OPT_TIMESTAMPS`, `_SACK`, `_WSCALE`, `_ECN`: what both ends have, or none.
const AGREED_OPTIONS: u8 = 15;

/// Whether the ends of one connection can look so: one of them before and after the other.
pub(crate) fn is_same_connection(one: [&TcpTraffic; 2], other: &TcpTraffic) -> bool {
    let [before, after] = one;
    let is_agreed = before.options & AGREED_OPTIONS == other.options & AGREED_OPTIONS
        && before.scales == [other.scales[1], other.scales[0]];
    // Of what the connecting end has had acknowledged one is no byte.
    let is_counted = other.received <= after.sent
        && before.acknowledged <= other.received + 1
        && before.received <= other.sent
        && other.acknowledged <= after.received + 1;
    let late = LATE.saturating_add(before.round_trip.max(other.round_trip) / 1000);
    let is_near = |one: u32, other: u32| one.abs_diff(other) <= late;
    let is_timely = [before, after].into_iter().any(|one| {
        is_near(one.sent_ago, other.received_ago) && is_near(one.received_ago, other.sent_ago)
    });
    is_agreed && is_counted && is_timely
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> (TcpTraffic, TcpTraffic) {
        let one = TcpTraffic {
            sent: 1000,
            acknowledged: 1001,
            received: 77,
            sent_ago: 300,
            received_ago: 100,
            round_trip: 40,
            options: 7,
            scales: [7, 10],
        };
        let other = TcpTraffic {
            sent: 77,
            acknowledged: 77,
            received: 1000,
            sent_ago: 101,
            received_ago: 304,
            scales: [10, 7],
            ..one
        };
        (one, other)
    }

    #[test]
    fn ends_of_one_connection_fit() {
        let (one, other) = ends();
        assert!(
            is_same_connection([&one, &one], &other) && is_same_connection([&other, &other], &one)
        );
        // More was sent meanwhile.
        let after = TcpTraffic { sent: 2000, sent_ago: 0, ..one };
        let between = TcpTraffic { received: 1500, received_ago: 0, ..other };
        assert!(is_same_connection([&one, &after], &between));
    }

    #[test]
    fn ends_of_two_do_not() {
        let (one, other) = ends();
        let unlike = |change: fn(&mut TcpTraffic)| {
            let mut changed = other;
            change(&mut changed);
            assert!(!is_same_connection([&one, &one], &changed), "{changed:?}");
        };
        unlike(|other| other.received += 1);
        unlike(|other| other.received = 999);
        unlike(|other| other.sent = 76);
        unlike(|other| other.acknowledged = 79);
        unlike(|other| other.options = 3);
        unlike(|other| other.scales = [7, 10]);
        unlike(|other| other.received_ago = 700);
        unlike(|other| other.sent_ago = 5000);
    }
}
