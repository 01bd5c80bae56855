//! Keeps XRC domains (annex A14): which shared receive queues a peer may name, and by which
//! numbers.
//!
//! A queue pair that receives in a domain has neither receives nor a completion queue nor a
//! protection domain of its own: it has those of the SRQ that each request names. So what peers can
//! reach through it is what was made in its domain, and nothing else.

use crate::qp::Qp;
use crate::shared_receive_queue::Srq;
use crate::spin_lock::lock;
use omniverb_terms::Qpn;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

/// SRQs of a domain at most. Numbers are 24 bits on the wire (XRCETH), of which these are the lower
/// ones; zero among them is not given out.
pub const DOMAIN_SRQS: u32 = 0xfff;
/// Processes that may have parts of one domain at most: they share the upper bits.
pub const DOMAIN_PARTS: u32 = 0x1000;

#[derive(Default)]
struct Inner {
    /// They have the domain, and it names them only.
    srqs: HashMap<u32, Weak<Srq>>,
    /// Lower bits of the number that was given out last.
    last: u32,
    /// Queue pairs that receive in it, by number.
    qps: HashMap<Qpn, Weak<Qp>>,
}

/// An XRC domain, or the part of one that this process has.
#[derive(Default)]
pub struct Domain {
    /// The upper bits of its numbers.
    part: u32,
    /// Other processes may have the other parts.
    is_shared: bool,
    inner: Mutex<Inner>,
}

impl Domain {
    /// One without anything in it.
    #[must_use]
    pub fn new() -> Arc<Domain> {
        Arc::default()
    }

    /// A part of one that other processes have parts of: no two have the same number, which is less
    /// than [`DOMAIN_PARTS`].
    #[must_use]
    pub fn part(number: u32) -> Arc<Domain> {
        let part = (number % DOMAIN_PARTS) * (DOMAIN_SRQS + 1);
        Arc::new(Domain { part, is_shared: true, ..Domain::default() })
    }

    /// The part that the number of an SRQ is in.
    pub fn part_of(number: u32) -> u32 {
        number / (DOMAIN_SRQS + 1)
    }

    /// Whether a number may be that of an SRQ in another part.
    pub fn is_elsewhere(&self, number: u32) -> bool {
        let (part, last) = (Domain::part_of(number), number & DOMAIN_SRQS);
        let other = part != Domain::part_of(self.part) && part < DOMAIN_PARTS;
        self.is_shared && other && last != 0
    }

    /// Whether SRQs or queue pairs are in it.
    pub fn is_busy(&self) -> bool {
        let inner = lock(&self.inner);
        !inner.srqs.is_empty() || inner.qps.values().any(|qp| qp.strong_count() > 0)
    }

    /// Gives an SRQ a number. `None`: there is none left.
    pub(crate) fn add_srq(&self, make: impl FnOnce(u32) -> Arc<Srq>) -> Option<Arc<Srq>> {
        let mut inner = lock(&self.inner);
        if inner.srqs.len() >= DOMAIN_SRQS as usize {
            return None;
        }
        // One that has just gone is not given again at once: a peer may have it still.
        let mut last = inner.last;
        let number = loop {
            last = if last >= DOMAIN_SRQS { 1 } else { last + 1 };
            let number = self.part | last;
            if !inner.srqs.contains_key(&number) {
                break number;
            }
        };
        inner.last = last;
        let srq = make(number);
        inner.srqs.insert(number, Arc::downgrade(&srq));
        Some(srq)
    }

    /// The SRQ of a number that the peer of this queue pair named. It is told of the queue pair.
    pub(crate) fn srq_for(&self, qp: &Qp, number: u32) -> Option<Arc<Srq>> {
        let inner = lock(&self.inner);
        let srq = inner.srqs.get(&number)?.upgrade()?;
        srq.add_holder(qp);
        Some(srq)
    }

    /// Takes an SRQ out. When this returns no thread uses it any more.
    pub(crate) fn remove_srq(&self, srq: &Srq, number: u32) {
        lock(&self.inner).srqs.remove(&number);
        srq.take_holders().iter().filter_map(Weak::upgrade).for_each(|qp| qp.forget_srq(srq));
    }

    /// A queue pair receives in it.
    pub(crate) fn add_qp(&self, qp: &Arc<Qp>) {
        lock(&self.inner).qps.insert(qp.number, Arc::downgrade(qp));
    }

    /// A queue pair does no longer.
    pub(crate) fn remove_qp(&self, qp: &Qp) {
        let mut inner = lock(&self.inner);
        if inner.qps.get(&qp.number).is_some_and(|other| std::ptr::eq(other.as_ptr(), qp)) {
            inner.qps.remove(&qp.number);
        }
    }

    /// The queue pair of this number that receives in it.
    pub fn qp(&self, number: Qpn) -> Option<Arc<Qp>> {
        lock(&self.inner).qps.get(&number).and_then(Weak::upgrade)
    }
}
