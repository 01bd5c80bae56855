//! What belongs to one vNIC: its sockets, its limit, packets that came too early, its capture.

use crate::network::early::Waiting;
use crate::network::faults::BadLine;
use crate::network::port::Sockets;
use crate::pacing::bucket::{Bucket, Limit};
use crate::pages::budget::Budget;
use crate::queue_pair::backlog::Allowance;
use crate::recorder::intake::Tap;
use omniverb_terms::Qpn;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Bytes that Ethernet, IP and UDP put around a packet.
pub(crate) const fn framing(six: bool) -> u64 {
    14 + if six { 40 } else { 20 } + 8
}

/// Handshakes and strangers that are passed on per second, and at once.
const ALARMS: Limit = Limit { bits_per_second: 2000 * 8, burst_bytes: 200 };
/// A stranger is told of again after this time, in nanoseconds.
const STRANGER_AGAIN: u64 = 100_000_000;
/// Strangers remembered.
const STRANGERS_MAX: usize = 1024;
/// How long a vNIC that has used up its limit waits at least, in nanoseconds: then it has earned
/// several packets, which are sent in one go.
const QUANTUM: u64 = 1_000_000;
/// What may be spent on telling peers that answers wait for a limit: a part of the limit itself, so
/// that whatever they do most of it is left for the answers; and bytes at once.
const NOTICES: (u64, u64) = (8, 512);

/// A datagram's QP, where it came from, and from which QP.
pub(crate) type Stranger = (Qpn, IpAddr, Qpn);

/// A limit, what is left of it, and what is left for notices.
struct Limited {
    bucket: Bucket,
    notices: Bucket,
}

/// What a limit leaves for notices.
fn notices(limit: Limit) -> Limit {
    Limit { bits_per_second: limit.bits_per_second / NOTICES.0, burst_bytes: NOTICES.1 }
}

/// One vNIC.
pub(crate) struct Vnic {
    pub(crate) sockets: Arc<Sockets>,
    limit: Option<Limited>,
    /// Links that wait for the limit.
    pub(crate) parked: Vec<usize>,
    /// When they may go on.
    pub(crate) armed: Option<u64>,
    pub(crate) early: Waiting,
    /// What its links keep for slow applications.
    pub(crate) allowance: Allowance,
    /// What they have mapped.
    pub(crate) budget: Budget,
    pub(crate) tap: Tap,
    /// What its packets meet before they arrive, if the network is to seem bad.
    pub(crate) bad_line: Option<Box<BadLine>>,
    alarms: Bucket,
    strangers: HashMap<Stranger, u64>,
}

impl Vnic {
    pub(crate) fn new(sockets: Sockets, budget: Budget, now: u64) -> Vnic {
        Vnic {
            sockets: Arc::new(sockets),
            limit: None,
            parked: Vec::new(),
            armed: None,
            early: Waiting::default(),
            allowance: Allowance::default(),
            budget,
            tap: Tap::default(),
            bad_line: None,
            alarms: Bucket::new(ALARMS, now),
            strangers: HashMap::new(),
        }
    }

    /// Another limit, or none.
    pub(crate) fn set_limit(&mut self, limit: Option<Limit>, now: u64) {
        match (limit, &mut self.limit) {
            (Some(limit), Some(limited)) => {
                limited.bucket.change(limit, now);
                limited.notices.change(notices(limit), now);
            }
            (limit, held) => {
                *held = limit.map(|limit| Limited {
                    bucket: Bucket::new(limit, now),
                    notices: Bucket::new(notices(limit), now),
                });
            }
        }
    }

    /// Whether anything limits what it sends.
    pub(crate) fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// Whether something may be sent; if not, when it may again.
    pub(crate) fn may_send(&mut self, now: u64) -> Result<(), u64> {
        match &mut self.limit {
            None => Ok(()),
            Some(limited) => limited.bucket.ready(now).map_err(|at| at.max(now + QUANTUM)),
        }
    }

    /// Whether a peer may be told that answers wait. That counts as sent as well, on account.
    pub(crate) fn may_notice(&mut self, now: u64) -> bool {
        self.limit.as_mut().is_some_and(|limited| limited.notices.ready(now).is_ok())
    }

    /// A notice of so many bytes was sent.
    pub(crate) fn noticed(&mut self, bytes: u64) {
        if let Some(limited) = &mut self.limit {
            limited.notices.take(bytes);
            limited.bucket.take(bytes);
        }
    }

    /// So many bytes were sent.
    pub(crate) fn sent(&mut self, bytes: u64) {
        if let Some(limited) = &mut self.limit {
            limited.bucket.take(bytes);
        }
    }

    /// Whether the control plane may be bothered once more.
    pub(crate) fn may_tell(&mut self, now: u64) -> bool {
        let may = self.alarms.ready(now).is_ok();
        if may {
            self.alarms.take(1);
        }
        may
    }

    /// Whether a stranger is to be told of: not again and again.
    pub(crate) fn is_news(&mut self, stranger: Stranger, now: u64) -> bool {
        if self.strangers.len() >= STRANGERS_MAX {
            self.strangers.retain(|_, told| now.saturating_sub(*told) < STRANGER_AGAIN);
        }
        let told = self.strangers.get(&stranger);
        let news = told.is_none_or(|told| now.saturating_sub(*told) >= STRANGER_AGAIN)
            && self.strangers.len() < STRANGERS_MAX
            && self.may_tell(now);
        if news {
            self.strangers.insert(stranger, now);
        }
        news
    }
}
