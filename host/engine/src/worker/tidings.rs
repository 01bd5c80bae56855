//! What of one vNIC the control plane is told: what strangers send is theirs to choose, so it is
//! bounded.

use crate::pacing::bucket::{Bucket, Limit};
use omniverb_terms::Qpn;
use std::collections::HashMap;
use std::net::IpAddr;

/// Handshakes and strangers that are passed on per second, and at once.
const ALARMS: Limit = Limit { bits_per_second: 2000 * 8, burst_bytes: 200 };
/// Management datagrams that are passed on per second, and at once: some for each connection that
/// begins or ends. All that are left out come again, and a flood at one vNIC must leave room for
/// the events of all others (`EVENTS_MAX`).
const MANAGEMENT: Limit = Limit { bits_per_second: 5000 * 8, burst_bytes: 256 };
/// A stranger is told of again after this time, in nanoseconds.
const STRANGER_AGAIN: u64 = 100_000_000;
/// Strangers remembered.
const STRANGERS_MAX: usize = 1024;

/// A datagram's QP, where it came from, and from which QP.
pub(super) type Stranger = (Qpn, IpAddr, Qpn);

/// What may still be told, and what was.
pub(super) struct Tidings {
    /// A byte for each.
    left: Bucket,
    /// The same for management.
    management: Bucket,
    /// Who was told of, and when.
    strangers: HashMap<Stranger, u64>,
}

impl Tidings {
    pub(super) fn new(now: u64) -> Tidings {
        Tidings {
            left: Bucket::new(ALARMS, now),
            management: Bucket::new(MANAGEMENT, now),
            strangers: HashMap::new(),
        }
    }

    /// Whether the control plane may be bothered once more.
    pub(super) fn may_tell(&mut self, now: u64) -> bool {
        take(&mut self.left, now)
    }

    /// Whether it may be bothered with one more management datagram.
    pub(super) fn may_manage(&mut self, now: u64) -> bool {
        take(&mut self.management, now)
    }

    /// Whether a stranger is to be told of: not again and again.
    pub(super) fn is_news(&mut self, stranger: Stranger, now: u64) -> bool {
        if self.strangers.len() >= STRANGERS_MAX {
            self.strangers.retain(|_, at| now.saturating_sub(*at) < STRANGER_AGAIN);
        }
        let before = self.strangers.get(&stranger);
        let news = before.is_none_or(|at| now.saturating_sub(*at) >= STRANGER_AGAIN)
            && self.strangers.len() < STRANGERS_MAX
            && self.may_tell(now);
        if news {
            self.strangers.insert(stranger, now);
        }
        news
    }
}

/// One more, if there may be one more.
fn take(from: &mut Bucket, now: u64) -> bool {
    let may = from.ready(now).is_ok();
    if may {
        from.take(1);
    }
    may
}
