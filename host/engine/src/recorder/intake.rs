//! A vNIC's packets on their way to a capture file: the engine leaves copies here, a thread of its
//! own ([`crate::recorder`]) writes them down. Neither waits for the other.

use omniverb_sys::clock;
use omniverb_sys::lock;
use omniverb_wire::{Flow, Identification};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Addresses of a vNIC that are remembered: more than it has GIDs.
const ADDRESSES_MAX: usize = 64;
/// Bytes that may wait to be written down.
const BYTES_MAX: usize = 64 << 20;

/// A packet that the engine sent or received.
pub(crate) struct Copy {
    pub(crate) time: u64,
    pub(crate) flow: Flow,
    pub(crate) identification: Identification,
    pub(crate) traffic_class: u8,
    /// Its beginning, as much of it as the capture wants.
    pub(crate) bytes: Box<[u8]>,
    /// Bytes that all of it had, ICRC included.
    pub(crate) length: usize,
}

/// What waits.
#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) list: Vec<Copy>,
    bytes: usize,
    pub(crate) dropped: u64,
}

/// Where the engine leaves the packets of one vNIC.
pub struct Intake {
    queue: Mutex<Queue>,
    snap_bytes: usize,
    open: AtomicBool,
}

impl std::fmt::Debug for Intake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Intake").field("snap_bytes", &self.snap_bytes).finish_non_exhaustive()
    }
}

impl Intake {
    pub(crate) fn new(snap_bytes: usize) -> Intake {
        Intake { queue: Mutex::default(), snap_bytes, open: AtomicBool::new(true) }
    }

    /// Everything that came since.
    pub(crate) fn take(&self) -> Queue {
        std::mem::take(&mut *lock(&self.queue))
    }

    /// Nothing is wanted any more.
    pub(crate) fn close(&self) {
        self.open.store(false, Ordering::Relaxed);
    }
}

/// The engine's end: open, or not.
#[derive(Default)]
pub(crate) struct Tap {
    intake: Option<Arc<Intake>>,
    /// From here packets left, copied, that may arrive at the same vNIC.
    sources: Vec<IpAddr>,
}

impl Tap {
    /// Leaves copies there from now on; `None`: no longer.
    pub(crate) fn set(&mut self, intake: Option<Arc<Intake>>) {
        self.intake = intake;
        self.sources.clear();
    }

    /// Packets from this address, which have been copied, leave for another vNIC of the host, or
    /// the same.
    pub(crate) fn has_sent(&mut self, from: IpAddr) {
        if self.is_on() && !self.sources.contains(&from) && self.sources.len() < ADDRESSES_MAX {
            self.sources.push(from);
        }
    }

    /// Whether what arrives from this address was copied when it left.
    pub(crate) fn has_from(&self, address: IpAddr) -> bool {
        self.sources.contains(&address)
    }

    pub(crate) fn is_on(&self) -> bool {
        self.intake.as_ref().is_some_and(|intake| intake.open.load(Ordering::Relaxed))
    }

    /// Takes a copy of one packet, ICRC included.
    pub(crate) fn add(
        &mut self,
        flow: &Flow,
        identification: Identification,
        traffic_class: u8,
        datagram: &[u8],
    ) {
        let Some(intake) = &self.intake else { return };
        let kept = datagram.len().min(intake.snap_bytes);
        let copy = Copy {
            time: clock::now(),
            flow: *flow,
            identification,
            traffic_class,
            bytes: datagram[..kept].into(),
            length: datagram.len(),
        };
        let mut queue = lock(&intake.queue);
        let needed = kept + size_of::<Copy>();
        if queue.bytes + needed > BYTES_MAX {
            queue.dropped += 1;
        } else {
            queue.bytes += needed;
            queue.list.push(copy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_vnic_sends_itself_is_known() {
        let mut tap = Tap::default();
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        tap.has_sent(one);
        assert!(!tap.has_from(one), "nobody copied it");
        tap.set(Some(Arc::new(Intake::new(100))));
        tap.has_sent(one);
        assert!(tap.has_from(one) && !tap.has_from(other));
        tap.set(None);
        assert!(!tap.has_from(one));
    }

    #[test]
    fn what_does_not_fit_is_counted_and_memory_bounded() {
        let intake = Arc::new(Intake::new(100));
        let mut tap = Tap::default();
        assert!(!tap.is_on());
        tap.set(Some(intake.clone()));
        let address = "10.0.0.1".parse().unwrap();
        let flow = Flow { source: address, destination: address, source_port: 1 };
        let count = BYTES_MAX / 100;
        for _ in 0..count {
            tap.add(&flow, Identification::ZERO, 0, &[7; 4000]);
        }
        let queue = intake.take();
        assert_eq!(queue.list.len() as u64 + queue.dropped, count as u64);
        assert!(queue.dropped > 0 && queue.list.len() * 100 < BYTES_MAX);
        assert_eq!((queue.list[0].bytes.len(), queue.list[0].length), (100, 4000));
        assert!(intake.take().list.is_empty());
        intake.close();
        assert!(!tap.is_on());
    }
}
