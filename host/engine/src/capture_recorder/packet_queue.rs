//! Queues copies of a vNIC's packets for the recorder.
//!
//! Neither waits for the other.

use omniverb_datapath::memory_accounts::{Room, RoomPart};
use omniverb_sys::clock;
use omniverb_sys::lock;
use omniverb_wire::{IcrcFlow, Identification};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Budget: addresses of a vNIC that are remembered: more than it has GIDs.
const ADDRESSES_MAX: usize = 64;
/// Budget: bytes of one capture that may wait to be written down.
const BYTES_MAX: usize = 64 << 20;

/// A packet that the engine sent or received.
pub(crate) struct CapturedPacket {
    pub(crate) time: u64,
    pub(crate) flow: IcrcFlow,
    pub(crate) identification: Identification,
    pub(crate) traffic_class: u8,
    /// Its beginning, as much of it as the capture wants.
    pub(crate) bytes: Box<[u8]>,
    /// Bytes that all of it had, ICRC included.
    pub(crate) length: usize,
    /// Of the room for what waits.
    _part: RoomPart,
}

/// Room for what waits of all captures; none has more than is left for others.
pub(crate) struct CaptureRoom(Room);

impl CaptureRoom {
    pub(crate) fn new(bytes: usize) -> CaptureRoom {
        CaptureRoom(Room::new(bytes))
    }
}

/// Packets that wait to be written down, and how many were dropped for want of room.
#[derive(Default)]
pub(crate) struct Queued {
    pub(crate) list: Vec<CapturedPacket>,
    pub(crate) dropped: u64,
}

/// Where the engine leaves the packets of one vNIC.
pub struct PacketQueue {
    queued: Mutex<Queued>,
    snap_bytes: usize,
    open: AtomicBool,
    room: Room,
}

impl std::fmt::Debug for PacketQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketQueue").field("snap_bytes", &self.snap_bytes).finish_non_exhaustive()
    }
}

impl PacketQueue {
    pub(crate) fn new(snap_bytes: usize, CaptureRoom(all): &CaptureRoom) -> PacketQueue {
        let (open, room) = (AtomicBool::new(true), all.share(BYTES_MAX));
        PacketQueue { queued: Mutex::default(), snap_bytes, open, room }
    }

    /// Everything that came since.
    pub(crate) fn take(&self) -> Queued {
        std::mem::take(&mut *lock(&self.queued))
    }

    /// Nothing is wanted any more.
    pub(crate) fn close(&self) {
        self.open.store(false, Ordering::Relaxed);
    }
}

/// A vNIC's end, at the packet threads: packets go to the queue of its capture, if there is one.
#[derive(Default)]
pub(crate) struct CaptureSender {
    queue: Option<Arc<PacketQueue>>,
    /// From here packets left, copied, that may arrive at the same vNIC.
    sources: Vec<IpAddr>,
}

impl CaptureSender {
    /// Leaves copies there from now on; `None`: no longer.
    pub(crate) fn set(&mut self, queue: Option<Arc<PacketQueue>>) {
        self.queue = queue;
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
        self.queue.as_ref().is_some_and(|queue| queue.open.load(Ordering::Relaxed))
    }

    /// Takes a copy of one packet, ICRC included.
    pub(crate) fn add(
        &mut self,
        flow: &IcrcFlow,
        identification: Identification,
        traffic_class: u8,
        datagram: &[u8],
    ) {
        let Some(queue) = &self.queue else { return };
        let kept = datagram.len().min(queue.snap_bytes);
        // The list has up to twice the places that it needs.
        let needed = kept + 2 * size_of::<CapturedPacket>();
        let Some(_part) = queue.room.part(needed) else {
            lock(&queue.queued).dropped += 1;
            return;
        };
        let packet = CapturedPacket {
            time: clock::now(),
            flow: *flow,
            identification,
            traffic_class,
            bytes: datagram[..kept].into(),
            length: datagram.len(),
            _part,
        };
        lock(&queue.queued).list.push(packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_a_vnic_to_itself_are_recognized() {
        let mut sender = CaptureSender::default();
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        sender.has_sent(one);
        assert!(!sender.has_from(one), "it was not copied");
        sender.set(Some(Arc::new(PacketQueue::new(100, &CaptureRoom::new(2 * BYTES_MAX)))));
        sender.has_sent(one);
        assert!(sender.has_from(one) && !sender.has_from(other));
        sender.set(None);
        assert!(!sender.has_from(one));
    }

    #[test]
    fn packets_that_do_not_fit_are_counted() {
        let queue = Arc::new(PacketQueue::new(100, &CaptureRoom::new(2 * BYTES_MAX)));
        let mut sender = CaptureSender::default();
        assert!(!sender.is_on());
        sender.set(Some(queue.clone()));
        let address = "10.0.0.1".parse().unwrap();
        let flow = IcrcFlow { source: address, destination: address, source_port: 1 };
        let count = BYTES_MAX / 100;
        for _ in 0..count {
            sender.add(&flow, Identification::ZERO, 0, &[7; 4000]);
        }
        let queued = queue.take();
        assert_eq!(queued.list.len() as u64 + queued.dropped, count as u64);
        assert!(queued.dropped > 0 && queued.list.len() * 100 < BYTES_MAX);
        assert_eq!((queued.list[0].bytes.len(), queued.list[0].length), (100, 4000));
        assert!(queue.take().list.is_empty());
        queue.close();
        assert!(!sender.is_on());
    }
}
