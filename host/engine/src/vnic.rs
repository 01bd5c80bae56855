//! What belongs to one vNIC: its sockets, its limit, packets that came too early, its capture.

use crate::backlog::Allowance;
use crate::bucket::{Bucket, Limit};
use crate::budget::Budget;
use crate::capture::Tap;
use crate::early::Waiting;
use crate::faults::BadLine;
use crate::port::Sockets;
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

/// A datagram's QP, where it came from, and from which QP.
pub(crate) type Stranger = (u32, IpAddr, u32);

/// One vNIC.
pub(crate) struct Vnic {
    pub(crate) sockets: Arc<Sockets>,
    limit: Option<(Limit, Bucket)>,
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
            (Some(limit), Some((old, bucket))) => {
                bucket.change(limit, now);
                *old = limit;
            }
            (limit, held) => *held = limit.map(|limit| (limit, Bucket::new(limit, now))),
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
            Some((_, bucket)) => bucket.ready(now).map_err(|at| at.max(now + QUANTUM)),
        }
    }

    /// So many bytes were sent.
    pub(crate) fn sent(&mut self, bytes: u64) {
        if let Some((_, bucket)) = &mut self.limit {
            bucket.take(bytes);
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
